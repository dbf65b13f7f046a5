"""Unique ids: how the ranks of a communicator that is to be made find each other.

Owns UniqueId, 128 opaque bytes that travel as bytes, NumPy array or pickle. Knows no meeting.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument

__all__ = ["UniqueId", "get_unique_id"]

_SIZE = 128  # NCCL_UNIQUE_ID_BYTES


class UniqueId:
    """An id of a communicator to be made; get_unique_id() makes one, all ranks pass it to init."""

    __slots__ = ("_held",)

    def __init__(self, held: bytes = bytes(_SIZE)) -> None:
        if not isinstance(held, (bytes, bytearray)) or len(held) != _SIZE:
            size = len(held) if isinstance(held, (bytes, bytearray, str)) else type(held).__name__
            raise InvalidArgument(f"a unique id has {_SIZE} bytes, found {size}")
        self._held = bytearray(held)

    @staticmethod
    def from_bytes(held: bytes | bytearray | memoryview) -> UniqueId:
        """Return the id that ``bytes(uid)`` gave."""
        return UniqueId(bytes(held) if isinstance(held, (bytearray, memoryview)) else held)

    def __bytes__(self) -> bytes:
        return bytes(self._held)

    @property
    def as_bytes(self) -> bytes:
        """The id as bytes, to be sent by any means."""
        return bytes(self._held)

    @property
    def as_ndarray(self) -> npt.NDArray[np.uint8]:
        """The id as uint8[128] that shares its memory: a broadcast into it fills it."""
        return np.frombuffer(self._held, dtype=np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return UniqueId, (bytes(self._held),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UniqueId) and other._held == self._held

    def __hash__(self) -> int:
        return hash(bytes(self._held))

    def __repr__(self) -> str:
        return f"<UniqueId {self._held[:8].hex()}...>"


def get_unique_id(empty: bool = False) -> UniqueId:
    """Return a new id (ncclGetUniqueId); `empty`: one to be filled through as_ndarray."""
    if empty:
        return UniqueId()
    where = f"{socket.gethostname()}:{os.getpid()}".encode()[: _SIZE - 32]
    return UniqueId(secrets.token_bytes(32) + where.ljust(_SIZE - 32, b"\0"))
