"""Messages as tracks: what is drawn side by side, what each link carries, how busy it is when.

Owns the arithmetic of a trace: whole nanoseconds, lanes without overlap, routes of messages,
utilisation as a bounded number of points, chains of messages that waited for each other. Knows no
file format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..fabric.tables import expand
from ..timing.timeline import Transfers

__all__ = ["Chains", "Crossings", "apart", "chains", "crossings", "lanes", "nanoseconds",
           "utilisation"]  # fmt: skip

I64 = npt.NDArray[np.int64]


def nanoseconds(seconds: F64) -> I64:
    """Return s as whole ns: trace viewers count in them, and drop what then overlaps."""
    return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)


def lanes(start: I64, end: I64) -> list[int]:
    """Return the lane of each interval, the first that is free: start, end ns, sorted by start.

    An interval of no length takes its ns: viewers put it into what starts at once.
    """
    free: list[int] = []  # when each lane is free
    found = []
    for first, last in zip(start.tolist(), np.maximum(end, start + 1).tolist()):
        lane = next((k for k, at in enumerate(free) if at <= first), len(free))
        if lane == len(free):
            free.append(last)
        else:
            free[lane] = last
        found.append(lane)
    return found


def apart(start: I64, end: I64) -> bool:
    """Return whether no two intervals overlap: one lane is enough. start, end: as for lanes."""
    return bool((start[1:] >= np.maximum(end, start + 1)[:-1]).all())


@dataclass(frozen=True, eq=False, slots=True)
class Crossings:
    """The messages on each link: those of link l are message[ptr[l]:ptr[l + 1]], by start.

    busy : float64, s the message takes of that link. total : float64[nlinks], s of all messages,
    also of links that were not asked for.
    """

    ptr: I64
    message: I64
    busy: F64
    total: F64


def crossings(moved: Transfers, fabric: Fabric, pace: F64, most: int) -> Crossings:
    """Return what crosses the `most` busiest links; pace: float64[nlinks], s per payload byte.

    Routes are looked up a stage at a time, in the order the engines do: where flows look at each
    other, they find the same ways.
    """
    n, nlinks = fabric.nranks, fabric.nlinks
    lanes_used = int(moved.channel.max()) + 1 if len(moved) else 1
    name = moved.stage.astype(np.int64) * lanes_used + moved.channel
    key, at = np.unique((name * n + moved.src) * n + moved.dst, return_inverse=True)
    payload: F64 = np.bincount(at, weights=moved.nbytes, minlength=len(key)).astype(np.float64)
    row, link, share = _routes(key, payload, fabric, lanes_used)
    seconds = share * pace[link]
    total = np.zeros(nlinks) + np.bincount(link, payload[row] * seconds, nlinks)
    wanted = np.zeros(nlinks, dtype=bool)
    wanted[np.argsort(-total, kind="stable")[:most]] = True
    wanted &= total > 0
    at_wanted = wanted[link]
    row, link, seconds = row[at_wanted], link[at_wanted], seconds[at_wanted]
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(key)))])
    message, entry = expand(starts, at)
    order = np.argsort(link[entry], kind="stable")  # messages come by start
    message, entry = message[order], entry[order]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(link[entry], minlength=nlinks))])
    return Crossings(ptr, message, moved.nbytes[message] * seconds[entry], total)


def _routes(key: I64, payload: F64, fabric: Fabric, channels: int) -> tuple[I64, I64, F64]:
    """Return (message, link, share), by message, of the distinct messages named by `key`."""
    n = fabric.nranks
    name, dst = np.divmod(key, n)
    name, src = np.divmod(name, n)
    stage = name // channels
    none = np.zeros(0, dtype=np.int64)
    parts = [(none, none, np.zeros(0))]
    for rows in np.split(np.arange(len(key)), np.flatnonzero(np.diff(stage)) + 1):
        ends = src[rows].astype(np.int32), dst[rows].astype(np.int32)
        found = fabric.routes(*ends, payload[rows])
        order = np.argsort(found.row, kind="stable")
        parts.append((rows[found.row[order]], found.link[order].astype(np.int64),
                      found.share[order]))  # fmt: skip
    row, link, share = (np.concatenate(column) for column in zip(*parts))
    return row, link, share


def utilisation(start: I64, end: I64, busy: F64, points: int) -> tuple[I64, F64]:
    """Return (ns, share of the link in use from then on): at most `points`, ending with 0.

    busy: s of the link that each message takes, spread evenly from its start to its end. Where
    the curve has more corners, it is averaged over intervals of equal length.
    """
    end = np.maximum(end, start + 1)  # what is shorter than a ns is drawn as one
    rate = busy * 1e9 / (end - start)
    at, where = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.bincount(where, weights=np.concatenate([rate, -rate]), minlength=len(at))
    used: F64 = np.cumsum(change)
    used[-1] = 0.0
    if len(at) > points:
        spent = np.concatenate([[0.0], np.cumsum(used[:-1] * np.diff(at))])
        edges = np.unique(np.linspace(at[0], at[-1], points).astype(np.int64))
        mean: F64 = np.diff(np.interp(edges, at, spent)) / np.diff(edges)
        used = np.concatenate([mean, [0.0]])
        at = edges
    used = used.clip(0.0, 1.0).round(4)
    kept = np.concatenate([[True], np.diff(used) != 0])
    return at[kept], used[kept]


@dataclass(frozen=True, eq=False, slots=True)
class Chains:
    """Arrows between messages: each into one, each out to one, so that they form chains.

    name : int64[m], equal along a chain. into, out : bool[m], whether an arrow comes or goes.
    """

    name: I64
    into: npt.NDArray[np.bool_]
    out: npt.NDArray[np.bool_]


def chains(after: I64, drawn: npt.NDArray[np.bool_]) -> Chains:
    """Return the arrows among the messages that are drawn.

    after: int64[m], the message each waited for, -1 none. Where several waited for one, the arrow
    goes to the first of them.
    """
    own = np.arange(len(after))
    waited = np.flatnonzero((after >= 0) & drawn & drawn[after]) if len(after) else own
    parents, first = np.unique(after[waited], return_index=True)
    into, out = np.zeros(len(after), dtype=bool), np.zeros(len(after), dtype=bool)
    into[waited[first]], out[parents] = True, True
    name = np.where(into, after, own)
    while (name != name[name]).any():  # half as many links of the chain each time
        name = name[name]
    return Chains(name, into, out)
