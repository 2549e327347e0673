"""Horovod's collectives, on torch.distributed.

Each has a form that waits, one that returns a handle (``_async``), and where it makes sense one that writes where it
reads (``_``). A handle is for :func:`synchronize`, which returns the result, and :func:`poll`. Horovod finds by their
names which calls of the ranks belong together, in whatever order they come; here calls belong together by their order,
as everywhere in torch.distributed, and ``name`` is taken and says nothing. A difference is named on all ranks, by
:class:`~r2ccl.errors.CollectiveMismatch`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from r2ccl.errors import UsageError
from r2ccl.torch_backend.horovod.compression import Compression, Compressor
from r2ccl.torch_backend.horovod.job import size


class ReduceOp(enum.Enum):
    """What becomes of the ranks' values."""

    AVERAGE = "AVG"
    SUM = "SUM"
    MIN = "MIN"
    MAX = "MAX"
    PRODUCT = "PRODUCT"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


class Handle:
    """A call that is under way. It holds its tensors until :func:`synchronize`."""

    __slots__ = ("_finish", "_result", "_work")

    def __init__(self, work: Any, finish: Callable[[], Any]) -> None:
        self._work = work
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def poll(self) -> bool:
        """Is it over, well or not?"""
        return self._finish is None or bool(self._work.is_completed())

    def synchronize(self) -> Any:
        """Wait for it, and return its result. May be called again."""
        if self._finish is not None:
            self._work.wait()
            self._result, self._finish = self._finish(), None
        return self._result


def synchronize(handle: Handle) -> Any:
    """Wait for a call and return its result; raise what it failed with."""
    return handle.synchronize()


def poll(handle: Handle) -> bool:
    """Is a call over? Then :func:`synchronize` does not wait. (From torch 2.14 on that is not told: always False.)"""
    return handle.poll()


def _result(handle: Handle) -> Tensor:
    """Of a call that has one tensor for a result."""
    tensor: Tensor = handle.synchronize()
    return tensor


# All ranks have the result.


class _AllReduce(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """The gradient of a sum over all ranks is the sum of their gradients."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, arguments: tuple[Any, ...]) -> Tensor:
        context.arguments = arguments
        result: Tensor = _reduced(tensor.detach(), tensor.detach().clone(), *arguments).synchronize()
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduced(gradient, torch.empty_like(gradient), *context.arguments).synchronize(), None


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """The average over all ranks, or another ``op``. Average and Sum of a tensor that requires a gradient have one."""
    arguments = (_op(average, op), compression, prescale_factor, postscale_factor)
    if torch.is_grad_enabled() and tensor.requires_grad:
        if arguments[0] not in (Average, Sum):
            raise UsageError(f"allreduce: {arguments[0].name} has no gradient: pass tensor.detach()")
        result: Tensor = _AllReduce.apply(tensor, arguments)
        return result
    return _result(allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, compression))


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] = Compression.none,
) -> Handle:
    """As :func:`allreduce`, which a handle stands for."""
    del name
    refuse_gradient(tensor, "allreduce_async")
    return _reduced(tensor, torch.empty_like(tensor), _op(average, op), compression, prescale_factor, postscale_factor)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """As :func:`allreduce`, in place."""
    return _result(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor))


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """As :func:`allreduce_async`, in place."""
    del name
    return _reduced(tensor.detach(), tensor, _op(average, op), Compression.none, prescale_factor, postscale_factor)


def grouped_allreduce(tensors: Sequence[Tensor], *arguments: Any, **options: Any) -> list[Tensor]:
    """:func:`allreduce_async` of several tensors, and their results."""
    return [synchronize(handle) for handle in [allreduce_async(tensor, *arguments, **options) for tensor in tensors]]


def grouped_allreduce_(tensors: Sequence[Tensor], *arguments: Any, **options: Any) -> list[Tensor]:
    """:func:`allreduce_async_` of several tensors, and the tensors."""
    return [synchronize(handle) for handle in [allreduce_async_(tensor, *arguments, **options) for tensor in tensors]]


def _reduced(
    tensor: Tensor, out: Tensor, op: ReduceOp, compression: type[Compressor], before: float, after: float
) -> Handle:
    """Reduce ``tensor`` into ``out``, which may be the same, and is the result."""
    count, into = size(), out.detach()
    is_float = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if not is_float and (op is Average or before != 1.0 or after != 1.0):
        raise UsageError(f"the average or a multiple of {tensor.dtype} is no {tensor.dtype}: use op=Sum, or floats")
    if op is Average:
        after /= count
    sent, context = compression.compress(tensor if before == 1.0 else tensor * before)
    if sent.data_ptr() == tensor.data_ptr():
        sent = into if into.data_ptr() == tensor.data_ptr() else into.copy_(sent)
    kind = dist.ReduceOp.SUM if op is Average else getattr(dist.ReduceOp, op.value)
    work = dist.all_reduce(sent, kind, async_op=True)

    def finish() -> Tensor:
        result = compression.decompress(sent, context)
        if result is not into:
            into.copy_(result)
        if after != 1.0:
            into.mul_(after)
        return out

    return Handle(work, finish)


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """What ``root_rank`` has."""
    return _result(broadcast_async(tensor, root_rank, name))


def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """As :func:`broadcast`, which a handle stands for."""
    refuse_gradient(tensor, "broadcast")
    return broadcast_async_(tensor.clone(), root_rank, name)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """As :func:`broadcast`, in place."""
    return _result(broadcast_async_(tensor, root_rank, name))


def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """As :func:`broadcast_async`, in place."""
    del name
    size()
    return Handle(dist.broadcast(tensor.detach(), root_rank, async_op=True), lambda: tensor)


def barrier() -> None:
    """Wait until all ranks have come."""
    size()
    dist.barrier()


# Parts of all ranks, along the first dimension.


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """The ranks' tensors, one behind the other. Their first dimensions may differ."""
    return _result(allgather_async(tensor, name))


def allgather_async(tensor: Tensor, name: str | None = None) -> Handle:
    """As :func:`allgather`, which a handle stands for. How many rows each rank has is exchanged before it returns."""
    del name
    refuse_gradient(tensor, "allgather")
    _refuse_scalar(tensor, "allgather")
    rows = torch.empty(size(), dtype=torch.int64)
    dist.all_gather_single(rows, torch.tensor([tensor.shape[0]]))
    whole = tensor.new_empty((int(rows.sum()), *tensor.shape[1:]))
    work = dist.all_gather(list(whole.split(rows.tolist())), tensor, async_op=True)
    return Handle(work, lambda: whole)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the reduced tensor. Where the ranks do not divide them, the first ranks get one more."""
    return _result(reducescatter_async(tensor, name, op, prescale_factor, postscale_factor))


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """As :func:`reducescatter`, which a handle stands for."""
    del name
    refuse_gradient(tensor, "reducescatter")
    _refuse_scalar(tensor, "reducescatter")
    if op not in (Average, Sum):
        raise UsageError(f"reducescatter: op={op.name} is not supported: Average or Sum")
    count, is_float = size(), tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if not is_float and (op is Average or prescale_factor != 1.0 or postscale_factor != 1.0):
        raise UsageError(f"the average or a multiple of {tensor.dtype} is no {tensor.dtype}: use op=Sum, or floats")
    given = (tensor if prescale_factor == 1.0 else tensor * prescale_factor).contiguous()
    parts = list(given.tensor_split(count))
    out = torch.empty_like(parts[dist.get_rank()])
    after = postscale_factor / count if op is Average else postscale_factor
    work = dist.reduce_scatter(out, parts, async_op=True)
    return Handle(work, lambda: out if after == 1.0 else out.mul_(after))


def alltoall(tensor: Tensor, splits: Any = None, name: str | None = None) -> Any:
    """Rows for each rank, ``splits`` of them, against theirs for us. With ``splits``, also how many came from each."""
    return synchronize(alltoall_async(tensor, splits, name))


def alltoall_async(tensor: Tensor, splits: Any = None, name: str | None = None) -> Handle:
    """As :func:`alltoall`, which a handle stands for. How many rows come is exchanged before it returns."""
    del name
    refuse_gradient(tensor, "alltoall")
    _refuse_scalar(tensor, "alltoall")
    count = size()
    if splits is None:
        each, left = divmod(tensor.shape[0], count)
        if left:
            raise UsageError(f"alltoall: {count} ranks do not divide {tensor.shape[0]} rows: pass splits")
        sent = [each] * count
    else:
        sent = splits.tolist() if isinstance(splits, Tensor) else [int(one) for one in splits]
    if len(sent) != count or sum(sent) != tensor.shape[0] or min(sent) < 0:
        raise UsageError(
            f"alltoall: splits={sent!r:.80} must be {count} numbers, none negative, that sum up to the "
            f"{tensor.shape[0]} rows"
        )
    received = torch.empty(count, dtype=torch.int64)
    dist.all_to_all_single(received, torch.tensor(sent))
    out = tensor.new_empty((int(received.sum()), *tensor.shape[1:]))
    work = dist.all_to_all_single(out, tensor.contiguous(), received.tolist(), sent, async_op=True)
    return Handle(work, lambda: out if splits is None else (out, received))


def join(device: int = -1) -> NoReturn:
    """Not supported: always a :class:`~r2ccl.errors.UsageError`, with the way out."""
    del device
    raise UsageError(
        "join() is not supported: a rank cannot know which calls the others make without it. Give all ranks as many "
        "batches (drop_last=True of torch's DistributedSampler), or use DistributedDataParallel with "
        "torch.distributed.algorithms.join"
    )


def refuse_gradient(tensor: Tensor, call: str) -> None:
    """Raises :class:`~r2ccl.errors.UsageError` for a tensor whose gradient would be lost without a word."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise UsageError(f"{call}: the tensor requires a gradient, and only allreduce() has one: pass tensor.detach()")


def _refuse_scalar(tensor: Tensor, call: str) -> None:
    if not tensor.dim():
        raise UsageError(f"{call}: a scalar has no rows: pass tensor.reshape(1)")


def _op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """What the caller chose, by the old word or the new."""
    if average is not None and op is not None:
        raise UsageError("allreduce: average= is the old word for op=: pass one of them")
    if op is not None and not isinstance(op, ReduceOp):
        raise UsageError(f"op={op!r} is none of Average, Sum, Min, Max, Product")
    return Average if average or (average is None and op is None) else op or Sum
