"""From the arguments of a collective to what is asked for, and where it is to be read and written.

Here and in :mod:`r2ccl.buffers` everything that can be wrong with a call is found, before it has a number. Arrays stay
where they are; a :class:`~r2ccl.planner.memory.Layout` says which positions of the collective they hold.

Collectives over parts take one array that is cut into as many parts as there are ranks, whose lengths differ by at
most one, the longer ones first; or a list with an array for each rank, of any lengths, which all ranks must agree on.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from r2ccl import buffers
from r2ccl.actors.planning import Call
from r2ccl.buffers import Buffer
from r2ccl.errors import UsageError
from r2ccl.planner.memory import Layout, Region
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.schedule.ir import segments

#: Longer lists of a batch's arrays are told by a digest.
FUSED_CHARACTERS_MAX = 100


class Asked(NamedTuple):
    """One call, checked: what it is, its arrays in the order that its layout counts them, and what it returns."""

    call: Call
    arrays: tuple[Buffer, ...]
    result: Any
    #: What the caller wrote, where the kind has another name.
    name: str = ""


class Ranks(NamedTuple):
    """Who calls."""

    rank: int
    size: int


def in_place(kind: CollectiveKind, x: Any, op: Op | None, root: int, writable: bool) -> Asked:
    """all_reduce and broadcast: one array, read and written."""
    buffer = buffers.view(x, writable, kind.value)
    return Asked(Call(kind, buffer.array.dtype, buffer.dtype_name, buffer.count, op, root), (buffer,), x)


@cache
def barrier() -> Asked:
    """No array at all."""
    nothing = buffers.view(np.empty(0, np.uint8), True, "barrier")
    return Asked(Call(CollectiveKind.BARRIER, nothing.array.dtype, nothing.dtype_name, 0), (nothing,), None)


def reduce(who: Ranks, x: Any, root: int, op: Op) -> Asked:
    """The result replaces ``x`` at the root; elsewhere ``x`` is only read."""
    is_root = who.rank == root
    buffer = buffers.view(x, is_root, "reduce")
    region = (Region(0, buffer.count, 0, 0),)
    layout = Layout(region, region if is_root else ())
    call = Call(CollectiveKind.REDUCE, buffer.array.dtype, buffer.dtype_name, buffer.count, op, root, layout=layout)
    return Asked(call, (buffer,), x if is_root else None)


def all_gather(who: Ranks, out: Any, x: Any, name: str = "all_gather_into") -> Asked:
    """``x`` of all ranks, in order of rank, into ``out``: one array, or one for each rank."""
    mine = buffers.view(x, False, name)
    whole, parts = _whole(who, out, True, name, mine)
    if parts[who.rank] != mine.count:
        raise UsageError(f"{name}: x has {mine.count} elements, and out has room for {parts[who.rank]} of this rank")
    return _in_parts(
        CollectiveKind.ALL_GATHER, who, mine, whole, parts, out, reads_part=True, writes_whole=True, name=name
    )


def reduce_scatter(who: Ranks, out: Any, x: Any, op: Op) -> Asked:
    """This rank's part of the reduction of all ranks' ``x`` into ``out``."""
    mine = buffers.view(out, True, "reduce_scatter")
    whole, parts = _whole(who, x, False, "reduce_scatter", mine)
    if parts[who.rank] != mine.count:
        raise UsageError(f"reduce_scatter: out has {mine.count} elements, and this rank's part of x {parts[who.rank]}")
    if any(_overlap(mine, other) for index, other in enumerate(whole) if index != who.rank and len(whole) > 1):
        raise UsageError("reduce_scatter: out shares memory with another rank's part of x: pass a copy")
    return _in_parts(CollectiveKind.REDUCE_SCATTER, who, mine, whole, parts, out, reads_whole=True, op=op)


def gather(who: Ranks, x: Any, root: int, out: Any = None) -> Asked:
    """``x`` of all ranks to the root, into ``out``, or in arrays like ``x`` made here."""
    mine = buffers.view(x, False, "gather")
    parts = (mine.count,) * who.size
    whole: list[Buffer] = []
    result = None
    if who.rank == root and out is None:
        result, whole = _room(x, mine, who.size, "gather")
    elif who.rank == root:
        whole, room = _whole(who, out, True, "gather", mine)
        result = out
        if room != parts:
            raise UsageError(f"gather: x has {mine.count} elements, and the parts of out have {list(room)}")
    elif out is not None:
        raise UsageError("gather: out is the root's; pass None elsewhere")
    is_root = who.rank == root
    return _in_parts(
        CollectiveKind.GATHER, who, mine, whole, parts, result, root, reads_part=True, writes_whole=is_root
    )


def gather_all(who: Ranks, x: Any) -> Asked:
    """As :func:`all_gather`, into arrays like ``x`` made here."""
    mine = buffers.view(x, False, "all_gather")
    result, whole = _room(x, mine, who.size, "all_gather")
    parts = (mine.count,) * who.size
    return _in_parts(CollectiveKind.ALL_GATHER, who, mine, whole, parts, result, reads_part=True, writes_whole=True)


def scatter(who: Ranks, out: Any, xs: Any, root: int) -> Asked:
    """The root's ``xs[rank]`` into ``out`` of each rank."""
    mine = buffers.view(out, True, "scatter")
    parts = (mine.count,) * who.size
    whole: list[Buffer] = []
    if who.rank == root:
        whole, given = _whole(who, xs, False, "scatter", mine)
        if given != parts:
            raise UsageError(f"scatter: out has {mine.count} elements, and the parts of xs have {list(given)}")
    elif xs is not None:
        raise UsageError("scatter: xs is the root's; pass None elsewhere")
    is_root = who.rank == root
    return _in_parts(CollectiveKind.SCATTER, who, mine, whole, parts, out, root, reads_whole=is_root)


def all_to_all(who: Ranks, out: Any, x: Any, out_counts: Any, counts: Any) -> Asked:
    """Block j of ``x`` to rank j, whose block for us becomes block j of ``out``."""
    source, target = buffers.view(x, False, "all_to_all"), buffers.view(out, True, "all_to_all")
    _refuse_unlike(source, target, "all_to_all")
    if _overlap(source, target):
        raise UsageError("all_to_all: out and x share memory")
    if (counts is None) != (out_counts is None):
        raise UsageError("all_to_all: pass both counts and out_counts, or neither")
    uneven = counts is not None
    sent = _counts(who, counts, source, "counts", "x") if uneven else _even(who, source, "x")
    received = _counts(who, out_counts, target, "out_counts", "out") if uneven else _even(who, target, "out")
    if not uneven and sent != received:
        raise UsageError(f"all_to_all: x has {source.count} elements and out {target.count}; or pass counts")
    call = Call(
        CollectiveKind.ALL_TO_ALL, source.array.dtype, source.dtype_name, source.count, None, 0, sent, received, uneven,
        _block_layout(who, sent, received), 2,
    )  # fmt: skip
    return Asked(call, (source, target), out)


def message(x: Any, writable: bool, name: str, other: str, tag: int) -> Asked:
    """send and recv: one array."""
    buffer = buffers.view(x, writable, name)
    size = f"{buffer.dtype_name}[{buffer.count}]"
    words = f"message({size}, tag={tag})|{name}({size}, {other}, tag={tag})"
    return Asked(
        Call(CollectiveKind.BROADCAST, buffer.array.dtype, buffer.dtype_name, buffer.count, words=words), (buffer,), x
    )


def fused(asked: Sequence[Asked]) -> Asked:
    """Several calls of :func:`in_place` as one, over all their arrays."""
    first = asked[0].call
    regions = []
    start = 0
    for index, one in enumerate(asked):
        regions.append(Region(start, start + one.call.elements, index, 0))
        start += one.call.elements
    layout = Layout(tuple(regions), tuple(regions))
    sizes = "+".join(str(one.call.elements) for one in asked)
    if len(sizes) > FUSED_CHARACTERS_MAX:
        sizes = f"{start} in {len(asked)} arrays, {zlib.crc32(sizes.encode()):08x}"
    last = f"root={first.root}" if first.op is None else first.op.value
    words = f"{first.kind.value}({first.dtype_name}[{sizes}], {last})"
    call = first._replace(elements=start, layout=layout, arrays=len(asked), words=words)
    return Asked(call, tuple(one.arrays[0] for one in asked), None)


def refuse_shared(asked: Sequence[Asked]) -> None:
    """Calls of :func:`in_place` that go out together: each needs memory of its own, or what one writes another would
    read. Only what one root broadcasts may come twice, for it is the same."""
    end, before = 0, None
    places = [(_address(one.arrays[0]), one.arrays[0].count * one.arrays[0].item_bytes, one.call) for one in asked]
    for start, size, call in sorted(places, key=operator.itemgetter(0, 1)):
        if size and before is not None and start < end and (call.op is not None or call.root != before.root):
            raise UsageError("batch: two of its calls share memory; each needs an array of its own")
        if size and start + size > end:
            end, before = start + size, call


def _in_parts(
    kind: CollectiveKind,
    who: Ranks,
    mine: Buffer,
    whole: Sequence[Buffer],
    parts: tuple[int, ...],
    result: Any,
    root: int = 0,
    op: Op | None = None,
    *,
    reads_part: bool = False,
    reads_whole: bool = False,
    writes_whole: bool = False,
    name: str = "",
) -> Asked:
    """What is not read is written, part or whole; at ranks that have no whole, neither."""
    is_in_place = _place_within(who, mine, whole, parts, name or kind.value)
    layout = _part_layout(who.rank, parts, len(whole), is_in_place, reads_part, reads_whole, writes_whole)
    call = Call(
        kind, mine.array.dtype, mine.dtype_name, sum(parts), op, root, parts, layout=layout, arrays=1 + len(whole)
    )
    return Asked(call, (mine, *whole), result, name)


@lru_cache(maxsize=1024)
def _part_layout(
    rank: int,
    parts: tuple[int, ...],
    arrays: int,
    in_place: bool,
    reads_part: bool,
    reads_whole: bool,
    writes_whole: bool,
) -> Layout:
    bounds = list(pairwise(accumulate(parts, initial=0)))
    start, stop = bounds[rank]
    if arrays == 1:
        whole: tuple[Region, ...] = (Region(0, bounds[-1][1], 1, 0),)
    else:
        whole = tuple(Region(first, last, 1 + i, 0) for i, (first, last) in enumerate(bounds)) if arrays else ()
    part = (Region(start, stop, 0, 0),)
    if in_place:
        part = (Region(start, stop, 1, start),) if arrays == 1 else (Region(start, stop, 1 + rank, 0),)
    inputs = part if reads_part else whole if reads_whole else ()
    outputs = (whole if writes_whole else ()) if reads_part else part
    return Layout(inputs, outputs)


@lru_cache(maxsize=1024)
def _block_layout(who: Ranks, sent: tuple[int, ...], received: tuple[int, ...]) -> Layout:
    stride = max(sent + received, default=0)

    def region(block: int, count: int, array: int, offset: int) -> Region:
        return Region(block * stride, block * stride + count, array, offset)

    offsets, out_offsets = list(accumulate(sent, initial=0)), list(accumulate(received, initial=0))
    return Layout(
        tuple(region(who.rank * who.size + j, sent[j], 0, offsets[j]) for j in range(who.size)),
        tuple(region(i * who.size + who.rank, received[i], 1, out_offsets[i]) for i in range(who.size)),
    )


def _whole(who: Ranks, x: Any, writable: bool, name: str, mine: Buffer) -> tuple[list[Buffer], tuple[int, ...]]:
    """The array of all parts, or the arrays, and the parts' lengths."""
    if isinstance(x, (list, tuple)):
        if len(x) != who.size:
            raise UsageError(f"{name}: a list of {len(x)} arrays for {who.size} ranks")
        whole = [buffers.view(one, writable, name) for one in x]
        parts = tuple(buffer.count for buffer in whole)
        if writable:
            _refuse_overlaps(whole, name)
    else:
        whole = [buffers.view(x, writable, name)]
        parts = even_parts(whole[0].count, who.size)
    for buffer in whole:
        _refuse_unlike(buffer, mine, name)
    return whole, parts


@lru_cache(maxsize=1024)
def even_parts(count: int, ranks: int) -> tuple[int, ...]:
    """How one array is cut."""
    return tuple(stop - start for start, stop in segments(count, ranks))


def _room(x: Any, mine: Buffer, size: int, name: str) -> tuple[list[Any], list[Buffer]]:
    """A new array with room for as many as ``x``, as a list of arrays like it, and its buffer."""
    if hasattr(x, "new_empty") and hasattr(x, "unbind"):  # a torch tensor
        joined = x.new_empty((size, *x.shape))
        return list(joined.unbind(0)), [buffers.view(joined, True, name)]
    shape = getattr(x, "shape", None)
    made: Any = np.empty((size, *(shape if isinstance(shape, tuple) else (mine.count,))), mine.array.dtype)
    # Of a memory whose shape is not in elements, such as bytes, the list has flat arrays.
    if math.prod(made.shape) != size * mine.count:
        made = np.empty((size, mine.count), mine.array.dtype)
    return list(made), [buffers.view(made, True, name)]


def _place_within(who: Ranks, mine: Buffer, whole: Sequence[Buffer], parts: tuple[int, ...], name: str) -> bool:
    """Is the part just that of the whole? Other overlaps are refused: they would be written while they are read."""
    if not whole or not mine.count or not any(_overlap(mine, buffer) for buffer in whole):
        return False
    if len(whole) == 1:
        expected = _address(whole[0]) + sum(parts[: who.rank]) * mine.item_bytes
    else:
        expected = _address(whole[who.rank])
    if _address(mine) != expected:
        raise UsageError(
            f"{name}: the arrays share memory, and not just this rank's own part of the other: pass that, or a copy"
        )
    return True


def _overlap(one: Buffer, other: Buffer) -> bool:
    return bool(np.may_share_memory(one.array, other.array))


def _refuse_overlaps(buffers_: Sequence[Buffer], name: str) -> None:
    """What is written must have a place of its own."""
    ends = sorted((_address(one), one.count * one.item_bytes) for one in buffers_ if one.count)
    if any(start + size > other for (start, size), (other, _) in pairwise(ends)):
        raise UsageError(f"{name}: arrays of out share memory; each rank's part needs its own")


def _address(buffer: Buffer) -> int:
    return int(buffer.array.__array_interface__["data"][0])


def _refuse_unlike(one: Buffer, other: Buffer, name: str) -> None:
    if one.dtype_name != other.dtype_name:
        raise UsageError(f"{name}: the arrays are of {one.dtype_name} and {other.dtype_name}")


def _even(who: Ranks, buffer: Buffer, which: str) -> tuple[int, ...]:
    block, left = divmod(buffer.count, who.size)
    if left:
        raise UsageError(
            f"all_to_all: {which} has {buffer.count} elements, which {who.size} ranks do not divide: pass counts"
        )
    return (block,) * who.size


def _counts(who: Ranks, counts: Any, buffer: Buffer, name: str, which: str) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(number) for number in counts)
    except TypeError:
        raise UsageError(f"all_to_all: {name}={counts!r:.80} is no list of whole numbers") from None
    if len(numbers) != who.size or min(numbers) < 0:
        raise UsageError(f"all_to_all: {name}={counts!r:.80} must be {who.size} numbers, none negative")
    if sum(numbers) != buffer.count:
        raise UsageError(f"all_to_all: {name} sum up to {sum(numbers)}, and {which} has {buffer.count} elements")
    return numbers
