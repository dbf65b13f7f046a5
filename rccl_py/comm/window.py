"""Registered windows: memory of a rank that others put into, and the signals that say so.

Owns Window and WaitSignalDesc, and the checks of one-sided calls. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import whole
from ..buffers import flat
from ..config import Config
from ..dtypes import name_of
from ..errors import InvalidArgument
from ..units import LARGEST
from .call import Call, Signature

__all__ = ["Put", "WaitSignalDesc", "Window", "checked_put", "checked_signal", "checked_wait"]

Array = npt.NDArray[Any]


class Window:
    """A buffer every rank of a communicator has registered (ncclCommWindowRegister).

    number: which registration of the communicator it is, the same at all ranks. sizes: bytes at
    each rank. own: this rank's buffer. The same handle names the window of every peer.
    """

    def __init__(self, own: Array, flags: int) -> None:
        self.own, self.flags = own, flags
        self.number = -1
        self.sizes: list[int] = []
        self.arrays: list[Array] = []  # of all ranks, where they are in this process
        self.closed = False
        self.owner: Any = None

    @staticmethod
    def meet(core: Any, windows: Sequence[Window]) -> None:
        """Make one window of the buffers all ranks of a process have registered."""
        for window in windows:
            window.number, window.owner = len(core.windows), core
            window.arrays = [w.own for w in windows]
            window.sizes = [w.own.nbytes for w in windows]
        core.windows.append(windows[0])

    @property
    def is_valid(self) -> bool:
        """Whether all ranks have registered their part, and it was not closed."""
        return self.number >= 0 and not self.closed

    def close(self) -> None:
        """Give the window back (ncclCommWindowDeregister); the buffer stays the caller's."""
        self.closed = True

    def __repr__(self) -> str:
        return f"<Window {self.number} of {self.own.nbytes} bytes{', closed' * self.closed}>"


@dataclass(frozen=True, slots=True)
class WaitSignalDesc:
    """Signals to wait for: `op_count` of them from `peer`."""

    peer: int
    op_count: int = 1
    signal_index: int = 0
    context: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """What a put or a signal carries besides data. offset: bytes into the peer's window."""

    window: Window | None
    offset: int
    index: int
    context: int
    signals: bool = True


def _index(config: Config, index: object, context: object, flags: object, where: str) -> Any:
    most = config.num_rma_sig if config.num_rma_sig is not None else 1
    whole(flags, f"{where}: flags", 0, 0)
    return (
        whole(index, f"{where}: signal_index", 0, max(most, 1) - 1),
        whole(context, f"{where}: context", 0, (config.num_rma_ctx or 1) - 1),
    )


def checked_put(
    config: Config,
    local_buffer: object,
    peer: object,
    window: object,
    offset: object,
    key: tuple[Any, Any, Any],
    owner: object,
    rank: int,
    n: int,
    *,
    signals: bool,
) -> Call:
    """Return the checked call of put_signal (or put)."""
    where = f"{'put_signal' if signals else 'put'} at rank {rank}"
    held = flat(local_buffer, f"{where}: local_buffer", writes=False)
    other = whole(peer, f"{where}: peer", 0, n - 1)
    if not isinstance(window, Window):
        raise InvalidArgument(f"{where}: peer_window {window!r} is no window of register_window")
    if not window.is_valid or window.owner is not owner:
        raise InvalidArgument(
            f"{where}: {window!r} is closed, not registered by all ranks yet, or of another "
            "communicator"
        )
    start = whole(offset, f"{where}: peer_window_offset", 0, LARGEST) * held.itemsize
    if start + held.nbytes > window.sizes[other]:
        raise InvalidArgument(
            f"{where}: bytes {start}..{start + held.nbytes - 1} of the window of rank {other}, "
            f"which has {window.sizes[other]}"
        )
    index, context = _index(config, *key, where)
    put = Put(window, start, index, context, signals)
    signature = Signature("put_signal", held.size, name_of(held.dtype), peer=other)
    return Call(signature, held, payload=put)


def checked_signal(
    config: Config, peer: object, key: tuple[object, object, object], rank: int, n: int
) -> Call:
    """Return the checked call of signal."""
    where = f"signal at rank {rank}"
    other = whole(peer, f"{where}: peer", 0, n - 1)
    return Call(Signature("signal", peer=other), payload=Put(None, 0, *_index(config, *key, where)))


def checked_wait(config: Config, descs: object, rank: int, n: int) -> Call:
    """Return the checked call of wait_signal; one descriptor or several."""
    where = f"wait_signal at rank {rank}"
    every = [descs] if isinstance(descs, WaitSignalDesc) else descs
    if not isinstance(every, (list, tuple)) or not every:
        raise InvalidArgument(f"{where}: {descs!r}: one or more WaitSignalDesc were expected")
    for desc in every:
        if not isinstance(desc, WaitSignalDesc):
            raise InvalidArgument(f"{where}: {desc!r} is not a WaitSignalDesc")
        whole(desc.peer, f"{where}: peer", 0, n - 1)
        whole(desc.op_count, f"{where}: op_count", 1, LARGEST)
        _index(config, desc.signal_index, desc.context, 0, where)
    return Call(Signature("wait_signal", peer=every[0].peer), payload=list(every))


def as_bytes(window: Array) -> npt.NDArray[np.uint8]:
    """Return a window's memory as bytes."""
    return window.view(np.uint8)
