"""Which NICs carry a transfer from node to node: the choice of NIC pairs, and their shares.

Owns rails and staging on peers (PXN). Knows two kinds of node; no rank, no link number, no wiring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..schedule import I32
from .domain import Domain
from .tables import F64, I64, expand

__all__ = ["Flows", "flows_of", "hops_between"]


@dataclass(frozen=True, eq=False, slots=True)
class Flows:
    """NIC pairs that carry transfers: entry e moves share[e] of transfer row[e].

    leaving, entering: the attachments used at the two ends. first: int64[transfers], the entry
    that is looked at for latency.
    """

    row: I64
    leaving: I64
    entering: I64
    share: F64
    first: I64


def flows_of(source: Domain, target: Domain, i: I32, j: I32, staged: bool) -> Flows:
    """Return the NIC pairs that carry accelerators i of one node to j of another.

    Several share a transfer by bandwidth: the slower port of each pair.
    """
    there = target.attach[j + 1] - target.attach[j]
    if staged:
        row, leaving, entering = _on_rails(source, target, i, j)
        count = np.bincount(row, minlength=len(i))
    else:
        here = source.attach[i + 1] - source.attach[i]
        alike = here == there
        count = np.where(alike, here, here * there)
        row = np.repeat(np.arange(len(i)), count)
        within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        each = np.maximum(there[row], 1)
        leaving = source.attach[i[row]] + np.where(alike[row], within, within // each)
        entering = target.attach[j[row]] + np.where(alike[row], within, within % each)
    width = np.minimum(source.port[source.nic[leaving]], target.port[target.nic[entering]])
    share = width / np.bincount(row, weights=width, minlength=len(i))[row]
    first = np.cumsum(count) - count
    return Flows(row, leaving, entering, share, np.minimum(first, max(len(row) - 1, 0)))


def hops_between(
    source: Domain, target: Domain, ends: tuple[I32, I32], flows: Flows, staged: bool
) -> F64:
    """Return the s from accelerators ends[0] of one node to ends[1] of another: float64[3, k].

    Without the switches of the network between.
    """
    leaving, entering = flows.leaving[flows.first], flows.entering[flows.first]
    out, into = source.nic[leaving], target.nic[entering]
    # The hand-shake goes both ways, so the slower of two unlike ports sets its pace.
    each = np.maximum(source.port_latency[:, out], target.port_latency[:, into])
    each += source.wait[leaving] + target.wait[entering]
    if staged:
        i, j = ends
        each += source.inside.latency(i, source.holder(leaving))
        each += target.inside.latency(target.holder(entering), j)
    return np.asarray(each)


def _on_rails(source: Domain, target: Domain, i: I32, j: I32) -> tuple[I64, I64, I64]:
    """Return (row, leaving, entering) of transfers that stay on the target's rails.

    Where the source's node has no NIC on any rail of j's own NICs, the rails both nodes have
    are used, and peers of j that own them hand on.
    """
    row, entering = expand(target.attach, j)
    leaving, known = _rail(source, i[row], target.rail[target.nic[entering]])
    row, entering, leaving = row[known], entering[known], leaving[known]
    cut_off = np.flatnonzero(np.bincount(row, minlength=len(i)) == 0)
    owned = target.owner[target.owner >= 0]
    rails = np.intersect1d(target.rail[target.nic[owned]], source.rail[source.nic])
    if len(cut_off) and len(rails):
        more = np.repeat(cut_off, len(rails))
        rail = np.tile(rails, len(cut_off))
        row = np.concatenate([row, more])
        out, _ = _rail(source, i[more], rail)
        leaving = np.concatenate([leaving, out])
        entering = np.concatenate([entering, target.owner[target.on_rail(rail)]])
        order = np.argsort(row, kind="stable")
        row, leaving, entering = row[order], leaving[order], entering[order]
    return row, leaving, entering


def _rail(source: Domain, i: I32, rail: I32) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return the attachment by which accelerators i leave on a rail, and where there is one.

    Their own NIC of that rail, else that of the peer that owns it.
    """
    nic = source.on_rail(rail)
    known = nic >= 0
    leaving = source.owner[np.where(known, nic, 0)].astype(np.int64)
    row, entry = expand(source.attach, i)
    own = source.nic[entry] == nic[row]
    leaving[row[own]] = entry[own]
    return leaving, known & (leaving >= 0)
