"""What the ranks of a benchmark hand in, and how each knows what must come out, to the last element.

Rank r's data is a vector of pseudo-random numbers whose period is a prime: no chunk is as long as a period or a
multiple of it, so one that lands in another place is seen, and a period of all ranks' data is quickly made. Numbers are
chosen so that what an operation makes of them is exact in any order; then every element of the result must equal
numpy's. Outputs are filled beforehand with what differs from the expected in every element, so one that is not written
is counted too.

Imported by peers too, in interpreters that have no r2ccl: numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from r2ccl.cli.bench_collectives import IN, Shape

Array = npt.NDArray[Any]

PERIOD: Final = 65_521
#: Up to here all integers are exact.
_EXACT_BELOW: Final = MappingProxyType(
    {
        "bfloat16": 1 << 8,
        "float16": 1 << 11,
        "float32": 1 << 24,
        "float64": 1 << 53,
        "complex64": 1 << 24,
        "complex128": 1 << 53,
    }
)
#: Ranks that may double or halve a product; more, and int8 would not hold it.
_SCALING_RANKS: Final = 6
_UFUNCS: Final = MappingProxyType(
    {
        "sum": np.add,
        "average": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
        "logical_and": np.logical_and,
        "logical_or": np.logical_or,
        "logical_xor": np.logical_xor,
    }
)


class CannotCheck(ValueError):
    """There are no numbers whose combination would be exact."""


def dtype_named(name: str) -> np.dtype[Any]:
    """numpy's, or bfloat16 of the package ml_dtypes. Raises ImportError, TypeError."""
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def largest_number(dtype: np.dtype[Any], op: str, ranks: int) -> int:
    """Up to which numbers may go; no ``op``: they are only moved. Raises :class:`CannotCheck`.

    Integer sums stay within the dtype: what is beyond wraps around here, but is undefined in MPI.
    """
    exact = int(np.iinfo(dtype).max) if dtype.kind in "iu" else _EXACT_BELOW[dtype.name]
    limit = exact // (ranks if op else 1)
    if limit < 2:
        raise CannotCheck(f"sums over {ranks} ranks are not exact in {dtype}, so they cannot be checked: pass -c 0")
    return limit


def numbers(dtype: np.dtype[Any], op: str, rank: int, ranks: int, seed: int) -> Array:
    """One period of a rank's data."""
    rng = np.random.default_rng((seed, rank))
    if dtype.kind == "b" or op.startswith("logical"):
        return rng.integers(0, 2, PERIOD).astype(dtype)
    if op == "product":
        return _factors(dtype, rank, rng)
    if dtype.kind in "iu" and op not in ("sum", ""):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, PERIOD, dtype=dtype.type, endpoint=True)
    limit = largest_number(dtype, op, ranks)
    if dtype.kind == "u":
        return rng.integers(0, limit, PERIOD, dtype=dtype.type, endpoint=True)
    parts = [rng.integers(-limit, limit, PERIOD, endpoint=True) for _ in range(2 if dtype.kind == "c" else 1)]
    return np.asarray(parts[0] + 1j * parts[1] if len(parts) == 2 else parts[0]).astype(dtype)


def _factors(dtype: np.dtype[Any], rank: int, rng: np.random.Generator) -> Array:
    if dtype.kind == "c":
        return np.array([1, -1, 1j, -1j]).astype(dtype)[rng.integers(0, 4, PERIOD)]
    signs, scales = ([1, 1], [2, 2]) if dtype.kind == "u" else ([1, -1], [2, -2 if dtype.kind == "i" else 0.5])
    choice = np.array(signs + scales).astype(dtype)
    return np.asarray(choice[rng.integers(0, 4 if rank < _SCALING_RANKS else 2, PERIOD)])


def combined(dtype: np.dtype[Any], op: str, ranks: int, seed: int) -> Array:
    """One period of what the operation makes of all ranks' data."""
    each = [numbers(dtype, op, rank, ranks, seed) for rank in range(ranks)]
    total = np.asarray(reduce(_UFUNCS[op], each)).astype(dtype)
    return (total.astype(np.float64) / ranks).astype(dtype) if op == "average" else total


class Region(NamedTuple):
    """A stretch of an array and what belongs there: ``period``, read from position ``phase`` on."""

    start: int
    length: int
    period: Array
    phase: int


def _tiles(region: Region, array: Array) -> Iterator[tuple[Array, Array]]:
    """Pieces of the array beside the pieces of the period."""
    at = 0
    while at < region.length:
        offset = (region.phase + at) % PERIOD
        step = min(PERIOD - offset, region.length - at)
        yield array[region.start + at : region.start + at + step], region.period[offset : offset + step]
        at += step


def write(array: Array, region: Region) -> None:
    for piece, values in _tiles(region, array):
        piece[:] = values


def count_wrong(array: Array, region: Region) -> int:
    return sum(int(np.count_nonzero(piece != values)) for piece, values in _tiles(region, array))


def spoiled(values: Array) -> Array:
    """Another value for each, one that every dtype can hold: bool stays 0 or 1, and no float becomes its equal."""
    return (np.ascontiguousarray(values).view(np.uint8) ^ 1).view(values.dtype)


@dataclass(slots=True)
class Buffers:
    """What one rank hands to one call; the same array twice where the result replaces the input. None: it has none."""

    x: Array | None
    out: Array | None

    def zero(self) -> None:
        """For timing: real pages, and sums that stay what they are however often they are made."""
        for array in (self.x, self.out):
            if array is not None:
                array.fill(0)


def make_buffers(shape: Shape) -> Buffers:
    """Memory for the call."""
    dtype = dtype_named(shape.dtype)
    part, whole = shape.count, shape.count * shape.ranks
    own = slice(shape.rank * part, (shape.rank + 1) * part)
    is_in_place = shape.form == IN
    match shape.collective:
        case "barrier":
            return Buffers(None, None)
        case "all_reduce" | "broadcast" | "reduce":
            x = np.empty(part, dtype)
            return Buffers(x, None if shape.collective == "reduce" and not shape.is_root else x)
        case "all_gather":
            out = np.empty(whole, dtype)
            return Buffers(out[own] if is_in_place else np.empty(part, dtype), out)
        case "reduce_scatter":
            x = np.empty(whole, dtype)
            return Buffers(x, x[own] if is_in_place else np.empty(part, dtype))
        case "gather":
            return Buffers(np.empty(part, dtype), np.empty(whole, dtype) if shape.is_root else None)
        case "scatter":
            xs = np.empty(whole, dtype) if shape.is_root else None
            return Buffers(xs, xs[own] if xs is not None and is_in_place else np.empty(part, dtype))
        case "all_to_all":
            return Buffers(np.empty(whole, dtype), np.empty(whole, dtype))
        case "sendrecv":
            return Buffers(np.empty(part, dtype), np.empty(part, dtype))
        case unknown:
            raise ValueError(f"no such collective: {unknown}")


class Exercise:
    """One checked call: data in, result compared."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._dtype = dtype_named(shape.dtype)
        self._seed = seed

    def fill(self, buffers: Buffers) -> None:
        """Wrong values into all of ``out``, then the data into ``x``, which may be part of it."""
        if buffers.out is not None:
            for region in self._outputs():
                write(buffers.out, region._replace(period=spoiled(region.period)))
        if buffers.x is not None:
            for region in self._inputs():
                write(buffers.x, region)

    def wrong_elements(self, buffers: Buffers, result: Any = None, damage: int = 0) -> int:
        """How many elements of the result are not what they must be.

        ``result``: a list of arrays in place of ``buffers.out``, where the call made them. ``damage``: so many elements
        of the result are spoiled first, to see that this is seen.
        """
        out = np.concatenate(result) if isinstance(result, list) else buffers.out
        if out is None:
            return 0
        out[:damage] = spoiled(out[:damage])
        return sum(count_wrong(out, region) for region in self._outputs())

    def changed_inputs(self, buffers: Buffers) -> int:
        """How many elements that were only to be read are not what they were; libraries differ in promising that."""
        x, out = buffers.x, buffers.out
        if x is None or (out is not None and np.may_share_memory(x, out)):
            return 0
        return sum(count_wrong(x, region) for region in self._inputs())

    def _own(self, rank: int) -> Array:
        return numbers(self._dtype, self._shape.op, rank, self._shape.ranks, self._seed)

    def _combined(self) -> Array:
        return combined(self._dtype, self._shape.op, self._shape.ranks, self._seed)

    def _inputs(self) -> list[Region]:
        shape = self._shape
        match shape.collective:
            case "barrier":
                return []
            case "broadcast" | "scatter" if not shape.is_root:
                return []
            case "reduce_scatter" | "all_to_all" | "scatter":
                return [Region(0, shape.count * shape.ranks, self._own(shape.rank), 0)]
            case _:
                return [Region(0, shape.count, self._own(shape.rank), 0)]

    def _outputs(self) -> list[Region]:
        shape = self._shape
        part, mine = shape.count, shape.rank * shape.count
        match shape.collective:
            case "all_reduce":
                return [Region(0, part, self._combined(), 0)]
            case "reduce":
                return [Region(0, part, self._combined(), 0)]
            case "broadcast":
                return [Region(0, part, self._own(shape.root), 0)]
            case "reduce_scatter":
                return [Region(0, part, self._combined(), mine)]
            case "scatter":
                return [Region(0, part, self._own(shape.root), mine)]
            case "sendrecv":
                return [Region(0, part, self._own(shape.previous_rank), 0)]
            case "gather" if not shape.is_root:
                return []
            case "all_gather" | "gather":
                return [Region(rank * part, part, self._own(rank), 0) for rank in range(shape.ranks)]
            case "all_to_all":
                return [Region(rank * part, part, self._own(rank), mine) for rank in range(shape.ranks)]
            case _:
                return []
