"""MSCCL++ JSON in: an executor's plan of puts, signals and packets becomes a proved schedule.

Owns the plan's structure: gpus, thread blocks, channels, remote buffers. What single operations do
is in `mscclpp_ops`; the program runs in rccl_py.programs. JSON has no lines here: errors name file,
gpu, tb and op.

References: microsoft/mscclpp, python/mscclpp/language (writes the format), src/core/executor and
src/core/include/execution_kernel.hpp (read and run it).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from ..collectives import COLLECTIVES
from ..errors import FormatError, ScheduleError
from ..programs.ledger import Fault, Ledger
from ..programs.placing import schedule_of
from ..programs.plan import Custom, proved
from ..programs.threads import Action, run_threads
from .mscclpp_ops import Block, Gpu, Node, Plan, shared
from .text import clean, json_of, text_of, uncollected

__all__ = ["read_mscclpp", "read_mscclpp_text"]

_COLLS = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_PROTOCOLS = {"Simple": "Simple", "LL": "LL"}
_MOST_GPUS = 1024
_MOST_CHUNKS = 1 << 18
_MOST_SHARES = 1 << 10  # of a chunk


def _fine(nodes: list[Node]) -> int:
    """Return into how many a chunk must be cut so that all groups of thread blocks can share it."""
    found = 1
    for gpu in nodes:
        for block in gpu.nodes("threadblocks"):
            for op in block.nodes("ops"):
                for one in (op, *op.nodes("ops")):
                    found = math.lcm(found, shared(one)[1])
                    if found > _MOST_SHARES:
                        raise one.error(f"thread block groups cut chunks into {found} shares: "
                                        f"at most {_MOST_SHARES}")  # fmt: skip
    return found


def _ledger(top: Node, gpus: list[Node], fine: int) -> Ledger:
    name = top.text("collective")
    if name not in _COLLS:
        raise top.error(f"collective {clean(name)}: one of {', '.join(_COLLS)}")
    n = len(gpus)
    if not 1 <= n <= _MOST_GPUS:
        raise top.error(f"{n} gpus: 1 to {_MOST_GPUS} are expected")
    spec = COLLECTIVES[_COLLS[name]]
    found = set()
    for gpu in gpus:
        for key, blocks in zip(("input_chunks", "output_chunks"), spec.blocks(n)):
            count = gpu.whole(key, 0, 1 << 31)
            if count % blocks:
                raise gpu.error(f"{key} {count}: {name} on {n} gpus needs a multiple of {blocks}")
            found.add(count // blocks)
    found -= {0}
    if len(found) != 1:
        raise top.error(
            f"blocks of {', '.join(map(str, sorted(found))) or 'no'} chunks: input_chunks and "
            f"output_chunks of all gpus must cut a block of {name} into the same number"
        )
    chunks = found.pop() * fine
    if n * max(spec.blocks(n)) * chunks > _MOST_CHUNKS:
        raise top.error(f"more than {_MOST_CHUNKS} chunks: too many to be followed")
    return Ledger(spec.name, n, 0, chunks, top.flag("inplace"))


def _connect(top: Node, gpus: list[Gpu]) -> None:
    """Pair the channels: the k-th of a kind from a to b is the k-th from b to a."""
    for gpu in gpus:
        for kind, peers in gpu.peers.items():
            for k, peer in enumerate(peers):
                nth = peers[:k].count(peer)
                back = [i for i, p in enumerate(gpus[peer].peers.get(kind, [])) if p == gpu.rank]
                if nth >= len(back):
                    raise top.error(
                        f"gpu {gpu.rank} has {nth + 1} {kind} channel(s) to gpu {peer}, which has "
                        f"{len(back)} back"
                    )
                gpu.partner[kind, k] = peer, back[nth]


def _threads(plan: Plan) -> list[list[Action]]:
    found = list[list[Action]]()
    for gpu in plan.gpus:
        for number, node in enumerate(gpu.node.nodes("threadblocks")):
            block = Block(plan, gpu, node, node.whole("id", 0, 1 << 15), len(found))
            if block.number != number:
                raise node.error(f"id {block.number}: thread blocks count from 0 on, in order")
            found.append(block.actions())
        for number, counts in gpu.barriers.items():
            blocks = set[int]().union(*counts.values())
            if set(counts) != {len(blocks)}:
                raise gpu.node.error(
                    f"barrier {number} is for {', '.join(map(str, counts))} thread blocks, but tb "
                    f"{', '.join(map(str, sorted(blocks)))} use it"
                )
    return found


def _order(top: Node) -> list[Node]:
    nodes = top.nodes("gpus")
    if len(nodes) > _MOST_GPUS:
        raise top.error(f"{len(nodes)} gpus: at most {_MOST_GPUS} are expected")
    ids = [node.whole("id", 0, _MOST_GPUS) for node in nodes]
    if sorted(ids) != list(range(len(ids))):
        raise top.error(f"gpus {clean(ids)}: each of 0..{len(ids) - 1} once is expected")
    return [nodes[ids.index(rank)] for rank in range(len(ids))]


def read_mscclpp(path: str | Path) -> Custom:
    """Return the schedule of an MSCCL++ execution plan, proved out of place and in place.

    min_message_size and max_message_size bound the sizes it is for. Packets (protocol LL) wait by
    their flags; switch channels become switched rows.

    Raises FormatError where the file is malformed, holds an operation that cannot be followed, or
    its program waits for ever, races, or does not do its collective.
    """
    file = Path(path)
    return read_mscclpp_text(text_of(file), file)


@uncollected()
def read_mscclpp_text(data: bytes, file: Path) -> Custom:
    """Return the schedule of the bytes of an MSCCL++ plan, which errors call `file`."""
    top = Node(json_of(data, file), "", file)
    if not isinstance(top.value, dict):
        raise FormatError(f"{file}: an object with collective and gpus was expected")
    order = _order(top)
    fine = _fine(order)
    ledger = _ledger(top, order, fine)
    protocol = top.text("protocol")
    if protocol not in _PROTOCOLS:
        raise top.error(f"protocol {clean(protocol)}: one of {', '.join(_PROTOCOLS)}")
    gpus = [Gpu.of(node, rank, ledger, fine) for rank, node in enumerate(order)]
    plan = Plan(ledger, gpus, fine)
    _connect(top, gpus)
    name = top.text("name")[:80] or file.stem
    least, most = _bounds(top)
    try:
        threads = _threads(plan)
        homes = [gpu.rank for gpu in gpus for _ in gpu.node.nodes("threadblocks")]
        done = run_threads(threads, ledger, _given(gpus), homes)
        nchannels = max((a.channel for t in threads for a in t), default=0) + 1
        schedule = proved(schedule_of(done, name, nchannels))
    except (Fault, ScheduleError) as error:
        raise FormatError(f"{file}: {error}") from None
    notes = tuple(sorted(plan.notes))
    return Custom(schedule, name, (_PROTOCOLS[protocol],), least, most, str(file), notes)


def _given(gpus: list[Gpu]) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    for gpu in gpus:
        for k, node in enumerate(gpu.node.nodes("semaphores")):
            found[f"semaphore {k} of gpu {gpu.rank}"] = node.whole("init_value", 0, 1 << 10)
    return found


def _bounds(top: Node) -> tuple[float, float]:
    least: float = top.whole("min_message_size", 0, 1 << 64, 0)
    most: Any = top.whole("max_message_size", 0, 1 << 64, (1 << 64) - 1)
    if most < least:
        raise top.error(f"min_message_size {least} is above max_message_size {most}")
    return least, (most if most < 1 << 62 else math.inf)
