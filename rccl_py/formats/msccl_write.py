"""MSCCL XML out: any schedule as thread blocks, with every attribute its readers demand.

Owns the mapping: one thread block for each (channel, peer) a rank sends to or receives from, and
one for what it does alone; what orders them is dependencies, found from the slots they share. Knows
no fabric and no file system.

    rank 1   tb 0  -         cpy i[1] -> o[1]
             tb 1  send=2    s   o[0]            depid=2 deps=0     what tb 2 received
             tb 2  recv=0    r   o[0]            hasdep=1

References: ROCm/rccl, src/misc/msccl/msccl_parser.cc and src/include/msccl/msccl_struct.h (demanded
attributes; limits); Azure/msccl, src/include/msccl.h (256 steps).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

import numpy as np

from ..check import alias_map
from ..collectives import COLLECTIVES
from ..errors import FormatError, InvalidArgument
from ..schedule import COPY, Schedule
from .msccl_xml import COLLS

__all__ = ["LIMITS", "Limits", "msccl_xml"]

_NAMES = {ours: theirs for theirs, ours in reversed(COLLS.items())}
MOST_ROWS = 1 << 20  # transfers that are written: some minutes, and the most that are read
_UNBOUNDED = (1 << 63) - 1  # of maxBytes; 0 means that to RCCL only


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader holds: steps of a thread block, peers on a channel, channels, chunks a step,
    chunks of a buffer, thread blocks that others wait for.
    """

    steps: int
    peers: int = 32
    channels: int = 32
    count: int = 71
    chunks: int = 1 << 15
    blocks: int = 128


LIMITS = {"rccl": Limits(64), "msccl": Limits(256)}
"""Readers by name: RCCL's own, and Azure's msccl and msccl-executor-nccl."""


@dataclass(slots=True)
class _Step:
    kind: str
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    waits: tuple[int, int] = (-1, -1)
    awaited: bool = False


@dataclass(eq=False)
class _Block:
    """A thread block. knows: by other block, the last step that is surely over before the next."""

    number: int
    send: int
    recv: int
    channel: int
    steps: list[_Step] = field(default_factory=list)
    knows: dict[int, int] = field(default_factory=dict)
    knew: list[dict[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class _Gpu:
    rank: int
    blocks: dict[tuple[str, int, int], _Block] = field(default_factory=dict)
    writer: dict[int, tuple[_Block, int]] = field(default_factory=dict)
    readers: dict[int, list[tuple[_Block, int]]] = field(default_factory=dict)

    def block(self, side: str, channel: int, peer: int) -> _Block:
        key = side, channel, peer
        if key not in self.blocks:
            send, recv = (peer if side == s else -1 for s in ("send", "recv"))
            self.blocks[key] = _Block(len(self.blocks), send, recv, channel)
        return self.blocks[key]

    def add(self, block: _Block, step: _Step, reads: list[int], writes: list[int]) -> None:
        """Append a step that waits for all whose places it touches."""
        before = [self.writer[p] for p in (*reads, *writes) if p in self.writer]
        before += [reader for p in writes for reader in self.readers.get(p, ())]
        last: dict[int, tuple[_Block, int]] = {}
        for other, at in before:
            known = max(block.knows.get(other.number, -1), last.get(other.number, (other, -1))[1])
            if other is not block and at > known:
                last[other.number] = other, at
        waits = [
            (other, at)
            for number, (other, at) in last.items()
            if not any(o.knew[a].get(number, -1) >= at for o, a in last.values() if o is not other)
        ]
        for other, at in waits:
            other.steps[at].awaited = True
            for number, seen in (*other.knew[at].items(), (other.number, at)):
                block.knows[number] = max(block.knows.get(number, -1), seen)
        for other, at in waits[:-1]:
            nop = _Step("nop", ("i", -1), ("o", -1), 0, (other.number, at))
            self._append(block, nop)
        if waits:
            step.waits = waits[-1][0].number, waits[-1][1]
        self._append(block, step)
        here = block, len(block.steps) - 1
        for p in reads:
            self.readers.setdefault(p, []).append(here)
        for p in writes:
            self.writer[p] = here
            self.readers[p] = []

    def _append(self, block: _Block, step: _Step) -> None:
        block.steps.append(step)
        block.knew.append(dict(block.knows))


@dataclass(eq=False)
class _Writer:
    schedule: Schedule
    limits: Limits

    def __post_init__(self) -> None:
        rows = 0
        for phase in self.schedule.phases():
            rows += phase.steps * sum(move.rows.size for move in phase.moves)
            self._hold("transfers or more", rows, MOST_ROWS)
        self.gpus = [_Gpu(rank) for rank in range(self.schedule.nranks)]
        self.alias = alias_map(self.schedule)
        layout = self.schedule.layout
        self.ends = (
            layout.inputs * layout.chunks,
            (layout.inputs + layout.outputs) * layout.chunks,
        )

    def place(self, slot: int) -> tuple[str, int]:
        if slot < self.ends[0]:
            return "i", slot
        return ("o", slot - self.ends[0]) if slot < self.ends[1] else ("s", slot - self.ends[1])

    def memory(self, rank: int, slot: int, count: int) -> list[int]:
        """Return which memory slots are: in place, input and output share it."""
        found = range(slot, slot + count)
        return list(found) if self.alias is None else self.alias[rank, found].tolist()

    def fill(self) -> None:
        """Turn every row into steps of thread blocks."""
        for phase in self.schedule.phases():
            for s in range(phase.steps):
                for move in phase.moves:
                    if move.rows.switched:
                        raise FormatError(
                            f"{self.schedule.collective}/{self.schedule.algorithm}: switches add "
                            "up or hand on, which MSCCL XML has no step for: export another plan"
                        )
                    step = move.step(s)
                    columns = (step.src, step.dst, step.src_slot, step.dst_slot, step.count)
                    rows = np.stack([*columns, step.op, step.channel], axis=1).tolist()
                    self.move(list(self.split(rows)))
                if self._overfull():  # said at once, not after minutes
                    self.check()

    def _overfull(self) -> bool:
        most = self.limits.steps
        return any(len(b.steps) > most for gpu in self.gpus for b in gpu.blocks.values())

    def split(self, rows: list[list[int]]) -> Iterator[list[int]]:
        for row in rows:
            for first in range(0, row[4], self.limits.count):
                count = min(self.limits.count, row[4] - first)
                yield [row[0], row[1], row[2] + first, row[3] + first, count, *row[5:]]

    def move(self, rows: list[list[int]]) -> None:
        """Add a step's rows: all that reads first, for reads come before writes."""
        for src, dst, src_slot, dst_slot, count, _, channel in rows:
            if src != dst:
                block = self.gpus[src].block("send", channel, dst)
                step = _Step("s", self.place(src_slot), self.place(dst_slot), count)
                self.gpus[src].add(block, step, self.memory(src, src_slot, count), [])
        for row in self.local_order([row for row in rows if row[0] == row[1]]):
            rank, _, src_slot, dst_slot, count, op, _ = row
            kind = "cpy" if op == COPY else "re"
            step = _Step(kind, self.place(src_slot), self.place(dst_slot), count)
            reads = self.memory(rank, src_slot, count)
            block = self.gpus[rank].block("local", 0, -1)
            self.gpus[rank].add(block, step, reads, self.memory(rank, dst_slot, count))
        for src, dst, src_slot, dst_slot, count, op, channel in rows:
            if src != dst:
                block = self.gpus[dst].block("recv", channel, src)
                target = self.place(dst_slot)
                step = _Step("r", self.place(src_slot), target, count)
                if op != COPY:
                    step = _Step("rrc", target, target, count)
                self.gpus[dst].add(block, step, [], self.memory(dst, dst_slot, count))

    def local_order(self, rows: list[list[int]]) -> list[list[int]]:
        """Return local rows so that none reads what one before it wrote."""
        reads = [set(self.memory(r[0], r[2], r[4])) for r in rows]
        writes = [set(self.memory(r[0], r[3], r[4])) for r in rows]
        ordered, left = list[int](), list(range(len(rows)))
        while left:
            free = [
                i
                for i in left
                if not any(
                    rows[j][0] == rows[i][0] and j != i and reads[j] & writes[i] for j in left
                )
            ]
            if not free:
                raise FormatError(
                    f"{self.schedule.collective}/{self.schedule.algorithm}: rank "
                    f"{rows[left[0]][0]} swaps slots in one step, which MSCCL XML cannot say"
                )
            ordered += free
            left = [i for i in left if i not in set(free)]
        return [rows[i] for i in ordered]

    def check(self) -> None:
        """Refuse what the reader could not hold."""
        chunks = self.schedule.layout.chunks
        layout, limits = self.schedule.layout, self.limits
        sizes = [layout.inputs * chunks, layout.outputs * chunks, layout.scratch * chunks]
        self._hold("channels", self.schedule.nchannels, limits.channels)
        self._hold("chunks of a buffer", max(sizes), limits.chunks)
        for gpu in self.gpus:
            for block in gpu.blocks.values():
                self._hold(
                    f"steps of gpu {gpu.rank} tb {block.number}", len(block.steps), limits.steps
                )
                if any(step.awaited for step in block.steps):
                    what = f"thread blocks that others of gpu {gpu.rank} wait for"
                    self._hold(what, block.number + 1, limits.blocks)
            for side in ("send", "recv"):
                for channel in range(self.schedule.nchannels):
                    peers = sum(k[:2] == (side, channel) for k in gpu.blocks)
                    what = f"peers gpu {gpu.rank} has on channel {channel} to {side}"
                    self._hold(what, peers, limits.peers)

    def _hold(self, what: str, found: int, most: int) -> None:
        if found > most:
            raise FormatError(
                f"{self.schedule.collective}/{self.schedule.algorithm} on "
                f"{self.schedule.nranks} ranks: {found} {what}, at most {most} are held: take "
                "another plan, fewer pieces or another reader (limits=)"
            )

    def lines(self) -> Iterator[str]:
        layout, chunks = self.schedule.layout, self.schedule.layout.chunks
        for gpu in self.gpus:
            yield (
                f'  <gpu id="{gpu.rank}" i_chunks="{layout.inputs * chunks}" '
                f'o_chunks="{layout.outputs * chunks}" s_chunks="{layout.scratch * chunks}">'
            )
            for block in gpu.blocks.values():
                yield (
                    f'    <tb id="{block.number}" send="{block.send}" recv="{block.recv}" '
                    f'chan="{block.channel}">'
                )
                for number, step in enumerate(block.steps):
                    yield _line(number, step)
                yield "    </tb>"
            yield "  </gpu>"


def _line(number: int, step: _Step) -> str:
    return (
        f'      <step s="{number}" type="{step.kind}" srcbuf="{step.src[0]}" '
        f'srcoff="{step.src[1]}" dstbuf="{step.dst[0]}" dstoff="{step.dst[1]}" '
        f'cnt="{step.count}" depid="{step.waits[0]}" deps="{step.waits[1]}" '
        f'hasdep="{int(step.awaited)}"/>'
    )


def msccl_xml(
    schedule: Schedule,
    *,
    name: str = "",
    protocol: str = "Simple",
    least: float = 0,
    most: float = math.inf,
    limits: str | Limits | None = "rccl",
) -> str:
    """Return `schedule` as the text of an MSCCL XML file.

    least, most: the sizes in bytes it is for (minBytes, maxBytes). limits: whose reader must hold
    it, None for nobody's. Rooted collectives carry a root, which is not part of MSCCL's format.
    Raises FormatError where switches add up in it or a limit is passed, InvalidArgument for an
    unknown reader.
    """
    if isinstance(limits, str) and limits not in LIMITS:
        raise InvalidArgument(f"msccl_xml: limits {limits!r}: one of {', '.join(LIMITS)}, or None")
    held = LIMITS[limits] if isinstance(limits, str) else limits
    writer = _Writer(schedule, held or Limits(*(1 << 31,) * 6))
    writer.fill()
    if held is not None:
        writer.check()
    layout, spec = schedule.layout, COLLECTIVES[schedule.collective]
    whole = max(layout.inputs, layout.outputs) * layout.chunks
    top = _UNBOUNDED if math.isinf(most) else int(most)
    root = f' root="{schedule.root}"' if spec.rooted else ""
    head = (
        f'<algo name={quoteattr(name or schedule.algorithm)} proto="{protocol}" '
        f'nchannels="{schedule.nchannels}" nchunksperloop="{whole}" ngpus="{schedule.nranks}" '
        f'coll="{_NAMES[schedule.collective]}" inplace="{int(writer.alias is not None)}" '
        f'outofplace="1" minBytes="{int(least)}" maxBytes="{top}" redop="nop"{root}>'
    )
    return "\n".join([head, *writer.lines(), "</algo>", ""])
