"""Every collective of torch.distributed, as the grid makes it: the call, and what must come of it.

Each case makes one call with a group and returns its Work and the tensors that hold its results; and says what these
must be, worked out from what all ranks put in. Runs in an interpreter that has torch.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

Tensors = list[Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """In what way a call is made."""

    group: Any
    rank: int
    size: int
    #: Rank in the group, and in the default group.
    root: int
    global_root: int
    dtype: Any
    op: str
    rows: int
    strided: bool
    async_op: bool

    def given(self, rank: int, salt: int = 0, rows: int | None = None) -> Any:
        """What a rank puts in: numbers whose sums and products are exact in every dtype."""
        rows = self.rows if rows is None else rows
        numbers = torch.arange(rows * 3) * 5 + rank * 7 + salt * 3
        least, most = (1, 2) if self.op == "PRODUCT" else (0, 5)
        values = (numbers % (most - least + 1) + least).view(rows, 3)
        if self.dtype.is_complex:
            return self.laid_out(torch.complex(values.double(), (2 - values).double()).to(self.dtype))
        return self.laid_out(values.to(self.dtype))

    def room(self, rows: int | None = None) -> Any:
        rows = self.rows if rows is None else rows
        return self.laid_out(torch.full((rows, 3), 1).to(self.dtype))

    def laid_out(self, tensor: Any) -> Any:
        """The same numbers, every other element of memory, if that is wanted."""
        if not self.strided:
            return tensor
        wide = torch.zeros((tensor.shape[0], 6)).to(self.dtype)
        wide[:, ::2] = tensor
        return wide[:, ::2]

    def reduced(self, tensors: Sequence[Any]) -> Any:
        """What the op makes of them."""
        kinds = {
            "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
            "BAND": operator.and_, "BOR": operator.or_, "BXOR": operator.xor,
        }  # fmt: skip
        if self.dtype is torch.bool and self.op in ("SUM", "PRODUCT", "MIN", "MAX"):
            word = {"SUM": operator.or_, "MAX": operator.or_, "PRODUCT": operator.and_, "MIN": operator.and_}
            return functools.reduce(word[self.op], tensors)
        if self.dtype in (torch.uint16, torch.uint32, torch.uint64):
            wide = [tensor.to(torch.int64) for tensor in tensors]
            return functools.reduce(kinds[self.op], wide).to(self.dtype)
        total = functools.reduce(kinds[self.op], tensors)
        return (total.double() / self.size).to(self.dtype) if self.op == "AVG" else total

    @property
    def reduce_op(self) -> Any:
        return getattr(dist.ReduceOp, self.op)

    def everybody(self, salt: int = 0, rows: int | None = None) -> Tensors:
        return [self.given(rank, salt, rows) for rank in range(self.size)]


Made = tuple[Any, Tensors]
Call = Callable[[Setting], Made]
Expected = Callable[[Setting], Tensors]


def all_reduce(s: Setting) -> Made:
    x = s.given(s.rank)
    return dist.all_reduce(x, s.reduce_op, group=s.group, async_op=s.async_op), [x]


def all_reduced(s: Setting) -> Tensors:
    return [s.reduced(s.everybody())]


def all_reduce_coalesced(s: Setting) -> Made:
    xs = [s.given(s.rank, salt) for salt in range(3)]
    opts = dist.AllreduceCoalescedOptions()
    opts.reduceOp = s.reduce_op
    return s.group.allreduce_coalesced(xs, opts), xs


def all_reduced_three(s: Setting) -> Tensors:
    return [s.reduced(s.everybody(salt)) for salt in range(3)]


def coalescing_manager(s: Setting) -> Made:
    xs = [s.given(s.rank, salt) for salt in range(3)]
    with dist.distributed_c10d._coalescing_manager(s.group, async_ops=s.async_op) as manager:
        for x in xs:
            dist.all_reduce(x, s.reduce_op, group=s.group)
    return (manager if s.async_op else None), xs


def broadcast(s: Setting) -> Made:
    x = s.given(s.rank)
    return dist.broadcast(x, s.global_root, group=s.group, async_op=s.async_op), [x]


def broadcasted(s: Setting) -> Tensors:
    return [s.given(s.root)]


def reduce(s: Setting) -> Made:
    x = s.given(s.rank)
    work = dist.reduce(x, s.global_root, s.reduce_op, group=s.group, async_op=s.async_op)
    return work, [x] if s.rank == s.root else []  # elsewhere its contents are anybody's guess


def reduced_at_root(s: Setting) -> Tensors:
    return [s.reduced(s.everybody())] if s.rank == s.root else []


def all_gather(s: Setting) -> Made:
    outs = [s.room() for _ in range(s.size)]
    return dist.all_gather(outs, s.given(s.rank), group=s.group, async_op=s.async_op), outs


def gathered(s: Setting) -> Tensors:
    return s.everybody()


def all_gather_single(s: Setting) -> Made:
    out = s.room(s.size * s.rows)
    return dist.all_gather_single(out, s.given(s.rank), group=s.group, async_op=s.async_op), [out]


def gathered_single(s: Setting) -> Tensors:
    return [torch.cat(s.everybody())]


def all_gather_coalesced(s: Setting) -> Made:
    outs = [[s.room() for _ in range(2)] for _ in range(s.size)]
    work = s.group.allgather_coalesced(
        outs, [s.given(s.rank, salt) for salt in range(2)], dist.distributed_c10d.AllgatherOptions()
    )
    return work, [one for out in outs for one in out]


def gathered_twice(s: Setting) -> Tensors:
    return [s.given(rank, salt) for rank in range(s.size) for salt in range(2)]


def all_gather_single_coalesced(s: Setting) -> Made:
    outs = [s.room(s.size * s.rows) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager(s.group, async_ops=s.async_op) as manager:
        for salt, out in enumerate(outs):
            dist.all_gather_single(out, s.given(s.rank, salt), group=s.group)
    return (manager if s.async_op else None), outs


def gathered_single_twice(s: Setting) -> Tensors:
    return [torch.cat(s.everybody(salt)) for salt in range(2)]


def gather(s: Setting) -> Made:
    outs = [s.room() for _ in range(s.size)] if s.rank == s.root else []
    work = dist.gather(s.given(s.rank), outs or None, s.global_root, group=s.group, async_op=s.async_op)
    return work, outs


def gathered_at_root(s: Setting) -> Tensors:
    return s.everybody() if s.rank == s.root else []


def scatter(s: Setting) -> Made:
    out = s.room()
    given = [s.given(s.root, salt) for salt in range(s.size)] if s.rank == s.root else None
    return dist.scatter(out, given, s.global_root, group=s.group, async_op=s.async_op), [out]


def scattered(s: Setting) -> Tensors:
    return [s.given(s.root, s.rank)]


def reduce_scatter(s: Setting) -> Made:
    out = s.room()
    given = [s.given(s.rank, salt) for salt in range(s.size)]
    return dist.reduce_scatter(out, given, s.reduce_op, group=s.group, async_op=s.async_op), [out]


def reduced_and_scattered(s: Setting) -> Tensors:
    return [s.reduced(s.everybody(s.rank))]


def reduce_scatter_single(s: Setting) -> Made:
    out = s.room()
    given = s.laid_out(torch.cat([s.given(s.rank, salt) for salt in range(s.size)]))
    return dist.reduce_scatter_single(out, given, s.reduce_op, group=s.group, async_op=s.async_op), [out]


def reduce_scatter_single_coalesced(s: Setting) -> Made:
    outs = [s.room() for _ in range(2)]
    whole = s.laid_out(torch.cat([s.given(s.rank, salt) for salt in range(s.size)]))
    with dist.distributed_c10d._coalescing_manager(s.group, async_ops=s.async_op) as manager:
        for out in outs:
            dist.reduce_scatter_single(out, whole, s.reduce_op, group=s.group)
    return (manager if s.async_op else None), outs


def reduced_and_scattered_twice(s: Setting) -> Tensors:
    return reduced_and_scattered(s) * 2


def all_to_all(s: Setting) -> Made:
    """The block from rank i to rank j has i + 2 j rows more than usual."""
    outs = [s.room(s.rows + source + 2 * s.rank) for source in range(s.size)]
    given = [s.given(s.rank, target, s.rows + s.rank + 2 * target) for target in range(s.size)]
    return dist.all_to_all(outs, given, group=s.group, async_op=s.async_op), outs


def blocks_for_this_rank(s: Setting) -> Tensors:
    return [s.given(source, s.rank, s.rows + source + 2 * s.rank) for source in range(s.size)]


def all_to_all_single(s: Setting) -> Made:
    out = s.room(s.size * s.rows)
    given = s.laid_out(torch.cat([s.given(s.rank, target) for target in range(s.size)]))
    return dist.all_to_all_single(out, given, group=s.group, async_op=s.async_op), [out]


def even_blocks(s: Setting) -> Tensors:
    return [torch.cat([s.given(source, s.rank) for source in range(s.size)])]


def all_to_all_single_with_splits(s: Setting) -> Made:
    out_splits = [s.rows + source + 2 * s.rank for source in range(s.size)]
    splits = [s.rows + s.rank + 2 * target for target in range(s.size)]
    out = s.room(sum(out_splits))
    given = s.laid_out(torch.cat([s.given(s.rank, target, rows) for target, rows in enumerate(splits)]))
    return dist.all_to_all_single(out, given, out_splits, splits, group=s.group, async_op=s.async_op), [out]


def uneven_blocks(s: Setting) -> Tensors:
    return [torch.cat(blocks_for_this_rank(s))]


def messages_round_a_ring(s: Setting) -> Made:
    """The one before sends to the one after; of a group of one, to itself."""
    out = s.room()
    after, before = (s.rank + 1) % s.size, (s.rank - 1) % s.size
    sends = [dist.P2POp(dist.isend, s.given(s.rank), group=s.group, tag=3, group_peer=after)]
    receives = [dist.P2POp(dist.irecv, out, group=s.group, tag=3, group_peer=before)]
    works = dist.batch_isend_irecv(sends + receives if s.rank % 2 else receives + sends)
    for work in works:
        work.wait()
    return None, [out]


def from_the_one_before(s: Setting) -> Tensors:
    return [s.given((s.rank - 1) % s.size)]


@dataclass(frozen=True, slots=True)
class Case:
    call: Call
    expected: Expected
    reduces: bool = False

    @property
    def name(self) -> str:
        return self.call.__name__


CASES: Final = (
    Case(all_reduce, all_reduced, True),
    Case(all_reduce_coalesced, all_reduced_three, True),
    Case(coalescing_manager, all_reduced_three, True),
    Case(broadcast, broadcasted),
    Case(reduce, reduced_at_root, True),
    Case(all_gather, gathered),
    Case(all_gather_single, gathered_single),
    Case(all_gather_coalesced, gathered_twice),
    Case(all_gather_single_coalesced, gathered_single_twice),
    Case(gather, gathered_at_root),
    Case(scatter, scattered),
    Case(reduce_scatter, reduced_and_scattered, True),
    Case(reduce_scatter_single, reduced_and_scattered, True),
    Case(reduce_scatter_single_coalesced, reduced_and_scattered_twice, True),
    Case(all_to_all, blocks_for_this_rank),
    Case(all_to_all_single, even_blocks),
    Case(all_to_all_single_with_splits, uneven_blocks),
    Case(messages_round_a_ring, from_the_one_before),
)

INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED: Final = (torch.uint16, torch.uint32, torch.uint64)
FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX: Final = (torch.complex64, torch.complex128)
#: What only moves.
OTHERS: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


def ops(dtype: Any) -> tuple[str, ...]:
    """What a dtype can be reduced by."""
    if dtype in COMPLEX:
        return ("SUM",)
    if dtype in FLOATS:
        return ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
    if dtype in UNSIGNED:
        return ("SUM",)
    return ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def same(one: Any, other: Any) -> bool:
    """To the bit, dtype and shape included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return bool(torch.equal(*flat))


def quietly(call: Callable[[], Any]) -> Any:
    """torch warns of old names, which are asked for on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()
