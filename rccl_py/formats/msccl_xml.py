"""MSCCL XML in: thread blocks that send, receive and reduce chunks become a proved schedule.

Owns what the elements and attributes mean. Knows no slots and no steps of ours: the program runs
in rccl_py.programs, which levels it. Every failure is one FormatError that names file, line and,
inside a program, gpu, tb and step.

References: microsoft/msccl-tools (writes the format); ROCm/rccl, src/misc/msccl/msccl_parser.cc and
Azure/msccl (read and run it): buffers i, o and s, steps s, r, rcs, rrs, rrc, rrcs, cpy, re and nop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..collectives import COLLECTIVES
from ..errors import FormatError, ScheduleError
from ..programs.ledger import Fault, Ledger, Place
from ..programs.placing import schedule_of
from ..programs.plan import Custom, proved
from ..programs.threads import Action, run_threads
from ..topology.formats.xml_tree import Element
from .text import clean, text_of, uncollected, xml_of

__all__ = ["COLLS", "read_msccl"]

COLLS = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""Collectives by the name MSCCL gives them."""

_PROTOCOLS = ("Simple", "LL", "LL128")
_TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
_MOST_GPUS = 1024
_MOST_CHUNKS = 1 << 18  # in all inputs together
_MOST_MOVED = 1 << 20  # chunks, over all steps
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_SENDS, _RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs")


@dataclass(slots=True, eq=False)
class _Block:
    """A thread block while it is read. ends: the last action of each step."""

    element: Element
    gpu: int
    number: int
    send: int
    recv: int
    chan: int
    thread: int
    actions: list[Action] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Reader:
    """The program of one file. limits: chunks of each gpu's buffers, as declared."""

    root: Element
    ledger: Ledger
    nchannels: int
    blocks: dict[tuple[int, int], _Block] = field(default_factory=dict)
    limits: dict[tuple[int, str], int] = field(default_factory=dict)
    waits: list[tuple[Element, _Block, Action, tuple[int, int]]] = field(default_factory=list)
    moved: int = 0

    def read(self) -> list[list[Action]]:
        """Return the actions of all threads."""
        for gpu in self._gpus():
            rank = _whole(gpu, "id", 0, self.ledger.n - 1)
            self._buffers(gpu, rank)
            for element in gpu.named("tb"):
                self._block(element, rank)
        self._one_each()
        for block in self.blocks.values():
            for number, step in enumerate(block.element.named("step")):
                self._step(step, block, number)
        for element, block, action, (tb, awaited) in self.waits:
            other = self.blocks.get((block.gpu, tb))
            if other is None or not 0 <= awaited < len(other.ends):
                raise element.error(
                    f"{action.where} depends on step {awaited} of tb {tb} of its gpu: there is none"
                )
            action.thread, action.count = other.thread, other.ends[awaited]
        return [block.actions for block in self.blocks.values()]

    def _gpus(self) -> Iterator[Element]:
        seen: dict[int, int] = {}
        for gpu in self.root.named("gpu"):
            rank = _whole(gpu, "id", 0, self.ledger.n - 1)
            if rank in seen:
                raise gpu.error(f"gpu {rank} was described on line {seen[rank]} already")
            seen[rank] = gpu.line
            yield gpu
        missing = [rank for rank in range(self.ledger.n) if rank not in seen]
        if missing:
            raise self.root.error(
                f"ngpus={self.ledger.n}, but gpu {missing[0]} is missing ({len(missing)} in all)"
            )

    def _buffers(self, gpu: Element, rank: int) -> None:
        ledger = self.ledger
        real = {"i": ledger.inputs * ledger.chunks, "o": ledger.outputs * ledger.chunks}
        for buffer in "ios":
            name = f"{buffer}_chunks"
            most = real.get(buffer, 1 << 31)
            count = _whole(gpu, name, 0, 1 << 31)
            if count > most:
                raise gpu.error(
                    f"gpu {rank} has {name}={count}: {ledger.collective} with nchunksperloop="
                    f"{max(real.values())} has {most} there"
                )
            self.limits[rank, buffer] = count

    def _block(self, element: Element, rank: int) -> None:
        number = _whole(element, "id", 0, 1 << 15)
        send, recv = (_whole(element, side, -1, self.ledger.n - 1) for side in ("send", "recv"))
        chan = _whole(element, "chan", -1, self.nchannels - 1)
        if rank in (send, recv):
            raise element.error(f"tb {number} of gpu {rank} has its own gpu as a peer")
        if (rank, number) in self.blocks:
            raise element.error(f"gpu {rank} has a tb {number} already")
        block = _Block(element, rank, number, send, recv, max(chan, 0), len(self.blocks))
        self.blocks[rank, number] = block

    def _one_each(self) -> None:
        """Refuse two thread blocks on one end of a connection: whose message comes first?"""
        seen: dict[tuple[int, str, int, int], _Block] = {}
        for block in self.blocks.values():
            for side, peer in (("send", block.send), ("recv", block.recv)):
                if peer < 0:
                    continue
                other = seen.setdefault((block.gpu, side, peer, block.chan), block)
                if other is not block:
                    raise block.element.error(
                        f"tb {block.number} and tb {other.number} of gpu {block.gpu} both {side} "
                        f"with gpu {peer} on channel {block.chan}"
                    )

    def _step(self, step: Element, block: _Block, number: int) -> None:
        kind, where = step.text("type"), f"gpu {block.gpu} tb {block.number} step {number}"
        if kind not in _TYPES:
            raise step.error(f"{where} has type={clean(kind)}: one of {', '.join(_TYPES)}")
        if _whole(step, "s", 0, 1 << 31) != number:
            raise step.error(f"{where} has s={step.text('s')}: steps count from 0 on, in order")
        if kind in _SENDS and block.send < 0:
            raise step.error(f"{where} sends (type={kind}), but its tb has send=-1")
        if kind in _RECEIVES and block.recv < 0:
            raise step.error(f"{where} receives (type={kind}), but its tb has recv=-1")
        where = f"{where} (line {step.line})"
        depends = _whole(step, "depid", -1, 1 << 15), _whole(step, "deps", -1, 1 << 31)
        _whole(step, "hasdep", 0, 1)
        if depends[0] >= 0:
            action = Action("after", where)
            self.waits.append((step, block, action, depends))
            block.actions.append(action)
        block.actions += self._actions(kind, step, block, where)
        block.ends.append(len(block.actions) - 1)

    def _actions(self, kind: str, step: Element, block: _Block, where: str) -> list[Action]:
        into = f"from gpu {block.recv} to gpu {block.gpu} on channel {block.chan}"
        out = f"from gpu {block.gpu} to gpu {block.send} on channel {block.chan}"
        if kind == "nop":
            return [Action("stand", where)]
        count = _whole(step, "cnt", 1, _MOST_MOVED)
        self.moved += count
        if self.moved > _MOST_MOVED:
            raise step.error(f"more than {_MOST_MOVED} chunks move: too many to be followed")

        def src() -> tuple[Place, ...]:
            return self._places(step, block, "src", count, where)

        def dst() -> tuple[Place, ...]:
            return self._places(step, block, "dst", count, where)

        chan = block.chan
        if kind == "s":
            return [Action("send", where, src(), queue=out, channel=chan)]
        if kind == "cpy":
            return [Action("move", where, src(), dst=dst(), channel=chan)]
        if kind == "re":
            return [Action("move", where, src(), dst(), dst(), channel=chan)]
        base = src() if kind in ("rrs", "rrc", "rrcs") else ()
        to = () if kind == "rrs" else dst()
        actions = [Action("receive", where, base=base, dst=to, queue=into, channel=chan)]
        if kind in _SENDS:
            actions.append(Action("send", where, queue=out, channel=chan))
        return actions

    def _places(
        self, step: Element, block: _Block, side: str, count: int, where: str
    ) -> tuple[Place, ...]:
        buffer = step.text(f"{side}buf")
        if buffer not in ("i", "o", "s"):
            raise step.error(f"{where} has {side}buf={clean(buffer)}: i, o or s is expected")
        first = _whole(step, f"{side}off", 0, 1 << 31)
        limit = self.limits[block.gpu, buffer]
        if first + count > limit:
            raise step.error(
                f"{where}: {side} chunks {first}..{first + count - 1} leave buffer {buffer} of "
                f"{limit} chunks ({buffer}_chunks of gpu {block.gpu})"
            )
        return tuple((block.gpu, buffer, first + k) for k in range(count))


def _whole(element: Element, name: str, low: int, high: int) -> int:
    text = element.text(name)
    if not text:
        raise element.error(f"<{element.name}> has no attribute {name}")
    if not _NUMBER.fullmatch(text):
        raise element.error(f"<{element.name}> {name}={clean(text)} is not a whole number")
    value = int(text)
    if not low <= value <= high:
        raise element.error(f"<{element.name}> {name}={value}: expected {low} to {high}")
    return value


def _optional(element: Element, name: str, default: int, high: int) -> int:
    return default if not element.text(name) else _whole(element, name, 0, high)


def _ledgers(root: Element) -> list[Ledger]:
    """Return a ledger of each kind of call the program is for, the one to translate last."""
    coll = root.text("coll")
    if coll not in COLLS:
        raise root.error(f"coll={clean(coll)}: one of {', '.join(COLLS)}")
    n = _whole(root, "ngpus", 1, _MOST_GPUS)
    per_loop = _whole(root, "nchunksperloop", 1, 1 << 31)
    spec = COLLECTIVES[COLLS[coll]]
    blocks = max(spec.blocks(n))
    if per_loop % blocks:
        raise root.error(
            f"nchunksperloop={per_loop}: {coll} on {n} gpus needs a multiple of {blocks}"
        )
    chunks = per_loop // blocks
    if n * spec.blocks(n)[0] * chunks > _MOST_CHUNKS or n * per_loop > _MOST_CHUNKS:
        raise root.error(f"nchunksperloop={per_loop} on {n} gpus: more than {_MOST_CHUNKS} chunks")
    place = _optional(root, "root", 0, n - 1)
    inside = bool(_whole(root, "inplace", 0, 1))
    outside = bool(_optional(root, "outofplace", not inside, 1))
    if not inside and not outside:
        raise root.error("inplace=0 and outofplace=0: for which calls is it?")
    kinds = [True] * inside + [False] * outside
    return [Ledger(spec.name, n, place, chunks, in_place) for in_place in kinds]


def _notes(root: Element) -> tuple[str, ...]:
    missing = [a for a in ("outofplace", "minBytes", "maxBytes") if not root.text(a)]
    if not missing:
        return ()
    return (f"{', '.join(missing)} missing (RCCL's reader demands them): taken as for every size",)


def read_msccl(path: str | Path) -> Custom:
    """Return the schedule of an MSCCL XML file, proved out of place and in place.

    inplace, outofplace: a program for one kind of call serves both here. minBytes and maxBytes
    bound the sizes it is for (maxBytes 0: no bound). root: not part of MSCCL's own format; ours to
    keep the root of a rooted collective, 0 where it is missing.

    Raises FormatError where the file is malformed, or its program waits for ever, races, leaves a
    buffer, or does not do its collective.
    """
    file = Path(path)
    return read_msccl_text(text_of(file), file)


@uncollected()
def read_msccl_text(data: bytes, file: Path) -> Custom:
    """Return the schedule of the bytes of an MSCCL XML file, which errors call `file`."""
    root = xml_of(data, file)
    if root.name != "algo":
        raise root.error(f"the first element is <{root.name[:40]}>: <algo> was expected")
    nchannels = _whole(root, "nchannels", 1, 1 << 10)
    protocol = root.text("proto")
    if protocol not in _PROTOCOLS:
        raise root.error(f"proto={clean(protocol)}: one of {', '.join(_PROTOCOLS)}")
    least = _optional(root, "minBytes", 0, 1 << 64)
    most: float = _optional(root, "maxBytes", 0, 1 << 64)
    most = most if 0 < most < 1 << 62 else math.inf
    if most < least:
        raise root.error(f"minBytes={least} is above maxBytes={most:.0f}")
    ledgers = _ledgers(root)
    name = root.text("name")[:80] or file.stem
    actions = _Reader(root, ledgers[-1], nchannels).read()
    for ledger in ledgers:
        try:
            if ledger is not ledgers[-1]:
                run_threads(actions, ledger, quick=True).result()
                continue
            schedule = schedule_of(run_threads(actions, ledger), name, nchannels)
        except (Fault, ScheduleError) as error:
            kind = "in place: " if ledger.in_place and len(ledgers) > 1 else ""
            raise FormatError(f"{file}: {kind}{error}") from None
    try:
        proved(schedule)
    except ScheduleError as error:
        raise FormatError(f"{file}: {error}") from None
    return Custom(schedule, name, (protocol,), least, most, str(file), _notes(root))
