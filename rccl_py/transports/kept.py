"""Memory that MPI may still read or write when the program is over.

Owns one rule: what was handed to MPI and has not come to its end is never freed. MPI ends after the
interpreter has let go of its objects, and until then it moves what is still on its way, so memory
kept by a module, or by atexit, is freed too early: a late message would be written into the heap.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep"]


def keep(*held: object) -> None:
    """Keep these objects for ever, also when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
