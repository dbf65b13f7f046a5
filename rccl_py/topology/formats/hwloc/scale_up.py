"""The scale-up links of an hwloc XML file in the graph: NVLink, xGMI, and switches between.

Owns what the pairs of the file's matrices become: partitions share their package's links, all
NVSwitches are one, and pairs that a switch must have made are links to it. Knows no XML.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ....links import LinkType
from ...build import add_link
from ..names import scale_up_link
from ..pci_tree import join_packages, links_of, nvlinks_of
from ..xml_tree import Element
from .host import Draft, cpu_at
from .links import Pair

__all__ = ["add_scale_up"]

_SWITCH = "nvswitch0"
_HOP = 0.1e-6  # s, assumed: one NVSwitch, port to port


def _end(draft: Draft, element: Element) -> str:
    """Return the vertex a matrix's object stands for; "" when it is left out."""
    if id(element) in draft.vertex:
        return draft.vertex[id(element)]
    kind = element.text("type")
    if kind == "PCIDev" and element.text("pci_type").startswith("0680"):
        return _SWITCH
    return "" if kind in ("OSDev", "PCIDev", "Bridge", "Misc") else cpu_at(draft, element)


def add_scale_up(draft: Draft, pairs: list[Pair]) -> None:
    """Add NVLink and xGMI, merging all NVSwitches into one and partitions into their package."""
    total: dict[tuple[str, str], float] = {}
    row_of: dict[tuple[str, str], LinkType] = {}
    for pair in pairs:
        row, remark = scale_up_link(draft.device, pair.kind)
        ends = sorted((_end(draft, pair.a), _end(draft, pair.b)), key=lambda v: v[:3] != "gpu")
        if "" in ends or ends[0][:3] != "gpu":
            draft.notes.add("scale-up links of devices that are no accelerators are left out",
                            pair.line)  # fmt: skip
            continue
        a, b = (draft.package.get(v, v) for v in ends)
        if a == b:
            continue
        key = (a, b) if (b, a) not in row_of else (b, a)
        links = float(pair.links)
        if pair.rate:
            links, odd = links_of(pair.rate, row)
            remark = remark or odd
        if remark:
            draft.notes.add(remark, pair.line)
        # Partitions of two GPUs are joined by the same links, whoever names them.
        merged = b == _SWITCH or b.startswith("cpu")
        before = total.get(key, 0.0)
        total[key] = before + links if merged else max(before, links)
        row_of[key] = row
    _share_switches(draft, total, row_of)
    for (a, b), links in total.items():
        _join(draft, a, b, row_of[a, b], links)
    gpus = [v for v, kind in draft.graph.nodes(data="kind") if kind == "gpu"]
    if not total and len(gpus) > 1:
        draft.notes.add("no NVLink or xGMI in the file (lstopo needs NVML or ROCm SMI for them): "
                        "GPUs reach each other over PCIe only")  # fmt: skip


def _sums(pairs: dict[tuple[str, str], float]) -> dict[str, float]:
    """Return the links of every vertex over all its pairs."""
    found: defaultdict[str, float] = defaultdict(float)
    for pair, links in pairs.items():
        for vertex in pair:
            found[vertex] += links
    return dict(found)


def _share_switches(
    draft: Draft, total: dict[tuple[str, str], float], row_of: dict[tuple[str, str], LinkType]
) -> None:
    """Put GPUs of which every pair shows one rate, more than a GPU has for all, behind a switch.

    hwloc fills in such pairs when it is asked to look through switches (transitive closure).
    """
    own = {p: n for p, n in total.items() if row_of[p].medium == "nvlink"}
    pairs = {p: n for p, n in own.items() if p[0][:3] == p[1][:3] == "gpu"}
    largest, sums = max(pairs.values(), default=0.0), _sums(own)
    limit = nvlinks_of(draft.device, 0.0)  # 0: of a device that nobody knows, a mesh is a mesh
    gpus = sorted({v for pair in pairs for v in pair}, key=lambda v: int(v[3:]))
    if not pairs or not limit or max(sums[v] for v in gpus) <= limit:
        return
    ported = all((v, _SWITCH) in total for v in gpus)
    complete = len(pairs) == len(gpus) * (len(gpus) - 1) // 2
    if not ported and (len(gpus) < 3 or not complete or len(set(pairs.values())) > 1):
        draft.notes.add(f"NVLinks of one GPU add up to {max(sums[v] for v in gpus):g}, it has "
                        f"{limit:g}, and not all pairs are equal: each pair modelled with links of "
                        "its own")  # fmt: skip
        return
    for pair in pairs:
        del total[pair]
    if ported:
        draft.notes.add("NVLinks between GPUs that have links to a switch too, more than a GPU has "
                        "for both, are paths through that switch")  # fmt: skip
        return
    links, row = min(largest, limit), row_of[next(iter(pairs))]
    for gpu in gpus:
        total[gpu, _SWITCH], row_of[gpu, _SWITCH] = links, row
    draft.notes.add(f"every pair of {len(gpus)} GPUs shows {largest:g} NVLinks, more than a GPU "
                    f"has for all: one switch, {links:g} links a GPU")  # fmt: skip


def _join(draft: Draft, a: str, b: str, row: LinkType, links: float) -> None:
    graph = draft.graph
    if b.startswith("cpu"):
        add_link(graph, a, b, replace(row, name=f"{row.name}-cpu", medium="c2c"), links)
    elif b == _SWITCH:
        if _SWITCH not in graph:
            graph.add_node(_SWITCH, kind="switch")
        add_link(graph, a, _SWITCH, row, links)
        graph.edges[_SWITCH, a]["latency"] = (_HOP, _HOP, _HOP)
    else:
        join_packages(graph, a, b, row, links)
