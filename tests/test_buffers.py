"""Buffers: whatever holds contiguous CPU memory is shared as it is; anything else is refused."""

from __future__ import annotations

import array
import ctypes
import mmap

import numpy as np
import pytest

from rccl_py.buffers import as_array, carried, flat
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.errors import InvalidArgument


class Dlpack:
    """A library's array that speaks DLPack as it did before version 1.0, or says so."""

    def __init__(self, held: np.ndarray, device: int = 1, modern: bool = True) -> None:
        self.held, self.device, self.modern = held, device, modern

    def __dlpack__(self, **more):
        if not self.modern and set(more) - {"stream"}:
            raise TypeError("got an unexpected keyword argument")
        return self.held.__dlpack__(**more)

    def __dlpack_device__(self):
        return (self.device, 0)


class Interface:
    """An object that only has NumPy's array interface."""

    def __init__(self, held: np.ndarray) -> None:
        self.held, self.__array_interface__ = held, held.__array_interface__


# ---- what is taken --------------------------------------------------------------------------

WRITEABLE = {
    "an array of the array module": lambda: array.array("f", [0, 0, 0]),
    "a ctypes array": lambda: (ctypes.c_float * 3)(),
    "a ctypes array of two dimensions": lambda: ((ctypes.c_int32 * 3) * 2)(),
    "a ctypes number": lambda: ctypes.c_double(0),
    "a ctypes text buffer": lambda: ctypes.create_string_buffer(3),
    "a bytearray": lambda: bytearray(3),
    "a memoryview": lambda: memoryview(bytearray(12)).cast("f"),
    "an anonymous file mapping": lambda: mmap.mmap(-1, 64),
    "an array interface": lambda: Interface(np.zeros(3)),
    "DLPack": lambda: Dlpack(np.zeros(3)),
    "DLPack in pinned memory": lambda: Dlpack(np.zeros(3), device=3),
    "an array": lambda: np.zeros(3),
    "a matrix": lambda: np.zeros((2, 3)).view(np.matrix),
}


def first_byte_of(buffer) -> int:
    if isinstance(buffer, (Dlpack, Interface, np.ndarray)):
        held = buffer if isinstance(buffer, np.ndarray) else buffer.held
        return held.ravel().view(np.uint8)[..., 0].item()
    return memoryview(buffer).cast("B")[0]


@pytest.mark.parametrize("make", WRITEABLE.values(), ids=WRITEABLE)
def test_what_is_written_to_the_array_is_in_the_buffer(make):
    buffer = make()
    taken = flat(buffer, "recvbuf", writes=True)
    taken.view(np.uint8)[0] = 7
    assert first_byte_of(buffer) == 7


@pytest.mark.parametrize("make", WRITEABLE.values(), ids=WRITEABLE)
def test_the_result_is_a_plain_array_of_one_dimension(make):
    taken = flat(make(), "recvbuf", writes=True)
    assert type(taken) is np.ndarray and taken.ndim == 1


@pytest.mark.parametrize("buffer, kind", [
    (array.array("d", [1, 2]), "float64"), (array.array("b", [1]), "int8"),
    (array.array("q", [1]), "int64"), ((ctypes.c_float * 2)(), "float32"),
    ((ctypes.c_uint32 * 2)(), "uint32"), (b"ab", "uint8"), (bytearray(2), "uint8"),
    (ctypes.create_string_buffer(2), "uint8"), (memoryview(bytearray(8)).cast("l"), "int64"),
])  # fmt: skip
def test_a_buffer_has_the_type_its_owner_says(buffer, kind):
    assert flat(buffer, "sendbuf", writes=False).dtype == kind


@pytest.mark.parametrize("name", DTYPES)
def test_an_array_of_every_carried_type_is_taken_as_it_is(name):
    held = np.zeros(3, dtype_named(name))
    assert flat(held, "recvbuf", writes=True) is held


def test_an_array_is_returned_as_it_is_whatever_its_layout():
    held = np.zeros((4, 4))[:, 1]
    assert as_array(held, "sendbuf") is held


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (0, 4), (2, 0, 3)])
def test_any_shape_becomes_one_dimension_of_as_many_elements(shape):
    held = np.zeros(shape)
    taken = flat(held, "recvbuf", writes=True)
    assert taken.shape == (held.size,) and (not held.size or np.shares_memory(taken, held))


@pytest.mark.parametrize("buffer", [b"abcd", memoryview(b"abcd"), memoryview(bytearray(4))
                                    .toreadonly(), np.frombuffer(b"abcd", np.uint8)])  # fmt: skip
def test_read_only_memory_may_be_sent(buffer):
    assert flat(buffer, "sendbuf", writes=False).size == 4


def test_mpi_memory_is_shared():
    mpi = pytest.importorskip("mpi4py.MPI", reason="mpi4py or an MPI library is not installed")
    memory = mpi.memory.allocate(16)
    flat(memory, "recvbuf", writes=True)[3] = 9
    assert memory[3] == 9


def test_dlpack_of_an_older_version_may_be_sent():
    old = Dlpack(np.arange(3.0), modern=False)
    assert np.shares_memory(flat(old, "sendbuf", writes=False), old.held)


# ---- what is refused ------------------------------------------------------------------------


def _swapped() -> np.ndarray:
    return np.zeros(4, np.float32).astype(np.dtype(np.float32).newbyteorder())


REFUSED = {
    "a list": ([1, 2], "buf is a list: a NumPy array, a buffer or a CPU tensor was expected"),
    "a tuple": ((1, 2), "buf is a tuple: a NumPy array"),
    "nothing": (None, "buf is a NoneType: a NumPy array"),
    "a number": (3, "buf is a int: a NumPy array"),
    "a text": ("abc", "buf is a str: a NumPy array"),
    "a NumPy number": (np.float32(3), "buf is a float32: a NumPy array"),
    "a class": (np.ndarray, "buf is a type: a NumPy array"),
    "a range": (range(3), "buf is a range: a NumPy array"),
    "a masked array": (np.ma.zeros(3), r"buf is a masked array: pass its \.data"),
    "a strided array": (np.zeros(8)[::2], r"buf \(shape \(4,\), strides \(16,\)\) is not contig"),
    "a strided memoryview": (memoryview(bytearray(8))[::2], "not contiguous"),
    "Fortran's order": (np.zeros((2, 2), order="F"), "ascontiguousarray"),
    "another byte order": (_swapped(), "buf has byte order >f4: native order was expected"),
    "truth values": (np.zeros(3, bool), "buf: data type 'bool' is not carried: one of int8"),
    "complex numbers": (np.zeros(3, complex), "complex128"),
    "objects": (np.zeros(3, object), "object"),
    "records": (np.zeros(3, "f4,i4"), "is not carried"),
    "16-bit integers": (array.array("h", [1]), "int16"),
    "wide characters": ((ctypes.c_wchar * 3)(), "buf is a c_wchar_Array_3 that NumPy cannot share"),
    "a released memoryview": (None, "released"),
    "a GPU's array": (Dlpack(np.zeros(3), device=2), "buf is a Dlpack on CUDA: memory of the CPU"),
    "an AMD GPU's array": (Dlpack(np.zeros(3), device=10), "on ROCm.*pass a copy there"),
    "a device without a name": (Dlpack(np.zeros(3), device=99), "on DLPack device 99"),
}  # fmt: skip


@pytest.mark.parametrize("buffer, what", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shared_is_refused_with_the_reason(buffer, what):
    if what == "released":
        buffer = memoryview(bytearray(3))
        buffer.release()
    with pytest.raises(InvalidArgument, match=what) as caught:
        flat(buffer, "buf", writes=False)
    assert str(caught.value).startswith("buf")


@pytest.mark.parametrize("buffer", [
    b"abcd", memoryview(bytearray(4)).toreadonly(), np.broadcast_to(np.zeros(1), (1,)),
    Dlpack(np.zeros(3), modern=False), np.frombuffer(b"abcd", np.uint8),
], ids=lambda b: type(b).__name__)  # fmt: skip
def test_read_only_memory_is_not_written_to(buffer):
    with pytest.raises(InvalidArgument, match=r"^recvbuf is read-only: a writeable"):
        flat(buffer, "recvbuf", writes=True)


def test_an_array_interface_that_lies_is_refused():
    class Broken:
        __array_interface__ = {"version": 3, "shape": (3,)}  # noqa: RUF012

    with pytest.raises(InvalidArgument, match="sendbuf is a Broken that NumPy cannot share"):
        as_array(Broken(), "sendbuf")


def test_an_object_with_only_a_gpu_interface_is_on_a_gpu():
    class Numba:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012

    with pytest.raises(InvalidArgument, match="sendbuf is a Numba on a GPU"):
        as_array(Numba(), "sendbuf")


# ---- names of types -------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_a_carried_type_has_its_name(name):
    assert carried(dtype_named(name)) == name


def test_a_type_of_another_byte_order_has_no_name():
    with pytest.raises(InvalidArgument, match=r"^byte order >i8"):
        carried(np.dtype(">i8"))


def test_an_eight_bit_float_of_another_format_is_refused_not_taken_for_the_one_that_is_carried():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(InvalidArgument, match="float8_e4m3 is not carried: f8e4m3 is"):
        flat(np.zeros(3, ml_dtypes.float8_e4m3), "sendbuf", writes=False)
