"""Every collective with every dtype and op, on 1 to 8 ranks, from nothing to several chunks."""

from __future__ import annotations

import asyncio
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from r2ccl import buffers
from r2ccl.communicator import Communicator
from r2ccl.reduction import Op, supported
from r2ccl.sim.world import World
from tests.simulated import simulate, together

Array = npt.NDArray[Any]

DTYPES = [*sorted(buffers._NAMES.values()), "bfloat16"]
BIG = 70_001


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def operands(ranks: int, count: int, dtype: np.dtype[Any], op: Op) -> list[Array]:
    """Small integers whose every partial result is exact in every dtype, or wraps around alike."""
    rng = np.random.default_rng(ranks * 1000 + count)
    low, high = (1, 3) if op is Op.PRODUCT else (0, 8)
    return [rng.integers(low, high, count).astype(dtype) for _ in range(ranks)]


def combined(inputs: list[Array], op: Op) -> Array:
    ufunc = {Op.SUM: np.add, Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum}[op]
    result = inputs[0].copy()
    for other in inputs[1:]:
        ufunc(result, other, out=result)
    return result


async def check_all_reduce(world: World, count: int, dtype: np.dtype[Any], op: Op) -> None:
    inputs = operands(world.shape.ranks, count, dtype, op)
    expected = combined(inputs, op)
    results = await together(world, lambda communicator: communicator.all_reduce(inputs[communicator.rank], op))
    for rank, result in enumerate(results):
        assert result is inputs[rank]
        assert result.tobytes() == expected.tobytes(), f"rank {rank}: {dtype}[{count}] {op}"


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_dtype_and_op_gives_the_same_bits_on_all_ranks(ranks: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        for name in DTYPES:
            for op in Op:
                if not supported(dtype_of(name), op):
                    continue
                for count in (0, 1, 1001):
                    await check_all_reduce(world, count, dtype_of(name), op)
        for name, op in (("float32", Op.SUM), ("float16", Op.SUM), ("int8", Op.PRODUCT), ("bool", Op.MAX)):
            await check_all_reduce(world, BIG, dtype_of(name), op)

    simulate(story, ranks, one_sided=one_sided)


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_root_reaches_all_ranks(ranks: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        for root in range(ranks):
            for count in (0, 1, 1001, BIG):
                truth = np.random.default_rng(root).integers(0, 255, count, np.uint8)
                copies = [truth.copy() if rank == root else np.zeros(count, np.uint8) for rank in range(ranks)]
                await asyncio.gather(*(c.broadcast(copies[c.rank], root) for c in world.communicators))
                assert all(np.array_equal(copy, truth) for copy in copies)
            await together(world, lambda c: c.barrier())

    simulate(story, ranks, one_sided=one_sided)


def test_nobody_leaves_a_barrier_before_all_have_entered() -> None:
    async def story(world: World) -> None:
        entered: list[int] = []

        async def enter(communicator: Communicator) -> None:
            await asyncio.sleep(communicator.rank * 0.01)
            entered.append(communicator.rank)
            await communicator.barrier()
            assert len(entered) == world.shape.ranks

        await together(world, enter)

    simulate(story, ranks=5)


def test_many_operations_in_flight_each_keep_their_own_bytes() -> None:
    async def story(world: World) -> None:
        arrays = [[np.full(3000 * (k % 5), rank + k, np.int32) for k in range(40)] for rank in range(3)]
        works = [[c.all_reduce(x) for x in arrays[c.rank]] for c in world.communicators]
        for row in works:
            for k, work in enumerate(row):
                assert np.all(await work == 3 * k + 3)

    simulate(story, ranks=3)
