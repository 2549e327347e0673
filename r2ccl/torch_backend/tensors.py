"""From torch's tensors to memory that a communicator carries, and back.

A communicator uses arrays where they are, and refuses what it would have to copy. torch's users expect more: a column
of a matrix, a conjugated view, float8. So here a tensor that is contiguous and of a dtype that the core knows is lent
as it is; another one goes by way of a copy, whose contents are given back when the call has ended well. What is only
moved and not reduced may be of any dtype: it travels as bytes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from r2ccl.errors import UsageError

#: What :mod:`r2ccl.buffers` takes, by torch's names. bfloat16 goes by way of ml_dtypes, which may not be there.
CORE_DTYPES: Final = frozenset(
    (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
        torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
)  # fmt: skip


#: Sizes and dtype.
Shape = tuple[torch.Size, torch.dtype]


def refuse_elsewhere(tensor: Tensor, call: str) -> None:
    """Raises :class:`UsageError` for a tensor whose memory the CPU does not have in one piece."""
    if tensor.layout is not torch.strided:
        raise UsageError(f"{call}: a tensor of layout {tensor.layout} is not supported; pass tensor.to_dense()")
    if tensor.device.type != "cpu":
        raise UsageError(
            f"{call}: the tensor lives on {tensor.device}, and r2ccl carries tensors on the CPU only, for now: "
            "pass tensor.cpu() and copy the result back"
        )


def in_list(tensors: Any, call: str) -> list[Tensor]:
    """c10d's argument, a list or one tensor."""
    found = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for tensor in found:
        refuse_elsewhere(tensor, call)
    return found


def only(tensors: Any, call: str) -> Tensor:
    """c10d's lists are for several devices of one process; there is one."""
    found = in_list(tensors, call)
    if len(found) != 1:
        raise UsageError(f"{call}: {len(found)} tensors; the lists are for several devices, and there is one: pass one")
    return found[0]


class Loan:
    """The tensors of one call, as the communicator gets them."""

    __slots__ = ("_back", "_reduces", "call", "inputs", "outputs")

    def __init__(self, call: str, reduces: bool = False) -> None:
        self.call = call
        self._reduces = reduces
        #: What is read and what is written, for those who are told of the call.
        self.inputs: list[Shape] = []
        self.outputs: list[Shape] = []
        #: (the caller's, the copy whose contents belong there).
        self._back: list[tuple[Tensor, Tensor]] = []

    def read(self, tensor: Tensor) -> Tensor:
        """Only read."""
        self.inputs.append((tensor.shape, tensor.dtype))
        return self._carried(_plain(tensor))

    def write(self, tensor: Tensor) -> Tensor:
        """Only written, all of it."""
        self.outputs.append((tensor.shape, tensor.dtype))
        return self._lent(tensor, tensor if _is_plain(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype))

    def update(self, tensor: Tensor) -> Tensor:
        """Read, and then written."""
        self.inputs.append((tensor.shape, tensor.dtype))
        self.outputs.append((tensor.shape, tensor.dtype))
        return self._lent(tensor, _plain(tensor))

    def joined(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Several, one behind the other, in new memory; only read."""
        parts = [one.detach().resolve_conj().resolve_neg().reshape(-1) for one in tensors]
        whole = torch.cat(parts) if parts else torch.empty(0, dtype=dtype)
        self.inputs.append((whole.shape, whole.dtype))
        return self._carried(whole)

    def room(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """New memory for several, one behind the other; only written."""
        whole = torch.empty(sum(one.numel() for one in tensors), dtype=dtype)
        self.outputs.append((whole.shape, whole.dtype))
        parts = whole.split([one.numel() for one in tensors]) if tensors else ()
        self._back.extend((one, part.view(one.shape)) for one, part in zip(tensors, parts, strict=True))
        return self._carried(whole)

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def give_back(self) -> None:
        """The call has ended well: what it wrote goes where it belongs."""
        for tensor, copy in self._back:
            tensor.detach().copy_(copy)
        self._back.clear()

    def _lent(self, tensor: Tensor, copy: Tensor) -> Tensor:
        if copy is not tensor:
            self._back.append((tensor, copy))
        return self._carried(copy)

    def _carried(self, tensor: Tensor) -> Tensor:
        """``tensor``, or its bytes."""
        if tensor.dtype in CORE_DTYPES:
            return tensor
        if self._reduces:
            if tensor.dtype is torch.bfloat16:
                return tensor  # without ml_dtypes the core says what is missing
            raise UsageError(f"{self.call}: {tensor.dtype} cannot be reduced; pass tensor.float(), for example")
        if tensor.dtype is torch.bfloat16 and importlib.util.find_spec("ml_dtypes"):
            return tensor
        return tensor.detach().reshape(-1).view(torch.uint8)


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _plain(tensor: Tensor) -> Tensor:
    return tensor if _is_plain(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()
