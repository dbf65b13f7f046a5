"""What to say of a machine before it is trusted: errors, warnings, and notes.

Owns the checks and how grave each is. Prints nothing.

    error    the machine cannot be used: it does not lower to a fabric, accelerators out of reach
    warning  likely a fault: an odd one out (see suspects), a NIC faster than its PCIe slot, a
             scale-up link that only one of its ends lists
    note     worth knowing: what the reader assumed, link types that are not of the built-in table,
             NICs that no accelerator uses
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import RcclError
from ..links import LINKS
from .build import Topology, gpus_of, nics_of
from .difference import Difference, link_text, port_text, summarised
from .kinds import kinds_of, used_nics
from .lower import lower
from .narrowest import host_links
from .suspects import suspects

__all__ = ["SEVERITIES", "Finding", "validate"]

SEVERITIES = ("error", "warning", "note")
_ABSURD = 1e14  # B/s, assumed: fifty times the fastest link sold (900 GB/s x 2 a device)
_ONE_WAY = "lists none back"  # how readers say that one end of a link does not list it
_CLOSE = 1.001  # rates are rounded by the files that state them


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark. severity: error, warning or note; where: a device, a link, or the machine."""

    severity: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.what}"


def _reach(topology: Topology) -> Iterator[Finding]:
    """Yield why the machine, or its one node, does not lower."""
    try:
        lower(topology, min(topology.ngpus, 2 * topology.gpus_per_node))
    except RcclError as error:
        yield Finding("error", topology.name, str(error).removeprefix(f"{topology.name}: "))


def _speeds(topology: Topology) -> Iterator[Finding]:
    """Yield links that carry nothing, or more than any link does."""
    for a, b, edge in topology.node.edges(data=True):
        rate = edge["bandwidth"]
        if not 0 < rate < float("inf"):
            yield Finding("error", f"{a} -> {b}", f"carries {rate:g} B/s: expected more than 0")
        elif rate > _ABSURD:
            yield Finding("warning", f"{a} -> {b}", f"{rate / 1e9:.4g} GB/s is beyond any link")


def _slots(topology: Topology) -> Iterator[Finding]:
    """Yield NICs whose port is faster than the PCIe link they hang from; alike ones together."""
    graph = topology.node
    nics = nics_of(graph)
    above = host_links(graph, nics)
    found: dict[str, list[str]] = {}
    for nic in nics:
        port, slot = graph.nodes[nic]["port"], above.get(nic)
        if slot is None:
            if graph.degree(nic):
                continue  # hangs from an accelerator or a switch itself
            what = "no link joins it: accelerators do not reach it"
        elif port.bandwidth > slot["raw"] * _CLOSE:
            what = (f"port of {port_text(graph, nic)} behind PCIe {link_text(slot)} of "
                    f"{slot['raw'] * 8 / 1e9:.4g} Gb/s")  # fmt: skip
        else:
            continue
        found.setdefault(what, []).append(f"NIC{graph.nodes[nic]['index']}")
    for what, names in found.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield Finding("warning", ", ".join(names[:3]) + more, what)


def _idle(topology: Topology) -> Iterator[Finding]:
    """Yield NICs that are joined, but that no accelerator uses."""
    graph = topology.node
    used = set(used_nics(graph))
    idle = [f"NIC{graph.nodes[v]['index']}" for v in nics_of(graph)
            if v not in used and graph.degree(v)]  # fmt: skip
    if idle:
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        yield Finding("note", ", ".join(idle[:3]) + more, "no GPU uses it: others are nearer")


def _noted(topology: Topology) -> Iterator[Finding]:
    """Yield what the reader said; that a link was listed at one of its ends only is a fault."""
    for note in topology.notes:
        one_way = _ONE_WAY in note and "taken as both ways" in note
        yield Finding("warning" if one_way else "note", topology.name, note)


def _own_links(topology: Topology) -> Iterator[Finding]:
    """Yield link types that are not as the built-in table has them."""
    graph = topology.node
    every = [edge["link"] for _, _, edge in graph.edges(data=True)]
    every += [graph.nodes[nic]["port"] for nic in nics_of(graph)]
    for link in dict.fromkeys(every):
        known = LINKS.get(link.name)
        if known is None:
            yield Finding("note", link.name, f"not in the built-in table: "
                          f"{link.bandwidth / 1e9:.4g} GB/s raw, source {link.source}")  # fmt: skip
        elif abs(known.bandwidth - link.bandwidth) > 1e-3 * known.bandwidth:
            yield Finding("warning", link.name, f"{link.bandwidth / 1e9:.4g} GB/s raw here, "
                          f"{known.bandwidth / 1e9:.4g} in the built-in table")  # fmt: skip


def _count(topology: Topology) -> Iterator[Finding]:
    """Yield an odd number of accelerators on a host: one may be missing."""
    hosts = Counter(topology.node.nodes[gpu]["host"] for gpu in gpus_of(topology.node))
    for host, count in sorted(hosts.items()):
        if count % 2 and count > 1:
            where = f"host {host}" if len(hosts) > 1 else topology.name
            yield Finding("note", where, f"{count} GPUs: an odd number, is one missing?")


def _rather(d: Difference) -> str:
    """Return what an odd place is, and what most others are."""
    others = f"most others are {d.before}" if d.of else f"expected {d.before}"
    return f"odd one out: {d.after}, {others}"


def validate(topology: Topology) -> list[Finding]:
    """Return what there is to say of `topology`, the gravest first; never raises for a machine."""
    odd = [Finding("warning", d.place, _rather(d)) for d in summarised(suspects(topology))]
    found, kinds = [*_reach(topology)], kinds_of(topology)
    for kind in kinds:
        one = replace(topology, node=kind.graph, nodes=1, unlike=(), place=())
        where = f"node{kind.nodes[0]}/" if len(kinds) > 1 else ""
        for part in (_speeds, _slots, _own_links, _count, _idle):
            found += [replace(f, where=where + f.where) for f in part(one)]
    found += [*odd, *_noted(topology)]
    return sorted(dict.fromkeys(found), key=lambda f: SEVERITIES.index(f.severity))
