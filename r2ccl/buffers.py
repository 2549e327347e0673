"""What a user hands in becomes flat memory: typed for reductions, bytes for the wire, never a copy.

Everything that can be wrong with an argument is found here, before an operation is numbered and before anything is
sent: a :class:`UsageError` must leave nothing behind. Nothing is repaired silently either. A hidden copy of a
non-contiguous array would be reduced and thrown away, so we say what to call instead.

Torch tensors are recognised only when the caller has loaded torch; it is never imported from here. Which operations
make sense for a dtype is not decided here but in :mod:`r2ccl.reduction`.
"""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from r2ccl.errors import UsageError

#: What can be carried, apart from bfloat16. Equal dtypes hash alike, so ``int64`` and ``longlong`` are one entry, and a
#: dtype in foreign byte order is none. ``longdouble`` is left out: its layout differs between machines.
_NAMES = MappingProxyType(
    {
        np.dtype(kind): np.dtype(kind).name
        for kind in ("e", "f", "d", "F", "D", "?", "b", "h", "i", "l", "q", "B", "H", "I", "L", "Q")
    }
)
#: DLPack's numbers of memory that the CPU may touch: CPU, and what CUDA and ROCm pin on the host.
_HOST_MEMORY = (1, 3, 11)


class Buffer:
    """A user's memory, flat. The slots say everything; a tuple of the array's properties, looked up once."""

    __slots__ = ("array", "bytes", "count", "dtype_name", "item_bytes", "owner")

    #: One dimension, C-contiguous, typed; the same memory as the user's.
    array: npt.NDArray[Any]
    #: The same memory as unsigned bytes; writable if the array is.
    bytes: memoryview
    count: int
    item_bytes: int
    #: Such as ``float32`` or ``bfloat16``.
    dtype_name: str
    #: What the user handed in. Keeps the memory alive.
    owner: object

    def __init__(self, array: npt.NDArray[Any], dtype_name: str, owner: object) -> None:
        self.array = array
        self.bytes = array.view(np.uint8).data
        self.count = array.size
        self.item_bytes = array.itemsize
        self.dtype_name = dtype_name
        self.owner = owner

    def __repr__(self) -> str:
        return f"{self.dtype_name}[{self.count}]"


def view(x: object, writable: bool, call: str) -> Buffer:
    """``x`` as a :class:`Buffer`, without a copy, or a :class:`UsageError` whose message begins with ``call``.

    The common case, a numpy array, is checked in about one microsecond.
    """
    array = x if type(x) is np.ndarray else _as_array(x, call)
    dtype_name = _NAMES.get(array.dtype) or _unusual_dtype_name(array.dtype, call)
    flags = array.flags
    if not flags.c_contiguous:
        raise UsageError(
            f"{call}: the {dtype_name} array of shape {array.shape} is not C-contiguous; "
            "pass np.ascontiguousarray(x) (torch: x.contiguous()) and keep that, for the result is written into it"
        )
    if writable and not flags.writeable:
        raise UsageError(f"{call}: the memory of this {_type_name(x)} is read-only and the result belongs in it")
    return Buffer(array if array.ndim == 1 else array.reshape(-1), dtype_name, x)


def _as_array(x: object, call: str) -> npt.NDArray[Any]:
    """Everything that is not exactly an ``np.ndarray``."""
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise UsageError(f"{call}: a masked array's mask would be ignored; pass x.filled(...) or x.data")
        return np.asarray(x)
    if isinstance(x, np.generic):
        # A scalar cannot change, so that a copy cannot be told from a view as long as nobody writes to it.
        scalar = np.asarray(x)
        scalar.flags.writeable = False
        return scalar
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
        return _from_torch(x, torch, call)
    try:
        memory = memoryview(x)  # type: ignore[arg-type]
    except TypeError:
        return _from_dlpack(x, call)
    except (BufferError, ValueError) as refused:
        raise UsageError(f"{call}: this {_type_name(x)} does not give access to its memory: {refused}") from refused
    return _from_memory(memory, x, call)


def _from_memory(memory: memoryview, x: object, call: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(memory)
    except ValueError as refused:
        raise UsageError(f"{call}: the items of this {_type_name(x)} are no numbers: {refused}") from refused


def _from_dlpack(x: object, call: str) -> npt.NDArray[Any]:
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise UsageError(
            f"{call}: {_type_name(x)} is neither a numpy array nor does it speak the buffer protocol or DLPack; "
            "pass np.asarray(x) and keep that, for a result is written into it"
        )
    device, index = x.__dlpack_device__()
    if device not in _HOST_MEMORY:
        raise UsageError(
            f"{call}: {_type_name(x)} lives on DLPack device ({int(device)}, {index}), not on the CPU; "
            "pass a copy on the host"
        )
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as refused:
        raise UsageError(f"{call}: {_type_name(x)} cannot be viewed by DLPack: {refused}") from refused


def _from_torch(tensor: Any, torch: Any, call: str) -> npt.NDArray[Any]:
    """A tensor's memory; autograd does not see what is written there, as with torch's own collectives."""
    if tensor.device.type != "cpu":
        raise UsageError(f"{call}: the tensor lives on {tensor.device}, not on the CPU; pass x.cpu() and copy back")
    detached = tensor.detach()
    try:
        if tensor.dtype is not torch.bfloat16:
            return np.asarray(detached.numpy())
        bits = np.asarray(detached.view(torch.int16).numpy())
    except (RuntimeError, TypeError) as refused:
        raise UsageError(f"{call}: the {tensor.dtype} tensor cannot be viewed as an array: {refused}") from refused
    try:
        import ml_dtypes
    except ImportError as missing:
        raise UsageError(f"{call}: a bfloat16 tensor needs the package ml_dtypes") from missing
    return bits.view(ml_dtypes.bfloat16)


def _unusual_dtype_name(dtype: np.dtype[Any], call: str) -> str:
    """The name of bfloat16; for everything else that is not in the table a :class:`UsageError`."""
    kind = dtype.type
    if kind.__name__ == "bfloat16" and kind.__module__ == "ml_dtypes" and dtype.isnative:
        return "bfloat16"
    if not dtype.isnative and dtype.newbyteorder("=") in _NAMES:
        native = dtype.newbyteorder("=").name
        raise UsageError(f"{call}: dtype {dtype.str} is not in this machine's byte order; pass x.astype({native!r})")
    known = ", ".join(sorted({*_NAMES.values(), "bfloat16"}))
    raise UsageError(f"{call}: dtype {dtype} is not supported; supported are {known}")


def _type_name(x: object) -> str:
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
