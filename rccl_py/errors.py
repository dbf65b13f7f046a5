"""The one tree of errors: a class per result code of the RCCL/NCCL C API, and ours below them.

Owns the names and codes. Knows nothing of what raises them. A message says what was asked, what
was found, where, and the way out; :func:`RcclError.code` is the C API's number.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "CollectiveMismatch",
    "Deadlock",
    "FabricError",
    "FormatError",
    "InProgress",
    "InternalError",
    "InvalidArgument",
    "InvalidUsage",
    "RcclError",
    "RcclSystemError",
    "RcclTimeout",
    "RemoteError",
    "Result",
    "ScheduleError",
    "UnhandledDeviceError",
]


class Result(IntEnum):
    """Result codes of the C API (``ncclResult_t``)."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


class RcclError(Exception):
    """Root of every error this library raises on purpose."""

    code = Result.INTERNAL_ERROR


class UnhandledDeviceError(RcclError):
    """A device call failed (code 1)."""

    code = Result.UNHANDLED_CUDA_ERROR


class RcclSystemError(RcclError):
    """The operating system or a missing program stands in the way (code 2)."""

    code = Result.SYSTEM_ERROR


class InternalError(RcclError):
    """A bug in this library (code 3)."""

    code = Result.INTERNAL_ERROR


class InvalidArgument(RcclError):
    """An argument is wrong; the call had no effect and the communicator stays good (code 4)."""

    code = Result.INVALID_ARGUMENT


class InvalidUsage(RcclError):
    """The calls do not fit together (code 5)."""

    code = Result.INVALID_USAGE


class RemoteError(RcclError):
    """Another rank failed (code 6)."""

    code = Result.REMOTE_ERROR


class InProgress(RcclError):
    """The operation has not finished yet (code 7)."""

    code = Result.IN_PROGRESS


class RcclTimeout(RcclError):
    """Waiting took longer than allowed (code 8)."""

    code = Result.TIMEOUT


class CollectiveMismatch(InvalidUsage):
    """Ranks of one communicator called different things."""


class Deadlock(InvalidUsage):
    """Ranks wait for each other in a circle; the message prints it."""


class FabricError(InvalidUsage):
    """A machine cannot carry what was asked: ranks out of reach, too few GPUs, no network."""


class FormatError(InvalidArgument):
    """A file or text does not follow its format; the message opens with file and line or key."""


class ScheduleError(InternalError):
    """A schedule breaks one of the invariants S1-S7 of docs/schedule.md, or misses its goal."""
