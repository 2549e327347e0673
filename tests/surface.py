"""Every collective called once with known operands, and what must come of it, for any communicator.

All ranks run the same checks in the same order: as tasks of one simulated world, or each in a process of its own. The
truth is numpy's, of small integers whose every partial result is exact in every dtype, or wraps around alike. What is
only read is handed over read-only and compared afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from r2ccl import buffers
from r2ccl.communicator import Communicator
from r2ccl.reduction import Op, supported
from r2ccl.sim.truth import UFUNCS
from r2ccl.vocabulary import ANY

Array = npt.NDArray[Any]

DTYPES = [*sorted(buffers._NAMES.values()), "bfloat16"]
#: Of one byte each: 1 MiB + 3.
BIG = (1 << 20) + 3
SIZES = (0, 1, 1001, BIG)

_LOGICAL = (Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR)


@dataclass(frozen=True, slots=True)
class Case:
    """What varies."""

    count: int
    dtype: str = "uint8"
    op: Op = Op.SUM
    root: int = 0


class Form(Protocol):
    """How arrays are handed over, and what comes back is looked at."""

    def give(self, array: Array) -> Any: ...
    def look(self, given: Any) -> Array: ...


class Numpy:
    """As they are."""

    def give(self, array: Array) -> Any:
        return array

    def look(self, given: Any) -> Array:
        assert type(given) is np.ndarray
        return given


class Torch:
    """As tensors on the same memory; torch knows no read-only ones."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def give(self, array: Array) -> Any:
        array = array if array.flags.writeable else array.copy()
        if array.dtype == ml_dtypes.bfloat16:
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def look(self, given: Any) -> Array:
        assert isinstance(given, self._torch.Tensor)
        if given.dtype is self._torch.bfloat16:
            bits: Array = given.view(self._torch.int16).numpy()
            return bits.view(ml_dtypes.bfloat16)
        array: Array = given.numpy()
        return array


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def defined_ops(name: str) -> list[Op]:
    return [op for op in Op if supported(dtype_of(name), op)]


@lru_cache(maxsize=64)
def operands(ranks: int, case: Case) -> tuple[Array, ...]:
    """One array for each rank, read-only."""
    rng = np.random.default_rng(ranks * 1000 + case.count)
    low, high = (1, 3) if case.op is Op.PRODUCT else (0, 8)
    if case.dtype == "bool":
        low, high = 0, 2
    made = tuple(rng.integers(low, high, case.count).astype(dtype_of(case.dtype)) for _ in range(ranks))
    for array in made:
        array.flags.writeable = False
    return made


@lru_cache(maxsize=64)
def combined(ranks: int, case: Case) -> Array:
    """The result of reducing the operands."""
    dtype = dtype_of(case.dtype)
    ufunc = UFUNCS[case.op]
    result: Array = reduce(lambda one, other: ufunc(one, other).astype(dtype), operands(ranks, case))
    if case.op is Op.AVERAGE:
        result = (result / np.float32(ranks)).astype(dtype)
    if case.op in _LOGICAL:
        result = (result != 0).astype(dtype)
    return result


def parts(count: int, ranks: int) -> list[int]:
    """How an array is cut: alike, the longer ones first."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def uneven(count: int, ranks: int) -> list[int]:
    """Some other way, with nothing for some."""
    counts = [(count // ranks) * (rank % 3) // 2 for rank in range(ranks)]
    counts[-1] += count - sum(counts)
    assert sum(counts) == count
    return counts


def cut(array: Array, counts: Sequence[int]) -> list[Array]:
    ends = list(accumulate(counts))
    return [array[end - length : end] for end, length in zip(ends, counts, strict=True)]


class Surface:
    """One rank's side. Each ``check_`` method is a collective."""

    def __init__(self, comm: Communicator, form: Form | None = None) -> None:
        self.comm = comm
        self._form = Numpy() if form is None else form

    def checks(self) -> dict[str, Callable[[Case], Awaitable[None]]]:
        """By the name of the collective."""
        return {name[6:]: getattr(self, name) for name in dir(type(self)) if name.startswith("check_")}

    # Tools.

    def _own(self, case: Case) -> Array:
        return operands(self.comm.size, case)[self.comm.rank]

    def _room(self, count: int, case: Case) -> Array:
        """Memory with something else in it."""
        return np.full(count, 1, dtype_of(case.dtype))

    def _give(self, *arrays: Array) -> Iterator[Any]:
        return (self._form.give(array) for array in arrays)

    def _is(self, given: Any, expected: Array, what: object) -> None:
        found = self._form.look(given)
        assert found.dtype == expected.dtype, f"rank {self.comm.rank}: {what}: {found.dtype}"
        assert found.shape == expected.shape, f"rank {self.comm.rank}: {what}: {found.shape}"
        differing = int(np.count_nonzero(found.view(np.uint8) != expected.view(np.uint8)))
        assert not differing, f"rank {self.comm.rank}: {what}: {differing} bytes differ"

    # With an op.

    async def check_all_reduce(self, case: Case) -> None:
        (x,) = self._give(self._own(case).copy())
        assert await self.comm.all_reduce(x, case.op) is x
        self._is(x, combined(self.comm.size, case), case)

    async def check_reduce(self, case: Case) -> None:
        is_root = self.comm.rank == case.root
        (x,) = self._give(self._own(case).copy() if is_root else self._own(case))
        result = await self.comm.reduce(x, case.root, case.op)
        assert result is (x if is_root else None)
        self._is(x, combined(self.comm.size, case) if is_root else self._own(case), case)

    async def check_reduce_scatter(self, case: Case) -> None:
        rank, size = self.comm.rank, self.comm.size
        for counts, as_list in ((parts(case.count, size), False), (uneven(case.count, size), True)):
            out, x = self._give(self._room(counts[rank], case), self._own(case))
            given = list(self._give(*cut(self._own(case), counts))) if as_list else x
            assert await self.comm.reduce_scatter(out, given, case.op) is out
            self._is(out, cut(combined(size, case), counts)[rank], (case, counts))
            self._is(x, self._own(case), case)

    async def check_reduce_scatter_in_place(self, case: Case) -> None:
        rank, size = self.comm.rank, self.comm.size
        whole = self._own(case).copy()
        counts = parts(case.count, size)
        out, x = self._give(cut(whole, counts)[rank], whole)
        await self.comm.reduce_scatter(out, x, case.op)
        self._is(out, cut(combined(size, case), counts)[rank], case)
        for other, (found, before) in enumerate(zip(cut(whole, counts), cut(self._own(case), counts), strict=True)):
            assert other == rank or (found == before).all()

    # Without.

    async def check_broadcast(self, case: Case) -> None:
        truth = operands(self.comm.size, case)[case.root]
        (x,) = self._give(truth if self.comm.rank == case.root else self._room(case.count, case))
        assert await self.comm.broadcast(x, case.root) is x
        self._is(x, truth, case)

    async def check_all_gather(self, case: Case) -> None:
        (x,) = self._give(self._own(case))
        gathered = await self.comm.all_gather(x)
        assert len(gathered) == self.comm.size
        for found, expected in zip(gathered, operands(self.comm.size, case), strict=True):
            self._is(found, expected, case)

    async def check_all_gather_into(self, case: Case) -> None:
        """An array cut alike, and a list of any lengths, where this rank's part is in place already."""
        rank, size = self.comm.rank, self.comm.size
        truth = operands(size, case)[0]
        alike = cut(truth, parts(case.count, size))
        out, x = self._give(self._room(case.count, case), alike[rank])
        assert await self.comm.all_gather_into(out, x) is out
        self._is(out, truth, case)
        others = cut(truth, uneven(case.count, size))
        outs = [self._room(len(other), case) for other in others]
        outs[rank][:] = others[rank]
        given = list(self._give(*outs))
        assert await self.comm.all_gather_into(given, given[rank]) is given
        for found, expected in zip(given, others, strict=True):
            self._is(found, expected, case)

    async def check_gather(self, case: Case) -> None:
        (x,) = self._give(self._own(case))
        gathered = await self.comm.gather(x, case.root)
        assert (gathered is None) == (self.comm.rank != case.root)
        for found, expected in zip(gathered or (), operands(self.comm.size, case), strict=gathered is not None):
            self._is(found, expected, case)
        (room,) = self._give(self._room(self.comm.size * case.count, case))
        out = room if self.comm.rank == case.root else None
        assert await self.comm.gather(x, case.root, out) is out
        if out is not None:
            self._is(out, np.concatenate(operands(self.comm.size, case)), case)

    async def check_scatter(self, case: Case) -> None:
        """A list, and one array of all."""
        rank, every = self.comm.rank, operands(self.comm.size, case)
        for xs in (list(self._give(*every)), next(self._give(np.concatenate(every)))):
            (out,) = self._give(self._room(case.count, case))
            assert await self.comm.scatter(out, xs if rank == case.root else None, case.root) is out
            self._is(out, every[rank], case)

    async def check_all_to_all(self, case: Case) -> None:
        rank, size = self.comm.rank, self.comm.size
        block = case.count // size
        every = [operand[: block * size] for operand in operands(size, case)]
        out, x = self._give(self._room(block * size, case), every[rank])
        assert await self.comm.all_to_all(out, x) is out
        self._is(out, np.concatenate([cut(operand, [block] * size)[rank] for operand in every]), case)

    async def check_all_to_all_uneven(self, case: Case) -> None:
        """Each rank cuts in its own way."""
        rank, size = self.comm.rank, self.comm.size
        rows = [[*uneven(case.count, size)[turn:], *uneven(case.count, size)[:turn]] for turn in range(size)]
        out_counts = [row[rank] for row in rows]
        out, x = self._give(self._room(sum(out_counts), case), self._own(case))
        await self.comm.all_to_all(out, x, out_counts, rows[rank])
        every = operands(size, case)
        self._is(out, np.concatenate([cut(every[i], rows[i])[rank] for i in range(size)]), case)
        self._is(x, self._own(case), case)

    async def check_barrier(self, case: Case) -> None:
        del case
        assert await self.comm.barrier() is None

    async def check_messages(self, case: Case) -> None:
        """To the next rank, from the one before, by name and by ANY."""
        rank, size = self.comm.rank, self.comm.size
        if size == 1:
            return
        for source in ((rank - 1) % size, ANY):
            x, room = self._give(self._own(case), self._room(case.count, case))
            sending = self.comm.send(x, (rank + 1) % size, tag=case.count)
            receiving = self.comm.recv(room, source, tag=case.count)
            assert await receiving is room
            assert receiving.source == (rank - 1) % size
            await sending
            self._is(room, operands(size, case)[(rank - 1) % size], case)
            self._is(x, self._own(case), case)
            await self.comm.barrier()

    async def check_broadcast_object(self, case: Case) -> None:
        obj = {"count": case.count, "bytes": b"x" * case.count, "list": [1, 2.5, None, True, "ü"]}
        assert await self.comm.broadcast_object(obj if self.comm.rank == case.root else None, case.root) == obj

    async def check_batch(self, case: Case) -> None:
        size = self.comm.size
        source = self._own(case) if self.comm.rank == case.root else self._room(case.count, case)
        xs = list(self._give(*(self._own(case).copy() for _ in range(3)), source))
        async with self.comm.batch() as batch:
            works = [batch.all_reduce(x, case.op) for x in xs[:3]]
            works.append(batch.broadcast(xs[3], case.root))
        assert all(work.done() for work in works)
        for x in xs[:3]:
            self._is(x, combined(size, case), case)
        self._is(xs[3], operands(size, case)[case.root], case)


REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_in_place", "batch")


#: Rank ``root`` is not like the others.
ROOTED = ("broadcast", "reduce", "gather", "scatter", "broadcast_object", "batch")
#: Of several chunks, reduced in several ways.
LARGE = (
    Case(BIG // 4, "float32", Op.SUM),
    Case(BIG // 2, "float16", Op.AVERAGE),
    Case(BIG // 2, "bfloat16", Op.SUM),
    Case(BIG, "int8", Op.PRODUCT),
    Case(BIG, "bool", Op.LOGICAL_XOR),
)


async def run_sizes(surface: Surface) -> int:
    """Every collective by size, from every root, and large ones of several kinds. Returns how many checks were made."""
    made, last = 0, surface.comm.size - 1
    for name, check in surface.checks().items():
        for count in SIZES:
            roots = range(surface.comm.size) if name in ROOTED and count < BIG else (last,)
            for root in roots:
                await check(Case(count, root=root))
                made += 1
        for case in LARGE if name in REDUCING else ():
            await check(replace(case, root=last))
            made += 1
    return made


async def run_dtypes(surface: Surface, counts: Sequence[int], every: int = 1) -> int:
    """All dtypes, or every so many, by every collective, and by every op that is defined of them. Returns how many
    checks were made."""
    made = 0
    for dtype in DTYPES[::-every]:
        for count in counts:
            for name, check in surface.checks().items():
                for op in defined_ops(dtype) if name in REDUCING else (Op.SUM,):
                    await check(Case(count, dtype, op))
                    made += 1
    return made
