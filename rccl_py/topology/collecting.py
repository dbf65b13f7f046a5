"""A pause of the cyclic garbage collector while a machine is built.

A graph of thousands of links is thousands of long-lived dictionaries and no cycle that could be
freed; each pass over them and over all else that lives costs more than building them (1,024
accelerators: 60 ms instead of 170 in a process with a large heap).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["not_collecting"]


@contextmanager
def not_collecting() -> Iterator[None]:
    """Pause the collector, and let it go on as it was."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
