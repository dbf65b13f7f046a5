"""What the operations of an MSCCL++ plan do, as actions of a thread.

Owns the operations' names and operands, and the checked access to the JSON values. Knows no file.

References: microsoft/mscclpp, src/core/include/execution_kernel.hpp (what each handler does),
python/mscclpp/language/internal/types.py (names).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..programs.ledger import NAMES, Ledger, Place
from ..programs.threads import Action
from .text import clean

__all__ = ["Block", "Gpu", "Node", "Plan", "shared"]

_MOST_MOVED = 1 << 20  # chunks, over all operations
_COPIES = ("copy", "get", "put", "pws", "pwsf", "ppkt", "rppkt", "cpkt", "tpkt", "upkt")
_REDUCES = ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt")
_SIGNALS, _WAITS = ("signal", "rlxsignal", "sem_release"), ("wait", "rlxwait", "sem_acquire")
_GROUPS = ("glre", "glres", "gstore")
_STANDS = ("nop", "start")
_ALONE = ("flush", "barrier", "pipeline")
_KNOWN = (*_COPIES, *_REDUCES, *_SIGNALS, *_WAITS, *_GROUPS, *_STANDS, *_ALONE)
_AWAIT = ("rppkt", "upkt")
_PUTS = ("put", "pws", "pwsf", "ppkt", "rppkt")  # done by a port channel, if on one
_PACKETS = ("ppkt", "rppkt", "cpkt", "tpkt")


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value, where it stands and in which file."""

    value: Any
    where: str
    file: Path

    def error(self, message: str) -> FormatError:
        """Return a FormatError that opens with the file and the place."""
        return FormatError(f"{self.file}: {self.where}{': ' if self.where else ''}{message}")

    def get(self, key: str) -> Any:
        """Return a value of an object. Raises FormatError where it is missing."""
        if not isinstance(self.value, dict) or key not in self.value:
            raise self.error(f"has no {key!r}")
        return self.value[key]

    def has(self, key: str) -> bool:
        """Return whether an object has a key."""
        return isinstance(self.value, dict) and key in self.value

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number of an object."""
        if default is not None and not self.has(key):
            return default
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(
                f"{key} {clean(value)}: a whole number from {low} to {high} is expected"
            )
        return value

    def text(self, key: str) -> str:
        """Return a printable text of an object."""
        value = self.get(key)
        if not isinstance(value, str) or not value.isprintable():
            raise self.error(f"{key} {clean(value)}: a text is expected")
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value of an object."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.error(f"{key} {clean(value)}: true or false is expected")
        return value

    def nodes(self, key: str) -> list[Node]:
        """Return the entries of a list of objects; none where the key is missing."""
        value = self.value.get(key, []) if isinstance(self.value, dict) else None
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self.error(f"{key} {clean(value)}: a list of objects is expected")
        before = f"{self.where} " if self.where else ""
        name = {"gpus": "gpu", "threadblocks": "tb", "ops": "op"}.get(key, key)
        return [Node(v, f"{before}{name} {k}", self.file) for k, v in enumerate(value)]

    def numbers(self, key: str, high: int) -> list[int]:
        """Return a list of whole numbers from 0 to `high`."""
        value = self.get(key)
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v <= high for v in value):
            raise self.error(
                f"{key} {clean(value)}: a list of numbers from 0 to {high} is expected"
            )
        return value


@dataclass(eq=False)
class Gpu:
    """A gpu's tables. peers: ranks a kind of channel leads to; groups: ranks behind a switch."""

    node: Node
    rank: int
    limits: dict[str, int]
    peers: dict[str, list[int]] = field(default_factory=dict)
    groups: list[tuple[str, list[int]]] = field(default_factory=list)
    remote: list[tuple[int, str]] = field(default_factory=list)
    partner: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    barriers: dict[int, dict[int, set[int]]] = field(default_factory=dict)

    @staticmethod
    def of(node: Node, rank: int, ledger: Ledger, fine: int) -> Gpu:
        """Return the tables of a gpu; every chunk of the file is `fine` of the ledger's."""
        keys = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        gpu = Gpu(node, rank, {b: fine * node.whole(k, 0, 1 << 31) for b, k in keys.items()})
        for channel in node.nodes("channels"):
            kind = channel.text("channel_type")
            if kind == "switch":
                buffer = _buffer(channel, "buffer_type")
                for group in channel.nodes("rank_groups"):
                    ranks = group.numbers("ranks", ledger.n - 1)
                    if rank not in ranks or len(set(ranks)) < len(ranks):
                        raise group.error(f"ranks {clean(ranks)}: gpu {rank} and others, once each")
                    gpu.groups.append((buffer, ranks))
                continue
            gpu.peers.setdefault(kind, []).extend(channel.numbers("connected_to", ledger.n - 1))
        for entry in node.nodes("remote_buffers"):
            owner = entry.whole("rank", 0, ledger.n - 1)
            gpu.remote.append((owner, _buffer(entry, "type")))
        return gpu


def _buffer(node: Node, key: str) -> str:
    value = node.text(key)
    if value not in NAMES:
        raise node.error(f"{key} {clean(value)}: i, o or s is expected")
    return value


def shared(op: Node) -> tuple[int, int]:
    """Return which share of an operation a thread block does, and of how many."""
    if not op.has("tbg_info"):
        return 0, 1
    info = Node(op.get("tbg_info"), f"{op.where} tbg_info", op.file)
    blocks = info.whole("tbg_size", 1, 1 << 10)
    return info.whole("tb_id", 0, blocks - 1), blocks


@dataclass(eq=False)
class Plan:
    """The plan while it is read. fine: into how many a chunk is cut, so that a group of thread
    blocks can share one. notes: what was assumed.
    """

    ledger: Ledger
    gpus: list[Gpu]
    fine: int = 1
    notes: set[str] = field(default_factory=set)
    moved: int = 0


@dataclass(eq=False)
class Block:
    """A thread block: its operations become actions of thread number `thread`."""

    plan: Plan
    gpu: Gpu
    node: Node
    number: int
    thread: int
    barriers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.channels: dict[str, list[int]] = {}
        for entry in self.node.nodes("channels"):
            kind = entry.text("channel_type")
            self.channels.setdefault(kind, []).extend(entry.numbers("channel_ids", 1 << 16))
        self.refs: dict[str, list[int]] = {}
        for entry in self.node.nodes("remote_buffer_refs"):
            kind = entry.text("access_channel_type")
            self.refs.setdefault(kind, []).extend(entry.numbers("remote_buffer_ids", 1 << 16))

    def actions(self) -> list[Action]:
        """Return what the thread does."""
        return [action for op in self.node.nodes("ops") for action in self.of(op)]

    def of(self, op: Node) -> list[Action]:
        """Return the actions of one operation."""
        name = op.text("name")
        if name not in _KNOWN:
            raise op.error(f"operation {clean(name)} is not known: one of {', '.join(_KNOWN)}")
        where = f"{op.where} ({name})"
        if name in _STANDS:
            return [Action("stand", where)]
        if name == "pipeline":
            self.plan.notes.add("pipeline loops are followed once, for the whole chunk")
            return [action for inner in op.nodes("ops") for action in self.of(inner)]
        if name == "flush":
            return self._flush(op, where)
        if name == "barrier":
            return self._barrier(op, where)
        if name in _SIGNALS or name in _WAITS:
            return self._signals(op, name, where)
        if name in _GROUPS:
            return self._group(op, name, where)
        return self._copies(op, name, where) if name in _COPIES else self._reduces(op, name, where)

    def _barrier(self, op: Node, where: str) -> list[Action]:
        number, count = op.whole("barrier_id", 0, 1 << 16), op.whole("num_threadblocks", 1, 1 << 16)
        again = self.barriers[number] = self.barriers.get(number, 0) + 1
        queue = f"at barrier {number} of gpu {self.gpu.rank}"
        self.gpu.barriers.setdefault(number, {}).setdefault(count, set()).add(self.number)
        return [
            Action("signal", where, queue=queue, count=count * again),
            Action("wait", where, queue=queue, count=count * again),
        ]

    def _signals(self, op: Node, name: str, where: str) -> list[Action]:
        verb = "signal" if name in _SIGNALS else "wait"
        if name.startswith("sem_"):
            ids = op.numbers("semaphore_ids", 1 << 16)
            at = [f"semaphore {k} of gpu {self.gpu.rank}" for k in ids]
            return [Action(verb, where, queue=queue, counted=True) for queue in at]
        relaxed = name.startswith("rlx") and op.text("channel_type") != "port"
        if verb == "signal":
            return [self._signal(op, k, where, relaxed) for k in op.numbers("channel_ids", 1 << 16)]
        kind = op.text("channel_type")
        return [
            Action(verb, where, queue=self._semaphore(op, kind, k, True), relaxed=relaxed)
            for k in op.numbers("channel_ids", 1 << 16)
        ]

    def _signal(self, op: Node, index: int, where: str, relaxed: bool = False) -> Action:
        kind = op.text("channel_type")
        queue = self._semaphore(op, kind, index, False)
        lane = self._lane(op, index) if kind == "port" else None
        return Action("signal", where, queue=queue, relaxed=relaxed, lane=lane)

    def _lane(self, op: Node, index: int) -> str:
        """Return who does what a port channel is given, while the thread block goes on."""
        mine = self._entry(op, self.channels.get("port", []), index, "port channel")
        return f"port channel {mine} of gpu {self.gpu.rank}"

    def _lanes(self, op: Node, name: str, targets: list[tuple[Place, ...]]) -> list[str | None]:
        """Return the lane of every target. A put that names no channel takes one to the target."""
        if name not in _PUTS or op.value.get("channel_type") != "port":
            return [None] * len(targets)
        if op.has("channel_ids"):
            ids = op.numbers("channel_ids", 1 << 16)
            if len(ids) != len(targets):
                raise op.error(f"channel_ids: one for each of {len(targets)} targets is expected")
            return [self._lane(op, k) for k in ids]
        mine, peers = self.channels.get("port", []), self.gpu.peers.get("port", [])
        to = {peers[m]: k for k, m in reversed(list(enumerate(mine))) if m < len(peers)}
        ranks = [target[0][0] for target in targets]
        if not to.keys() >= set(ranks):
            raise op.error(f"no port channel of its thread block leads to gpu {ranks[0]}")
        return [self._lane(op, to[rank]) for rank in ranks]

    def _flush(self, op: Node, where: str) -> list[Action]:
        """Return the wait for all that port channels were given."""
        if op.value.get("channel_type") != "port":
            return [Action("stand", where)]
        ids = op.numbers("channel_ids", 1 << 16)
        return [Action("flush", where, lane=self._lane(op, k)) for k in ids]

    def _semaphore(self, op: Node, kind: str, index: int, here: bool) -> str:
        """Return the semaphore of a channel, at this gpu or at its peer."""
        mine = self._entry(op, self.channels.get(kind, []), index, f"{kind} channel")
        if (kind, mine) not in self.gpu.partner:
            raise op.error(f"{kind} channel {mine}: gpu {self.gpu.rank} has none of this number")
        rank, theirs = self.gpu.partner[kind, mine]
        owner = (self.gpu.rank, mine, rank) if here else (rank, theirs, self.gpu.rank)
        return f"to gpu {owner[0]} on its {kind} channel {owner[1]} from gpu {owner[2]}"

    def _entry(self, op: Node, table: list[int], index: int, what: str) -> int:
        if index >= len(table):
            raise op.error(f"{what} {index}: its thread block has {len(table)}")
        return table[index]

    def _places(self, op: Node, buff: Node) -> tuple[Place, ...]:
        """Return the chunks an operand names, of this gpu or of another."""
        first, count = self._range(op, buff)
        if buff.has("type"):
            rank, buffer = self.gpu.rank, _buffer(buff, "type")
        else:
            kind = op.text("channel_type")
            index = buff.whole("buffer_id", 0, 1 << 16)
            number = self._entry(op, self.refs.get(kind, []), index, f"{kind} remote buffer")
            if number >= len(self.gpu.remote):
                raise op.error(f"remote buffer {number}: the gpu has {len(self.gpu.remote)}")
            rank, buffer = self.gpu.remote[number]
        self._bound(buff, rank, buffer, first + count)
        return tuple((rank, buffer, first + k) for k in range(count))

    def _range(self, op: Node, buff: Node) -> tuple[int, int]:
        """Return the first of the ledger's chunks and how many: this thread block's share."""
        fine = self.plan.fine
        first = fine * buff.whole("index", 0, 1 << 31)
        count = fine * buff.whole("size", 1, _MOST_MOVED)
        number, blocks = shared(op)
        self.plan.moved += count // blocks
        if self.plan.moved > _MOST_MOVED:
            raise buff.error(f"more than {_MOST_MOVED} chunks in operands: too many to be followed")
        return first + count // blocks * number, count // blocks

    def _bound(self, buff: Node, rank: int, buffer: str, end: int) -> None:
        limit = self.plan.gpus[rank].limits[buffer]
        if end > limit:
            fine = self.plan.fine
            raise buff.error(
                f"chunks to {-(-end // fine) - 1} leave the {NAMES[buffer]} of gpu {rank}, which "
                f"has {limit // fine} chunks"
            )

    def _operands(self, op: Node, key: str) -> list[tuple[Place, ...]]:
        found = [self._places(op, buff) for buff in op.nodes(key)]
        if not found or len({len(places) for places in found}) > 1:
            raise op.error(f"{key}: one or more operands of the same size are expected")
        return found

    def _copies(self, op: Node, name: str, where: str) -> list[Action]:
        sources = [self._places(op, buff) for buff in op.nodes("src_buff")]
        targets = [self._places(op, buff) for buff in op.nodes("dst_buff")]
        if [len(s) for s in sources] != [len(t) for t in targets] or not sources:
            raise op.error("src_buff and dst_buff do not pair up")
        found = [Action("await", where, src=s) for s in sources if name in _AWAIT]
        for s, t, lane in zip(sources, targets, self._lanes(op, name, targets)):
            # A port channel hands packets on as they are, where another makes them.
            unpacks = name in _AWAIT or (name == "ppkt" and lane is not None)
            found.append(Action("move", where, s, dst=t, channel=self.number, lane=lane,
                                packets=name in _PACKETS, unpacks=unpacks))  # fmt: skip
        if name in ("pws", "pwsf"):
            found += [self._signal(op, k, where) for k in op.numbers("channel_ids", 1 << 16)]
        if name == "pwsf":
            found += self._flush(op, where)
        return found

    def _reduces(self, op: Node, name: str, where: str) -> list[Action]:
        sources, targets = self._operands(op, "src_buff"), self._operands(op, "dst_buff")
        if len(sources[0]) != len(targets[0]):
            raise op.error("src_buff and dst_buff are of different sizes")
        packets, (first, *others), (result, *sends) = name.endswith("pkt"), sources, targets
        found = [Action("await", where, src=other) for other in others if packets]
        if not others:
            found.append(Action("move", where, first, dst=result, channel=self.number))
        for k, other in enumerate(others):
            base = result if k else first
            found.append(Action("move", where, other, base, result, channel=self.number,
                                unpacks=packets))  # fmt: skip
        for send in sends:
            move = Action("move", where, result, dst=send, channel=self.number, packets=packets)
            found.append(move)
        return found

    def _group(self, op: Node, name: str, where: str) -> list[Action]:
        """Return what a switch does: adds up a group's chunks, hands one on to it, or both."""
        key = "dst_buff" if name == "gstore" else "src_buff"
        found: list[Action] = []
        local = {"gstore": "src_buff", "glre": "dst_buff"}.get(name)
        behind = op.nodes(key)
        mine = op.nodes(local) if local else [None] * len(behind)
        if len(mine) != len(behind) or not behind:
            raise op.error("src_buff and dst_buff do not pair up")
        for buff, other in zip(behind, mine):
            index = buff.whole("switch_channel_id", 0, 1 << 16)
            number = self._entry(op, self.channels.get("switch", []), index, "switch channel")
            if number >= len(self.gpu.groups):
                raise op.error(f"switch channel {number}: the gpu has {len(self.gpu.groups)}")
            buffer, ranks = self.gpu.groups[number]
            first, size = self._range(op, buff)
            each = {}
            for rank in ranks:
                self._bound(buff, rank, buffer, first + size)
                each[rank] = tuple((rank, buffer, first + k) for k in range(size))
            found += self._switch(name, where, each, other and self._places(op, other))
        return found

    def _switch(
        self, name: str, where: str, each: dict[int, tuple[Place, ...]], mine: Any
    ) -> list[Action]:
        rank, found = self.gpu.rank, list[Action]()
        own = each[rank] if mine is None else mine
        others = [r for r in each if r != rank]
        if name != "gstore":
            for k, r in enumerate(others):
                base = own if k else each[rank]
                found.append(Action("move", where, each[r], base, own, channel=self.number,
                                    switched=True))  # fmt: skip
        if name != "glre":
            if own != each[rank]:
                found.append(Action("move", where, own, dst=each[rank], channel=self.number))
            for r in others:
                found.append(Action("move", where, own, dst=each[r], channel=self.number,
                                    switched=True))  # fmt: skip
        return found
