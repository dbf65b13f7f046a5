"""The scale-up links of a topology XML file: <xgmi> and <nvlink>, to GPUs, a switch or the CPU.

Owns where such a link may lead, how both sides of one are held against each other, and what
becomes of links that lead nowhere. Every failure is a FormatError that opens with file and line.

A link to its own GPU, or to a GPU that the file does not list, is dropped with a remark, as NCCL
drops it (a job of fewer GPUs dumps such files); but when it leaves a listed GPU's link without
return, its target was meant to be that GPU, and the file is refused. Without `tclass`, a target
that several GPUs list and the file does not is a switch. `fabric_supported` links lead to the one
GPU of another host with that bus id, else to the switch that joins the hosts.

Several <gpu> of one function are partitions: each lists all links of the function (as NCCL's
MLOPart does), so the function is a vertex ``package0`` that has the links, and its partitions are
joined to it by the device's memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import networkx as nx

from ....links import LINKS, LinkType
from ...build import add_link, add_mesh
from ..names import board_links, bus_id, scale_up_link
from ..xml_tree import Element
from .exact import Exact
from .links import Draft, count_of, is_cpu_class

__all__ = ["add_scale_up"]

_SWITCH = "nvswitch0"
_HOP = 0.1e-6  # s, assumed: one switch, port to port, where the link's row names none
_INNER = 0.1e-6  # s, assumed: from a partition to its package

_HEX = re.compile(r"(0[xX])?[0-9a-fA-F]{1,4}")

_Listing = tuple[int, Element]
"""How many links one side lists, and the first element that does."""


@dataclass(slots=True)
class _Listed:
    """Links by (from, to) vertices, and those whose target is not in the file.

    A partition's links are its package's, but for those to the CPU.
    """

    between: dict[tuple[str, str], _Listing] = field(default_factory=dict)
    dangling: list[tuple[str, Element]] = field(default_factory=list)


def _is_nowhere(text: str) -> bool:
    """Return whether a target is how drivers spell a device that a machine does not see."""
    return text.lower().startswith("ff") and set(text.lower()) <= set("f:.0")


def _on_other_host(draft: Draft, link: Element) -> list[str]:
    """Return the GPUs of the one other host that has the target of a fabric link, if one has."""
    bus, own = bus_id(link.text("target")), draft.found.place(link).host
    found = [gpus for (host, b), gpus in draft.gpus_at.items() if b == bus and host != own]
    return [draft.end(found[0][0])] if len(found) == 1 else []


def _shared_targets(draft: Draft) -> set[str]:
    """Return the targets, as written, that links without `tclass` of several GPUs have."""
    users: dict[str, set[int]] = {}
    for k, (element, _) in enumerate(draft.found.gpus):
        for link in element.named("nvlink", "xgmi"):
            if not link.text("tclass"):
                users.setdefault(link.text("target").lower(), set()).add(k)
    return {target for target, gpus in users.items() if len(gpus) > 1}


def _targets(draft: Draft, link: Element, gpu: str, shared: set[str]) -> list[str] | None:
    """Return the vertices a scale-up link leads to; None: not in the file, or its own GPU."""
    text, tclass = link.text("target")[:40], link.text("tclass").lower()[:20]
    where = f"<{link.name}> of {gpu}"
    if is_cpu_class(link):
        return [draft.found.place(link).cpu]
    bus, nowhere = bus_id(text), _is_nowhere(text.removeprefix("0x"))
    if not text or (bus is None and not nowhere):
        raise link.error(f"{where} target {text!r} is no bus id such as 0000:c1:00.0")
    key = (draft.found.place(link).host, bus) if bus is not None else None
    gpus = draft.gpus_at.get(key, []) if key is not None else []
    peers = [draft.end(gpu) for gpu in gpus[:1]]
    if peers and tclass.startswith("0x0680"):
        raise link.error(f"{where} leads to {text}, which is {peers[0]}, but its tclass says "
                         "switch")  # fmt: skip
    if gpu in gpus:
        return None
    if peers or tclass.startswith("0x0680") or (nowhere and not tclass):
        return peers or [_SWITCH]
    if link.text("fabric_supported") == "1":
        return _on_other_host(draft, link) or [_SWITCH]
    if key is not None and key in draft.found.by_bus:
        raise link.error(f"{where} leads to {text}, which is no GPU of this file")
    if not tclass and link.text("target").lower() in shared:
        draft.notes.add(f"<{link.name}> of several GPUs without tclass to a device that is not "
                        "listed: taken for a switch", link.line)  # fmt: skip
        return [_SWITCH]
    return None


def _listed(draft: Draft) -> _Listed:
    listed, shared = _Listed(), _shared_targets(draft)
    for k, (element, _) in enumerate(draft.found.gpus):
        gpu, sums = f"gpu{k}", dict[str, _Listing]()
        for link in element.named("nvlink", "xgmi"):
            own, peers = count_of(link), _targets(draft, link, gpu, shared)
            if peers is None:
                listed.dangling.append((gpu, link))
            for peer in peers or []:
                # One listing a lane adds up, as in NCCL.
                count, first = sums.get(peer, (0, link))
                sums[peer] = (count + own, first)
        for peer, listing in sums.items():
            key = (gpu if peer.startswith("cpu") else draft.end(gpu), peer)
            # Partitions list the same links again.
            listed.between[key] = max(listing, listed.between.get(key, listing), key=lambda x: x[0])
    return listed


def _check_dangling(draft: Draft, listed: _Listed) -> None:
    """Refuse a missing target that a listed GPU's link has no return for; note the others."""
    waiting: dict[str, str] = {}
    for a, b in listed.between:
        if (b, a) not in listed.between and b.startswith(("gpu", "package")):
            waiting.setdefault(b, a)
    for gpu, link in listed.dangling:
        bus, host = bus_id(link.text("target")), draft.found.place(link).host
        itself = bus is not None and gpu in draft.gpus_at.get((host, bus), [])
        if draft.end(gpu) in waiting:
            where = f"{gpu} itself" if itself else "which is no GPU of this file"
            raise link.error(
                f"<{link.name}> of {gpu} leads to {link.text('target')[:40]}, {where}, and "
                f"{waiting[draft.end(gpu)]} lists a link to {gpu} that has no return"
            )
        what = "to its own GPU" if itself else "to a GPU that the file does not list"
        draft.notes.add(f"<{link.name}> {what}: dropped, its peer is not known", link.line)


def add_scale_up(draft: Draft, exact: Exact) -> None:
    """Add GPU-GPU, GPU-switch and GPU-CPU links, with the row and hop of `exact` if given."""
    listed = _listed(draft)
    _check_dangling(draft, listed)
    for (a, b), (count, link) in listed.between.items():
        row = exact.scale_up or _row(draft, link)
        if b.startswith("cpu"):
            cpu = replace(row, name=f"{row.name}-cpu", medium="c2c")
            add_link(draft.graph, a, b, cpu, count / draft.shares[a])
        elif b == _SWITCH:
            hop = (row.hop or _HOP) if exact.hop is None else exact.hop
            _join_switch(draft.graph, a, row, count, hop)
        elif not draft.graph.has_edge(a, b):
            _check_back(draft, listed.between.get((b, a)), (a, b), count, link)
            add_link(draft.graph, a, b, row, count)
    _join_partitions(draft, exact)
    if not listed.between and _join_board(draft):
        return
    if not listed.between and len(draft.found.gpus) > 1 and draft.found.gpus[0][0].name == "gpu":
        draft.notes.add("no nvlink or xgmi in the file: GPUs reach each other over PCIe only")


def _row(draft: Draft, link: Element) -> LinkType:
    row, remark = scale_up_link(draft.device, link.name)
    if remark:
        draft.notes.add(remark, link.line)
    return row


def _check_back(
    draft: Draft, back: _Listing | None, pair: tuple[str, str], count: int, link: Element
) -> None:
    """Hold the two directions of a GPU-GPU link against each other."""
    a, b = pair
    if back is None:
        draft.notes.add(f"{a} lists a {link.name} to {b}, {b} lists none back: taken as both ways",
                        link.line)  # fmt: skip
    elif back[0] != count:
        raise link.error(f"{a} lists {count} {link.name} to {b}, but {b} lists {back[0]} to {a} "
                         f"(line {back[1].line}): they must be equal")  # fmt: skip


def _join_switch(graph: nx.DiGraph, gpu: str, link: LinkType, lanes: float, hop: float) -> None:
    """Join a GPU to the switch: the way up costs the link's latency, the way down only the hop."""
    if _SWITCH not in graph:
        graph.add_node(_SWITCH, kind="switch")
    add_link(graph, gpu, _SWITCH, link, lanes)
    graph.edges[_SWITCH, gpu]["latency"] = (hop, hop, hop)


def _join_board(draft: Draft) -> bool:
    """Join eight modules without <gpu> as their board does (assumed); return whether they were."""
    ids = {tuple(int(pci.text(k) or "0", 16) for k in ("vendor", "device"))
           for _, pci in draft.found.gpus if _is_hex(pci)}  # fmt: skip
    links = board_links(*ids.pop()) if len(ids) == 1 else None
    inferred = all(gpu is pci for gpu, pci in draft.found.gpus)
    if links is None or not inferred or len(draft.found.gpus) != 8:
        return False
    row = LINKS[draft.device.scale_up]
    names = [f"gpu{k}" for k in range(8)]
    for name in names if links else []:
        _join_switch(draft.graph, name, row, links, row.hop or _HOP)
    if not links:
        add_mesh(draft.graph, names, row)
    shape = f"{links} {row.name} each to one switch" if links else f"a mesh of {row.name}"
    draft.notes.add(f"scale-up links are not in the file: assumed as on a board of eight "
                    f"{draft.device.title}, {shape}")  # fmt: skip
    return True


def _is_hex(pci: Element) -> bool:
    return all(_HEX.fullmatch(pci.text(k)) for k in ("vendor", "device"))


def _join_partitions(draft: Draft, exact: Exact) -> None:
    """Join partitions to their package by its memory (assumed: at one copy stream's rate)."""
    kind = "xgmi" if draft.device.arch.startswith("gfx") else "nvlink"
    row = exact.scale_up or scale_up_link(draft.device, kind)[0]
    inner = (_INNER, _INNER, _INNER)
    link = replace(
        row, name="same-device", bandwidth=draft.device.memory, efficiency=1.0, latency=inner
    )
    for gpu, package in draft.packages.items():
        add_link(draft.graph, gpu, package, link)
        draft.graph.edges[package, gpu]["latency"] = (0.0, 0.0, 0.0)
    if draft.packages:
        draft.notes.add("partitions reach each other and their device's links at its memory's rate "
                        "(assumed); launch and memory are the whole device's")  # fmt: skip
