"""A slow twin of MSCCL's executor: thread blocks on plain lists, in a random order of threads.

The executor knows the format from its own documents and nothing of the library: steps of a thread
block in order, a message queue for each (gpu, gpu, channel), `depid`/`deps` wait for another
block's step.
"""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
from helpers import blocks, expected

from rccl_py.formats.msccl_xml import read_msccl_text


class Stuck(Exception):
    """No thread block can go on."""


def run_xml(text: str, inputs: list[list[Any]], in_place: bool, rng: random.Random) -> list[Any]:
    """Return every gpu's output chunks after running the program; values are added with +."""
    algo = ET.fromstring(text)
    n, coll = int(algo.get("ngpus")), algo.get("coll")
    gpus = {int(g.get("id")): g for g in algo.findall("gpu")}
    whole = int(algo.get("nchunksperloop"))
    sizes = {"i": whole, "o": whole}
    if coll in ("allgather", "gather"):
        sizes["i"] = whole // n
    if coll in ("reducescatter", "scatter"):
        sizes["o"] = whole // n
    memory = []
    for rank in range(n):
        held = {"i": list(inputs[rank]), "o": [None] * sizes["o"], "s": [None] * 10_000}
        shift = {"i": 0, "o": 0, "s": 0}
        if in_place:
            root = int(algo.get("root", 0))
            one = rank if coll in ("allgather", "reducescatter") else root
            if sizes["i"] == sizes["o"]:
                held["o"] = held["i"]
            elif coll not in ("gather", "scatter") or rank == root:
                small, large = ("i", "o") if sizes["i"] < sizes["o"] else ("o", "i")
                shift[small] = one * sizes[small]
                if small == "i":
                    held["o"][shift["i"] : shift["i"] + sizes["i"]] = held["i"]
                held[small] = held[large]
        memory.append((held, shift))
    queues: dict[Any, deque[list[Any]]] = {}
    done: dict[tuple[int, int], int] = {}
    threads = []
    for rank, gpu in gpus.items():
        for tb in gpu.findall("tb"):
            number = int(tb.get("id"))
            done[rank, number] = 0
            ends = (int(tb.get("send")), int(tb.get("recv")), int(tb.get("chan")))
            threads.append((rank, number, ends, tb.findall("step")))

    def at(rank: int, step: Any, side: str) -> Any:
        held, shift = memory[rank]
        buffer = step.get(f"{side}buf")
        first = int(step.get(f"{side}off")) + shift[buffer]
        return held[buffer], slice(first, first + int(step.get("cnt")))

    def ready(thread: Any) -> bool:
        rank, number, (_, recv, chan), steps = thread
        if done[rank, number] == len(steps):
            return False
        step = steps[done[rank, number]]
        dep = int(step.get("depid"))
        if dep >= 0 and done[rank, dep] <= int(step.get("deps")):
            return False
        return not step.get("type").startswith("r") or step.get("type") == "re" or bool(
            queues.get((recv, rank, chan)))  # fmt: skip

    def act(thread: Any) -> None:
        rank, number, (send, recv, chan), steps = thread
        step = steps[done[rank, number]]
        kind = step.get("type")
        out = queues.setdefault((rank, send, chan), deque())
        if kind == "s":
            held, where = at(rank, step, "src")
            out.append(held[where])
        elif kind in ("cpy", "re"):
            (source, a), (target, b) = at(rank, step, "src"), at(rank, step, "dst")
            moved = source[a]
            target[b] = moved if kind == "cpy" else [x + y for x, y in zip(target[b], moved)]
        elif kind != "nop":
            moved = queues[recv, rank, chan].popleft()
            if kind.startswith("rr"):
                held, where = at(rank, step, "src")
                moved = [x + y for x, y in zip(held[where], moved)]
            if kind != "rrs":
                held, where = at(rank, step, "dst")
                held[where] = moved
            if kind.endswith("s"):
                out.append(moved)
        done[rank, number] += 1

    while True:
        able = [t for t in threads if ready(t)]
        if not able:
            break
        act(rng.choice(able))
    if any(done[r, k] < len(steps) for r, k, _, steps in threads):
        raise Stuck
    results = []
    for held, shift in memory:
        results.append(held["o"][shift["o"] : shift["o"] + sizes["o"]])
    return results


def file_of(gpus: list[list[tuple[int, int, int, list[str]]]], coll: str = "allgather", *,
            whole: int | None = None, chunks: tuple[int, int, int] | None = None,
            **attributes: object) -> str:  # fmt: skip
    """Return an MSCCL XML text: for every gpu, thread blocks (send, recv, chan, steps).

    A step is "type src dst [count] [depid deps]": src and dst like i0 or o3, "-" for nothing.
    """
    n = len(gpus)
    whole = whole or n
    head = {"name": "test", "proto": "Simple", "nchannels": 4, "nchunksperloop": whole, "ngpus": n,
            "coll": coll, "inplace": 0, "outofplace": 1, "minBytes": 0, "maxBytes": 0,
            **attributes}  # fmt: skip
    told = " ".join(f'{k}="{v}"' for k, v in head.items() if v is not None)
    small = {"allgather": (whole // n, whole), "reducescatter": (whole, whole // n)}
    i, o, s = chunks or (*small.get(coll, (whole, whole)), 8)
    lines = [f"<algo {told}>"]
    for rank, own in enumerate(gpus):
        lines.append(f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">')
        for number, (send, recv, chan, steps) in enumerate(own):
            lines.append(f'<tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">')
            lines += [step_of(k, step) for k, step in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def step_of(number: int, text: str) -> str:
    """Return one step element."""
    kind, src, dst, *rest = text.split()
    count = rest.pop(0) if len(rest) in (1, 3) else "0" if kind == "nop" else "1"
    depid, deps = rest or ("-1", "-1")
    places = [(p[0], p[1:]) if p != "-" else ("i", "-1") for p in (src, dst)]
    return (f'<step s="{number}" type="{kind}" srcbuf="{places[0][0]}" srcoff="{places[0][1]}" '
            f'dstbuf="{places[1][0]}" dstoff="{places[1][1]}" cnt="{count}" depid="{depid}" '
            f'deps="{deps}" hasdep="1"/>')  # fmt: skip


# ---- what the tests of the format share --------------------------------------------------------

NAMES = {"reducescatter": "reduce_scatter"}


def read(text: str, name: str = "a.xml"):
    """Return the schedule of a text."""
    return read_msccl_text(text.encode(), Path(name))


def places_of(text: str) -> list[bool]:
    """Return the kinds of call a file is for: out of place (False), in place (True)."""
    algo = ET.fromstring(text)
    inside = algo.get("inplace") == "1"
    outside = algo.get("outofplace", str(int(not inside))) == "1"
    return [False] * outside + [True] * inside


def runs_right(text: str, seed: int) -> bool:
    """Return whether the slow executor gets what NumPy gets, in one random order of threads."""
    algo, rng = ET.fromstring(text), random.Random(seed)
    n, coll = int(algo.get("ngpus")), NAMES.get(algo.get("coll"), algo.get("coll"))
    root = int(algo.get("root", 0))
    many = int(algo.get("nchunksperloop")) * blocks(coll, n)[0] // max(blocks(coll, n))
    inputs = [np.array([rng.randrange(1 << 40) for _ in range(many)]) for _ in range(n)]
    wanted = expected(coll, inputs, root)
    for in_place in places_of(text):
        got = run_xml(text, [i.tolist() for i in inputs], in_place, rng)
        if any(w is not None and list(w) != list(g) for w, g in zip(wanted, got)):
            return False
    return True


def transfers(schedule) -> Counter:
    """Return how many chunks go from rank to rank, by channel and operation."""
    found: Counter = Counter()
    for step in schedule:
        columns = (step.src, step.dst, step.op, step.channel, step.count)
        for src, dst, op, channel, count in zip(*(c.tolist() for c in columns)):
            if src != dst:
                found[src, dst, op, channel] += count
    return found
