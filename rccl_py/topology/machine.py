"""The YAML format of a machine, and of a cluster of machines: schema and meaning.

Owns the keys, their types and the graph they describe. Knows nothing of routes or time. Every
error is a FormatError that opens with the file and names the key.

A machine::

    name: mi300x-8
    summary: 8 MI300X, full mesh
    device: mi300x                       # a row of rccl_py.links.DEVICES, or a mapping
    gpus: 8
    scale_up: {mesh: {link: xgmi-mi300}} # or switch: {...}, or pairs: [...]
    nics: {link: roce-400g, count: 8}

A cluster::

    name: pair
    summary: two of them
    node: mi300x-8
    nodes: 2
    network: {kind: leaf-spine, oversubscription: 2}
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ..errors import FabricError, FormatError, InvalidArgument
from ..links import DEVICES, LINKS, Device, LinkType, Triple
from ..units import parse_bandwidth, parse_time
from .build import (
    SCALE_UP,
    Network,
    Topology,
    add_gpus,
    add_link,
    add_mesh,
    add_nic,
    add_switches,
    gpus_of,
    new_graph,
)

__all__ = ["ClusterSpec", "MachineSpec", "NetworkSpec", "network_of", "topology_of"]

_ROUTES = 1 << 24  # GPUs squared times planes: 1,024 GPUs behind 16 planes

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Lanes = Annotated[float, Meta(gt=1e-6, le=1e6)]
Text = Annotated[str, Meta(pattern="^[^\x00-\x1f\x7f\ud800-\udfff]+$")]  # one printable line


class LinkSpec(Struct, forbid_unknown_fields=True):
    """A link type of the machine's own."""

    bandwidth: str
    latency: str | tuple[str, str, str]
    source: Text
    efficiency: Annotated[float, Meta(gt=1e-6, le=1)] = 1.0
    medium: Annotated[str, Meta(pattern="^(xgmi|nvlink|ualink|c2c|pci|cpu|net)$")] = "ualink"
    message: str = "0.05us"


class DeviceSpec(Struct, forbid_unknown_fields=True):
    """An accelerator of the machine's own."""

    title: Text
    launch: str
    memory: str
    source: Text
    arch: str = ""


class MeshSpec(Struct, forbid_unknown_fields=True):
    """Every pair of GPUs joined directly by `lanes` links."""

    link: Text
    lanes: Lanes = 1


class SwitchSpec(Struct, forbid_unknown_fields=True):
    """Every GPU joined to every one of `switches` planes; `lanes` a GPU over all planes."""

    link: Text
    lanes: Lanes
    hop: str
    switches: Annotated[int, Meta(ge=1, le=256)] = 1


class PairSpec(Struct, forbid_unknown_fields=True):
    """The pairs listed, each joined by `lanes` links."""

    link: Text
    pairs: list[tuple[int, int]]
    lanes: Lanes = 1


class ScaleUpSpec(Struct, forbid_unknown_fields=True):
    """One of mesh, switch, pairs."""

    mesh: MeshSpec | None = None
    switch: SwitchSpec | None = None
    pairs: list[PairSpec] | None = None


class NicSpec(Struct, forbid_unknown_fields=True):
    """`count` NICs, each behind PCIe with the GPUs of its row of `near` (default: evenly)."""

    link: Text
    count: Annotated[int, Meta(ge=1, le=4096)]
    host_link: str = "pcie5-x16"
    near: list[list[int]] | None = None


class NetworkSpec(Struct, forbid_unknown_fields=True):
    """How nodes are joined: see Network."""

    kind: Annotated[str, Meta(pattern="^(rails|leaf-spine)$")] = "rails"
    leaf_nodes: Count = 32
    oversubscription: Annotated[float, Meta(gt=1e-3, le=1e6)] = 1.0
    spine: bool = True
    hop: str = "0.6us"


class MachineSpec(Struct, forbid_unknown_fields=True):
    """A node: accelerators, their scale-up links, their NICs."""

    name: Text
    summary: Text
    gpus: Annotated[int, Meta(ge=1, le=1024)]
    device: str | DeviceSpec
    scale_up: ScaleUpSpec | None = None
    nics: NicSpec | None = None
    hosts: Count = 1
    nodes: Count = 1
    network: NetworkSpec = msgspec.field(default_factory=NetworkSpec)
    links: dict[str, LinkSpec] = msgspec.field(default_factory=dict)
    sources: list[str] = msgspec.field(default_factory=list)


class ClusterSpec(Struct, forbid_unknown_fields=True):
    """`nodes` of another machine, joined by a network."""

    name: Text
    summary: Text
    node: Text
    nodes: Count
    network: NetworkSpec | None = None
    sources: list[str] = msgspec.field(default_factory=list)


def network_of(spec: NetworkSpec, where: str) -> Network:
    """Return the Network `spec` describes."""
    return Network(
        spec.kind,
        spec.leaf_nodes,
        spec.oversubscription,
        spec.spine,
        _read(parse_time, spec.hop, f"{where}.hop"),
    )


def _read(parse: Any, text: str, key: str) -> float:
    try:
        return float(parse(text))
    except InvalidArgument as error:
        raise FormatError(f"{key}: {error}") from None


def _triple(spec: str | tuple[str, str, str], key: str) -> Triple:
    texts = (spec, spec, spec) if isinstance(spec, str) else spec
    ll, ll128, simple = (_read(parse_time, t, key) for t in texts)
    return ll, ll128, simple


def _link_table(spec: MachineSpec) -> dict[str, LinkType]:
    table = dict(LINKS)
    for name, own in spec.links.items():
        key = f"links.{name}"
        table[name] = LinkType(
            name,
            own.medium,
            _read(parse_bandwidth, own.bandwidth, f"{key}.bandwidth"),
            own.efficiency,
            _triple(own.latency, f"{key}.latency"),
            _read(parse_time, own.message, f"{key}.message"),
            own.source,
        )
        if table[name].bandwidth <= 0:
            raise FormatError(f"{key}.bandwidth: {own.bandwidth!r} is not above 0")
    return table


def _named(table: dict[str, Any], name: str, key: str, what: str) -> Any:
    if name not in table:
        raise FormatError(f"{key}: {what} {name!r} is not known: one of {', '.join(sorted(table))}")
    return table[name]


def _of_medium(table: dict[str, LinkType], name: str, key: str, media: Collection[str]) -> LinkType:
    """Return the link called `name`, which must be of one of `media`."""
    link: LinkType = _named(table, name, key, "link")
    if link.medium not in media:
        fit = ", ".join(n for n, other in sorted(table.items()) if other.medium in media)
        raise FormatError(f"{key}: {name} is {link.medium}: expected one of {fit}")
    return link


def _device(spec: MachineSpec) -> Device:
    own = spec.device
    if isinstance(own, str):
        device: Device = _named(DEVICES, own, "device", "device")
        return device
    memory = _read(parse_bandwidth, own.memory, "device.memory")
    if memory <= 0:
        raise FormatError(f"device.memory: {own.memory!r} is not above 0")
    return Device(
        spec.name,
        own.title,
        own.arch,
        _read(parse_time, own.launch, "device.launch"),
        memory,
        "",
        own.source,
    )


def _gpu(names: list[str], index: int, key: str) -> str:
    if not 0 <= index < len(names):
        raise FormatError(f"{key}: GPU {index} is not one of 0..{len(names) - 1}")
    return names[index]


def _add_scale_up(
    graph: Any, names: list[str], spec: MachineSpec, table: dict[str, LinkType]
) -> None:
    own = spec.scale_up
    if own is None:
        return
    given = [k for k in ("mesh", "switch", "pairs") if getattr(own, k) is not None]
    if len(given) != 1:
        raise FormatError(
            f"scale_up: one of mesh, switch, pairs was expected, found {given or 'none'}"
        )
    if own.mesh is not None:
        link = _of_medium(table, own.mesh.link, "scale_up.mesh.link", SCALE_UP)
        add_mesh(graph, names, link, own.mesh.lanes)
    elif own.switch is not None:
        s = own.switch
        if len(names) ** 2 * s.switches > _ROUTES:
            raise FormatError(
                f"scale_up.switch.switches: {s.switches} planes of {len(names)} GPUs are more than "
                f"{_ROUTES} routes: equal planes behave like one, so give fewer"
            )
        add_switches(
            graph,
            names,
            _of_medium(table, s.link, "scale_up.switch.link", SCALE_UP),
            s.lanes,
            s.switches,
            _read(parse_time, s.hop, "scale_up.switch.hop"),
        )
    for k, group in enumerate(own.pairs or []):
        key = f"scale_up.pairs[{k}]"
        link = _of_medium(table, group.link, f"{key}.link", SCALE_UP)
        for i, j in group.pairs:
            a, b = _gpu(names, i, f"{key}.pairs"), _gpu(names, j, f"{key}.pairs")
            if a == b:
                raise FormatError(f"{key}.pairs: GPU {i} is joined to itself")
            add_link(graph, a, b, link, group.lanes)


def _add_nics(graph: Any, names: list[str], spec: MachineSpec, table: dict[str, LinkType]) -> None:
    own = spec.nics
    if own is None:
        return
    port = _of_medium(table, own.link, "nics.link", ("net",))
    host_link = _of_medium(table, own.host_link, "nics.host_link", ("pci", "c2c"))
    near = own.near
    if near is None:
        near = [[] for _ in range(own.count)]
        for k in range(max(own.count, len(names))):
            # More NICs than GPUs: several a GPU; fewer: neighbours share one.
            nic = k if own.count >= len(names) else k * own.count // len(names)
            near[nic].append(k * len(names) // max(own.count, len(names)))
    if len(near) != own.count:
        raise FormatError(f"nics.near: {len(near)} rows, but nics.count is {own.count}")
    for q, row in enumerate(near):
        gpus = [_gpu(names, i, f"nics.near[{q}]") for i in row]
        host = int(graph.nodes[gpus[0]]["host"]) if gpus else 0
        add_nic(graph, q, port, gpus, host_link, host)


def topology_of(spec: MachineSpec, where: str) -> Topology:
    """Return the Topology a machine file describes; `where` (the file) opens every error."""
    try:
        table, graph = _link_table(spec), new_graph(spec.name)
        if spec.gpus % spec.hosts:
            raise FormatError(f"hosts: {spec.gpus} GPUs do not divide over {spec.hosts} hosts")
        add_gpus(graph, spec.gpus, spec.hosts)
        names = gpus_of(graph)
        _add_scale_up(graph, names, spec, table)
        _add_nics(graph, names, spec, table)
        network = network_of(spec.network, "network")
        return Topology(spec.name, graph, _device(spec), spec.nodes, network)
    except (FormatError, FabricError) as error:
        raise FormatError(f"{where}: {error}") from None
