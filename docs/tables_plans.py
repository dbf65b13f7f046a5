"""Prints docs/plans.md with its tables of plans made anew.

    python docs/tables_plans.py > p.md && mv p.md docs/plans.md

Prose stays as it stands in the file; what is between `<!-- table NAME -->` and `<!-- end -->` is
replaced. bench/test_plans.py recomputes the rows and holds the shares. A share is the lower bound
over the time of the plan: the part of the best any algorithm could do that it reaches. That is the
links' optimum with the launch and one hop; what a kernel copies besides is no part of it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from rccl_py import COLLECTIVES, Plan, Planner, Topology, load, lower
from rccl_py.errors import RcclError
from rccl_py.fabric import Fabric
from rccl_py.planner.packing import cache_folder
from rccl_py.topology import machine_names

PAGE = Path(__file__).parent / "plans.md"
_TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

GIB = 1 << 30
COLUMNS = ("allgather", "reduce_scatter", "allreduce", "alltoall")
SIMULATED = 72  # ranks of which every message is simulated
SYNTHESISED = 40  # ranks up to which trees are searched for: some seconds, once
_FREE = 1e18  # B/s
EVENTS = 6_000_000  # messages that are simulated for one figure

DGX1 = ("02112000", "20120100", "11020020", "12200001", "20000211", "01002012", "00201102",
        "00011220")  # NVLinks between every two GPUs (msccl-tools, TE-CCL)  # fmt: skip
MI250 = ("0-1:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-3:4 2-6:1 2-9:1 2-10:1 3-7:2 3-11:1 4-5:4 4-6:1 "
         "5-6:1 5-7:1 6-7:4 8-9:4 8-12:2 9-13:1 10-11:4 10-14:1 11-15:2 12-13:4 12-14:1 13-14:1 "
         "13-15:1 14-15:4")  # ForestColl's adjacency  # fmt: skip


def _pairs(edges: str) -> str:
    """Return the scale_up of ``"0-1:4 ..."``: pairs and how many `up` links join them."""
    groups = []
    for edge in edges.split():
        pair, _, lanes = edge.partition(":")
        groups.append(f"{{link: up, lanes: {lanes}, pairs: [[{pair.replace('-', ', ')}]]}}")
    return f"{{pairs: [{', '.join(groups)}]}}"


def _switch(lanes: int = 1, switches: int = 1) -> str:
    return f"{{switch: {{link: up, lanes: {lanes}, switches: {switches}, hop: 0us}}}}"


_MESH = "{mesh: {link: up}}"
_DGX1 = _pairs(" ".join(f"{i}-{j}:{DGX1[i][j]}" for i in range(8) for j in range(i + 1, 8)
                        if DGX1[i][j] != "0"))  # fmt: skip
_LESS = _pairs(" ".join(f"{i}-{j}:1" for i in range(8) for j in range(i + 1, 8)
                        if (i, j) != (0, 1)))  # fmt: skip
_TORUS = _pairs(" ".join(f"{4 * x + y}-{v}:1" for x in range(4) for y in range(4)
                         for v in (4 * x + (y + 1) % 4, (4 * x + 4) % 16 + y)))  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A machine of the check tables: GPUs a node, how they are joined (GB/s a link), NICs, nodes.

    source: where its links are told.
    """

    gpus: int
    scale_up: str
    up: float
    port: float = 0
    nics: int = 0
    nodes: int = 1
    source: str = ""

    @property
    def text(self) -> str:
        """The machine as a file: all of every link is usable, hops take 1 us, messages nothing."""
        media = {"up": "nvlink", "port": "net", "bus": "pci"}
        rates = {"bus": 1e6, "up": self.up, **({"port": self.port} if self.nics else {})}
        rows = ", ".join(
            f"{name}: {{bandwidth: {rate}GB/s, latency: 1us, source: check table, efficiency: 1, "
            f"medium: {media[name]}, message: 0us}}"
            for name, rate in rates.items()
        )
        lines = ["name: box", "summary: of a check table", "device: generic", f"gpus: {self.gpus}",
                 f"scale_up: {self.scale_up}", f"links: {{{rows}}}"]  # fmt: skip
        if self.nics:
            lines.append(f"nics: {{link: port, count: {self.nics}, host_link: bus}}")
            lines.append(f"nodes: {self.nodes}")
        return "\n".join(lines) + "\n"


FOREST, TECCL, SCCL = "ForestColl", "TE-CCL", "SCCL"
BOXES = {
    "DGX-1": Box(8, _DGX1, 25, source=SCCL),
    "AMD4": Box(4, _pairs("0-1:1 0-2:1 1-3:1 2-3:1"), 1, source=SCCL),
    "NDv2 x 2": Box(8, _DGX1, 25, 12.5, 1, 2, TECCL),
    "NDv2 x 4": Box(8, _DGX1, 25, 12.5, 1, 4, TECCL),
    "DGX-2 x 2": Box(16, _switch(), 125, 12.5, 8, 2, TECCL),
    "A100 1 x 8": Box(8, _switch(), 300, source=FOREST),
    "A100 2 x 8": Box(8, _switch(), 300, 25, 8, 2, FOREST),
    "A100 4 x 8": Box(8, _switch(), 300, 25, 8, 4, FOREST),
    "MI250 1 x 16": Box(16, _pairs(MI250), 50, source=FOREST),
    "MI250 2 x 16": Box(16, _pairs(MI250), 50, 16, 16, 2, FOREST),
    "MI250 4 x 16": Box(16, _pairs(MI250), 50, 16, 16, 4, FOREST),
    "H100 1 x 8": Box(8, _switch(), 450),
    "H100 2 x 8": Box(8, _switch(), 450, 50, 8, 2),
    "H100 4 x 8": Box(8, _switch(), 450, 50, 8, 4),
    "MI300X 1 x 8": Box(8, _MESH, 64),
    "MI300X 2 x 8": Box(8, _MESH, 64, 50, 8, 2),
    "MI300X 4 x 8": Box(8, _MESH, 64, 50, 8, 4),
    "K8 without link 0-1": Box(8, _LESS, 64),
    "UALink pod of 64": Box(64, _switch(4, 4), 200),
    "UALink 4 pods of 8": Box(8, _switch(4, 4), 200, 50, 8, 4),
    "torus 4 x 4": Box(16, _TORUS, 50),
}
"""The machines whose optimum is known; sources where others have told their links."""


@dataclass(frozen=True)
class Figure:
    """One plan. share: of the optimum, by the engine; estimate: by the estimate.

    lost: what takes most of the rest of the time, and which part of the time that is.
    """

    algorithm: str
    share: float
    estimate: float
    engine: str
    lost: tuple[str, float]

    def text(self, least: float) -> str:
        """The cell: with what is lost where the share is below `least`."""
        what, part = self.lost
        why = f" ({what} {part:.0%})" if self.share < least else ""
        return f"{self.algorithm} {self.share:.1%}{why}"


@dataclass(frozen=True)
class Row:
    """The plans of one machine, by collective. size: bytes; what: which part of the machine."""

    name: str
    ranks: int
    size: int
    what: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)


@cache
def box(name: str) -> Topology:
    """Return a machine of the check tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "box.yaml"
        path.write_text(BOXES[name].text)
        return load(path)


def figure(planner: Planner, collective: str, size: float) -> Figure:
    """Return the plan of one call, simulated where it is not too much."""
    blocks = max(COLLECTIVES[collective].blocks(planner.fabric.nranks))
    plan = planner.plan(collective, size / blocks)
    seconds, engine = _simulated(plan)
    parts = plan.recipe.mix if plan.algorithm == "mix" else ()
    name = " + ".join(part.algorithm for part in parts or ()) or plan.algorithm
    lost = max(_lost(plan, seconds).items(), key=lambda item: item[1])
    return Figure(name, plan.bound.seconds / seconds, plan.share, engine, lost)


def _lost(plan: Plan, seconds: float) -> dict[str, float]:
    """Return where the time above the bound goes, as parts of the time."""
    line = plan.timeline
    waits = {b: line.waits(b) for b in ("latency", "link", "memory")}
    over = max(waits["link"] + waits["memory"] - line.busy, 0.0)
    by_memory = waits["memory"] > waits["link"]
    lost = {
        "copying out": max(line.tail - plan.bound.own, 0.0),
        "hops": waits["latency"],
        "memory": over if by_memory else 0.0,
        "filling and draining": 0.0 if by_memory else over,
        "links shared unevenly": max(line.busy - plan.bound.links, 0.0),
        "flows in each other's way": max(seconds - plan.time, 0.0),
    }
    return {what: s / seconds for what, s in lost.items()}


def _simulated(plan: Plan) -> tuple[float, str]:
    """Return the s of a plan, message by message where they are few, and by which engine."""
    if plan.nranks <= SIMULATED and plan.profile.rows <= EVENTS:
        try:
            return plan.timed("simulate").seconds, "simulate"
        except RcclError:
            pass  # too many messages after all
    return plan.time, "estimate"


def free(fabric: Fabric) -> Fabric:
    """Return a fabric on which only links cost time: the check tables know no memory."""
    return replace(fabric, memory=_FREE, reduction=_FREE, copy=_FREE)


def row_of(name: str, fabric: Fabric, size: int, what: str = "") -> Row:
    """Return the plans of one machine."""
    mode = "always" if fabric.nranks <= SYNTHESISED or fabric.nranks > 64 else "auto"
    folder = cache_folder(os.environ)
    planner = Planner(fabric, synthesise=mode, cache=folder, verify=True)
    figures = {c: figure(planner, c, size) for c in COLUMNS}
    return Row(name, planner.fabric.nranks, size, what, figures)


_SIZES = ((8, 4), (63, 16), (256, 64), (1 << 30, 256))  # up to so many ranks, GiB


def size_of(fabric: Fabric) -> int:
    """Return the bytes a machine is tried with, by its ranks: 4, 16, 64 or 256 GiB."""
    return next(size for ranks, size in _SIZES if fabric.nranks <= ranks) * GIB


def known_row(name: str) -> Row:
    """Return the plans of a machine of the check tables."""
    fabric = free(lower(box(name)))
    return row_of(name, fabric, size_of(fabric))


def part_of(name: str) -> tuple[Topology, str]:
    """Return the part of a machine whose messages are simulated, and which part that is."""
    whole = load(name)
    if whole.ngpus <= SIMULATED or whole.nodes == 1:
        return whole, ""
    for count in (4, 2):
        if whole.ngpus // whole.nodes * count <= SIMULATED and count < whole.nodes:
            return load(name, nodes=count), f"{count} of {whole.nodes} nodes"
    return whole, ""


def topology_row(name: str) -> Row:
    """Return the plans of a file in topologies/, cut to a few nodes where it is large."""
    topology, what = part_of(name)
    fabric = lower(topology)
    return row_of(name, fabric, size_of(fabric), what)


DEGRADED: dict[str, Callable[[], Topology]] = {
    "mi300x-8, link gpu0 - gpu1 down": lambda: load("mi300x-8").without("gpu0", "gpu1"),
    "mi300x-8, link gpu0 - gpu1 at half rate": lambda: load("mi300x-8").with_link(
        "gpu0", "gpu1", 0.5
    ),
    "v100-8, link gpu0 - gpu3 down": lambda: load("v100-8").without("gpu0", "gpu3"),
    "mi250x-4, link gpu0 - gpu6 down": lambda: load("mi250x-4").without("gpu0", "gpu6"),
    "h100-8 x 2, one NIC of node 0 down": lambda: load("h100-8", nodes=2).without("nic0", node=0),
    "mi300x-8 x 2, one NIC of node 0 down": lambda: load("mi300x-8", nodes=2).without(
        "nic0", node=0
    ),
}
"""Machines with one link or NIC less."""


def degraded_row(name: str) -> Row:
    """Return the plans of a machine with one link or NIC less, against what is left of it."""
    fabric = lower(DEGRADED[name]())
    return row_of(name, fabric, size_of(fabric))


def _cells(row: Row, least: float) -> list[str]:
    each = [row.figures[c] for c in COLUMNS]
    by = {f.engine for f in each}
    engine = "simulate" if by == {"simulate"} else "estimate" if by == {"estimate"} else "both"
    what = f", {row.what}" if row.what else ""
    cells = (f.text(least if c != "alltoall" else min(least, 0.95)) for c, f in zip(COLUMNS, each))
    return [f"{row.name}{what}", str(row.ranks), f"{row.size // GIB} GiB", *cells, engine]


def _table(rows: Iterable[Row], least: float) -> str:
    heads = ["machine", "ranks", "size", *COLUMNS, "engine"]
    lines = [heads, ["---"] * len(heads), *(_cells(row, least) for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


TABLES: dict[str, Callable[[], str]] = {
    "known": lambda: _table(map(known_row, BOXES), 0.97),
    "topologies": lambda: _table(map(topology_row, machine_names()), 0.95),
    "degraded": lambda: _table(map(degraded_row, DEGRADED), 0.95),
}


def page(text: str) -> str:
    """Return the page with its tables made anew."""
    return _TABLE.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[3]}", text)


if __name__ == "__main__":
    sys.stdout.write(page(PAGE.read_text(encoding="utf-8")))
