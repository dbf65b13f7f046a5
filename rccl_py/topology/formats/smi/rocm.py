"""The tables of ``rocm-smi --showtopo`` and ``amd-smi topology``, and the JSON of both.

Owns what a cell means, and what a pair is by all tables together:

* weight: 15 a link along an xGMI path, 20 a PCIe segment plus the CPUs' own distance (kernel
  driver, AMD SMI documentation); 0 where the driver reports none
* hops: 1 is any xGMI path, 2 PCIe under one NUMA node, 3 PCIe across NUMA nodes (same sources)
* bandwidth: MB/s of one link and of all side by side; 0-0 where there is no direct link

Knows no graph.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from ....links import DEVICES, Device, LinkType
from ..names import bus_id, bus_text, scale_up_link
from ..pci_tree import links_of
from .device import amd_device, amd_of_arch, named_device
from .node import Node, Pair
from .page import Page
from .tables import TELLING, Tables, read_all

__all__ = ["read_tables"]

_GPU = re.compile(r"GPU(\d{1,4})", re.IGNORECASE)
_NUMA = re.compile(r"GPU ?\[?(\d{1,4})\]?\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d{1,4})\b")
_BUS = re.compile(r"GPU\[(\d{1,4})\]\s*:\s*PCI Bus:\s*(\S{1,20})")
_XGMI_WEIGHT = 15  # a link; kernel driver's kfd_crat.c
_ONE_LINK = frozenset({"mi300x", "mi308x", "mi325x", "mi350x", "mi355x"})  # a pair; data sheets
_XGMI_LINKS = 8  # no device has more, MI250X packages included
_LEGACY = 50_000  # MB/s: what older amdgpu drivers give every xGMI link
_SLACK = 0.01  # assumed: drivers round no further
_IN_PACKAGE = 4.0  # links between the two dies of a MI250X package; OLCF Frontier user guide
_USUAL = {
    **dict.fromkeys(((0, 1), (2, 3), (4, 5), (6, 7)), _IN_PACKAGE),
    **dict.fromkeys(((0, 6), (2, 4)), 2.0),
    **dict.fromkeys(((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)), 1.0),
}
"""Links between the 8 dies of a Frontier or LUMI node; OLCF Frontier user guide, node diagram."""


def read_tables(page: Page) -> Node:
    """Return what the tables of the text say together. Raises FormatError."""
    node = Node(page, [], [], {}, DEVICES["generic"], amd=True)
    tables = read_all(page, node.notes)
    numa, buses = _numbers(page), _buses(page, tables.names)
    for k, name in enumerate(tables.names):
        counted = _GPU.fullmatch(name)
        number = int(counted[1]) if counted else k
        own: dict[str, Any] = {"dev": number}
        if number in numa:
            own["numa"] = numa[number]
        if number in buses:
            own["busid"] = buses[number]
        node.gpus.append(own)
        node.places.append(str(numa[number]) if number in numa else "")
    _add_pairs(tables, node)
    _name_device(tables, node)
    return node


def _numbers(page: Page) -> dict[int, int]:
    """Return the NUMA node of every GPU that has one; the driver prints -1 for none."""
    found: dict[int, int] = {}
    for number, line in enumerate(page.lines, 1):
        match = _NUMA.search(line) if "(Topology)" in line else None
        if match and int(match[3]) >= 0:
            gpu, numa = int(match[1]), int(match[3])
            if match[2] == "Node" and found.setdefault(gpu, numa) != numa:
                raise page.error(
                    number,
                    f"GPU{gpu} is on NUMA node {numa} here, and on "
                    f"{found[gpu]} before: one machine was expected",
                )
            found.setdefault(gpu, numa)
    return found


def _buses(page: Page, names: tuple[str, ...]) -> dict[int, str]:
    """Return the GPUs' bus ids: the tables' own names, or what --showbus printed."""
    texts = {k: name for k, name in enumerate(names) if ":" in name}
    for line in page.lines:
        match = _BUS.search(line) if "PCI Bus" in line else None
        if match:
            texts.setdefault(int(match[1]), match[2])
    found = {k: bus_id(text) for k, text in texts.items()}
    return {k: bus_text(bus) for k, bus in found.items() if bus is not None}


def _is_xgmi(tables: Tables, i: int, j: int) -> bool | None:
    """Return whether two GPUs are joined by xGMI; None when they are not joined at all."""
    kind = tables.cell("type", i, j)
    if kind:
        return kind == "XGMI"
    if "type" in tables.grids:
        return None
    weight, hops = tables.number("weight", i, j), tables.number("hops", i, j)
    if not weight and not hops:
        return True if tables.rate(i, j)[1] else None
    return hops == 1 or (not hops and weight % _XGMI_WEIGHT == 0)


def _add_pairs(tables: Tables, node: Node) -> None:
    gpus = range(len(tables.names))
    rated, told = tables.rated, bool(TELLING & set(tables.grids))
    apart = []
    for i, j in combinations(gpus, 2):
        xgmi = _is_xgmi(tables, i, j)
        if xgmi is None:
            apart.append((i, j))
        elif xgmi:
            node.pairs[i, j] = _xgmi(tables, i, j, rated)
        else:
            node.pairs[i, j] = Pair(_pcie(tables, node, i, j))
    if "type" not in tables.grids and told:
        node.notes.add("no link type table: xGMI where hops are 1 or weights are multiples of 15")
    if apart:
        i, j = apart[0]
        what = "no link type for" if told else "no bandwidth between"
        node.notes.add(f"{what} {len(apart)} pair(s), gpu{i}-gpu{j} first: not joined directly")
    if "NVB" in {own.kind for own in node.pairs.values()}:
        node.notes.add("xGMI pairs of 2 hops (weight 30, bandwidth 0-0): relayed by peers")


def _xgmi(tables: Tables, i: int, j: int, rated: bool) -> Pair:
    """Return an xGMI pair: its links side by side, or NVB when peers relay between the two."""
    low, high = tables.rate(i, j)
    if rated and not high:
        return Pair("NVB")
    if rated:
        return Pair("XGMI", high / low if 0 < low <= high <= _XGMI_LINKS * low else 1.0)
    weight, hops = tables.number("weight", i, j), tables.number("hops", i, j)
    return Pair("NVB") if hops > 1 or weight >= 2 * _XGMI_WEIGHT else Pair("XGMI", 1.0)


def _pcie(tables: Tables, node: Node, i: int, j: int) -> str:
    """Return the class of a PCIe pair: under one CPU or through two."""
    hops, weight = tables.number("hops", i, j), tables.number("weight", i, j)
    if hops:
        return "PHB" if hops <= 2 else "SYS"
    if weight:
        return "PHB" if weight <= 40 else "SYS"  # twice 20, and what the CPUs add
    one, two = node.places[i], node.places[j]
    return "SYS" if one and two and one != two else "PHB"


def _name_device(tables: Tables, node: Node) -> None:
    """Set the device, and the links side by side that it or the text has."""
    named = named_device(node.page.lines)
    direct = {pair for pair, own in node.pairs.items() if own.kind == "XGMI"}
    rates = [_link_rate(*tables.rate(i, j)) for i, j in direct]
    most = max((sum(k in pair for pair in direct) for k in range(len(node.gpus))), default=0)
    relayed = not TELLING & set(tables.grids) or any(
        own.kind == "NVB" for own in node.pairs.values()
    )
    if named is None:
        own: tuple[Device, str] = amd_device(most, relayed, len(node.gpus), max(rates, default=0))
    else:
        own = amd_of_arch(named[2], most, relayed, len(node.gpus)) or named[:2]
    node.device, remark = own
    node.notes.add(remark)
    if any(rates):
        _use_rates(tables, node)
    elif node.device.name == "mi250x" and (named or direct == _USUAL.keys()) and direct:
        _wire_dies(node, direct)
    elif direct and node.device.name not in _ONE_LINK:
        node.notes.add(
            "xGMI links side by side are not in the text: 1 a pair assumed (the two dies of a "
            "MI250X package have 4, two MI300A have 2): amd-smi topology -b tells"
        )
    if most > _XGMI_LINKS:
        node.notes.add(
            f"{most} xGMI peers of one GPU are more than its links: partitions of one "
            "device? each pair modelled with a link of its own"
        )


def _link_rate(low: int, high: int) -> int:
    """Return MB/s of one link: the lower figure where the higher is a multiple of it."""
    return low if low and low <= high <= _XGMI_LINKS * low and high % low == 0 else high


def _sum(node: Node, lanes: dict[tuple[int, int], float]) -> float:
    """Return the links of the GPU that has most."""
    gpus = range(len(node.gpus))
    return max(sum(n for pair, n in lanes.items() if k in pair) for k in gpus)


def _lanes(low: int, high: int, row: LinkType, legacy: bool) -> tuple[float, str]:
    """Return how many links of `row` a cell stands for, and a remark if that is no plain count."""
    lanes, remark = links_of(high * 1e6, row)
    if legacy and _link_rate(low, high) == _LEGACY and lanes != high / _LEGACY:
        return high / _LEGACY, (
            f"older drivers give every xGMI link {_LEGACY / 1e3:g} GB/s: links of {row.name}, "
            f"{row.bandwidth / 1e9:g} GB/s each, taken for it"
        )
    if not remark and abs(lanes * row.bandwidth / (high * 1e6) - 1) > _SLACK:
        lanes = high * 1e6 / row.bandwidth
        remark = f"{high} MB/s between two GPUs taken as {lanes:.3g} {row.name} links"
    return lanes, remark


def _use_rates(tables: Tables, node: Node) -> None:
    """Set the links of every pair by the bandwidth of all, saying where that is no plain count."""
    row, _ = scale_up_link(node.device, "xgmi")
    rates = {pair: tables.rate(*pair) for pair, own in node.pairs.items() if own.kind == "XGMI"}
    counted = {pair: high / _LEGACY for pair, (_, high) in rates.items()}
    legacy = _sum(node, counted) <= _XGMI_LINKS
    lanes: dict[tuple[int, int], float] = {}
    for pair, (low, high) in rates.items():
        lanes[pair], remark = _lanes(low, high, row, legacy)
        if remark:
            node.notes.add(remark)
        node.pairs[pair] = Pair("XGMI", lanes[pair])
    most = _sum(node, lanes)
    if most > _XGMI_LINKS:
        node.notes.add(
            f"the bandwidths of one GPU are {most:.3g} {row.name} links, more than the "
            f"{_XGMI_LINKS} a GPU has: taken as given"
        )


def _wire_dies(node: Node, direct: set[tuple[int, int]]) -> None:
    """Give MI250X dies the links of the usual node, if they are wired so; else of a package."""
    usual = len(node.gpus) == 8 and (direct == _USUAL.keys() or len(direct) == 28)
    for pair in sorted(direct):
        package = pair[0] % 2 == 0 and pair[1] == pair[0] + 1
        if usual:
            node.pairs[pair] = Pair("XGMI", _USUAL[pair]) if pair in _USUAL else Pair("NVB")
        else:
            node.pairs[pair] = Pair("XGMI", _IN_PACKAGE if package else 1.0)
    if usual and len(direct) == 28:
        node.notes.add(
            "xGMI between all 8 dies is more than they have links for, so the text does not tell "
            "direct ones: wired as in the usual node of MI250X (4, 2 and 1 links), assumed"
        )
    elif usual:
        node.notes.add(
            "xGMI links side by side are not in the text: 4, 2 and 1 a pair as in the usual node "
            "of MI250X, whose pairs these are"
        )
    else:
        node.notes.add(
            "xGMI links side by side are not in the text: 4 between the two dies of a package and "
            "1 elsewhere assumed: amd-smi topology -b tells"
        )
