"""Compile the loop of rccl_py.timing.simulate where Numba is there; else run it as it is.

Owns the choice, nothing else. It is imported with the loop, on the first simulation: who imports
the library pays for no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

numba: Any = None
with suppress(ImportError):  # without it the same functions run, some hundred times slower
    numba = import_module("numba")

__all__ = ["called", "compiled", "kept", "source_of"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Return the function, compiled as a part of whoever calls it."""
    return _inner(function, forceinline=True)


def called(function: F) -> F:
    """Return the function, compiled once for all who call it: that costs some 50 ns a call."""
    return _inner(function)


def _inner(function: F, **how: bool) -> F:
    if numba is None:
        return function
    # Only compiled code calls it.
    made: F = numba.njit(
        function,
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=False,
        **how,
    )
    return made


def kept(function: F) -> F:
    """Return the function compiled, its code kept on disk for the next process.

    What is kept is found again by the function's own file and by what it closes over: a function
    that calls those of other files closes over `source_of` them.
    """
    if numba is None:
        return function
    made: F
    try:
        made = numba.njit(function, cache=True, error_model="numpy")
    except RuntimeError:  # neither beside this file nor in a home is a place to write to
        made = numba.njit(function, error_model="numpy")
    return made


def source_of(*modules: str) -> str:
    """Return a digest of the files of modules beside this one."""
    digest = blake2b(digest_size=16)
    for name in modules:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()
