"""The data types of a call, by the names nccl-tests and rccl-tests print.

Owns the names, their order and the NumPy type behind each. Knows nothing of what is done with
the data. The types NumPy lacks come from ml_dtypes, imported when one of them is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InvalidArgument

__all__ = ["DTYPES", "dtype_named", "name_of"]

_NUMPY = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_BEYOND_NUMPY = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_ALIASES = {
    "char": "int8",
    "int": "int32",
    "uint": "uint32",
    "fp16": "half",
    "fp32": "float",
    "fp64": "double",
    "bf16": "bfloat16",
    "fp8_e4m3": "f8e4m3",
    "fp8_e5m2": "f8e5m2",
    "float8_e4m3": "f8e4m3",
    "float8e4m3": "f8e4m3",
    "float8e5m2": "f8e5m2",
    **{numpy_name: name for name, numpy_name in _NUMPY.items() if numpy_name != name},
}
"""rccl-tests says fp8_e4m3 where nccl-tests says f8e4m3; the others are NumPy's and people's."""

DTYPES: tuple[str, ...] = tuple(_NUMPY)
"""Every data type's name, in the order nccl-tests runs them."""


def _canonical(name: str) -> str:
    key = name.strip().lower().removeprefix("nccl")
    return _ALIASES.get(key, key)


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the NumPy type called `name`: ``"float"``, ``"half"``, ``"fp8_e4m3"``, ``"bf16"``.

    Raises InvalidArgument, listing the names, when there is no such type.
    """
    numpy_name = _NUMPY.get(_canonical(name))
    if numpy_name is None:
        raise InvalidArgument(f"data type {name!r} is not known: one of {', '.join(DTYPES)}")
    if numpy_name in _BEYOND_NUMPY:
        import ml_dtypes  # registers the types with NumPy; 40 ms, so only when one is used

        beyond: np.dtype[Any] = np.dtype(getattr(ml_dtypes, numpy_name))
        return beyond
    return np.dtype(numpy_name)


def name_of(dtype: object) -> str:
    """Return the name nccl-tests prints for a NumPy type (or for one of its names).

    Raises InvalidArgument when the type is none that a collective carries.
    """
    text = dtype if isinstance(dtype, str) else np.dtype(dtype).name  # type: ignore[call-overload]
    name = _canonical(str(text))
    if name not in _NUMPY:
        raise InvalidArgument(f"data type {text!r} is not carried: one of {', '.join(DTYPES)}")
    return name
