"""What several tests share: recipes, the collectives in plain NumPy, and a slow twin of running.

Nothing here uses the library's own table of starts and goals: an oracle must not ask the pupil.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, reduce
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from rccl_py.algorithms import ALGORITHMS, Algorithm, Forest, Part, Paths, Recipe
from rccl_py.algorithms.shapes import double_binary_tree, two_level_trees
from rccl_py.planner import Planner
from rccl_py.planner.ranking import Option
from rccl_py.schedule import COPY, Move, Phase, Rows, Schedule, Step
from rccl_py.timing import profile

SIZES = (1, 2, 3, 5, 8, 12)
"""One, two, three, a prime, a power of two, and neither."""


MIX = (Part("ring", 2), Part("circulant", 1))
"""Two algorithms side by side, two thirds of the data by the first."""


def algorithm(collective: str, name: str) -> Algorithm:
    """Return the registry's row."""
    return next(a for a in ALGORITHMS if (a.collective, a.name) == (collective, name))


def many_rings(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to three different rings over n ranks and unequal weights."""
    strides = [k for k in range(1, n) if gcd(k, n) == 1] or [1]
    chosen = sorted({strides[0], strides[len(strides) // 2], strides[-1]})
    orders = [[k * i % n for i in range(n)] for k in chosen]
    return np.array(orders, dtype=np.int32), np.array([3, 1, 2][: len(orders)], dtype=np.int32)


def suits(row: Algorithm, n: int) -> bool:
    """Return whether an algorithm can do n ranks: some need an even number, or a power of two."""
    return {"even": n % 2 == 0, "power of two": n & (n - 1) == 0}.get(row.needs, True)


def fits(row: Algorithm, recipe: Recipe) -> bool:
    """Return whether a recipe, as a planner makes it, has what an algorithm needs."""
    needs = row.needs
    return suits(row, recipe.n) and (not hasattr(recipe, needs)
                                     or getattr(recipe, needs) is not None)  # fmt: skip


def factors(n: int, most: int) -> list[int]:
    """Return up to `most` factors of n, none of them 1 (but of 1), the largest first."""
    primes, left = [], n
    for p in range(2, n + 1):
        while left % p == 0:
            primes.append(p)
            left //= p
    while len(primes) > most:
        primes = sorted([primes[0] * primes[1], *primes[2:]])
    return sorted(primes, reverse=True) or [1]


@cache
def grid_of(n: int) -> np.ndarray:
    """Return n ranks as a torus of up to three dimensions, not in rank order."""
    return ((np.arange(n) * next(k for k in range(n // 2 + 1, n + 2) if gcd(k, n) == 1)) % n
            ).reshape(factors(n, 3)).astype(np.int32)  # fmt: skip


def tiers_of(n: int, g: int | None = None) -> np.ndarray:
    """Return n ranks by up to three levels, the innermost of g where it is given."""
    outer = factors(n // g, 2) if g else factors(n, 3)
    return np.arange(n, dtype=np.int32).reshape([*outer, g] if g else outer)


@cache
def forest_of(n: int) -> Forest:
    """Return a chain and a binary heap below every rank, two to one."""
    place = np.arange(n)
    chain, heap = place - 1, np.where(place, (place - 1) // 2, -1)
    trees = []
    for root in range(n):
        rank = (place + root) % n
        for shape in (chain, heap):
            parents = np.full(n, -1, dtype=np.int32)
            parents[rank[1:]] = rank[shape[1:]]
            trees.append(parents)
    return Forest(np.array(trees, dtype=np.int32), np.tile([2, 1], n).astype(np.int32))


@cache
def paths_of(n: int) -> Paths:
    """Return a direct way for two thirds of every block and a relayed one for the rest."""
    ways, weights = [], []
    for i in range(n):
        for j in range(n):
            relay = next((v for v in ((i + j + k) % n for k in range(n)) if v not in (i, j)), None)
            if i != j and relay is None:
                ways.append([i, j])
                weights.append(3)
            elif i != j:
                ways += [[i, j], [i, relay, j]]
                weights += [2, 1]
    ptr = np.cumsum([0, *map(len, ways)])
    rank = np.array([r for way in ways for r in way], dtype=np.int32)
    return Paths(ptr.astype(np.int64), rank, np.array(weights, dtype=np.int32), 3)


def recipe_of(n: int, root: int = 0, g: int | None = None, pieces: int = 1, *,
              one_ring: bool = False) -> Recipe:  # fmt: skip
    """Return a recipe for n ranks in nodes of g (None: one level), with several unequal rings."""
    orders, weights = many_rings(n)
    if one_ring:
        orders, weights = np.arange(n, dtype=np.int32)[None, :], np.ones(1, dtype=np.int32)
    found: dict[str, Any] = {"grid": grid_of(n), "tiers": tiers_of(n, g), "mix": MIX}
    if n <= 256:  # larger ones, of n^2 entries, are for tests of their own
        found |= {"forest": forest_of(n), "paths": paths_of(n)}
    if g is None:
        return Recipe(n, root, orders, weights, double_binary_tree(n), pieces=pieces, **found)
    nodes = np.arange(n, dtype=np.int32).reshape(-1, g)
    local, local_weights = many_rings(g)
    return Recipe(n, root, orders, weights, two_level_trees(nodes, np.arange(g), n), nodes, local,
                  local_weights, pieces, **found)  # fmt: skip


def equipped(recipe: Recipe) -> Recipe:
    """Return a machine's recipe with all that any algorithm needs, put in where it has none."""
    given = recipe_of(recipe.n, 0, None if recipe.nodes is None else recipe.nodes.shape[1])
    return replace(recipe, **{name: getattr(given, name) for name in {a.needs for a in ALGORITHMS}
                              if getattr(recipe, name, "") is None})  # fmt: skip


def options_of(planner: Planner, collective: str, root: int = 0,
               pieces: tuple[int, ...] = (1, 2, 4)) -> list[Option]:  # fmt: skip
    """Return every algorithm a machine is offered, in few pieces, whether it may win or not."""
    found = []
    for row in planner._offers(collective, root)[0].algorithms:
        for count in pieces if planner.fabric.nranks > 1 else (1,):
            if count <= row.pieces:
                recipe = planner.recipe(root, count)
                schedule = row.build(recipe)
                made = profile(schedule, planner.fabric)
                found.append(Option(row, count, schedule, made, recipe))
    return found


def divisors(n: int) -> list[int]:
    """Return the sizes a node may have."""
    return [g for g in range(1, n + 1) if n % g == 0]


def built(collective: str, name: str, *args: Any, **kwargs: Any) -> Schedule:
    """Return an algorithm's schedule for recipe_of(*args)."""
    return algorithm(collective, name).build(recipe_of(*args, **kwargs))


def of_steps(like: Schedule, phases: list[list[Step]]) -> Schedule:
    """Return a schedule of exactly these phases, each a list of the steps posted together."""
    fixed = [Phase(tuple(move_of(step) for step in steps)) for steps in phases]
    return Schedule(like.collective, like.algorithm, like.nranks, like.root, like.layout,
                    like.nchannels, lambda: iter(fixed))  # fmt: skip


def move_of(step: Step) -> Move:
    """Return the move that is `step` at every repetition."""
    moved = Rows(step.src, step.dst, step.count, step.op, step.channel)
    return Move(moved, lambda _s: (step.src_slot, step.dst_slot))


def steps_of(schedule: Schedule) -> list[list[Step]]:
    """Return every repetition's steps: one list a repetition, one step a move."""
    return [[move.step(s) for move in phase.moves]
            for phase in schedule.phases() for s in range(phase.steps)]  # fmt: skip


def column(values: Any) -> np.ndarray:
    """Return a read-only int32 column."""
    made = np.array(values, dtype=np.int32)
    made.flags.writeable = False
    return made


def step_of(*rows: tuple[int, ...], op: int = COPY, channel: int = 0) -> Step:
    """Return a step of rows (src, dst, src_slot, dst_slot[, count[, op]])."""
    full = [(*row, 1, op)[:6] if len(row) == 4 else (*row, op)[:6] for row in rows]
    src, dst, src_slot, dst_slot, count, ops = (column(c) for c in zip(*full))
    return Step(src, dst, src_slot, dst_slot, count, ops, column([channel] * len(rows)))


# ---- what a collective is, in NumPy ---------------------------------------------------------


def blocks(collective: str, n: int) -> tuple[int, int]:
    """Return the blocks of an input and of an output."""
    return (n if collective in ("reduce_scatter", "alltoall", "scatter") else 1,
            n if collective in ("allgather", "alltoall", "gather") else 1)  # fmt: skip


def has_input(collective: str, rank: int, root: int) -> bool:
    """Return whether the rank's sendbuf means anything."""
    return collective not in ("broadcast", "scatter") or rank == root


def has_output(collective: str, rank: int, root: int) -> bool:
    """Return whether the rank receives anything."""
    return collective not in ("reduce", "gather") or rank == root


def expected(collective: str, inputs: list[Any], root: int = 0, combine: Any = np.add) -> list[Any]:
    """Return every rank's result, None where it has none."""
    n = len(inputs)
    if collective in ("broadcast", "scatter"):
        parts = inputs[root].reshape(n if collective == "scatter" else 1, -1)
        return [parts[r % len(parts)] for r in range(n)]
    whole = np.concatenate(inputs)
    if collective in ("allgather", "gather"):
        results = [whole] * n
    elif collective == "alltoall":
        results = list(whole.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1))
    else:
        total = reduce(combine, inputs)
        results = list(total.reshape(n, -1)) if collective == "reduce_scatter" else [total] * n
    return [result if has_output(collective, r, root) else None for r, result in enumerate(results)]


def buffers_of(collective: str, inputs: list[Any], root: int, in_place: list[bool],
               garbage: Any) -> list[tuple[Any, Any]]:  # fmt: skip
    """Return (input, output) arrays of every rank; in place they share memory as NCCL defines."""
    n, pairs = len(inputs), []
    for rank, data in enumerate(inputs):
        many_in, many_out = blocks(collective, n)
        block = len(data) // many_in
        source = data.copy()
        target = np.full(many_out * block, garbage, dtype=data.dtype)
        where = root if collective in ("gather", "scatter") else rank
        shares = in_place[rank] and collective != "alltoall" and (
            collective not in ("gather", "scatter") or rank == root)  # fmt: skip
        if shares and many_in == many_out:
            target = source
        elif shares and many_in > many_out:
            target = source[where * block : (where + 1) * block]
        elif shares:
            target[where * block : (where + 1) * block] = source
            source = target[where * block : (where + 1) * block]
        pairs.append((source if has_input(collective, rank, root) else None,
                      target if has_output(collective, rank, root) else None))  # fmt: skip
    return pairs


class SlowBuffers:
    """Slots of every rank as views of its buffers, for `block` elements a block."""

    def __init__(self, schedule: Schedule, block: int, pairs: list[tuple[Any, Any]], dtype: Any,
                 garbage: Any) -> None:  # fmt: skip
        layout, k = schedule.layout, schedule.layout.chunks
        low = [c * block // k for c in range(k + 1)]
        self.slots: list[list[np.ndarray]] = []
        for pair in pairs:
            views = []
            for held, count in zip((*pair, None), (layout.inputs, layout.outputs, layout.scratch)):
                whole = np.full(count * block, garbage, dtype=dtype) if held is None else held
                views += [whole[b * block + low[c] : b * block + low[c + 1]]
                          for b in range(count) for c in range(k)]  # fmt: skip
            self.slots.append(views)

    def run(self, schedule: Schedule, combine: Any) -> None:
        """Run every step, one slot after another: all reads, then all writes."""
        for step in schedule:
            rows = list(zip(*(getattr(step, c).tolist() for c in
                              ("src", "dst", "src_slot", "dst_slot", "count", "op"))))  # fmt: skip
            read = [(dst, dst_slot + i, op, self.slots[src][src_slot + i].copy())
                    for src, dst, src_slot, dst_slot, count, op in rows
                    for i in range(count)]  # fmt: skip
            for dst, slot, op, moved in read:
                there = self.slots[dst][slot]
                there[...] = moved if op == COPY else combine(there, moved)


def slow_run(schedule: Schedule, block: int, pairs: list[tuple[Any, Any]], combine: Any,
             garbage: Any = 77) -> None:  # fmt: skip
    """Run `schedule` on the buffers, row by row; what a rank does not have starts as garbage."""
    dtype = next(b.dtype for pair in pairs for b in pair if b is not None)
    with np.errstate(all="ignore"):
        SlowBuffers(schedule, block, pairs, dtype, garbage).run(schedule, combine)


def is_right(schedule: Schedule, rng: np.random.Generator, in_place: bool) -> bool:
    """Return whether running `schedule` on random whole numbers gives what NumPy gives."""
    n, block = schedule.nranks, schedule.layout.chunks
    many = blocks(schedule.collective, n)[0]
    inputs = [rng.integers(1, 2**63, size=many * block, dtype=np.uint64) for _ in range(n)]
    pairs = buffers_of(schedule.collective, inputs, schedule.root, [in_place] * n, 77)
    slow_run(schedule, block, pairs, np.add, garbage=int(rng.integers(1, 2**63)))
    wanted = expected(schedule.collective, inputs, schedule.root)
    return all(w is None or np.array_equal(w, p[1]) for w, p in zip(wanted, pairs))


def mixes(schedule: Schedule, in_place: bool) -> bool:
    """Return whether some reduction, used later or not, joins different parts or a rank twice."""
    n, mixed = schedule.nranks, []
    reduces = schedule.collective in ("allreduce", "reduce", "reduce_scatter")

    def join(there: Any, arriving: Any) -> Any:
        if there is None or arriving is None:
            mixed.append(there is not arriving)
            return there
        mixed.append(there[0] != arriving[0] or bool(there[1] & arriving[1]))
        return there[0], there[1] | arriving[1]

    many = blocks(schedule.collective, n)[0] * schedule.layout.chunks
    inputs = [np.empty(many, dtype=object) for _ in range(n)]
    for rank, held in enumerate(inputs):
        for i in range(many):
            held[i] = (i if reduces else (rank, i)), frozenset([rank])
    pairs = buffers_of(schedule.collective, inputs, schedule.root, [in_place] * n, None)
    slow_run(schedule, schedule.layout.chunks, pairs, np.frompyfunc(join, 2, 1), garbage=None)
    return any(mixed)


# ---- machines -------------------------------------------------------------------------------


def machine(folder: Path, text: str, gpus: int = 4, name: str = "box") -> Path:
    """Write a machine file: `text` besides its name, summary, device and number of GPUs."""
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\nsummary: of a test\ndevice: generic\ngpus: {gpus}\n{text}\n")
    return path


def raw_links(**bandwidths: float) -> str:
    """Return the `links` of a machine, all of it usable: GB/s by name; port a NIC's, bus PCI's."""
    media = {"port": "net", "bus": "pci"}
    rows = [f"{name}: {{bandwidth: {rate}GB/s, latency: 1us, source: test, efficiency: 1, "
            f"medium: {media.get(name, 'nvlink')}, message: 0us}}"
            for name, rate in {"bus": 1e6, **bandwidths}.items()]  # fmt: skip
    return "links: {" + ", ".join(rows) + "}\n"


def joined(edges: str) -> str:
    """Return the scale_up of ``"0-1:4 ..."``: pairs and how many `up` links join them."""
    rows = [edge.replace("-", ", ").split(":") for edge in edges.split()]
    groups = [f"{{link: up, lanes: {lanes}, pairs: [[{pair}]]}}" for pair, lanes in rows]
    return f"scale_up: {{pairs: [{', '.join(groups)}]}}\n"


def switched(lanes: int = 1, switches: int = 1) -> str:
    return f"scale_up: {{switch: {{link: up, lanes: {lanes}, switches: {switches}, hop: 0us}}}}\n"
