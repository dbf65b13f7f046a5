"""The same call again: what was checked, planned and bound for the last call is used as it is.

Owns the short way of a small collective under mpirun, where checking and planning would cost more
than moving the data. Only the last call of a communicator is kept, so only its buffers are held.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from ..reduce_ops import ReduceOp, finish

if TYPE_CHECKING:
    from .op import Op, Site
    from .process import ProcessCore

__all__ = ["MOST", "Repeat"]

MOST = 1 << 20  # bytes of a call's buffers that may be held on to
_NUMBER = Struct("q")


class Repeat:
    """A call that was made: what the program gave, and what that led to.

    given: (name, sendbuf, recvbuf, op, root). It fits a call that gives the same objects.
    """

    __slots__ = ("bound", "core", "divides", "given", "place", "plan", "signature", "site",
                 "source", "tail", "target")  # fmt: skip

    def __init__(self, core: ProcessCore, op: Op, given: tuple[Any, ...], bound: Any, plan: Any):
        call = op.call
        assert call is not None and call.arithmetic is not None
        self.core, self.given, self.bound, self.plan = core, given, bound, plan
        self.signature, self.source, self.target = call.signature, call.source, call.target
        self.tail = call.signature.head(0)[_NUMBER.size :]
        self.divides = call.arithmetic.op is ReduceOp.AVG
        self.place = core.member.place
        self.site: Site | None = op.site

    def run(self, site: Site) -> None:
        """Make the call once more."""
        core, member = self.core, self.core.member
        number = member.collectives
        core.arrived = member.collectives = number + 1
        self.site = site
        entry = member.recorder.add(number, self.signature, site, "running")
        stream = self.place.default
        core.repeating = self
        try:
            clock = core.transport.collective(
                _NUMBER.pack(number) + self.tail,
                max(stream.clock, self.place.host),
                self.bound,
                self.source,
                self.target,
            )
        except BaseException as error:
            entry.state = "failed"
            core.repeating = None
            raise core.failed_call(number, self.signature, site, error) from None
        core.repeating = None
        if self.divides and self.target is not None:
            finish(ReduceOp.AVG, self.target, core.nranks)
        stream.clock = clock + self.plan.time
        entry.state = "done"
        if core.job.told:
            core.job.clear()
        core.last_plan = self.plan
