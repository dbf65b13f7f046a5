"""The errors of the MPI names: ours, and at once what mpi4py's callers catch.

Owns these classes. Every one is InvalidArgument, so that ``except RcclError`` catches all.
"""

from __future__ import annotations

from ..errors import InvalidArgument

__all__ = ["ERR_OTHER", "ERR_RANK", "ERR_ROOT", "ERR_TRUNCATE", "MessageError", "MpiError",
           "NotProvided", "checked_rank"]  # fmt: skip

ERR_RANK, ERR_ROOT, ERR_TRUNCATE, ERR_OTHER = 6, 7, 15, 16
"""MPI's classes of errors; the numbers are the implementation's to choose."""


class MpiError(InvalidArgument, RuntimeError):
    """A call MPI itself would refuse (``MPI.Exception``)."""

    def __init__(self, text: str, error_class: int = ERR_OTHER) -> None:
        super().__init__(text)
        self.error_class = error_class

    def Get_error_class(self) -> int:
        """Return MPI's number for the kind of error."""
        return self.error_class


class MessageError(InvalidArgument, ValueError):
    """A buffer, count, displacement or datatype that does not fit."""


class NotProvided(InvalidArgument, NotImplementedError):
    """Something of MPI that these names refuse on purpose (BOTTOM, and what docs/api.md lists).

    Also a NotImplementedError, which is what mpi4py raises where its MPI lacks a call: programs
    that try and go another way do so here too.
    """


def checked_rank(value: object, n: int, what: str, error_class: int) -> int:
    """Return a rank as an int, of 1.0 too, as mpi4py does; raise MpiError when it is none."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = -1
    if number == value and 0 <= number < n:
        return number  # type: ignore[no-any-return]
    raise MpiError(f"{what} {value!r} is not one of 0..{n - 1}", error_class)
