"""How a communicator ends: closed together or apart, aborted, or left with an error."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref

import numpy as np
import pytest

from r2ccl.communicator import Communicator
from r2ccl.errors import CommunicatorAborted, CommunicatorClosed, PeerLost
from r2ccl.protocol.wire import Kind
from r2ccl.sim.world import World
from tests.simulated import called, simulate, together

BIG = 70_001


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


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
def test_an_abort_lets_go_of_the_memory_of_operations_that_have_begun(one_sided: bool) -> None:
    async def story(world: World) -> None:
        work = world.communicators[0].all_reduce(np.ones(BIG))
        await asyncio.sleep(0.01)
        world.communicators[0].abort()
        with pytest.raises(CommunicatorClosed):
            await work

    simulate(story, one_sided=one_sided)


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


def test_an_abort_alone_fails_one_communicator_on_all_members_and_no_other() -> None:
    async def story(world: World) -> None:
        groups = [await communicator.new_group([0, 2]) for communicator in world.communicators]
        first, nobody, third = groups
        assert nobody is None
        work = third.all_reduce(np.ones(1000))
        assert first.failure is None
        first.abort_alone("had enough")
        with pytest.raises(CommunicatorAborted, match="had enough"):
            await work
        with pytest.raises(CommunicatorAborted, match="had enough"):
            first.barrier()
        assert isinstance(third.failure, CommunicatorAborted)
        await together(world, lambda communicator: communicator.barrier())
        third.abort_alone("again")  # changes nothing
        assert [communicator.failure for communicator in world.communicators] == [None] * 3

    simulate(story, ranks=3)


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


def test_closing_twice_at_once_waits_for_running_operations_and_ends_with_them() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        work = first.all_reduce(np.ones(BIG))
        closing = [asyncio.ensure_future(first.close(timeout=60)) for _ in range(2)]
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in closing)
        await second.all_reduce(np.ones(BIG))
        await second.close()
        await asyncio.gather(*closing)
        assert work.exception() is None
        assert world.clock.now() < 1.0

    simulate(story)


def test_a_close_that_is_cancelled_while_it_lingers_leaves_nobody_waiting() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        work = first.barrier()
        ended: list[int] = []
        first.when_closed(lambda: ended.append(1))
        closing = asyncio.ensure_future(first.close(timeout=1.0))
        await asyncio.sleep(0.5)
        world.runtimes[0].shared.timers.after(0.0, closing.cancel)
        with pytest.raises(asyncio.CancelledError):
            await closing
        first.abort()
        with pytest.raises(CommunicatorClosed):
            await work
        assert ended == [1]

    simulate(story)


def test_a_call_after_close_has_begun_is_refused() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        closing = asyncio.ensure_future(first.close())
        await asyncio.sleep(0.01)
        with pytest.raises(CommunicatorClosed):
            first.barrier()
        await world.communicators[1].close()
        await closing

    simulate(story)


def test_an_operation_whose_sender_closed_before_a_chunk_of_it_came_right_fails_instead_of_waiting_for_ever() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        world.fabric.corrupt(lambda source, target, header: header.kind == Kind.CHUNK)
        await first.broadcast(np.ones(100), 0)
        work = second.broadcast(np.zeros(100), 0)
        await first.close(timeout=1.0)
        async with asyncio.timeout(60):
            with pytest.raises(PeerLost, match="it closed its communicator"):
                await work

    simulate(story)


def test_a_goodbye_is_no_failover_and_leaves_no_timer_behind() -> None:
    async def story(world: World) -> None:
        await together(world, lambda c: c.all_reduce(np.ones(BIG), timeout=1000.0))
        await world.close()
        for runtime in world.runtimes:
            assert runtime.shared.counters.failovers == 0
            assert not runtime.shared.events.since(0)[-1].name.startswith("lane")
            assert len(runtime.shared.timers) == 0

    simulate(story)


def test_an_operation_that_ended_leaves_no_timer_that_would_keep_its_tensor() -> None:
    async def story(world: World) -> None:
        tensors = [np.ones(BIG) for _ in world.communicators]
        watched = [weakref.ref(tensor) for tensor in tensors]
        await together(world, lambda c: c.all_reduce(tensors[c.rank], timeout=1000.0))
        tensors.clear()
        await asyncio.sleep(1.0)
        gc.collect()
        assert [ref() for ref in watched] == [None, None]

    simulate(story)
