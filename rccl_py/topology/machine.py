"""What a machine file means: the graph its keys describe (the keys are machine_spec's).

Knows nothing of routes or time. Every error is a FormatError that opens with the file and names
the key.

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

from dataclasses import replace
from math import prod

import networkx as nx

from ..errors import FabricError, FormatError
from ..links import LinkType
from ..units import parse_time
from .build import (
    SCALE_UP,
    Topology,
    add_gpus,
    add_host,
    add_link,
    add_mesh,
    add_nic,
    add_pcie,
    add_switches,
    add_torus,
    gpus_of,
    new_graph,
)
from .machine_spec import MachineSpec
from .machine_values import device_of, link_table, network_of, of_medium, quantity, rate_of

__all__ = ["topology_of"]

_GPUS = 1 << 14  # accelerators of one node, partitions counted
_FUNCTIONS = 1 << 14  # virtual functions of one node
_EDGES = 1 << 19  # links of one node's graph
_ROUTES = 1 << 24  # GPUs squared times planes: 1,024 GPUs behind 16 planes


def _gpu(names: list[str], index: int, key: str) -> str:
    if not 0 <= index < len(names):
        raise FormatError(f"{key}: GPU {index} is not one of 0..{len(names) - 1}")
    return names[index]


def _add_scale_up(
    graph: nx.DiGraph, names: list[str], spec: MachineSpec, table: dict[str, LinkType]
) -> None:
    own = spec.scale_up
    if own is None:
        return
    given = [k for k in ("mesh", "switch", "pairs", "torus") if getattr(own, k) is not None]
    if len(given) != 1:
        raise FormatError(
            f"scale_up: one of mesh, switch, pairs, torus was expected, found {given or 'none'}"
        )
    if own.mesh is not None:
        link = of_medium(table, own.mesh.link, "scale_up.mesh.link", SCALE_UP)
        _require_few(len(names) * (len(names) - 1), "scale_up.mesh")
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
            of_medium(table, s.link, "scale_up.switch.link", SCALE_UP),
            s.lanes,
            s.switches,
            quantity(parse_time, s.hop, "scale_up.switch.hop"),
        )
    elif own.torus is not None:
        _add_torus(graph, names, spec, table)
    for k, group in enumerate(own.pairs or []):
        key = f"scale_up.pairs[{k}]"
        link = of_medium(table, group.link, f"{key}.link", SCALE_UP)
        for i, j in group.pairs:
            a, b = _gpu(names, i, f"{key}.pairs"), _gpu(names, j, f"{key}.pairs")
            if a == b:
                raise FormatError(f"{key}.pairs: GPU {i} is joined to itself")
            add_link(graph, a, b, link, group.lanes)


def _require_few(edges: int, key: str) -> None:
    if edges > _EDGES:
        raise FormatError(
            f"{key}: {edges} links are more than {_EDGES}: give a smaller scale-up domain, and "
            "join several by a network"
        )


def _add_torus(
    graph: nx.DiGraph, names: list[str], spec: MachineSpec, table: dict[str, LinkType]
) -> None:
    own = spec.scale_up.torus if spec.scale_up is not None else None
    assert own is not None  # asked for by the caller
    if prod(own.dims) != len(names) or spec.partitions is not None:
        sizes = " x ".join(map(str, own.dims))
        raise FormatError(
            f"scale_up.torus.dims: {sizes} are {prod(own.dims)} places, but there are {len(names)} "
            "GPUs: they must be as many (and not partitioned)"
        )
    _require_few(2 * len(own.dims) * len(names), "scale_up.torus")
    link = of_medium(table, own.link, "scale_up.torus.link", SCALE_UP)
    add_torus(graph, names, own.dims, own.wrap, link, own.lanes)


def _add_partitions(
    graph: nx.DiGraph, spec: MachineSpec, table: dict[str, LinkType]
) -> tuple[list[str], list[list[str]]]:
    """Add the accelerators; return what scale-up links join, and the accelerators of each GPU.

    A GPU in partitions is a vertex of its own, which its partitions are joined to: what they send
    to each other passes through the package, and all of them share its links.
    """
    parts = spec.partitions
    each = parts.count if parts is not None else 1
    if spec.gpus * each > _GPUS:
        raise FormatError(
            f"partitions.count: {spec.gpus} GPUs of {each} are {spec.gpus * each} accelerators: at "
            f"most {_GPUS} in one node"
        )
    add_gpus(graph, spec.gpus * each, spec.hosts)
    names = gpus_of(graph)
    if parts is None:
        return names, [[name] for name in names]
    link = of_medium(table, parts.link, "partitions.link", SCALE_UP)
    packages, groups = [], []
    for k in range(spec.gpus):
        own = names[k * each : (k + 1) * each]
        graph.add_node(f"package{k}", kind="switch")
        for name in own:
            add_link(graph, name, f"package{k}", link, parts.lanes)
            graph.edges[f"package{k}", name]["latency"] = (0.0, 0.0, 0.0)
            graph.nodes[name]["package"] = k
        packages.append(f"package{k}")
        groups.append(own)
    return packages, groups


def _add_host(
    graph: nx.DiGraph, groups: list[list[str]], spec: MachineSpec, table: dict[str, LinkType]
) -> list[str]:
    """Add the PCI tree, and return the bridge or socket each GPU hangs from; none without it."""
    own = spec.host
    if own is None:
        return []
    link = of_medium(table, own.link, "host.link", ("pci", "c2c"))
    between = None
    if own.sockets > 1:
        if own.socket_link is None:
            raise FormatError(f"host.socket_link: {own.sockets} sockets need it, such as xgmi-cpu")
        between = of_medium(table, own.socket_link, "host.socket_link", ("cpu", "c2c"))
    places, count = [f"sw{k}" for k in range(own.switches)], len(groups)
    places = places or [f"cpu{k}" for k in range(own.sockets)]
    add_host(graph, link, own.sockets, between, own.switches)
    hung = [places[i * len(places) // count] for i in range(count)]
    for k, (place, names) in enumerate(zip(hung, groups)):
        below = place
        if len(names) > 1:  # the partitions of a GPU share its one PCIe link
            below = f"function{k}"
            graph.add_node(below, kind="pci", bridge=False)
            add_pcie(graph, place, below, link)
        for name in names:
            add_pcie(graph, below, name, link)
    return hung


def _near(spec: MachineSpec, gpus: int) -> list[list[int]]:
    """Return the GPUs beside each NIC: as the file says, else evenly."""
    own = spec.nics
    assert own is not None  # asked for by the caller
    if own.near is not None:
        if len(own.near) != own.count:
            raise FormatError(f"nics.near: {len(own.near)} rows, but nics.count is {own.count}")
        return own.near
    near: list[list[int]] = [[] for _ in range(own.count)]
    for k in range(max(own.count, gpus)):
        # More NICs than GPUs: several a GPU; fewer: neighbours share one.
        nic = k if own.count >= gpus else k * own.count // gpus
        near[nic].append(k * gpus // max(own.count, gpus))
    return near


def _add_nics(
    graph: nx.DiGraph,
    groups: list[list[str]],
    hung: list[str],
    spec: MachineSpec,
    table: dict[str, LinkType],
) -> None:
    own = spec.nics
    if own is None:
        return
    port = of_medium(table, own.link, "nics.link", ("net",))
    host_link = of_medium(table, own.host_link, "nics.host_link", ("pci", "c2c"))
    cap = rate_of(own.cap, "nics.cap") if own.cap is not None else None
    if own.count * own.functions > _FUNCTIONS:
        raise FormatError(
            f"nics.functions: {own.count} NICs of {own.functions} functions are more than "
            f"{_FUNCTIONS}"
        )
    for q, row in enumerate(_near(spec, len(groups))):
        beside = [_group(groups, i, f"nics.near[{q}]") for i in row]
        gpus = [name for names in beside for name in names]
        host = int(graph.nodes[gpus[0]]["host"]) if gpus else 0
        if own.functions > 1 or cap is not None:
            _add_functions(graph, q, port, gpus, host_link, own.functions, cap)
        elif hung and row:
            graph.add_node(f"nic{q}", kind="nic", index=q, host=host, port=port)
            add_pcie(graph, hung[row[0]], f"nic{q}", host_link)
        else:
            add_nic(graph, q, port, gpus, host_link, host)


def _add_functions(
    graph: nx.DiGraph,
    q: int,
    port: LinkType,
    gpus: list[str],
    host_link: LinkType,
    functions: int,
    cap: float | None,
) -> None:
    """Add NIC q as virtual functions, each capped, dealt to its GPUs in turn; one cable for all."""
    add_nic(graph, q, port, [], host_link)
    width = host_link
    if cap is not None:
        width = replace(host_link, name=f"vf-{cap * 8e-9:g}g", bandwidth=cap, efficiency=1.0)
    for k in range(functions):
        name = f"vf{q}.{k}"
        graph.add_node(name, kind="pci", bridge=False)
        add_pcie(graph, name, f"pci{q}", width)
        for gpu in gpus[k::functions]:
            add_pcie(graph, gpu, name, host_link)


def _group(groups: list[list[str]], index: int, key: str) -> list[str]:
    if not 0 <= index < len(groups):
        raise FormatError(f"{key}: GPU {index} is not one of 0..{len(groups) - 1}")
    return groups[index]


def topology_of(spec: MachineSpec, where: str) -> Topology:
    """Return the Topology a machine file describes; `where` (the file) opens every error."""
    try:
        table, graph = link_table(spec), new_graph(spec.name)
        if spec.gpus % spec.hosts:
            raise FormatError(f"hosts: {spec.gpus} GPUs do not divide over {spec.hosts} hosts")
        device, parts = device_of(spec), spec.partitions
        names, groups = _add_partitions(graph, spec, table)
        _add_scale_up(graph, names, spec, table)
        hung = _add_host(graph, groups, spec, table)
        _add_nics(graph, groups, hung, spec, table)
        if parts is not None:
            rate, count = device.reduction, parts.count
            device = replace(device, memory=device.memory / count, reduction=rate / count)
        network = network_of(spec.network, "network")
        return Topology(
            spec.name,
            graph,
            device,
            spec.nodes,
            network,
            summary=spec.summary,
            sources=tuple(spec.sources),
        )
    except (FormatError, FabricError) as error:
        raise FormatError(f"{where}: {error}") from None
