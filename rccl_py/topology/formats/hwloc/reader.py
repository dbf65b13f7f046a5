"""Read hwloc XML (lstopo): a machine's packages, PCI tree, accelerators, NICs and scale-up links.

Owns which vertex and link each object becomes, for hwloc 1.x, 2.x and 3.x. A CPU is a Package (a
Socket in 1.x); what hangs from one of its parts hangs from it. Of the PCI-PCI bridges only switches
become vertices: a root port or a switch's port is one end of the link below it. What the file
leaves open is assumed and said in Topology.notes. Every failure is a FormatError with file and
line.

    Package > Bridge 0-1 > root port > switch > port > PCIDev        cpu0 -- pci... -- gpu0
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ....links import LinkType
from ...build import Topology, add_pcie, new_graph
from ..names import bus_text, host_link, port_of, scale_up_link
from ..pci_tree import add_package, assumed_pcie, part_of, pcie_of
from ..xml_tree import Notes, read_tree
from .devices import (
    Function,
    accelerators,
    device_at,
    functions_of,
    is_rdma,
    nics,
    partitions,
    port_speed,
)
from .host import Draft, add_cpus, cpu_at, machine_of
from .links import pairs_of
from .scale_up import add_scale_up

__all__ = ["is_hwloc", "read_hwloc"]

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_ELEMENT = re.compile(r"<([A-Za-z_][\w.:-]*)")
_GEN4_X16 = 31.5e9  # B/s, assumed for a NIC of which neither port nor PCIe link is known


def is_hwloc(text: str) -> bool:
    """Return whether `text` begins like an hwloc XML file: its first element is <topology>."""
    first = _ELEMENT.search(_COMMENT.sub("", text[:65536]))
    return first is not None and first[1] == "topology"


def _most(draft: Draft, gpus: list[Function]) -> list[str]:
    """Set the device to what most GPUs are; return every GPU's arch."""
    devices, arches = [], []
    for function in gpus:
        device, arch, remark = device_at(function)
        if remark:
            draft.notes.add(remark, function.element.line)
        devices.append((device, len(partitions(function)) or 1))
        arches.append(arch)
    ((device, parts), count), *others = Counter(devices).most_common()
    if others:
        draft.notes.add(f"GPUs of {len(others) + 1} kinds: all modelled as {device.title}, which "
                        f"{count} of {len(devices)} are")  # fmt: skip
    draft.device = part_of(device, parts)
    return arches


def _add_gpus(draft: Draft, gpus: list[Function], arches: list[str], coherent: set[int]) -> None:
    """Add the accelerators; partitions and those with a coherent link keep their PCI function."""
    graph, row, index = draft.graph, scale_up_link(draft.device, "xgmi")[0], 0
    for p, function in enumerate(gpus):
        cpu, parts = cpu_at(draft, function.holder), partitions(function)
        names: list[str] = []
        for part in parts or [function.element]:
            name, index = f"gpu{index}", index + 1
            names.append(name)
            draft.vertex[id(part)] = name
            graph.add_node(
                name, kind="gpu", index=index - 1, host=0, dev=index - 1, rank=None, gdr=True,
                numa=graph.nodes[cpu]["numa"], arch=arches[p], busid=bus_text(function.bus),
            )  # fmt: skip
        for osdev in [] if parts else function.names:
            draft.vertex[id(osdev)] = names[0]
        draft.vertex[id(function)] = names[0]
        if parts:
            add_package(graph, f"package{p}", names, row)
            draft.package.update(dict.fromkeys(names, f"package{p}"))
        if parts or coherent & {id(o) for o in (function.element, *function.names)}:
            below = f"pci{bus_text(function.bus)}"
            graph.add_node(below, kind="pci", host=0, busid=bus_text(function.bus), bridge=False)
            draft.vertex[id(function)] = below
            for name in names:
                add_pcie(graph, below, name, *_width(draft, function))


def _is_idle(rate: float) -> bool:
    """Return whether a rate is one of PCIe gen 1 or 2, to which idle links of today fall back."""
    return rate <= 8.05e9 and any(abs(rate / (0.25e9 * 2**k) - 1) < 1e-3 for k in range(6))


def _rate(function: Function) -> float:
    """Return B/s of the link above a device, by its two ends; 0 when neither knows.

    A port has the link as it is; NVML and ROCm SMI overwrite a device's with what it could be.
    """
    port = function.above
    if port is None or port.ports % 2 or not port.speed:  # what is above is no port facing down
        return function.speed
    return function.speed if _is_idle(port.speed) and function.speed else port.speed


def _width(draft: Draft, function: Function) -> tuple[LinkType, float]:
    """Return the row and width of the link above a device or switch, noting what is assumed."""
    rate, notes = _rate(function), draft.notes
    port = function.above
    other = port.speed if port is not None and port.ports % 2 == 0 else 0.0
    slower, faster = sorted((function.speed or rate, other or rate))
    if faster > slower * 1.02:
        notes.add("the two ends of a PCIe link have different speeds: the port's is taken, unless "
                  "it sleeps (NVML writes what a device could do)",
                  function.element.line)  # fmt: skip
    elif rate and _is_idle(rate) and not function.bridge:
        notes.add("PCIe link slower than gen 3 is taken as written (an idle link may have been "
                  "read in its power-saving state)", function.element.line)  # fmt: skip
    if rate:
        return pcie_of(rate)
    name = draft.vertex.get(id(function), "")
    if name.startswith("nic"):
        row = host_link(draft.graph.nodes[name]["port"])
    else:
        row = assumed_pcie(draft.device)
    notes.add(f"pci_link_speed not given: {row.name} assumed", function.element.line)
    return row, 1


def _add_nics(draft: Draft, found: list[Function]) -> None:
    speeds = 0
    for k, function in enumerate(found):
        name, rate, speed = _nic_name(function), _rate(function), port_speed(function)
        # Cassini's interfaces are called hsn0 or hsi0; 0207 is what ports of InfiniBand have.
        family = "hsn" if function.vendor == 0x17DB else name
        infiniband = function.pci_class in ("0207", "0208", "0c06")
        port, remark = port_of(family, "0x0207" if infiniband else "0x0200", speed,
                               rate or _GEN4_X16)  # fmt: skip
        speeds += speed is not None
        if remark:
            draft.notes.add(remark, function.element.line)
        draft.vertex[id(function)] = f"nic{k}"
        numa = draft.graph.nodes[cpu_at(draft, function.holder)]["numa"]
        draft.graph.add_node(f"nic{k}", kind="nic", index=k, host=0, port=port, name=name,
                             busid=bus_text(function.bus), numa=numa)  # fmt: skip
    if speeds:
        draft.notes.add(f"hwloc files have no port speeds: {speeds} NICs' are those of their "
                        "product (PCI id)")  # fmt: skip


def _nic_name(function: Function) -> str:
    """Return a NIC's RDMA name where it has one, else its interface's."""
    rdma = [o.text("name") for o in function.names if is_rdma(o)]
    rdma += [n for n in function.os_names() if re.match(r"mlx|bnxt_re|ionic_|rdmap|hfi|qib|efa", n)]
    return next(iter([*rdma, *function.os_names()]), "")


def _add_pci_tree(draft: Draft, devices: list[Function]) -> None:
    """Join every device to the switch, shared port or CPU above it."""
    below: Counter[int] = Counter()
    needed: dict[int, Function] = {id(f): f for f in devices}
    for function in devices:
        above = function.above
        while above is not None:
            below[id(above)] += 1
            if id(above) in needed:
                break
            needed[id(above)] = above
            above = above.above
    for function in needed.values():
        # Root ports and the ports of switches alternate with switches: 0, 2, ... face down.
        if function.bridge and (function.ports % 2 or below[id(function)] > 1):
            name = f"pci{bus_text(function.bus)}"
            draft.vertex[id(function)] = name
            draft.graph.add_node(name, kind="pci", host=0, busid=bus_text(function.bus),
                                 bridge=True)  # fmt: skip
    for function in needed.values():
        if id(function) in draft.vertex:
            top = function.above
            while top is not None and id(top) not in draft.vertex:
                top = top.above
            name = draft.vertex[id(top)] if top is not None else cpu_at(draft, function.holder)
            add_pcie(draft.graph, name, draft.vertex[id(function)], *_width(draft, function))


def read_hwloc(path: Path) -> Topology:
    """Return the machine that the hwloc XML file at `path` describes.

    Raises FormatError (file, line, what is wrong or missing).
    """
    notes = Notes()
    root = read_tree(path, notes, expected="topology", with_doctype=True)
    machine = machine_of(root)
    functions = functions_of(machine)
    gpus = accelerators(functions, notes)
    if not gpus:
        raise machine.error(f"none of the {len(functions)} PCI functions is an accelerator (class "
                            "0302, 0380, 1200 or 0300 of AMD, NVIDIA or Intel): lstopo must be "
                            "run with I/O devices on a machine with GPUs")  # fmt: skip
    draft = Draft(new_graph(path.stem), notes, root, machine, device_at(gpus[0])[0])
    pairs, ports = pairs_of(root, notes), nics(functions, notes)
    hosts = [p for p in pairs if not {p.a.text("type"), p.b.text("type")} <= {"OSDev", "PCIDev"}]
    add_cpus(draft)
    arches = _most(draft, gpus)
    _add_gpus(draft, gpus, arches, {id(end) for pair in hosts for end in (pair.a, pair.b)})
    _add_nics(draft, ports)
    _add_pci_tree(draft, gpus + ports)
    add_scale_up(draft, pairs)
    return Topology(path.stem, draft.graph, draft.device, notes=notes.lines())
