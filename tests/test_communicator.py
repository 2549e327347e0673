"""What a user can do with a communicator, right and wrong, on the real actors in a simulated world."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from r2ccl.actors.work import Work
from r2ccl.communicator import Communicator
from r2ccl.errors import CollectiveMismatch, CommunicatorAborted, PeerLost, UsageError
from r2ccl.reduction import Op
from r2ccl.sim.world import World
from tests.simulated import called, simulate, together

Array = npt.NDArray[Any]
BIG = 70_001

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
        assert world.communicators[0].counters.snapshot()["total"]["sent_chunks"] == 0
        good = [np.ones(10), np.ones(10)]
        await together(world, lambda c: c.all_reduce(good[c.rank]))
        assert np.all(good[1] == 2.0)
        assert world.communicators[0].counters.snapshot()["total"]["sent_chunks"] > 0

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


@pytest.mark.parametrize("counts", [(400_000, 2_000_000), (2_000_000, 400_000)])
@pytest.mark.parametrize("one_sided", [False, True])
def test_counts_that_differ_by_much_are_a_mismatch_for_all(counts: tuple[int, int], one_sided: bool) -> None:
    async def story(world: World) -> None:
        calls = [c.all_reduce(np.ones(count)) for c, count in zip(world.communicators, counts, strict=True)]
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, CollectiveMismatch)

    simulate(story, one_sided=one_sided)


def test_calls_that_read_alike_under_settings_that_differ_are_told_with_the_settings() -> None:
    async def story(world: World) -> None:
        plans = world.communicators[1]._epochs.first
        plans._agreement = plans._agreement.replace("R2CCL_EAGER_BYTES 65536", "R2CCL_EAGER_BYTES 1024")
        works = [comm.all_reduce(np.ones(10)) for comm in world.communicators]
        for work in works:
            with pytest.raises(CollectiveMismatch) as told:
                await work
            assert "called alike by all, but under settings or epochs that differ" in str(told.value)
            for rank, eager_bytes in enumerate((65536, 1024, 65536)):
                assert told.value.calls[rank].startswith("all_reduce(float64[10], sum) under epoch 0, ")
                assert f"R2CCL_EAGER_BYTES {eager_bytes}, " in told.value.calls[rank]

    simulate(story, ranks=3)


def test_messages_under_settings_that_differ_are_told_with_the_settings() -> None:
    async def story(world: World) -> None:
        plans = world.communicators[1]._epochs.first
        plans._agreement = plans._agreement.replace("epoch 0", "epoch 7")
        works = [world.communicators[0].send(np.ones(10), 1), world.communicators[1].recv(np.ones(10), 0)]
        await works[0]
        with pytest.raises(CollectiveMismatch, match=r"rank 0 called send.* under epoch 0.*recv.* under epoch 7"):
            await works[1]

    simulate(story)
