"""nccl4py's names over this library: ``from rccl_py.compat import nccl`` for ``import nccl.core``.

Owns the spellings that differ, and what nccl4py takes from the environment: the machine is
NCCL_TOPO_FILE (a topology XML or YAML file, or a machine's name), choices are restricted by
NCCL_ALGO and NCCL_PROTO. Without it, ranks are on MI300X nodes of 8. Buffers are on the host.

Written against nccl4py 0.3; device code, registration without windows and suspend are not here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import __version__, comm
from ..arguments import whole
from ..comm import UniqueId, WaitSignalDesc, Window, get_unique_id, group, group_end, group_start
from ..config import CommShrinkFlag, Config, CTAPolicy, WindowFlag
from ..dtypes import dtype_named
from ..errors import InvalidArgument, Result
from ..reduce_ops import PreMulSum, ReduceOp
from ..topology import Topology
from ..units import LARGEST

__all__ = [
    "AVG",
    "BFLOAT16",
    "CHAR",
    "DOUBLE",
    "FLOAT",
    "FLOAT8E4M3",
    "FLOAT8E5M2",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "HALF",
    "INT",
    "INT8",
    "INT32",
    "INT64",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "UINT8",
    "UINT32",
    "UINT64",
    "CTAPolicy",
    "CommShrinkFlag",
    "Communicator",
    "CustomRedOp",
    "GroupSimInfo",
    "NCCLConfig",
    "NcclDataType",
    "NcclInvalid",
    "NcclRedOp",
    "RegisteredWindowHandle",
    "UniqueId",
    "WaitSignalDesc",
    "WindowFlag",
    "get_error_string",
    "get_unique_id",
    "get_version",
    "group",
    "group_end",
    "group_simulate_end",
    "group_start",
    "mem_alloc",
    "mem_free",
]

NCCLConfig = Config
NcclInvalid = InvalidArgument
NcclRedOp = ReduceOp
NcclDataType = np.dtype
CustomRedOp = PreMulSum
RegisteredWindowHandle = Window

SUM, PROD, MAX, MIN, AVG = (
    ReduceOp.SUM,
    ReduceOp.PROD,
    ReduceOp.MAX,
    ReduceOp.MIN,
    ReduceOp.AVG,
)
INT8 = CHAR = np.dtype(np.int8)
UINT8 = np.dtype(np.uint8)
INT32 = INT = np.dtype(np.int32)
UINT32 = np.dtype(np.uint32)
INT64 = np.dtype(np.int64)
UINT64 = np.dtype(np.uint64)
FLOAT16 = HALF = np.dtype(np.float16)
FLOAT32 = FLOAT = np.dtype(np.float32)
FLOAT64 = DOUBLE = np.dtype(np.float64)
BFLOAT16 = dtype_named("bfloat16")
FLOAT8E4M3 = dtype_named("f8e4m3")
FLOAT8E5M2 = dtype_named("f8e5m2")


def _from_environment(config: Config | None) -> Config:
    asked = {name: os.environ.get(f"NCCL_{name.upper()}") or None for name in ("algo", "proto")}
    given = os.environ.get("RCCL_PY_SCHEDULES") or None
    return Config(algo=asked["algo"], proto=asked["proto"], schedules=given).merged(config)


def _machine() -> str | None:
    return os.environ.get("NCCL_TOPO_FILE") or None


class Communicator(comm.Communicator):
    """nccl4py's Communicator: the machine comes from the environment, not from arguments."""

    def initialize(
        self,
        nranks: int,
        rank: int,
        unique_id: UniqueId | Sequence[UniqueId],
        config: Config | None = None,
        *,
        topology: str | Path | Topology | None = None,
    ) -> None:
        """Make this null communicator a rank of a new one."""
        machine = topology if topology is not None else _machine()
        settings = _from_environment(config)
        super().initialize(nranks, rank, unique_id, settings, topology=machine)

    @classmethod
    def init_all(  # type: ignore[override]
        cls, devices: int | Sequence[int] | None = None
    ) -> list[comm.Communicator]:
        """Return one communicator a device, all in this thread (ncclCommInitAll).

        devices: how many, or which; None for all of the machine. An empty list makes none.
        """
        if devices == 0 or (isinstance(devices, (list, tuple, range)) and not len(devices)):
            return []
        count = devices if isinstance(devices, int) else max(devices or [0]) + 1
        machine = comm.machine_for(_machine(), count)
        return super().init_all(machine, devices, config=_from_environment(None))


@dataclass
class GroupSimInfo:
    """What group_simulate_end fills in. estimated_time: microseconds, as ncclSimInfo_t has it."""

    estimated_time: float = -1.0


def group_simulate_end(sim_info: GroupSimInfo | None = None) -> None:
    """Close the group without launching, and tell how long it would take."""
    seconds = comm.group_simulate_end()
    if sim_info is not None:
        sim_info.estimated_time = seconds * 1e6


def mem_alloc(size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes (ncclMemAlloc)."""
    return np.empty(whole(size, "mem_alloc: size", 0, LARGEST), dtype=np.uint8)


def mem_free(array: object) -> None:
    """Accept what mem_alloc gave: the memory is Python's to free."""


def get_version() -> str:
    """Return this library's version."""
    return __version__


_TEXTS: dict[Result, str] = {
    Result.SUCCESS: "no error",
    Result.UNHANDLED_CUDA_ERROR: "a device call failed",
    Result.SYSTEM_ERROR: "a call of the operating system failed",
    Result.INTERNAL_ERROR: "an internal error",
    Result.INVALID_ARGUMENT: "an argument is wrong",
    Result.INVALID_USAGE: "the calls do not fit together",
    Result.REMOTE_ERROR: "another rank failed, or is gone",
    Result.IN_PROGRESS: "an operation is in progress",
    Result.TIMEOUT: "an operation took too long",
}


def get_error_string(result: Result | int) -> str:
    """Return what a result code says (ncclGetErrorString)."""
    try:
        return _TEXTS[Result(int(result))]
    except ValueError:
        return "an unknown result code"
