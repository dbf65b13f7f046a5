"""A stage at one size, its messages in order of the lanes that send them.

Owns lanes (a rank's channel in a stage) and which resources of the whole fabric a job's ranks use.
Knows no other job and no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import FabricError
from ..fabric import F64, Fabric, expand
from ..links import Protocol
from ..schedule import I32
from .stages import I8, I64, Stage, Uses

__all__ = ["Cut", "cut"]


@dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """A stage at one size, its messages by (rank, channel) that sends.

    src, dst, channel : int32[m]. nbytes, hop, alone : float64[m] B and s, alone: on the wire.
    ptr, resource, seconds : what each message keeps busy, resources counted over the fabric.
    sends, hears : int64[m], lanes. rank : int64[lanes]. first : int64[nranks + 1], lanes of ranks.
    lead : float64[lanes] s. pause : float64[nranks] s of a stage without messages, else None.
    depth : int8[k], pauses : bool[k], as of stages.Uses, else None.
    """

    steps: int
    src: I32
    dst: I32
    channel: I32
    nbytes: F64
    hop: F64
    alone: F64
    ptr: I64
    resource: I64
    seconds: F64
    sends: I64
    hears: I64
    rank: I64
    first: I64
    lead: F64
    pause: F64 | None
    depth: I8 | None
    pauses: npt.NDArray[np.bool_] | None


def cut(stage: Stage, used: Uses, fabric: Fabric, protocol: Protocol, slot: float,
        whole: tuple[I64, int]) -> Cut:  # fmt: skip
    """Return a stage with slots of `slot` B, whose messages use what `used` says.

    whole : (int64[nranks], int), the rank of the whole fabric that each rank is, and how many
    ranks that has.
    """
    order = np.lexsort((stage.dst, stage.channel, stage.src))
    row, entry = expand(used.ptr, order)
    seconds = used.seconds[entry] * slot
    m, nranks = len(order), fabric.nranks
    if not np.isfinite(seconds).all():
        raise FabricError(
            f"{fabric.name}: a message of this schedule takes for ever: a link or switch has no "
            "capacity for it (adding up in a switch that only forwards?): choose another algorithm"
        )
    alone = np.zeros(m)
    np.maximum.at(alone, row, seconds)
    wide = int(stage.channel.max(initial=0)) + 1
    src, dst, channel = stage.src[order], stage.dst[order], stage.channel[order]
    ends = np.concatenate([src, dst]).astype(np.int64) * wide + np.tile(channel, 2)
    names, at = np.unique(ends, return_inverse=True)
    sending = np.bincount(at[:m], minlength=len(names)) > 0
    return Cut(
        stage.steps,
        src,
        dst,
        channel,
        np.asarray(stage.slots[order] * slot, dtype=np.float64),
        np.asarray(stage.latency[protocol.index, order], dtype=np.float64),
        alone,
        np.concatenate([[0], np.cumsum(np.diff(used.ptr)[order])]).astype(np.int64),
        _seated(used.resource[entry], fabric, *whole),
        seconds,
        at[:m],
        at[m:],
        names // wide,
        np.searchsorted(names, np.arange(nranks + 1) * wide),
        np.asarray(np.where(sending, stage.lead[names // wide], 0.0), dtype=np.float64),
        None if m else stage.memory * slot,
        None if used.depth is None else used.depth[entry],
        None if used.pauses is None else used.pauses[entry],
    )


def _seated(resource: I64, fabric: Fabric, seat: I64, n: int) -> I64:
    """Return the whole fabric's number of a resource: after the links come blocks of ranks."""
    block, rank = np.divmod(resource - fabric.nlinks, fabric.nranks)
    moved = fabric.nlinks + block * n + seat[rank]
    return np.where(resource < fabric.nlinks, resource, moved)
