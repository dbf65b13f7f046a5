"""The largest flow from many sources to one sink, in whole numbers, and the cut that limits it.

Owns how capacities become whole numbers and the call of scipy's solver. Where capacities are
commensurable (64, 50, 25 GB/s ...) the numbers are exact; else they are rounded to some 30 bits,
and who uses a cut measures it in B/s. Knows no collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
import numpy.typing as npt

from ...fabric import F64, I64
from ...fabric.graph import Graph

__all__ = ["Network", "whole_numbers"]

_LARGEST = (1 << 31) - 1  # scipy's solver counts in int32
_DENOMINATOR = 1 << 12
_EXACT = 1e-12


def whole_numbers(capacity: F64) -> I64 | None:
    """Return whole numbers in the ratio of these capacities, None where there are none small."""
    rates, of = np.unique(capacity, return_inverse=True)
    unit, ratios = float(rates[0]), []
    for rate in rates.tolist():
        ratio = Fraction(rate / unit).limit_denominator(_DENOMINATOR)
        if abs(float(ratio) * unit - rate) > _EXACT * rate:
            return None
        ratios.append(ratio)
    scale = lcm(*(r.denominator for r in ratios))
    whole = [int(r * scale) for r in ratios]
    if max(whole) > _LARGEST:
        return None
    return np.array(whole, dtype=np.int64)[of]


@dataclass(frozen=True, eq=False)
class Network:
    """A graph made ready for flows: capacities as whole numbers where that is exact."""

    graph: Graph
    whole: I64 | None

    @staticmethod
    def of(graph: Graph) -> Network:
        """Return the network of a graph."""
        return Network(graph, whole_numbers(graph.capacity) if len(graph.capacity) else None)

    def measure(self) -> F64 | I64:
        """Return the capacities cuts are measured in."""
        return self.graph.capacity if self.whole is None else self.whole

    def cut(self, sink: int, time: Fraction, supply: I64) -> npt.NDArray[np.bool_] | None:
        """Return the set that cannot get its supply to `sink` in `time`, None where all can.

        time: of one unit of supply over one unit of capacity (as `measure` counts). supply:
        int64[V]. Where numbers are rounded the set may be one that only just can.
        """
        scale = time.denominator
        total = int(supply.sum()) * scale
        factor: Fraction | float = Fraction(time.numerator)
        if total > _LARGEST or self.whole is None or time.numerator >= 1 << 40:
            scale = max(_LARGEST // max(int(supply.sum()), 1), 1)
            factor = float(time) * scale
        exact = isinstance(factor, Fraction) and self.whole is not None
        if exact and self.whole is not None:
            numerator = time.numerator
            most = int(supply.sum()) * scale
            limit = most // max(numerator, 1) + 1
            caps = np.minimum(np.minimum(self.whole, limit) * numerator, most)
        else:
            most = int(supply.sum()) * scale
            caps = np.minimum(np.rint(self.measure() * float(factor)), most).astype(np.int64)
        return self._flow(sink, caps, supply * scale)

    def _flow(self, sink: int, caps: I64, supply: I64) -> npt.NDArray[np.bool_] | None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        graph, size = self.graph, self.graph.nvertices
        given = np.flatnonzero((supply > 0) & (np.arange(size) != sink))
        tail = np.concatenate([graph.tail, np.full(len(given), size)])
        head = np.concatenate([graph.head, given])
        value = np.concatenate([caps, supply[given]]).astype(np.int32)
        # Edges are sorted by tail and the source is the last vertex: the rows are in order.
        ptr = np.searchsorted(tail, np.arange(size + 2)).astype(np.int32)
        net = csr_array((value, head.astype(np.int32), ptr), (size + 1, size + 1))
        flow = maximum_flow(net, size, sink, method="dinic")
        if flow.flow_value >= int(supply[given].sum()):
            return None
        left = net - flow.flow
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        reached = breadth_first_order(left, size, return_predecessors=False)
        inside = np.zeros(size + 1, dtype=bool)
        inside[reached] = True
        return inside[:-1]

    def largest(self, source: int, sink: int) -> tuple[float, npt.NDArray[np.bool_]]:
        """Return the B/s that get from one vertex to another, and the set they must leave."""
        graph = self.graph
        out = int(np.sum(graph.tail == source))
        supply = np.zeros(graph.nvertices, dtype=np.int64)
        supply[source] = 1
        inside = np.zeros(graph.nvertices, dtype=bool)
        inside[source] = True
        if not out:
            return 0.0, inside
        while True:
            measured = self._over(inside)
            if not measured:
                return 0.0, inside
            found = self.cut(sink, Fraction(1) / Fraction(measured), supply)
            if found is None or self._over(found) >= measured * (1 - 1e-12):
                crossing = inside[graph.tail] & ~inside[graph.head]
                return float(graph.capacity[crossing].sum()), inside
            inside = found

    def _over(self, inside: npt.NDArray[np.bool_]) -> float | int:
        crossing = inside[self.graph.tail] & ~inside[self.graph.head]
        total = self.measure()[crossing].sum()
        return int(total) if self.whole is not None else float(total)
