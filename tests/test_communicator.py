"""What a user can do with a communicator, right and wrong, on the real actors in a simulated world."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from r2ccl import buffers
from r2ccl.actors.work import Work
from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.errors import CommunicatorAborted, CommunicatorClosed, PeerLost, UsageError
from r2ccl.reduction import Op, supported
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World

Array = npt.NDArray[Any]
Story = Callable[[World], Awaitable[None]]


def simulate(story: Story, ranks: int = 2, nics: int = 2, one_sided: bool = False, **settings: Any) -> None:
    """Connect a world, play, and close whoever is still there."""

    async def main() -> None:
        world = World(Shape(ranks, nics, one_sided=one_sided, settings=Settings(**settings)))
        await world.start()
        await story(world)
        await world.close()

    run(main())


async def together(world: World, call: Callable[[Communicator], Awaitable[Any]]) -> list[Any]:
    """The same call on every rank."""
    return await asyncio.gather(*(call(communicator) for communicator in world.communicators))


def called(communicator: Communicator) -> int:
    operations: dict[str, int] = communicator.stats()["operations"]
    return operations["called"]


# The grid.

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


# Wrong calls.


class NoMemory:
    """Something that is no array."""


def read_only(count: int = 4) -> Array:
    array = np.zeros(count, np.float32)
    array.flags.writeable = False
    return array


WRONG: dict[str, tuple[Callable[[Communicator], Work], str]] = {
    "a list": (lambda c: c.all_reduce([1.0, 2.0]), "neither a numpy array nor"),
    "an object": (lambda c: c.all_reduce(NoMemory()), "neither a numpy array nor"),
    "None": (lambda c: c.all_reduce(None), "neither a numpy array nor"),
    "strings": (lambda c: c.all_reduce(np.array(["a"])), "dtype <U1 is not supported"),
    "objects": (lambda c: c.all_reduce(np.array([None])), "dtype object is not supported"),
    "dates": (lambda c: c.all_reduce(np.zeros(2, "datetime64[s]")), "is not supported"),
    "foreign byte order": (lambda c: c.all_reduce(np.zeros(2, ">f4")), "byte order"),
    "columns": (lambda c: c.all_reduce(np.zeros((4, 4), np.float32)[:, 1]), "not C-contiguous"),
    "transposed": (lambda c: c.all_reduce(np.zeros((4, 3), np.float32).T), "not C-contiguous"),
    "read-only": (lambda c: c.all_reduce(read_only()), "read-only"),
    "bytes": (lambda c: c.all_reduce(b"abc"), "read-only"),
    "no op": (lambda c: c.all_reduce(np.zeros(1), "sum"), "op='sum' is none of SUM, PRODUCT, MIN, MAX"),  # type: ignore[arg-type]
    "an order of complex numbers": (lambda c: c.all_reduce(np.zeros(1, np.complex64), Op.MIN), "not defined"),
    "no time": (lambda c: c.all_reduce(np.zeros(1), timeout=0), "timeout=0 must be a positive number"),
    "negative time": (lambda c: c.barrier(timeout=-1.0), "barrier: timeout=-1.0 must be"),
    "not a time": (lambda c: c.barrier(timeout=float("nan")), "timeout=nan must be"),
    "a word for a time": (lambda c: c.barrier(timeout="1 s"), "timeout='1 s' must be"),  # type: ignore[arg-type]
    "a rank that is none": (lambda c: c.broadcast(np.zeros(1), 2), "root=2 is no rank; ranks go from 0 to 1"),
    "a negative root": (lambda c: c.broadcast(np.zeros(1), -1), "root=-1 is no rank"),
    "half a root": (lambda c: c.broadcast(np.zeros(1), 0.5), "root=0.5 is no rank"),  # type: ignore[arg-type]
    "read-only for the root's bytes": (lambda c: c.broadcast(read_only(), 1 - c.rank), "read-only"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_call_is_refused_before_anything_is_numbered_or_sent(what: str) -> None:
    call, message = WRONG[what]

    async def story(world: World) -> None:
        for communicator in world.communicators:
            with pytest.raises(UsageError, match=message) as refused:
                call(communicator)
            assert refused.value.definite
            assert called(communicator) == 0
        await check_all_reduce(world, 10, np.dtype(np.int32), Op.SUM)
        assert world.communicators[0].counters.snapshot()["total"]["sent_chunks"] > 0  # type: ignore[index]

    simulate(story)


def test_unusual_shapes_are_right_and_reduced_in_place() -> None:
    async def story(world: World) -> None:
        for shape in ((), (1,), (2, 3, 4), (0, 5), (4, 0)):
            arrays = [np.full(shape, rank + 1, np.float64) for rank in range(2)]
            results = await asyncio.gather(*(c.all_reduce(arrays[c.rank]) for c in world.communicators))
            assert all(result is array and np.all(array == 3.0) for result, array in zip(results, arrays, strict=True))

    simulate(story)


def test_anything_with_writable_memory_is_reduced_without_a_copy() -> None:
    async def story(world: World) -> None:
        memories = [bytearray(b"\x01\x02"), bytearray(b"\x10\x20")]
        results = await together(world, lambda c: c.all_reduce(memories[c.rank]))
        assert results == memories == [bytearray(b"\x11\x22")] * 2
        strided = [np.arange(10.0)[2:6] for _ in range(2)]
        await together(world, lambda c: c.all_reduce(strided[c.rank]))
        assert strided[0].tolist() == [4.0, 6.0, 8.0, 10.0]

    simulate(story)


def test_the_root_of_a_broadcast_is_only_read() -> None:
    async def story(world: World) -> None:
        source, target = read_only(BIG), np.ones(BIG, np.float32)
        await together(world, lambda c: c.broadcast((source, target)[c.rank], 0))
        assert not target.any()

    simulate(story)


def test_64_operations_run_4096_wait_and_one_more_is_refused_without_harm() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        works = [first.barrier() for _ in range(64 + 4096)]
        assert first.stats()["operations"] == {"called": 4160, "running": 64, "waiting": 4096}
        with pytest.raises(UsageError, match="64 operations run and 4096 wait: await some of them"):
            first.barrier()
        assert called(first) == 4160
        for _ in range(4160):
            await second.barrier()
        for work in works:
            await work
        await together(world, lambda c: c.barrier())

    simulate(story)


# What a Work promises.


def test_cancelling_an_await_does_not_cancel_the_operation() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        mine, theirs = np.ones(1000), np.ones(1000)
        work = first.all_reduce(mine)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await work
        assert not work.done()
        await second.all_reduce(theirs)
        await work
        assert np.all(mine == 2.0)
        assert np.all(theirs == 2.0)

    simulate(story)


def test_a_work_may_be_awaited_by_many_and_again_when_it_is_over() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        x = np.ones(3)
        work = first.all_reduce(x)
        assert repr(work) == "<Work 0 all_reduce(float64[3], sum) under way>"

        async def wait() -> object:
            return await work

        both = asyncio.gather(wait(), wait())
        await second.all_reduce(np.ones(3))
        assert all(result is x for result in await both)
        assert await work is x
        assert work.done()
        assert work.exception() is None
        assert repr(work).endswith("done>")

    simulate(story)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "nobody awaited it" in record.getMessage()]


def test_a_failed_work_that_nobody_awaited_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        work = world.communicators[0].barrier()
        world.fabric.kill(1)
        await asyncio.sleep(1.0)
        assert work.done()
        assert complaints(caplog) == []
        del work
        gc.collect()
        (complaint,) = complaints(caplog)
        assert complaint.startswith("op=0 call=barrier() failed, and nobody awaited it: lost rank(s) 1: dead")

    simulate(story)


@pytest.mark.parametrize("how", ["await", "exception", "await that was cancelled, then await"])
def test_a_failure_that_somebody_saw_is_not_logged(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        work = world.communicators[0].barrier()
        if how.startswith("await that"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await work
        world.fabric.kill(1)
        await asyncio.sleep(1.0)
        if how == "exception":
            assert isinstance(work.exception(), PeerLost)
        else:
            with pytest.raises(PeerLost):
                await work
        del work
        gc.collect()
        assert complaints(caplog) == []

    simulate(story)


def test_a_failure_whose_only_await_was_cancelled_before_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        work = world.communicators[0].barrier()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await work
        world.fabric.kill(1)
        await asyncio.sleep(1.0)
        del work
        gc.collect()
        assert len(complaints(caplog)) == 1

    simulate(story)


# The end.


def test_closing_together_takes_a_round_trip_and_nobody_takes_it_for_a_death(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="r2ccl")

    async def story(world: World) -> None:
        await together(world, lambda c: c.barrier())
        began = world.clock.now()
        await world.close()
        assert world.clock.now() - began < 0.01
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert not any(
            event.name in ("failed", "peer_gone") for c in world.communicators for event in c.events.since(0)
        )

    simulate(story, ranks=4)


@pytest.mark.parametrize("late", [0.03, 1.5])
def test_whoever_closes_first_lingers_until_the_last_has_heard_it(
    late: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        took = []

        async def close(communicator: Communicator) -> None:
            await asyncio.sleep(communicator.rank * late)
            began = world.clock.now()
            await communicator.close()
            took.append(world.clock.now() - began)

        await together(world, close)
        assert min(took) < 0.01
        assert max(took) < 2 * late + 0.01
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    simulate(story, ranks=3)


def test_a_member_that_never_closes_delays_the_others_no_longer_than_the_setting() -> None:
    async def story(world: World) -> None:
        await world.communicators[0].close()
        assert world.clock.now() == pytest.approx(2.0, abs=0.01)
        began = world.clock.now()
        await world.communicators[1].close()
        assert world.clock.now() - began < 0.01

    simulate(story, close_timeout_s=2.0)


def test_close_may_be_called_twice_and_at_once() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        await asyncio.gather(first.close(), first.close(), second.close())
        await first.close()
        first.abort()
        assert repr(first) == "<Communicator rank 0 of 2, closed>"

    simulate(story)


def test_a_closed_communicator_refuses_every_call() -> None:
    async def story(world: World) -> None:
        await world.close()
        first = world.communicators[0]
        for call in (first.barrier, lambda: first.all_reduce(np.zeros(1)), lambda: first.broadcast(np.zeros(1), 0)):
            with pytest.raises(CommunicatorClosed, match="closed"):
                call()
        assert called(first) == 0

    simulate(story)


def test_closing_waits_for_running_operations() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        work = first.all_reduce(np.ones(BIG))
        closing = asyncio.gather(first.close())
        await asyncio.sleep(0.5)
        await second.all_reduce(np.ones(BIG))
        await second.close()
        await closing
        assert work.exception() is None

    simulate(story)


def test_what_is_not_done_when_the_time_to_close_is_over_fails_as_closed() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        work = first.barrier()
        await first.close(timeout=1.0)
        with pytest.raises(CommunicatorClosed):
            await work

    simulate(story)


def test_an_operation_that_needs_a_member_who_closed_fails_instead_of_waiting_for_ever() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        closing = asyncio.gather(first.close())
        await asyncio.sleep(0.01)
        with pytest.raises(PeerLost, match="it closed its communicator") as lost:
            await second.barrier()
        assert lost.value.ranks == (0,)
        with pytest.raises(PeerLost):
            second.barrier()
        await second.close()
        await closing

    simulate(story)


def test_a_member_that_closes_while_another_waits_for_it_is_a_loss_to_the_other() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        work = second.barrier()
        await first.close(timeout=0.5)
        with pytest.raises(PeerLost, match="it closed its communicator"):
            await work

    simulate(story)


def test_an_abort_fails_our_operations_at_once_and_looks_like_a_death_to_the_others() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        works = [first.barrier(), second.barrier(), second.barrier()]
        first.abort()
        with pytest.raises(CommunicatorClosed):
            await works[0]
        began = world.clock.now()
        with pytest.raises(PeerLost) as lost:
            await works[1]
        assert (lost.value.ranks, lost.value.cause) == ((0,), "dead")
        assert world.clock.now() - began < 0.1
        with pytest.raises(PeerLost):
            await works[2]

    simulate(story)


def test_leaving_the_block_with_an_error_aborts_and_without_one_closes() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators

        async def fail() -> None:
            async with first:
                raise KeyError("mine")

        async def wait() -> None:
            async with second:
                await second.barrier()

        failed, lost = await asyncio.gather(fail(), wait(), return_exceptions=True)
        assert isinstance(failed, KeyError)
        assert isinstance(lost, PeerLost)

    simulate(story)


# Between the user's calls and the network's events.


def test_a_call_in_the_moment_a_nic_is_lost_goes_out_by_another() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        x = [np.ones(BIG, np.float32) for _ in range(2)]
        world.runtimes[0].ports[0].nic_went_down("carrier")
        works = [first.all_reduce(x[0]), second.all_reduce(x[1])]
        for work in works:
            assert np.all(await work == 2.0)

    simulate(story)


def test_small_operations_called_long_before_the_receiver_comes_do_not_wait_for_a_roll_call() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        sent = [first.broadcast(np.full(16_000, k, np.float32), 0) for k in range(60)]
        await asyncio.sleep(1.0)
        began = world.clock.now()
        for k in range(60):
            assert np.all(await second.broadcast(np.zeros(16_000, np.float32), 0) == k)
        assert world.clock.now() - began < 0.05
        for work in sent:
            await work

    simulate(story)


def test_the_error_of_the_first_to_fail_reaches_all_and_their_later_calls() -> None:
    async def story(world: World) -> None:
        works = [c.barrier() for c in world.communicators[1:]]
        coordinator = next(iter(world.runtimes[2].coordinators.values()))
        coordinator.failing.fail(0, "aborted", "enough", ())
        for work in works:
            with pytest.raises(CommunicatorAborted, match="rank 2 aborted the communicator: enough"):
                await work
        await asyncio.sleep(0.01)
        for communicator in world.communicators:
            with pytest.raises(CommunicatorAborted, match="enough"):
                communicator.barrier()
        assert [called(c) for c in world.communicators] == [0, 1, 1]

    simulate(story, ranks=3)
