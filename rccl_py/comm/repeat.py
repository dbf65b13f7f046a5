"""The same call again: what was checked, planned and bound for the last call is used as it is.

Owns what is kept of a small collective under mpirun, where checking and planning would cost more
than moving the data. Only the last call of a communicator is kept, so only its buffers are held.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from ..reduce_ops import ReduceOp
from .op import Op, Site

__all__ = ["MOST", "Repeat"]

MOST = 1 << 23  # bytes of a call's buffers that may be held on to
_NUMBER = Struct("q")


class Repeat:
    """A call that was made: what the program gave, and what that led to.

    given: (name, sendbuf, recvbuf, op, root). It fits a call that gives the same objects.
    """

    __slots__ = ("bound", "divides", "given", "kinds", "plan", "signature", "site", "source",
                 "tail", "target")  # fmt: skip

    def __init__(self, op: Op, given: tuple[Any, ...], bound: Any, plan: Any):
        call = op.call
        assert call is not None and call.arithmetic is not None
        self.given, self.bound, self.plan = given, bound, plan
        self.signature, self.source, self.target = call.signature, call.source, call.target
        self.tail = call.signature.head(0)[_NUMBER.size :]
        send, recv = given[1:3]
        self.kinds = send.dtype, send.nbytes, recv.dtype, recv.nbytes
        self.divides = call.arithmetic.op is ReduceOp.AVG
        self.site: Site | None = op.site

    @staticmethod
    def can_keep(given: tuple[Any, ...]) -> bool:
        """Return whether a later call with the same objects can be told to be the same: arrays
        tell when their type, size or permissions change, other buffers do not.
        """
        return type(given[1]) is np.ndarray and type(given[2]) is np.ndarray

    def fits(self, name: str, buffers: tuple[Any, Any], op: object, root: object) -> bool:
        """Return whether a call gives the same objects, as they were."""
        was, (send, recv) = self.given, buffers
        return (
            was[1] is send
            and was[2] is recv
            and was[0] == name
            and was[3] is op
            and root is was[4]
            and send.dtype is self.kinds[0]
            and send.nbytes == self.kinds[1]
            and recv.dtype is self.kinds[2]
            and recv.nbytes == self.kinds[3]
            and recv.flags.writeable
        )

    def head(self, number: int) -> bytes:
        """Return the 64 bytes that processes compare, of call `number`."""
        return _NUMBER.pack(number) + self.tail
