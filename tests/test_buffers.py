"""What may be handed to a collective, that it is never copied, and what is said about everything else."""

from __future__ import annotations

import array
import ctypes
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.buffers import Buffer, view
from r2ccl.errors import UsageError

CARRIED = [
    *(np.dtype(name) for name in ("float16", "float32", "float64", "complex64", "complex128", "bool")),
    *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    np.dtype("longlong"),
    np.dtype(ml_dtypes.bfloat16),
]


class Producer:
    """An object that offers an array's memory by DLPack, and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._array.__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class OldProducer(Producer):
    """Speaks the first DLPack, which cannot say whether memory may be written."""

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._array.__dlpack__()


class ForgetfulProducer(Producer):
    def __dlpack__(self, **wishes: Any) -> Any:
        raise BufferError("the memory went away")


class FakeTensor:
    """As much of a torch tensor as is asked of one."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: str = "float32", device: str = "cpu", grad: bool = False):
        self._array = array
        self._grad = grad
        self.dtype = dtype
        self.device = types.SimpleNamespace(type=device)

    def detach(self) -> FakeTensor:
        return FakeTensor(self._array, self.dtype)

    def view(self, dtype: str) -> FakeTensor:
        return FakeTensor(self._array.view(dtype), dtype)

    def numpy(self) -> np.ndarray[Any, Any]:
        if self._grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if self.dtype == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        if self.dtype == "sparse":
            raise TypeError("can't convert Sparse layout tensor to numpy.")
        return self._array


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the caller has loaded."""
    fake = types.ModuleType("torch")
    fake.__dict__.update(Tensor=FakeTensor, bfloat16="bfloat16", int16="int16")
    monkeypatch.setitem(sys.modules, "torch", fake)


@given(dtype=st.sampled_from(CARRIED), shape=st.lists(st.integers(0, 4), max_size=4), writable=st.booleans())
def test_an_array_of_any_shape_becomes_flat_and_stays_the_same_memory(dtype, shape, writable):
    user = np.ones(shape, dtype)
    buffer = view(user, writable, "all_reduce")
    assert (buffer.count, buffer.item_bytes, buffer.dtype_name) == (user.size, dtype.itemsize, dtype.name)
    assert buffer.array.shape == (user.size,)
    assert buffer.array.dtype == user.dtype
    assert (buffer.bytes.format, buffer.bytes.nbytes, buffer.bytes.readonly) == ("B", user.nbytes, False)
    assert buffer.owner is user
    buffer.bytes[:] = bytes(user.nbytes)
    assert not user.astype(bool).any()
    if user.size:
        assert np.shares_memory(buffer.array, user)


def test_a_buffer_is_shown_as_dtype_and_count():
    assert repr(view(np.zeros((10, 100), np.float32), True, "all_reduce")) == "float32[1000]"
    assert repr(view(np.zeros(3, ml_dtypes.bfloat16), True, "all_reduce")) == "bfloat16[3]"


@pytest.mark.parametrize("array", [np.zeros(10)[::2][:1], np.zeros(10)[::2][:0], np.zeros((1, 5)).T, np.zeros(())])
def test_strides_that_no_element_uses_do_not_matter(array):
    assert view(array, True, "all_reduce").bytes.nbytes == array.nbytes


@pytest.mark.parametrize(
    ("memory", "shown"),
    [
        (bytearray(8), "uint8[8]"),
        (bytearray(), "uint8[0]"),
        (array.array("d", [1, 2]), "float64[2]"),
        (memoryview(bytearray(8)).cast("i"), "int32[2]"),
        (memoryview(bytearray(16)).cast("f", (2, 2)), "float32[4]"),
        ((ctypes.c_int32 * 3)(), "int32[3]"),
    ],
)
def test_the_buffer_protocol_is_a_view(memory, shown):
    buffer = view(memory, True, "all_reduce")
    assert repr(buffer) == shown
    buffer.bytes[:] = b"\x01" * len(buffer.bytes)
    assert bytes(memoryview(memory)) == b"\x01" * memoryview(memory).nbytes


def test_a_bytearray_cannot_be_resized_under_a_buffer():
    memory = bytearray(8)
    buffer = view(memory, True, "all_reduce")
    with pytest.raises(BufferError):
        memory.append(0)
    assert buffer.count == 8


@pytest.mark.parametrize("constant", [b"abcd", np.float32(1), np.bool_(True), ml_dtypes.bfloat16(1)])
def test_what_is_constant_may_be_sent_but_not_written(constant):
    buffer = view(constant, False, "broadcast")
    assert buffer.bytes.readonly
    assert bytes(buffer.bytes) == (constant if isinstance(constant, bytes) else constant.tobytes())
    with pytest.raises(UsageError, match="broadcast: the memory of this .* is read-only"):
        view(constant, True, "broadcast")


def test_a_read_only_array_may_be_sent_but_not_written():
    user = np.arange(3)
    user.flags.writeable = False
    assert view(user, False, "broadcast").bytes.readonly
    with pytest.raises(UsageError, match=r"the memory of this numpy\.ndarray is read-only"):
        view(user, True, "broadcast")


def test_subclasses_of_arrays_are_their_memory(tmp_path):
    mapped = np.memmap(tmp_path / "file", np.float32, "w+", shape=(2, 3))
    buffer = view(mapped, True, "all_reduce")
    assert type(buffer.array) is np.ndarray
    assert np.shares_memory(buffer.array, mapped)
    assert buffer.owner is mapped


def test_dlpack_is_a_view():
    user = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = view(Producer(user), True, "all_reduce")
    assert np.shares_memory(buffer.array, user)
    assert repr(buffer) == "float32[6]"


def test_dlpack_on_memory_pinned_for_a_gpu_is_a_view():
    user = np.arange(6)
    assert np.shares_memory(view(Producer(user, (3, 0)), True, "all_reduce").array, user)


def test_a_dlpack_that_cannot_promise_writable_memory_may_only_be_sent():
    user = np.arange(3)
    assert np.shares_memory(view(OldProducer(user), False, "broadcast").array, user)
    with pytest.raises(UsageError, match="OldProducer is read-only"):
        view(OldProducer(user), True, "broadcast")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (3, "all_reduce: int is neither a numpy array nor"),
        (None, "all_reduce: NoneType is neither"),
        ([1.0], r"all_reduce: list is neither .* pass np\.asarray\(x\)"),
        ("text", "all_reduce: str is neither"),
        (np.zeros((3, 4)).T, r"float64 array of shape \(4, 3\) is not C-contiguous; pass np\.ascontiguousarray"),
        (np.zeros(9)[::2], r"shape \(5,\) is not C-contiguous"),
        (np.broadcast_to(np.zeros(1), 4), "is not C-contiguous"),
        (memoryview(bytearray(9))[::2], "is not C-contiguous"),
        (Producer(np.zeros((3, 4)).T), "is not C-contiguous"),
        (np.zeros(3, ">f4"), r"dtype >f4 is not in this machine's byte order; pass x\.astype\('float32'\)"),
        (np.zeros(3, object), "dtype object is not supported; supported are bfloat16, bool"),
        (np.zeros(3, "f4,i4"), "is not supported"),
        (np.zeros(3, "M8[s]"), r"datetime64\[s\] is not supported"),
        (np.zeros(3, "S4"), "is not supported"),
        (np.zeros(3, "S0"), "is not supported"),
        (np.zeros(3, np.longdouble), "is not supported"),
        (np.zeros(3, ml_dtypes.float8_e5m2), "float8_e5m2 is not supported"),
        (np.ma.zeros(3), "mask would be ignored"),
        ((ctypes.c_wchar * 3)(), "the items of this .* are no numbers: '<u' is not a valid"),
        (memoryview(b"text").cast("c"), r"dtype \|S1 is not supported"),
        (Producer(np.zeros(3), (2, 7)), r"Producer lives on DLPack device \(2, 7\), not on the CPU"),
        (ForgetfulProducer(np.zeros(3)), "cannot be viewed by DLPack: the memory went away"),
    ],
)
def test_what_cannot_be_viewed_is_refused_with_what_to_do(x, message):
    with pytest.raises(UsageError, match=message):
        view(x, True, "all_reduce")


def test_memory_that_was_given_back_is_refused():
    memory = memoryview(bytearray(4))
    memory.release()
    with pytest.raises(UsageError, match="does not give access to its memory: .* released"):
        view(memory, True, "all_reduce")


@pytest.mark.usefixtures("torch")
def test_a_torch_tensor_is_a_view_also_when_it_requires_grad():
    user = np.ones(4, np.float32)
    buffer = view(FakeTensor(user, grad=True), True, "all_reduce")
    assert np.shares_memory(buffer.array, user)


@pytest.mark.usefixtures("torch")
def test_a_bfloat16_tensor_is_a_view_by_way_of_its_bits():
    user = np.ones(4, ml_dtypes.bfloat16)
    buffer = view(FakeTensor(user, "bfloat16"), True, "all_reduce")
    assert np.shares_memory(buffer.array, user)
    assert repr(buffer) == "bfloat16[4]"


@pytest.mark.usefixtures("torch")
def test_tensors_that_are_no_plain_memory_here_are_refused():
    with pytest.raises(UsageError, match="not on the CPU; pass x.cpu"):
        view(FakeTensor(np.zeros(3), device="cuda"), True, "all_reduce")
    with pytest.raises(UsageError, match="the sparse tensor cannot be viewed as an array: can't convert Sparse"):
        view(FakeTensor(np.zeros(3), "sparse"), True, "all_reduce")


@pytest.mark.usefixtures("torch")
def test_a_bfloat16_tensor_without_ml_dtypes_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match="needs the package ml_dtypes"):
        view(FakeTensor(np.ones(4, np.int16), "bfloat16"), True, "all_reduce")


def test_a_buffer_has_no_room_for_more():
    assert not hasattr(Buffer(np.zeros(1), "float64", None), "__dict__")
