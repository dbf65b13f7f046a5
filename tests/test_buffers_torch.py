"""Tensors of torch are buffers: shared, with bfloat16 and float8 as the types of ml_dtypes."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from rccl_py.buffers import flat
from rccl_py.errors import InvalidArgument

torch = pytest.importorskip("torch", reason="torch is not installed")

OF_TORCH = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "int8": np.int8,
    "uint8": np.uint8, "int32": np.int32, "int64": np.int64, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_tensor_is_shared_with_its_type(name):
    tensor = torch.zeros(2, 3, dtype=getattr(torch, name))
    taken = flat(tensor, "recvbuf", writes=True)
    taken[4] = 2
    assert taken.dtype == OF_TORCH[name] and tensor[1, 1].item() == 2


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_numbers_of_a_tensor_are_read_right(name):
    tensor = torch.tensor([0.0, 1.0, 3.0, 64.0]).to(getattr(torch, name))
    assert flat(tensor, "sendbuf", writes=False).tolist() == [0, 1, 3, 64]


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_tensor_that_requires_grad_is_detached(name):
    tensor = torch.zeros(3, dtype=getattr(torch, name), requires_grad=True)
    flat(tensor, "recvbuf", writes=True)[0] = 5
    assert tensor[0].item() == 5


def test_a_parameter_of_a_module_is_shared():
    layer = torch.nn.Linear(2, 2)
    flat(layer.weight, "recvbuf", writes=True)[:] = 3
    assert (layer.weight == 3).all()


def test_a_number_in_a_tensor_is_one_element():
    assert flat(torch.tensor(3.0, dtype=torch.bfloat16), "sendbuf", writes=False).tolist() == [3]


def test_a_tensor_on_another_device_is_refused_by_the_devices_name():
    with pytest.raises(InvalidArgument, match="recvbuf is a Tensor on meta: memory of the CPU"):
        flat(torch.zeros(3, device="meta"), "recvbuf", writes=True)


BAD_TENSORS = {
    "strided": (lambda: torch.zeros(4, 4)[:, 1], "not contiguous"),
    "strided bfloat16": (lambda: torch.zeros(4, 4, dtype=torch.bfloat16).T, "not contiguous"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "is a Tensor that NumPy cannot share"),
    "negated lazily": (lambda: torch.zeros(3, dtype=torch.complex64).conj().imag, "negative"),
    "a float8 not carried": (lambda: torch.zeros(3, dtype=torch.float8_e4m3fnuz), "e4m3fnuz"),
    "truth values": (lambda: torch.zeros(3, dtype=torch.bool), "'bool' is not carried"),
}


@pytest.mark.parametrize("make, what", BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_a_tensor_that_cannot_be_shared_is_refused(make, what):
    with pytest.raises(InvalidArgument, match=re.compile(what)):
        flat(make(), "sendbuf", writes=False)


def test_a_tensor_of_dlpack_is_shared_and_writeable():
    tensor = torch.zeros(3)

    class Other:
        def __dlpack__(self, **more):
            return tensor.__dlpack__(**more)

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

    if not np.from_dlpack(tensor).flags.writeable:
        pytest.skip("torch before 2.9 exports DLPack without saying that it may be written")
    flat(Other(), "recvbuf", writes=True)[1] = 4
    assert tensor.tolist() == [0, 4, 0]
