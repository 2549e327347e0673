"""Several calls as one, and small objects: what they give, in which order, and how they fail."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from r2ccl import Communicator, Op
from r2ccl.batch import FUSED_ARRAY_BYTES_MAX
from r2ccl.errors import CollectiveMismatch, CollectiveTimeout, PeerLost, UsageError
from r2ccl.sim.world import World
from tests.simulated import called, simulate, together

Array = npt.NDArray[Any]


# Batches.


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_batch_gives_what_its_calls_give_one_by_one(ranks: int) -> None:
    """To the bit, too, where nothing is a NaN and sums are exact."""
    rng = np.random.default_rng(ranks)
    counts = [0, 1, 7, 1000, 0, FUSED_ARRAY_BYTES_MAX // 4, FUSED_ARRAY_BYTES_MAX // 4 + 1, 33]
    kinds = [(np.float32, Op.SUM), (np.int8, Op.MAX), (np.float32, Op.AVERAGE), (np.int8, Op.BITWISE_XOR)]

    async def story(world: World) -> None:
        made = [
            [rng.integers(0, 9, count).astype(dtype) for count in counts for dtype, _ in kinds] for _ in range(ranks)
        ]
        single = [[x.copy() for x in row] for row in made]
        ops = [op for _ in counts for _, op in kinds]
        for c in world.communicators:
            with c.batch() as batch:
                works = [batch.all_reduce(x, op) for x, op in zip(made[c.rank], ops, strict=True)]
                assert called(c) == 0
            assert 0 < called(c) < len(works) / 2
        for index, op in enumerate(ops):
            await asyncio.gather(*(_all_reduce(c, single[c.rank][index], op) for c in world.communicators))
        for mine, theirs in zip(made, single, strict=True):
            for index, (x, y) in enumerate(zip(mine, theirs, strict=True)):
                assert x.tobytes() == y.tobytes(), (ops[index], x.size)

    simulate(story, ranks=ranks)


async def _all_reduce(c: Communicator, x: Array, op: Op) -> None:
    await c.all_reduce(x, op)


def test_a_batch_may_be_awaited_call_by_call_and_says_what_it_was_when_it_differs() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        with first.batch() as batch:
            works = [batch.all_reduce(np.ones(3)), batch.all_reduce(np.ones(4))]
        with second.batch() as batch:
            others = [batch.all_reduce(np.ones(4)), batch.all_reduce(np.ones(3))]
        for work in (*works, *others):
            with pytest.raises(CollectiveMismatch, match=r"float64\[3\+4\], sum"):
                await work

    simulate(story, close_timeout_s=0.1)


def test_limits_of_a_batch_are_a_ranks_own_affair() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        with first.batch() as batch:
            works = [batch.all_reduce(x, timeout=limit) for x, limit in ((np.ones(3), 5.0), (np.ones(4), None))]
        with second.batch() as batch:
            works += [batch.all_reduce(np.ones(3)), batch.all_reduce(np.ones(4), timeout=2.0)]
        for work in works:
            assert (await work == 2).all()
        with first.batch() as batch:
            late = [batch.all_reduce(np.ones(3), timeout=5.0), batch.all_reduce(np.ones(3), timeout=1.0)]
        began = world.clock.now()
        for work in late:
            with pytest.raises(CollectiveTimeout):
                await work
        assert world.clock.now() - began == pytest.approx(1.0, abs=0.01)

    simulate(story, close_timeout_s=0.1)


def test_a_batch_whose_block_fails_sends_nothing_and_ends_its_works() -> None:
    async def story(world: World) -> None:
        first, _ = world.communicators
        works = []
        with pytest.raises(RuntimeError, match="changed my mind"), first.batch() as batch:  # noqa: PT012
            works.append(batch.all_reduce(np.ones(3)))
            raise RuntimeError("changed my mind")
        assert called(first) == 0
        with pytest.raises(UsageError, match="the batch was not sent"):
            await works[0]
        with pytest.raises(UsageError, match="the batch was sent: make another"):
            batch.all_reduce(np.ones(3))

    simulate(story, close_timeout_s=0.1)


def test_a_batch_that_cannot_be_sent_says_so_and_ends_its_works() -> None:
    async def story(world: World) -> None:
        first, _ = world.communicators
        batch = first.batch()
        with pytest.raises(PeerLost), batch:  # noqa: PT012
            work = batch.all_reduce(np.ones(3))
            world.fabric.kill(1)
            await asyncio.sleep(1.0)
        with pytest.raises(PeerLost):
            await work

    simulate(story, close_timeout_s=0.1)


def test_a_batch_after_its_end_is_refused() -> None:
    async def story(world: World) -> None:
        async def use(c: Communicator) -> None:
            async with c.batch() as batch:
                work = batch.broadcast(np.ones(3), 0)
            assert work.done()
            with pytest.raises(UsageError, match="make another"):
                batch.broadcast(np.ones(3), 0)

        await together(world, use)

    simulate(story)


# Objects.


def test_objects_under_way_together_arrive_in_the_order_of_the_calls() -> None:
    """Thousands that end as they begin do not nest; collectives between them do not matter."""

    async def story(world: World) -> None:
        first, second, third = world.communicators
        works = {c: [c.broadcast_object(None if c.rank != 2 else "late", 2)] for c in (first, second)}
        for c in (first, second):
            works[c] += [c.broadcast_object({"k": k} if c.rank == 0 else None, 0) for k in range(2000)]
        await asyncio.sleep(1.0)
        barriers = [c.barrier() for c in world.communicators]
        works[third] = [third.broadcast_object("late", 2)]
        works[third] += [third.broadcast_object(None, 0) for _ in range(2000)]
        for row in works.values():
            assert await row[0] == "late"
            assert [await work for work in row[1:]] == [{"k": k} for k in range(2000)]
        for work in barriers:
            await work

    simulate(story, ranks=3)


@pytest.mark.parametrize(
    "obj", [None, True, -(1 << 63), 2.5, "ü" * 1000, b"\0" * 3_000_000, [1, [2, {"a": None}]], {1: 2, "b": [3]}, {}]
)
def test_objects_arrive_as_they_were(obj: Any) -> None:
    async def story(world: World) -> None:
        for root in range(3):
            works = [c.broadcast_object(obj if c.rank == root else 0, root) for c in world.communicators]
            assert [await work for work in works] == [obj] * 3

    simulate(story, ranks=3)


def test_an_object_that_nobody_sends_times_out_and_fails_the_communicator() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        waiting = first.broadcast_object(None, 1, timeout=1.0)
        behind = first.broadcast_object(None, 1)
        for work in (waiting, behind):
            with pytest.raises(CollectiveTimeout):
                await work
        with pytest.raises(CollectiveTimeout):
            await second.barrier()

    simulate(story, close_timeout_s=0.1)


def test_only_so_many_objects_wait() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        works = [first.broadcast_object(None, 1) for _ in range(4096)]
        with pytest.raises(UsageError, match="4096 objects are under way: await some"):
            first.broadcast_object(None, 1)
        for k in range(4096):
            await second.broadcast_object(k, 1)
        assert [await work for work in works] == list(range(4096))

    simulate(story)


def test_a_batch_whose_calls_share_memory_is_refused_and_sends_nothing() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        x = np.ones(10)
        for other, root in ((x, None), (x[3:5], None), (x, 1)):
            batch = first.batch()
            works = [batch.broadcast(x, 0), batch.all_reduce(other) if root is None else batch.broadcast(other, root)]
            with pytest.raises(UsageError, match="share memory"):
                batch.__exit__(None, None, None)
            assert all(isinstance(work.exception(), UsageError) for work in works)
        assert called(first) == 0
        arrays = [np.full(10, c.rank + 1.0) for c in world.communicators]
        works = []
        for c in world.communicators:
            with c.batch() as batch:
                works += [batch.broadcast(arrays[c.rank], 1), batch.broadcast(arrays[c.rank], 1)]
        for work in works:
            await work
        assert all((x == 2.0).all() for x in arrays)

    simulate(story)
