"""What `rccl-topo` prints, as texts: device tables, link tables, path matrices.

Owns column layout and what is summarised when a machine is large. Prints nothing itself. Numbers
are SI inside and GB/s (1e9 bytes per second, per direction) in the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..topology.build import Topology, gpus_of, nics_of
from ..topology.diff import node_differences
from ..topology.difference import shown, summarised
from ..topology.kinds import Kind, kinds_of, used_nics
from ..topology.paths import LEGEND, distances, gpu_matrix, nearest_gpus, nic_matrix
from .bandwidths import gigabytes, network_rows, node_rows
from .words import kind_words, machine_words, network_words

__all__ = ["WIDE", "describe", "table"]

WIDE = 16
"""More accelerators or NICs than this are summarised, unless asked for."""

_KINDS = 6  # kinds of node that are shown
_RUNS = 40  # letters that the numbers of a kind's nodes may take


def table(rows: Sequence[Sequence[str]], right: bool = False, indent: str = "  ") -> list[str]:
    """Return `rows` (the first is the head) as aligned lines, two blanks between columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    align = str.rjust if right else str.ljust
    return [
        (indent + "  ".join(align(cell, width) for cell, width in zip(row, widths))).rstrip()
        for row in rows
    ]


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with runs joined: [0, 1, 2, 5] -> "0-2,5"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def _columns(heads: Sequence[str], rows: list[list[str]]) -> list[str]:
    """Return a table without the columns that are empty in every row."""
    used = [k for k in range(len(heads)) if any(row[k] for row in rows)]
    return table([[heads[k] for k in used], *([row[k] or "-" for k in used] for row in rows)])


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _spelled(arch: str) -> str:
    """Return an arch of the device table as people say it: "90" -> "sm90"."""
    return f"sm{arch}" if arch.isdigit() else arch


def _gpus(topology: Topology, full: bool) -> list[str]:
    data = [topology.node.nodes[gpu] for gpu in gpus_of(topology.node)]
    hosts = Counter(own["host"] for own in data)
    over = f" over {len(hosts)} hosts" if len(hosts) > 1 else ""
    head = f"GPUs: {len(data)}{over}"
    if not full and (len(data) > WIDE or not any("busid" in own for own in data)):
        counts = sorted(set(hosts.values()))
        each = f", {' or '.join(map(str, counts))} a host" if over else ""
        arch = topology.device.arch
        return [f"{head}{each}{f', {_spelled(arch)}' if arch else ''}"]
    rows = [
        [
            f"GPU{own['index']}",
            _text(own.get("busid")),
            _text(own.get("numa")),
            str(own["host"]) if over else "",
            own.get("arch") or _spelled(topology.device.arch),
        ]
        for own in data
    ]
    return [head, *_columns(["GPU", "bus id", "NUMA", "host", "arch"], rows)]


def _nics(topology: Topology, matrix: list[list[str]], full: bool) -> list[str]:
    data = [topology.node.nodes[nic] for nic in nics_of(topology.node)]
    if not data:
        return ["NICs: none"]
    used = used_nics(topology.node)
    idle = ranges([topology.node.nodes[v]["index"] for v in nics_of(topology.node)
                   if v not in used])  # fmt: skip
    rest = [f"  NIC{idle}: no GPU uses it, others are nearer"] if idle else []
    if not full and len(data) > WIDE:
        kinds = Counter((own["port"].name, own["port"].bandwidth) for own in data)
        each = len(data) / max(topology.gpus_per_node, 1)
        texts = [f"{n} x {name} ({rate * 8 / 1e9:g} Gb/s)" for (name, rate), n in kinds.items()]
        return [f"NICs: {', '.join(texts)}, {each:g} a GPU", *rest]
    near = nearest_gpus(topology.node, matrix)
    rows = [
        [
            f"NIC{own['index']}",
            own.get("name", ""),
            own.get("busid", ""),
            _text(own.get("numa")),
            own["port"].name,
            f"{own['port'].bandwidth * 8 / 1e9:g} Gb/s",
            _near(matrix, near[q], q),
        ]
        for q, own in enumerate(data)
    ]
    heads = ["NIC", "name", "bus id", "NUMA", "port", "speed", "nearest GPUs"]
    return [f"NICs: {len(data)}", *_columns(heads, rows), *rest]


def _near(matrix: list[list[str]], gpus: list[int], q: int) -> str:
    return f"{ranges(gpus)} ({matrix[gpus[0]][q]})" if gpus else "none"


def _links(topology: Topology) -> list[str]:
    """Return the links by kind: what they join, how many, and their bandwidth."""
    graph = topology.node
    groups: Counter[tuple[str, ...]] = Counter()
    kinds = ("gpu", "switch", "cpu", "pci", "nic")
    for a, b, edge in graph.edges(data=True):
        ends = [graph.nodes[v]["kind"] for v in (a, b)]
        if (kinds.index(ends[0]), a) > (kinds.index(ends[1]), b):
            continue  # the other direction of a link already counted
        link = edge["link"]
        groups[
            link.medium,
            link.name,
            "-".join(ends),
            _lanes(edge),
            gigabytes(edge["raw"]),
            gigabytes(edge["bandwidth"]),
        ] += 1
    for nic in nics_of(graph):
        port = graph.nodes[nic]["port"]
        groups[
            "net",
            port.name,
            "nic-network",
            "1",
            gigabytes(port.bandwidth),
            gigabytes(port.bandwidth * port.efficiency),
        ] += 1
    order = ("xgmi", "nvlink", "ualink", "ici", "c2c", "pci", "cpu", "net")
    rows = [
        [medium, name, ends, str(count), lanes, raw, usable]
        for (medium, name, ends, lanes, raw, usable), count in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1:3], -item[1])
        )
    ]
    if not rows:
        return ["links: none"]
    heads = ["kind", "link", "joins", "count", "lanes", "raw GB/s", "usable GB/s"]
    return ["links (bandwidth of each, per direction):", *table([heads, *rows])]


def _lanes(edge: dict[str, Any]) -> str:
    """Return lanes as people count them: PCIe rows are of 16."""
    lanes = edge["lanes"] * (16 if edge["link"].name.endswith("-x16") else 1)
    return f"{round(lanes, 3):g}"


def _matrix(topology: Topology, cells: list[list[str]], of_nics: bool = False) -> list[str]:
    nodes = topology.node.nodes
    gpus = [f"GPU{nodes[v]['index']}" for v in gpus_of(topology.node)]
    nics = [f"NIC{nodes[v]['index']}" for v in nics_of(topology.node)]
    head = ["", *(nics if of_nics else gpus)]
    return table([head, *([name, *row] for name, row in zip(gpus, cells))])


def _classes(cells: list[list[str]]) -> Counter[str]:
    return Counter(cell for row in cells for cell in row if cell != "X")


def _gpu_paths(topology: Topology, cells: list[list[str]], full: bool) -> list[str]:
    if len(cells) == 1:
        return []
    if full or len(cells) <= WIDE:
        return ["GPU-GPU paths:", *_matrix(topology, cells)]
    switches = sum(data["kind"] == "switch" for _, data in topology.node.nodes(data=True))
    through = f" through {switches} switch planes" if switches else ""
    return [f"GPU-GPU paths: {_shares(cells)}{through} (--matrix prints all)"]


def _nic_paths(topology: Topology, cells: list[list[str]], full: bool) -> list[str]:
    if not cells or not cells[0]:
        return []
    if full or (len(cells) <= WIDE and len(cells[0]) <= WIDE):
        return ["GPU-NIC paths:", *_matrix(topology, cells, True)]
    return [f"GPU-NIC paths: {_shares(cells)} (--matrix prints all)"]


def _shares(cells: list[list[str]]) -> str:
    found = _classes(cells).most_common()
    if len(found) == 1:
        return f"every pair {found[0][0]}"
    return ", ".join(f"{count} pairs {name}" for name, count in found)


def _legend(*matrices: list[list[str]]) -> list[str]:
    """Return what the classes in use mean."""
    used = {cell.rstrip("0123456789.") for cells in matrices for row in cells for cell in row}
    counted = ("NV", "XGMI", "UAL", "ICI")
    rows = [[f"{n}#" if n in counted else n, means] for n, means in LEGEND.items() if n in used]
    return ["legend:", *table(rows)] if rows else []


def _tables(topology: Topology) -> list[str]:
    """Return the tables of ``rocm-smi --showtopo``."""
    found = distances(topology.node)
    weight, hops = ([list(map(str, row)) for row in t] for t in (found.weight, found.hops))
    lines = []
    for title, cells in (("weight", weight), ("hops", hops), ("link type", found.kind)):
        lines += [f"{title} between two GPUs:", *_matrix(topology, cells), ""]
    return lines[:-1]


def _head(topology: Topology, kinds: list[Kind]) -> list[str]:
    lines = [machine_words(topology)]
    if topology.nodes > 1:
        below = "one node of each kind" if len(kinds) > 1 else "one node"
        lines.append(f"nodes: {topology.nodes}, {network_words(topology)}; below is {below}")
    if len(kinds) > 1:
        lines += [f"  {kind_words(topology, kind)} ({_numbers(kind)})"
                  for kind in kinds[:_KINDS]]  # fmt: skip
        if len(kinds) > _KINDS:
            lines.append(f"  and {len(kinds) - _KINDS} more kinds of node, which are not shown")
    return lines


def _numbers(kind: Kind) -> str:
    """Return the nodes of a kind: a few runs of them."""
    text = ranges(kind.nodes)
    text = text if len(text) <= _RUNS else text[:_RUNS].rpartition(",")[0] + ",.."
    return f"node{'' if len(kind.nodes) == 1 else 's'} {text}"


def _bandwidths(rows: list[list[str]]) -> list[str]:
    return ["bandwidth (GB/s, per direction):", *table(rows)] if rows else []


def _node_blocks(topology: Topology, rows: list[list[str]], matrix: bool,
                 rocm: bool) -> list[list[str]]:  # fmt: skip
    """Return the parts that describe one node. rows: what is said of the network, with its own."""
    gpu_cells, nic_cells = gpu_matrix(topology.node), nic_matrix(topology.node)
    return [
        _gpus(topology, matrix),
        _nics(topology, nic_cells, matrix),
        _links(topology),
        _bandwidths(node_rows(topology) + rows),
        _gpu_paths(topology, gpu_cells, matrix),
        _nic_paths(topology, nic_cells, matrix),
        _legend(gpu_cells, nic_cells),
        _tables(topology) if rocm else [],
    ]


def _kind_blocks(topology: Topology, kinds: list[Kind], matrix: bool,
                 rocm: bool) -> Iterator[list[str]]:  # fmt: skip
    """Yield the parts of every kind of node; of one that has a fault, what differs."""
    for k, kind in enumerate(kinds[:_KINDS]):
        yield [f"== {_numbers(kind)}: {kind.name} =="]
        if k and kind.name == kinds[0].name:
            found = summarised(node_differences(kinds[0].graph, kind.graph))
            yield [f"as node {kinds[0].nodes[0]}, but:", *(f"  {shown(d)}" for d in found)]
        else:
            yield from _node_blocks(kind.of(topology), [], matrix, rocm)


def describe(topology: Topology, matrix: bool = False, rocm: bool = False) -> list[str]:
    """Return the lines that describe one node of each kind, and how nodes are joined.

    matrix: print every row and matrix however large; rocm: add weight, hops and link type.
    """
    kinds = kinds_of(topology)
    blocks = [_head(topology, kinds)]
    if len(kinds) == 1:
        one = kinds[0].of(topology)
        blocks += _node_blocks(one, network_rows(topology), matrix, rocm)
    else:
        blocks += [_bandwidths(network_rows(topology)),
                   *_kind_blocks(topology, kinds, matrix, rocm)]  # fmt: skip
    if topology.notes:
        blocks.append(["notes:", *(f"  - {note}" for note in topology.notes)])
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines and block else block
    return lines
