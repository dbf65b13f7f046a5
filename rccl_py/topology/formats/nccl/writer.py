"""Write one node of a machine as NCCL/RCCL topology XML, such as NCCL_TOPO_FILE takes.

Owns the text: attributes on one line and at most sixteen, values up to 254 characters, comments
that open with a blank, as NCCL's own parser wants them; no attribute that RCCL does not know. The
text is read back before it is returned. What reads back otherwise is added as comments that RCCL
skips and this library's reader takes (a device's or link's own figures); what still differs is a
FormatError. What a machine has beyond one node (more nodes, the network) is said in a comment.

Invented where the machine names none, always the same: bus ids, PCI ids, NIC names and guids,
CPUs (two a host with several PCI switches, EPYC beside AMD GPUs, Xeon beside others). Never
invented: CPU affinity, which RCCL takes from the live machine where the file has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ....arguments import whole
from ....errors import FormatError
from ....links import DEVICES, LinkType
from ...build import Topology, nics_of
from .exact import ExactEdges, exact_comment
from .pci_levels import Figures
from .plan import Item, Plan, plan_of
from .reader import parse_nccl_xml

__all__ = ["write_nccl_xml"]

_VALUE = 254  # characters of a value that NCCL holds
_SWITCH = "nvswitch0"


def _escaped(text: str) -> str:
    """Return an attribute value; NCCL knows no entities, so what needs one becomes "_"."""
    return "".join(c if c.isprintable() and c not in '<>&"' else "_" for c in text)[:_VALUE]


def _lines(item: Item, indent: int) -> Iterator[str]:
    opening = " " * indent + f"<{item.name}" + "".join(
        f' {name}="{_escaped(value)}"' for name, value in item.attributes.items()
    )  # fmt: skip
    if not item.children:
        yield opening + "/>"
        return
    yield opening + ">"
    for child in item.children:
        yield from _lines(child, indent + 2)
    yield " " * indent + f"</{item.name}>"


def _comment(text: str) -> str:
    own = "".join(c if c.isprintable() else "?" for c in text)
    while "--" in own:
        own = own.replace("--", "-")
    return f"<!-- {own.strip('-')} -->"


def _text(plan: Plan, version: int, remarks: list[str], exact: list[str]) -> str:
    lines = [*(_comment(remark) for remark in remarks), *exact, f'<system version="{version}">']
    for cpu in plan.cpus:
        lines += _lines(cpu, 2)
    return "\n".join([*lines, "</system>", ""])


def _same(one: Figures, two: Figures) -> bool:
    """Return whether two edges carry the same, but for the last bits of their lanes."""
    return (one.link == two.link and one.latency == two.latency
            and abs(one.lanes - two.lanes) <= 1e-9 * one.lanes)  # fmt: skip


def _differing(plan: Plan, back: Topology) -> dict[tuple[str, str], Figures]:
    """Return the edges that read back otherwise. Raises FormatError for those that are missing."""
    found = {}
    for (a, b), want in plan.edges.items():
        if not back.node.has_edge(a, b):
            raise FormatError(f"{back.name}: cannot be written as topology XML: the link {a} -> "
                              f"{b} has no place in it")  # fmt: skip
        data = back.node.edges[a, b]
        if not _same(want, Figures(data["link"], data["lanes"], tuple(data["latency"]))):
            found[a, b] = want
    return found


def _device(topology: Topology, back: Topology) -> list[str]:
    device = topology.device
    if back.device == device:
        return []
    known = DEVICES.get(device.name) == device
    return [exact_comment("device", device.name if known else device)]


def _ports(topology: Topology, back: Topology) -> list[str]:
    odd: dict[LinkType, list[int]] = {}
    for k, (one, two) in enumerate(zip(nics_of(topology.node), nics_of(back.node))):
        port = topology.node.nodes[one]["port"]
        if port != back.node.nodes[two]["port"]:
            odd.setdefault(port, []).append(k)
    return [exact_comment("port", [_ranges(nics), port]) for port, nics in odd.items()]


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Return ascending numbers as [first, last] of each run."""
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return found


def _scale_up(plan: Plan, odd: dict[tuple[str, str], Figures], back: Topology) -> list[str]:
    """Return the comments of a scale-up row and a switch hop that all links share."""
    ends = ({"gpu"}, {"gpu", "nvs"}, {"pac"}, {"pac", "nvs"})
    own = [f for (a, b), f in plan.edges.items()
           if {a[:3], b[:3]} in ends]  # fmt: skip
    rows, found = {f.link for f in own}, []
    if len(rows) == 1 and any(
        f.link in rows and f.link != back.node.edges[pair]["link"] for pair, f in odd.items()
    ):
        found.append(exact_comment("scale_up", rows.pop()))
    hops = {f.latency for (a, _), f in plan.edges.items() if a == _SWITCH}
    flat = {ll for ll, ll128, simple in hops if ll == ll128 == simple}
    if len(hops) == len(flat) == 1 and any(a == _SWITCH for a, _ in odd):
        found.append(exact_comment("hop", flat.pop()))
    return found


def _edges(odd: dict[tuple[str, str], Figures]) -> list[str]:
    groups: dict[Figures, list[tuple[str, str]]] = {}
    for pair, figures in odd.items():
        groups.setdefault(figures, []).append(pair)
    found = []
    for figures, pairs in groups.items():
        own = ExactEdges(figures.link, figures.lanes, figures.latency, pairs)
        found.append(exact_comment("edge", own))
    return found


def _remarks(topology: Topology, plan: Plan) -> list[str]:
    more = [] if topology.nodes == 1 else [
        f"one of {topology.nodes} nodes; their network ({topology.network.kind}) is not said here"
    ]  # fmt: skip
    what = f"{topology.name}: {len(plan.cpus)} CPUs, {topology.gpus_per_node} GPUs, " \
           f"{len(nics_of(topology.node))} NICs; written by rccl_py for NCCL_TOPO_FILE"  # fmt: skip
    return [what, *more, *plan.remarks]


def write_nccl_xml(topology: Topology, version: int | None = None) -> str:
    """Return the text of a topology file of one node of `topology`.

    version: 1 as NCCL reads, 2 as RCCL reads; None takes 2 for AMD accelerators and links. Reading
    it back gives the same fabric. Raises FormatError for a machine the format has no place for,
    InvalidArgument for another version.
    """
    plan = plan_of(topology)
    if version is None:
        media = {data["link"].medium for _, _, data in topology.node.edges(data=True)}
        amd = topology.device.arch.startswith("gfx") or bool(media & {"xgmi", "ualink"})
        version = 2 if amd else 1
    whole(version, "version", 1, 2)
    remarks, path = _remarks(topology, plan), Path(f"{topology.name}.xml")
    back = parse_nccl_xml(_text(plan, version, remarks, []), path)
    exact = _device(topology, back) + _ports(topology, back)
    exact += _scale_up(plan, _differing(plan, back), back)
    if exact:
        back = parse_nccl_xml(_text(plan, version, remarks, exact), path)
    exact += _edges(_differing(plan, back))
    text = _text(plan, version, remarks, exact)
    back = replace(parse_nccl_xml(text, path), name=topology.name)
    if _differing(plan, back) or _device(topology, back) or _ports(topology, back):
        raise FormatError(f"{topology.name}: cannot be written as topology XML: it reads back as "
                          "another machine")  # fmt: skip
    return text
