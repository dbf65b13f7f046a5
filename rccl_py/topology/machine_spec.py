"""The YAML format of a machine, and of a cluster of machines: its keys and their types.

Owns the schema alone; machine.py says what it means. The keys are listed in docs/machines.md.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "SPECS",
    "ClusterSpec",
    "HostSpec",
    "LinkSpec",
    "MachineSpec",
    "NetworkSpec",
    "NicSpec",
    "NodesSpec",
    "PartitionSpec",
    "ScaleUpSpec",
]

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Lanes = Annotated[float, Meta(gt=1e-6, le=1e6)]
Text = Annotated[str, Meta(pattern="^[^\x00-\x1f\x7f\ud800-\udfff]+$")]  # one printable line


class LinkSpec(Struct, forbid_unknown_fields=True):
    """A link type of the machine's own."""

    bandwidth: str
    latency: str | tuple[str, str, str]
    source: Text
    efficiency: Annotated[float, Meta(gt=1e-6, le=1)] = 1.0
    medium: Annotated[str, Meta(pattern="^(xgmi|nvlink|ualink|ici|c2c|pci|cpu|net)$")] = "ualink"
    message: str = "0.05us"


class DeviceSpec(Struct, forbid_unknown_fields=True):
    """An accelerator of the machine's own."""

    title: Text
    launch: str
    memory: str
    source: Text
    arch: Annotated[str, Meta(max_length=40)] = ""


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


class TorusSpec(Struct, forbid_unknown_fields=True):
    """GPUs at the points of a grid, each joined to its neighbours by `lanes` links."""

    link: Text
    dims: Annotated[list[Count], Meta(min_length=1, max_length=4)]
    lanes: Lanes = 1
    wrap: bool = True


class ScaleUpSpec(Struct, forbid_unknown_fields=True):
    """One of mesh, switch, pairs, torus."""

    mesh: MeshSpec | None = None
    switch: SwitchSpec | None = None
    pairs: list[PairSpec] | None = None
    torus: TorusSpec | None = None


class PartitionSpec(Struct, forbid_unknown_fields=True):
    """Each GPU is `count` accelerators (MI300X CPX: 8), each joined to the package by `lanes`."""

    count: Annotated[int, Meta(ge=2, le=64)]
    link: Text
    lanes: Lanes = 1


class HostSpec(Struct, forbid_unknown_fields=True):
    """The PCI tree: sockets, `switches` PCIe switches evenly below, GPUs evenly below those."""

    link: Text
    sockets: Annotated[int, Meta(ge=1, le=16)] = 1
    socket_link: Text | None = None
    switches: Annotated[int, Meta(ge=0, le=256)] = 0


class NicSpec(Struct, forbid_unknown_fields=True):
    """`count` NICs, each behind PCIe with the GPUs of its row of `near` (default: evenly).

    functions: virtual functions of each NIC, dealt to those GPUs in turn; cap: bandwidth of one.
    """

    link: Text
    count: Annotated[int, Meta(ge=1, le=4096)]
    host_link: str = "pcie5-x16"
    near: list[list[int]] | None = None
    functions: Annotated[int, Meta(ge=1, le=256)] = 1
    cap: str | None = None


class NetworkSpec(Struct, forbid_unknown_fields=True):
    """How nodes are joined: see Network."""

    kind: Annotated[str, Meta(pattern="^(rails|leaf-spine|dragonfly|torus)$")] = "rails"
    leaf_nodes: Count | None = None
    oversubscription: Annotated[float, Meta(gt=1e-3, le=1e6)] = 1.0
    spine: bool = True
    hop: str = "0.6us"
    pod_nodes: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    pod_oversubscription: Annotated[float, Meta(gt=1e-3, le=1e6)] = 1.0
    routing: Annotated[str, Meta(pattern="^(spray|ecmp|adaptive)$")] = "spray"
    seed: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    flows: Annotated[int, Meta(ge=1, le=256)] = 1
    pxn: bool | None = None
    dims: Annotated[list[Count], Meta(max_length=4)] = []
    wrap: bool = True
    groups: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    routers: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    global_links: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    local_rate: str | None = None
    global_rate: str | None = None


class MachineSpec(Struct, forbid_unknown_fields=True):
    """A node: accelerators, their scale-up links, their NICs."""

    name: Text
    summary: Text
    gpus: Annotated[int, Meta(ge=1, le=16384)]
    device: str | DeviceSpec
    scale_up: ScaleUpSpec | None = None
    nics: NicSpec | None = None
    host: HostSpec | None = None
    partitions: PartitionSpec | None = None
    hosts: Count = 1
    nodes: Count = 1
    network: NetworkSpec = msgspec.field(default_factory=NetworkSpec)
    links: dict[str, LinkSpec] = msgspec.field(default_factory=dict)
    sources: list[str] = msgspec.field(default_factory=list)
    place: str | list[int] | None = None


class NodesSpec(Struct, forbid_unknown_fields=True):
    """`count` nodes of one machine, in a cluster of several kinds."""

    node: Text
    count: Count = 1


class ClusterSpec(Struct, forbid_unknown_fields=True):
    """`nodes` of another machine, or a list of (machine, count), joined by a network."""

    name: Text
    summary: Text
    nodes: Count | list[NodesSpec]
    node: Text | None = None
    network: NetworkSpec | None = None
    sources: list[str] = msgspec.field(default_factory=list)
    place: str | list[int] | None = None


SPECS = (
    ClusterSpec,
    DeviceSpec,
    HostSpec,
    LinkSpec,
    MachineSpec,
    MeshSpec,
    NetworkSpec,
    NicSpec,
    NodesSpec,
    PairSpec,
    PartitionSpec,
    ScaleUpSpec,
    SwitchSpec,
    TorusSpec,
)
"""Every mapping of the format: what a mistyped key may have meant."""
