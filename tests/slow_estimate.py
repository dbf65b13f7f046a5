"""The estimate's slow twin: one row after another, in plain Python.

Owns the same rules as rccl_py.timing.estimate, written without arrays over ranks, links or rows.
Knows of the library only what a schedule and a fabric are: routes, latencies, rates.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import REDUCE, Phase, Schedule


class Slow:
    """The same sums, one row after another: links, memory, latency and messages of a step."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.n = fabric, fabric.nranks
        self.known: dict[tuple[int, int], tuple] = {}
        self.node = fabric.node.tolist()
        self.spread = fabric.spread.tolist()
        self.leaves: set[int] = set()  # links from an accelerator to a switch
        for node, kind in enumerate(fabric.kind.tolist()):
            domain, first = fabric.domains[kind], int(fabric.first_link[node])
            self.leaves |= {first + k for k in range(domain.nlinks) if domain.head[k] < 0 <=
                            domain.tail[k]}  # fmt: skip

    def load(self, phase: Phase, s: int) -> dict:
        """Return what repetition s of a phase asks for."""
        load = {"memory": Counter(), "link": Counter(), "latency": [0.0] * 3, "far": False,
                "sending": Counter(), "added": Counter(), "out": Counter(),
                "into": Counter()}  # fmt: skip
        self.add(phase, s, load)
        return load

    def pair(self, src: int, dst: int) -> tuple:
        if (src, dst) not in self.known:
            ends = np.array([src], np.int32), np.array([dst], np.int32)
            routes = self.fabric.routes(*ends)
            self.known[src, dst] = (
                list(zip(routes.link.tolist(), routes.share.tolist())),
                self.fabric.latency(*ends)[:, 0].tolist(), float(self.fabric.message(*ends)[0]),
            )  # fmt: skip
        return self.known[src, dst]

    def add(self, phase: Phase, s: int, load: dict) -> None:
        if len(phase.made_of) > 1:
            for part in phase.made_of:
                self.add(part, 0, load)  # parts repeat their rows, whichever repetition it is
            return
        before, into, posted = None, Counter(), set()
        alone = len(phase.moves) == 1
        joined = getattr(self.fabric, "coherent", None)
        sums, copies = self.fans(phase, s)
        many = self.serves_many(phase, s)
        for move in phase.moves:
            step, reduced, switched = move.step(s), Counter(), move.rows.switched
            for src, dst, count, op in zip(*(getattr(step, c).tolist() for c in
                                             ("src", "dst", "count", "op"))):  # fmt: skip
                fan = (-sums[dst] if op == REDUCE else copies[src]) if switched else 0
                # What a switch does: its own share is read and written once by who is at its end.
                load["memory"][src] += 2 * count / fan if fan > 0 else count
                if fan < 0:
                    load["memory"][dst] += 2 * count / -fan
                elif op == REDUCE:  # moves posted together reduce into the same slots
                    reduced[dst] += 2 * count
                    load["added"][dst] += count
                else:
                    load["memory"][dst] += count
                ends = np.array([src], np.int32), np.array([dst], np.int32)
                if joined and src != dst and not joined(*ends)[0]:
                    load["memory"][dst] += 2 * count  # into the staging buffer and out of it
                if src != dst:
                    links, latency, message = self.pair(src, dst)
                    for link, share in links:
                        part = self.spread[link] if many else 1.0
                        load["link"][link] += share * count / part * self.crossing(fan, link)
                    load["latency"] = [max(a, b) for a, b in zip(load["latency"], latency)]
                    # Neighbouring rows between the same two ranks travel as one message (all such
                    # rows of a single move), and a switch is asked once for all of a fan.
                    message /= max(abs(fan), 1)
                    message /= self.least(self.node[src] != self.node[dst]) if many else 1.0
                    ends_now = src, dst, fan
                    again = ends_now in posted if alone else ends_now == before
                    load["sending"][src] += 0.0 if again else message
                    posted.add(ends_now)
                    load["out"][src] += count
                    load["into"][dst] += count
                    load["far"] |= self.node[src] != self.node[dst]
                before = src, dst, fan
            into |= reduced  # the largest of both, rank by rank
        load["memory"].update(into)

    def least(self, far: bool) -> float:
        """Return the least part that serving many leaves of a NIC, or of a link inside."""
        parts = [1.0]
        for d in self.fabric.domains:
            own = [part for part, joins in zip(d.spread.tolist(), d.joins.tolist()) if joins]
            parts += d.port_spread.tolist() if far else own
        return min(parts)

    @staticmethod
    def serves_many(phase: Phase, s: int) -> bool:
        """Return whether a channel of a rank sends to three others or more, and no switch helps."""
        served: dict[tuple[int, int], set[int]] = {}
        for step in (move.step(s) for move in phase.moves):
            for channel, src, dst in zip(*(getattr(step, c).tolist() for c in
                                           ("channel", "src", "dst"))):  # fmt: skip
                served.setdefault((channel, src), set()).update({dst} - {src})
        return not any(m.rows.switched for m in phase.moves) and any(
            len(others) > 2 for others in served.values()
        )

    def fans(self, phase: Phase, s: int) -> tuple[Counter, Counter]:
        """Return how many send to each rank what a switch adds up, and get what it hands on."""
        sums, copies = Counter(), Counter()
        for step in (move.step(s) for move in phase.moves if move.rows.switched):
            for src, dst, op in zip(step.src.tolist(), step.dst.tolist(), step.op.tolist()):
                if op == REDUCE:
                    sums[dst] += 1
                else:
                    copies[src] += 1
        return sums, copies

    def crossing(self, fan: int, link: int) -> float:
        """Return what of a row a link carries: a fan's own part too, or one for all of it."""
        if fan == 0:
            return 1.0
        whole = (abs(fan) + 1) / abs(fan)  # what all hand in, or all get
        once = 1 / abs(fan)  # the sum, or what is sent a single time
        up = link in self.leaves
        return (whole if up == (fan < 0) else once) / self.fabric.multicast

    def chain(self, phase: Phase, kind: int) -> float:
        """The slowest run of hops, followed one by one from every row of a ring."""
        rows = phase.moves[0].rows
        ends = list(zip(rows.channel.tolist(), rows.src.tolist(), rows.dst.tolist()))
        onward = {(c, src): dst for c, src, dst in ends}
        hop = [self.pair(src, dst)[1][kind] for _, src, dst in ends]
        if len(onward) < len(ends) or any((c, dst) not in onward for c, _, dst in ends):
            return max(hop) * phase.steps
        sums = []
        for c, src, _ in ends:
            total = 0.0
            for _ in range(phase.steps):
                total += self.pair(src, onward[c, src])[1][kind]
                src = onward[c, src]
            sums.append(total)
        return max(sums)

    def copied(self, phase: Phase) -> int:
        """Return the slots a rank copies out at the end: it gets them from one sender a channel."""
        senders: dict[tuple[int, int], set[int]] = {}
        got = Counter()
        for move in phase.moves:
            step = move.step(phase.steps - 1)
            for src, dst, channel, count in zip(*(getattr(step, c).tolist() for c in
                                                  ("src", "dst", "channel", "count"))):  # fmt: skip
                if move.rows.switched:
                    return 0
                if src != dst:
                    senders.setdefault((dst, channel), set()).add(src)
                    got[dst] += count
        return max(got.values()) if all(len(s) == 1 for s in senders.values()) else 0

    @staticmethod
    def kept(phase: Phase, schedule: Schedule) -> int:
        """Return the slots of the input a rank puts in its output, where that is not all of it."""
        put = Counter()
        for step in (move.step(0) for move in phase.moves):
            for src, count in zip(step.src.tolist(), step.count.tolist()):
                put[src] += count
        most = max(put.values(), default=0)
        return most if most < schedule.layout.outputs * schedule.layout.chunks else 0

    def seconds(self, schedule: Schedule, block: float, protocol: str, channels: int = 0) -> float:
        kind, slot = PROTOCOLS[protocol], block / schedule.layout.chunks
        total, carried, later = self.fabric.launch, Counter(), Counter()
        filling, last, out = 0.0, 0, 0
        adding = getattr(self.fabric, "reduction", 0) or self.fabric.memory / 3
        for phase in schedule.phases():
            ring = phase.steps > 1 and len(phase.moves) == 1
            if ring:
                total += self.chain(phase, kind.index)
            for s in range(phase.steps):
                load = self.load(phase, s)
                if not load["sending"] and not load["link"]:
                    starts = [m.step(s).src_slot for m in phase.moves]
                    if any((slot >= schedule.layout.output()).any() for slot in starts):
                        carried.update(load["memory"])
                        later.update(load["added"])
                    else:
                        last = max(last, self.kept(phase, schedule))
                    continue
                # What was moved locally before streams behind, spread over the steps of a phase.
                each = [load["memory"][r] + carried[r] / phase.steps for r in range(self.n)]
                memory = max(each) * slot / self.fabric.memory
                added = [load["added"][r] + later[r] / phase.steps for r in range(self.n)]
                memory = max(memory, max(added) * slot / adding)
                pace = self.fabric.pace[kind.index]
                wire = max(load["link"][k] * pace[k] for k in load["link"]) * slot
                moved = max([*load["out"].values(), *load["into"].values()]) * slot
                wire = max(wire, memory)
                if channels:
                    wire = max(wire, moved / (channels * self.fabric.per_channel[kind.index]))
                total += 0.0 if ring else load["latency"][kind.index]
                used = min(channels or schedule.nchannels, schedule.nchannels)
                total += max(load["sending"].values()) * used / schedule.nchannels + wire
                window = max(getattr(d, "port_window" if load["far"] else "window")
                             for d in self.fabric.domains)  # fmt: skip
                if moved:
                    filling = max(filling, wire * min(window, moved) / moved)
            if any((m.rows.src != m.rows.dst).any() for m in phase.moves):
                carried.clear()
                later.clear()
                out = self.copied(phase)
        left = max(carried.values(), default=0) / self.fabric.memory
        total += max(left, max(later.values(), default=0) / adding) * slot
        if schedule.collective in {"allgather", "alltoall", "gather", "scatter"} and self.n > 1:
            last = max(last, schedule.layout.chunks)  # its own block, however it gets there
        return total + filling + max(last, out) * slot / self.fabric.copy
