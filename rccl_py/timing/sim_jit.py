"""Compile the loop of rccl_py.timing.simulate where Numba is there; else run it as it is.

Owns the choice, nothing else. It is imported with the loop, on the first simulation: who imports
the library pays for no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

try:
    import numba
except ImportError:  # the same functions, some hundred times slower
    numba = None

__all__ = ["compiled", "kept", "source_of"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Return the function, compiled into whoever calls it."""
    if numba is None:
        return function
    made: F = numba.njit(
        function, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False
    )
    return made


def kept(function: F) -> F:
    """Return the function compiled, its code kept on disk for the next process.

    What is kept is found again by the function's own file and by what it closes over: a function
    that calls those of other files closes over `source_of` them.
    """
    made: F = function if numba is None else numba.njit(function, cache=True, error_model="numpy")
    return made


def source_of(*modules: str) -> str:
    """Return a digest of the files of modules beside this one."""
    digest = blake2b(digest_size=16)
    for name in modules:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()
