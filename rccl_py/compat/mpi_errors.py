"""The errors of the MPI names: ours, and at once what mpi4py's callers catch.

Owns these classes. Every one is InvalidArgument, so that ``except RcclError`` catches all.
"""

from __future__ import annotations

from ..errors import InvalidArgument

__all__ = ["ERR_OTHER", "ERR_RANK", "ERR_ROOT", "ERR_TRUNCATE", "MessageError", "MpiError",
           "NotProvided"]  # fmt: skip

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
    """Something of MPI that these names do not offer."""
