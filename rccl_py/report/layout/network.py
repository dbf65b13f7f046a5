"""The network between nodes: nodes below, their leaves above, spines and cores on top.

Owns which nodes and groups are drawn: a few groups of nodes whole, the others as counted boxes.

    [      spines      ]
      |    |    |    |
    rail0 rail1 rail2 ...      [32 more groups]
      |  X  |  X  |
    node0  node1  node2  [+29]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...topology.build import Topology, gpus_of, nics_of
from ..words import network_words
from .parts import Box, Key, Line, Panel, Point, Text, both, gigabytes

__all__ = ["network_panel"]

_NODES = 16  # nodes drawn, of all groups together
_CABLES = 72  # cables drawn one by one; else a line a node
_GROUPS = 6  # groups of nodes drawn, whole or as a box
_RING = 12  # groups of a dragonfly drawn
_GRID = 12  # nodes a side of a torus drawn
_NODE_W, _LEAF_W, _GAP = 0.92, 0.7, 0.14


@dataclass(slots=True)
class _Plan:
    """What of a fat tree is drawn: (first node, nodes in all, nodes drawn) of each group.

    ports: usable B/s of each NIC by its rail, of the nodes that are as the first and of the others
    by number. rails: of the widest node. up: B/s of all uplinks of a leaf, by rail.
    """

    groups: list[tuple[int, int, int]]
    more: int
    each: bool
    ports: dict[int | None, dict[int, float]]
    up: list[float]
    panel: Panel = field(default_factory=lambda: Panel(""))

    @property
    def nics(self) -> int:
        """Rails: of leaves without rails, NICs of the widest node."""
        return len(self.up)

    def of(self, node: int) -> dict[int, float]:
        """Return usable B/s of each NIC of a node, by its rail."""
        return self.ports.get(node, self.ports[None])


def network_panel(topology: Topology) -> Panel | None:
    """Return the picture of the network between nodes; None for one node."""
    if topology.nodes < 2 or not nics_of(topology.node):
        return None
    drawn = {"torus": _torus, "dragonfly": _dragonfly}.get(topology.network.kind, _tree)
    panel = drawn(topology)
    panel.title = f"scale-out: {_words(topology)}"
    return panel.fitted()


def _words(topology: Topology) -> str:
    """Return the title: how many nodes, how they are joined, and by which NICs."""
    ports: dict[str, None] = {}
    for graph in (topology.node, *(graph for _, graph in topology.unlike)):
        nics = nics_of(graph)
        name = f" x {graph.nodes[nics[0]]['port'].name}" if nics else " NICs"
        ports[f"{len(nics)}{name}"] = None
    own = " or ".join(list(ports)[:3]) + (" or others" if len(ports) > 3 else "")
    return f"{topology.nodes} nodes, {network_words(topology)}, {own} a node"


def _by_rail(graph: Any) -> dict[int, float]:
    """Return usable B/s of each NIC of a node, by its rail."""
    found = {}
    for nic in nics_of(graph):
        data = graph.nodes[nic]
        found[int(data["index"])] = float(data["port"].bandwidth * data["port"].efficiency)
    return found


def _uplinks(topology: Topology, ports: dict[int | None, dict[int, float]]) -> list[float]:
    """Return B/s of all uplinks of a leaf on each rail: those of the widest (see wire.py)."""
    size, nodes = topology.network.leaf_nodes, topology.nodes
    rails = 1 + max(max(own, default=0) for own in ports.values())
    usual = [ports[None].get(q, 0.0) for q in range(rails)]
    changed: dict[int, list[float]] = {}
    counts: dict[int, int] = {}
    for node, _ in topology.unlike:
        group = node // size
        counts[group] = counts.get(group, 0) + 1
        sums = changed.setdefault(group, [0.0] * rails)
        for q, rate in ports[node].items():
            sums[q] += rate
    groups = -(-nodes // size)
    whole = [g for g in range(min(groups, len(changed) + 1)) if g not in changed]
    full = [[rate * min(size, nodes - g * size) for rate in usual] for g in whole[:1]]
    for g, sums in changed.items():
        rest = min(size, nodes - g * size) - counts[g]
        full.append([own + rest * rate for own, rate in zip(sums, usual)])
    return [max(own) / topology.network.oversubscription for own in zip(*full)]


def _drawn(topology: Topology) -> _Plan:
    """Return what to draw of a fat tree: the first group's nodes first, then others' ends."""
    size, nodes = topology.network.leaf_nodes, topology.nodes
    ports: dict[int | None, dict[int, float]] = {None: _by_rail(topology.node)}
    ports.update((node, _by_rail(graph)) for node, graph in topology.unlike)
    up = _uplinks(topology, ports)
    every = [(first, min(size, nodes - first)) for first in range(0, min(nodes, size * _GROUPS),
                                                                 size)]  # fmt: skip
    left, groups = _NODES, []
    for k, (first, count) in enumerate(every):
        # The first group as it is; of the others what room is left, at least a box.
        show = min(count, max(4, left // len(every)) if len(every) > 1 else left)
        show = show if left >= show and (k == 0 or count <= 8) else 0
        left -= show
        groups.append((first, count, show))
    total = -(-nodes // size)
    each = topology.network.kind == "rails" and len(up) * groups[0][2] <= _CABLES
    return _Plan(groups, total - len(groups), each, ports, up)


def _tree(topology: Topology) -> Panel:
    plan = _drawn(topology)
    panel, network = plan.panel, topology.network
    tops: list[tuple[Point, float, tuple[Key, ...]]] = []
    left = 0.0
    rails = network.kind == "rails"
    for number, (first, count, show) in enumerate(plan.groups):
        width = _group(topology, plan, number, (first, count, show), left)
        leaves = plan.nics if rails else 1
        per_leaf = [left + width * (k + 0.5) / leaves for k in range(leaves)]
        merged = not (rails and plan.each and show)
        for k, x in enumerate([left + width / 2] if merged else per_leaf):
            of = range(leaves) if merged else [k]
            rate = plan.up[k] if not merged else plan.up[0] if rails else sum(plan.up)
            keys = tuple(key for q in of for key in _up_keys(number * leaves + q))
            tops.append(((x, 1.62), rate, keys))
        left += width + 0.35
    if plan.more:
        panel.boxes.append(Box(left + 0.75, 1.45, 1.5, 0.5, f"{plan.more} more groups\nalike",
                               "group"))  # fmt: skip
        tops.append(((left + 0.75, 1.7), tops[-1][1], ()))
        left += 1.75
    if topology.unlike:
        said = f"* {len(topology.unlike)} node(s) are not as node0, which the other panels show"
        panel.texts.append(Text((left - 0.35) / 2, -0.4, said, 8))
    many = len(plan.groups) + plan.more > 1
    if network.spine and (many or (rails and plan.nics > 1)):
        _spines(topology, panel, tops, left - 0.35, many)
    elif rails:
        panel.texts.append(Text((left - 0.35) / 2, 2.1, "rails are not joined", 8))
    return panel


def _up_keys(leaf: int) -> tuple[Key, ...]:
    return both(f"leaf{leaf}", "spines")


def _spines(topology: Topology, panel: Panel, tops: list[tuple[Point, float, tuple[Key, ...]]],
            right: float, many: bool) -> None:  # fmt: skip
    network = topology.network
    said = "spines" if many else "spines (traffic between rails)"
    for at, rate, keys in tops:
        panel.lines.append(Line(at, (at[0], 2.5), rate, keys, "dotted", 2.2))
    panel.boxes.append(Box(right / 2, 2.62, max(right, 2.4), 0.3, said, "spine"))
    if network.pod_nodes and topology.nodes > network.pod_nodes:
        pods = -(-topology.nodes // network.pod_nodes)
        panel.boxes.append(Box(right / 2, 3.35, max(right, 2.4), 0.3,
                               f"core ({pods} pods joined)", "spine"))  # fmt: skip
        rate = sum(r for _, r, _ in tops) / network.pod_oversubscription
        said = "" if network.pod_oversubscription == 1 else f"{network.pod_oversubscription:g}:1"
        ends = (right / 2, 2.77), (right / 2, 3.2)
        panel.lines.append(Line(*ends, rate, both("spines", "cores"), "dotted", 4.0, said))


def _group(topology: Topology, plan: _Plan, number: int, part: tuple[int, int, int],
           left: float) -> float:  # fmt: skip
    """Draw one group of nodes and its leaves from `left` on, and return its width."""
    panel, (first, count, show) = plan.panel, part
    rails = topology.network.kind == "rails"
    if not show:
        text = f"nodes {first}-{first + count - 1}" if count > 1 else f"node {first}"
        panel.boxes.append(Box(left + 0.75, 1.45, 1.5, 0.34, text, "group"))
        return 1.5
    hidden = count - show
    wide = (show + (1 if hidden else 0)) * (_NODE_W + _GAP) - _GAP
    each = rails and plan.each
    width = max(wide, plan.nics * (_LEAF_W + 0.06) if each else 1.6)
    start = left + (width - wide) / 2
    unlike = dict(topology.unlike)
    for k in range(show):
        x = start + _NODE_W / 2 + k * (_NODE_W + _GAP)
        gpus = len(gpus_of(unlike.get(first + k, topology.node)))
        text = f"node{first + k}{'*' if first + k in unlike else ''}\n{gpus} GPUs"
        panel.boxes.append(Box(x, 0.0, _NODE_W, 0.42, text, "node", 7))
        _cables(topology, plan, (number, first + k), x, (left, width))
    if hidden:
        x = start + _NODE_W / 2 + show * (_NODE_W + _GAP)
        panel.boxes.append(Box(x, 0.0, _NODE_W, 0.42, f"{hidden} more\nnodes", "group", 7))
    if each:
        for q in range(plan.nics):
            x = left + width * (q + 0.5) / plan.nics
            name = f"rail{q}" if len(plan.groups) == 1 else f"leaf{number * plan.nics + q}"
            panel.boxes.append(Box(x, 1.45, _LEAF_W, 0.34, name, "leaf", 7))
    else:
        text = f"{plan.nics} rail switches" if rails else f"leaf{number}"
        panel.boxes.append(Box(left + width / 2, 1.45, width, 0.34, text, "leaf"))
    return width


def _cables(topology: Topology, plan: _Plan, at: tuple[int, int], x: float,
            span: tuple[float, float]) -> None:  # fmt: skip
    """Draw one node's cables to the leaves of its group."""
    (number, node), (left, width), q = at, span, plan.nics
    rails, own = topology.network.kind == "rails", plan.of(node)
    keys = {}
    for nic in own:
        leaf = number * q + nic if rails else number
        keys[nic] = both(f"node{node}/nic{nic}", f"leaf{leaf}")
    if rails and plan.each:
        for nic, rate in own.items():
            end = (left + width * (nic + 0.5) / q, 1.28)
            from_x = x + _NODE_W * 0.8 * ((nic + 0.5) / q - 0.5)
            plan.panel.lines.append(Line((from_x, 0.21), end, rate, keys[nic], "dotted", 1.5))
        return
    every = tuple(key for pair in keys.values() for key in pair)
    if own:
        plan.panel.lines.append(Line((x, 0.21), (x, 1.28), max(own.values()), every, "dotted", 2.2,
                                     f"x{len(own)}" if len(own) > 1 else ""))  # fmt: skip


def _port(topology: Topology) -> float:
    """Return usable B/s of the widest port."""
    graphs = (topology.node, *(graph for _, graph in topology.unlike))
    return max(rate for graph in graphs for rate in _by_rail(graph).values())


def _torus(topology: Topology) -> Panel:
    """Return the routers of a torus, a node each, as rows and columns."""
    panel, dims = Panel(""), topology.network.dims or (topology.nodes,)
    columns = dims[-1]
    rows = math.prod(dims[:-1])
    wide, high = min(columns, _GRID), min(rows, _GRID)
    rate = topology.network.local_rate or _port(topology)
    for r in range(high):
        for c in range(wide):
            x, y, at = c * 1.1, -r * 0.62, r * columns + c
            panel.boxes.append(Box(x, y, 0.8, 0.32, f"node{at}", "node", 7))
            if c + 1 < wide:
                keys = both(f"node{at}", f"node{at + 1}")
                panel.lines.append(Line((x, y), (x + 1.1, y), rate, keys, "dotted", 2.0))
            if r + 1 < high and (r + 1) % (dims[-2] if len(dims) > 1 else 1):
                keys = both(f"node{at}", f"node{at + columns}")
                panel.lines.append(Line((x, y), (x, y - 0.62), rate, keys, "dotted", 2.0))
    said = f"torus {' x '.join(map(str, dims))}{', closed' if topology.network.wrap else ''}"
    left = topology.nodes - wide * high
    said += f"; {left} more nodes are not drawn" if left > 0 else ""
    panel.texts.append(Text((wide - 1) * 0.55, -high * 0.62, said, 8))
    return panel


def _dragonfly(topology: Topology) -> Panel:
    """Return the groups of a dragonfly on a ring, joined to each other."""
    network, panel = topology.network, Panel("")
    each = max(1, network.routers * network.leaf_nodes)
    groups = network.groups or -(-topology.nodes // each)
    shown = min(groups, _RING)
    radius = max(1.6, shown * 1.35 / (2 * math.pi))
    turn = 2 * math.pi / shown
    place = [
        (radius * math.sin(turn * (k + 0.5)), radius * math.cos(turn * (k + 0.5)))
        for k in range(shown)
    ]
    links = network.routers * network.global_links // max(groups - 1, 1)
    rate = network.global_rate or _port(topology)
    for k, a in enumerate(place):
        for j in range(k + 1, shown):
            keys = both(f"group{k}", f"group{j}")
            panel.lines.append(Line(a, place[j], rate * links, keys, "dotted", 1.0))
        first = k * each
        last = min(first + each, topology.nodes) - 1
        text = f"group{k}\nnodes {first}-{last}" if first <= last else f"group{k}\nempty"
        panel.boxes.append(Box(*a, 1.1, 0.42, text, "group", 7))
    said = f"{groups} groups of {network.routers} routers, "
    said += f"{network.leaf_nodes} node(s) a router; "
    said += f"two groups: {links} x {gigabytes(rate)}"
    said += f"; {groups - shown} more groups are not drawn" if groups > shown else ""
    panel.texts.append(Text(0.0, -radius - 0.5, said, 8))
    return panel
