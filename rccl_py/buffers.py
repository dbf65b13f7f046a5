"""What people pass as a buffer, as the NumPy array that shares its memory.

Owns which objects are taken (NumPy arrays, the buffer protocol, ``__array_interface__``, DLPack on
the CPU, torch tensors) and the checks a buffer of any call must pass. Knows nothing of calls, ranks
or counts, and never copies: what cannot be shared is refused. torch is never imported here; its
tensors are recognised once somebody else has imported it.

References: the Python data model (buffer protocol), NumPy's array interface, and
https://dmlc.github.io/dlpack (device numbers).
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import dtype_named, name_of
from .errors import InvalidArgument

__all__ = ["as_array", "carried", "flat"]

Array = npt.NDArray[Any]

_ON_CPU = (1, 3, 11, 13)
"""DLPack devices whose memory the CPU may touch: CPU, pinned for CUDA or ROCm, CUDA managed."""
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 14: "oneAPI",
            15: "WebGPU", 16: "Hexagon", 17: "MAIA"}  # fmt: skip
_TORCH_AS = {
    "torch.bfloat16": ("int16", "bfloat16"),
    "torch.float8_e4m3fn": ("int8", "f8e4m3"),
    "torch.float8_e5m2": ("int8", "f8e5m2"),
}
"""torch's types that its numpy() refuses: the integer type of that width, and ours."""
_EXPECTED = "a NumPy array, a buffer or a CPU tensor was expected"


@lru_cache(maxsize=256)
def carried(dtype: np.dtype[Any]) -> str:
    """Return the name of a NumPy type in native byte order; remembered, as every call asks.

    Raises InvalidArgument, which opens with the fact, for a type that is not carried.
    """
    if not dtype.isnative:
        raise InvalidArgument(f"byte order {dtype.str}: native order was expected")
    name = name_of(dtype)
    if dtype_named(name) != dtype:
        raise InvalidArgument(
            f"data type {dtype.name} is not carried: {name} is {dtype_named(name).name}"
        )
    return name


def _kind_of(buffer: object) -> str:
    return type(buffer).__name__


def _elsewhere(what: str, buffer: object, device: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} is a {_kind_of(buffer)} on {device}: memory of the CPU was expected, "
        "pass a copy there (tensor.cpu(), cupy.asnumpy)"
    )


def _unshared(what: str, buffer: object, why: object) -> InvalidArgument:
    said = " ".join(str(why).split())
    return InvalidArgument(f"{what} is a {_kind_of(buffer)} that NumPy cannot share: {said}")


def _of_torch(tensor: Any, torch: Any, what: str) -> Array:
    """Return a tensor's memory; written to behind autograd's back when it requires grad."""
    if tensor.device.type != "cpu":
        raise _elsewhere(what, tensor, str(tensor.device))
    view_as, name = _TORCH_AS.get(str(tensor.dtype), ("", ""))
    try:
        held = tensor.detach()
        array: Array = held.view(getattr(torch, view_as)).numpy() if view_as else held.numpy()
    except (RuntimeError, TypeError, ValueError) as error:
        raise _unshared(what, tensor, error) from None
    return array.view(dtype_named(name)) if name else array


def _of_memory(view: memoryview, buffer: object, what: str) -> Array:
    try:
        array = np.asarray(view)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _unshared(what, buffer, error) from None
    # C's char, of ctypes.create_string_buffer: bytes without a meaning, as in a bytearray.
    return array.view(np.uint8) if array.dtype == "S1" else array


def _of_interface(buffer: Any, what: str) -> Array:
    try:
        return np.asarray(buffer)
    except (ValueError, TypeError, AttributeError) as error:
        raise _unshared(what, buffer, error) from None


def _of_dlpack(buffer: Any, what: str) -> Array:
    """Return what a library other than torch exports.

    NumPy makes it read-only where the exporter does not say that it may be written (DLPack before
    1.0): flat() then refuses to write, as such a library's arrays may be immutable.
    """
    try:
        kind = int(buffer.__dlpack_device__()[0])
        if kind not in _ON_CPU:
            raise _elsewhere(what, buffer, _DEVICES.get(kind, f"DLPack device {kind}"))
        try:
            return np.from_dlpack(buffer, copy=False)
        except TypeError:
            # NumPy before 2.1, or an exporter of that time: then there was no copy to ask for.
            return np.from_dlpack(buffer)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise _unshared(what, buffer, error) from None


def as_array(buffer: object, what: str) -> Array:
    """Return a NumPy array that shares the memory of `buffer`, writeable when `buffer` is.

    Taken: NumPy arrays (returned as they are), torch tensors on the CPU (bfloat16 and float8 as
    ml_dtypes types; detached when they require grad), the buffer protocol (array, ctypes, bytes,
    memoryview, mmap, mpi4py), ``__array_interface__``, and DLPack on the CPU.
    Raises InvalidArgument, opening with `what`, for anything else.
    """
    if isinstance(buffer, np.ndarray):
        return buffer
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(buffer, getattr(torch, "Tensor", ())):
        return _of_torch(buffer, torch, what)
    if not isinstance(buffer, (np.generic, type)):
        try:
            view = memoryview(buffer)  # type: ignore[arg-type]
        except TypeError:
            pass
        except (BufferError, RuntimeError, ValueError) as error:
            raise _unshared(what, buffer, error) from None
        else:
            return _of_memory(view, buffer, what)
        if hasattr(buffer, "__array_interface__"):
            return _of_interface(buffer, what)
        if hasattr(buffer, "__dlpack__") and hasattr(buffer, "__dlpack_device__"):
            return _of_dlpack(buffer, what)
        if hasattr(buffer, "__cuda_array_interface__"):
            raise _elsewhere(what, buffer, "a GPU")
    raise InvalidArgument(f"{what} is a {_kind_of(buffer)}: {_EXPECTED}")


def flat(buffer: object, what: str, *, writes: bool) -> Array:
    """Return `buffer` as a one-dimensional array of a carried type that shares its memory.

    writes: the memory will be written to. Raises InvalidArgument, opening with `what`, when the
    buffer cannot be shared, is masked, not contiguous, read-only though written to, in a foreign
    byte order or of a type no collective carries.
    """
    if type(buffer) is np.ndarray:  # the common case costs a few hundred ns
        flags = buffer.flags
        if flags.c_contiguous and (not writes or flags.writeable):
            try:
                carried(buffer.dtype)
            except InvalidArgument as error:
                raise _of_type(what, error) from None
            return buffer if buffer.ndim == 1 else buffer.ravel()
    return _examined(as_array(buffer, what), what, writes)


def _of_type(what: str, error: InvalidArgument) -> InvalidArgument:
    said = str(error)
    return InvalidArgument(f"{what} has {said}" if said.startswith("byte") else f"{what}: {said}")


def _examined(array: Array, what: str, writes: bool) -> Array:
    """Return `array` in one dimension, each check in turn."""
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument(f"{what} is a masked array: pass its .data, masks do not travel")
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{what} (shape {array.shape}, strides {array.strides}) is not "
            "contiguous: pass numpy.ascontiguousarray of it"
        )
    if writes and not array.flags.writeable:
        raise InvalidArgument(f"{what} is read-only: a writeable array was expected")
    try:
        carried(array.dtype)
    except InvalidArgument as error:
        raise _of_type(what, error) from None
    # A subclass may reshape its own way (numpy.matrix stays two-dimensional).
    return np.asarray(array).reshape(-1)
