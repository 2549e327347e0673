"""What is right, by plain numpy: what each rank hands in, and what each must end with. Knows nothing of the subject.

Exact payloads are integers such that every partial result is exact in every dtype, in whatever order: sums over eight
ranks fit int8, and averages divide evenly. Others are compared between ranks and runs, and with what a wider type
gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import numpy.typing as npt

from r2ccl.reduction import Op
from r2ccl.sim.calls import Call, Kind, Message, blocks_of, parts_of

Array = npt.NDArray[Any]
#: (seed, communicator, call, ...)
Where = tuple[int, ...]

#: Integers of the exact payloads.
SMALLEST, LARGEST = -15, 15
#: What each op does to two operands, apart from ``reduction``, which is judged by it. An average is divided at the end.
UFUNCS = MappingProxyType(
    {
        Op.SUM: np.add,
        Op.PRODUCT: np.multiply,
        Op.MIN: np.minimum,
        Op.MAX: np.maximum,
        Op.AVERAGE: np.add,
        Op.BITWISE_AND: np.bitwise_and,
        Op.BITWISE_OR: np.bitwise_or,
        Op.BITWISE_XOR: np.bitwise_xor,
        Op.LOGICAL_AND: np.logical_and,
        Op.LOGICAL_OR: np.logical_or,
        Op.LOGICAL_XOR: np.logical_xor,
    }
)


def payload(call: Call, where: Where, rank: int, ranks: int) -> Array:
    """What a rank hands in: the same in every run of a seed."""
    rng = np.random.default_rng((*where, rank))
    count = handed_in(call, rank, ranks)
    if call.kind is Kind.BROADCAST_OBJECT:
        return np.frombuffer(_packed_object(rng, count), np.uint8)
    if call.dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    if not call.exact:
        if call.dtype.startswith(("float", "complex")):
            return rng.standard_normal(count).astype(call.dtype)
        return rng.integers(0, 100, count).astype(call.dtype)
    if call.op is Op.PRODUCT:
        return rng.choice([1, 2], count).astype(call.dtype)
    lowest = 0 if call.dtype.startswith("uint") else SMALLEST
    values = rng.integers(lowest, LARGEST + 1, count)
    return (values * ranks if call.op is Op.AVERAGE else values).astype(call.dtype)


def message_payload(message: Message, where: Where, index: int) -> Array:
    """What a message says."""
    rng = np.random.default_rng((*where, 1000 + index))
    return rng.integers(0, 2 if message.dtype == "bool" else 100, message.count).astype(message.dtype)


def handed_in(call: Call, rank: int, ranks: int) -> int:
    """How many elements a rank's payload has."""
    match call.kind:
        case Kind.ALL_GATHER_INTO:
            return parts_of(call, ranks)[rank]
        case Kind.REDUCE_SCATTER:
            return sum(parts_of(call, ranks))
        case Kind.SCATTER:
            return call.count * ranks if rank == call.root else 0
        case Kind.ALL_TO_ALL:
            return sum(blocks_of(call, ranks)[rank])
        case _:
            return call.count


def expected(call: Call, payloads: Sequence[Array]) -> list[Array | None]:
    """What each rank must end with; None: nothing."""
    ranks = len(payloads)
    nothing: list[Array | None] = [None] * ranks
    match call.kind:
        case Kind.BARRIER:
            return nothing
        case Kind.BROADCAST | Kind.BROADCAST_OBJECT:
            return [payloads[call.root]] * ranks
        case Kind.ALL_REDUCE:
            return [fold(call.op, payloads)] * ranks
        case Kind.ALL_GATHER | Kind.ALL_GATHER_INTO:
            return [np.concatenate(payloads)] * ranks
        case Kind.REDUCE | Kind.GATHER:
            nothing[call.root] = np.concatenate(payloads) if call.op is None else fold(call.op, payloads)
            return nothing
        case Kind.REDUCE_SCATTER:
            return _cut(fold(call.op, payloads), parts_of(call, ranks))
        case Kind.SCATTER:
            return _cut(payloads[call.root], (call.count,) * ranks)
        case _:
            assert call.kind is Kind.ALL_TO_ALL
            sent = [_cut(x, blocks) for x, blocks in zip(payloads, blocks_of(call, ranks), strict=True)]
            return [np.concatenate([blocks[rank] for blocks in sent]) for rank in range(ranks)]


def fold(op: Op | None, payloads: Sequence[Array]) -> Array:
    """The reduction, in order of rank."""
    assert op is not None
    result: Array = payloads[0].copy()
    for other in payloads[1:]:
        result = UFUNCS[op](result, other).astype(result.dtype)
    if op is Op.AVERAGE:
        result = (result / len(payloads)).astype(result.dtype)
    elif op in (Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR):
        result = (result != 0).astype(result.dtype)
    return result


def far_off(call: Call, payloads: Sequence[Array], rank: int, got: Array) -> int:
    """How many elements of an inexact result are not what a wider type gives, but for rounding."""
    dtype, ranks = np.dtype(call.dtype), len(payloads)
    if dtype.kind not in "fc" or got.dtype != dtype:
        return 0
    wide = [x.astype(np.complex128 if dtype.kind == "c" else np.float64) for x in payloads]
    right = expected(call, wide)[rank]
    magnitude = expected(call, [np.abs(x) for x in wide])[rank]
    if right is None or magnitude is None:
        return 0
    info = np.finfo(dtype)
    bound = 4 * ranks * float(info.eps) * magnitude + float(info.smallest_subnormal) * 4.0**ranks
    return int(np.count_nonzero(~(np.abs(got - right) <= bound)))


def _cut(x: Array, parts: Sequence[int]) -> list[Array | None]:
    return [x[start:stop] for start, stop in pairwise(accumulate(parts, initial=0))]


def _packed_object(rng: np.random.Generator, count: int) -> bytes:
    numbers = [int(number) for number in rng.integers(-(1 << 40), 1 << 40, 3)]
    thing = {"step": numbers, 7: {"nothing": None, "blob": rng.bytes(count)}, "half": 0.5, "is": True}
    packed: bytes = msgpack.packb(thing)
    return packed
