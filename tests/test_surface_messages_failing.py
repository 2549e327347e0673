"""Messages between two ranks that do not come, do not fit, or have nobody to come from."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl import ANY
from r2ccl.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorAborted,
    CommunicatorClosed,
    PeerLost,
)
from r2ccl.sim.world import World
from tests.messages import BEYOND_CREDIT, BULKY, bulky, failure, message, room
from tests.simulated import simulate, together


@pytest.mark.parametrize("source", [0, ANY], ids=["specific", "any"])
@pytest.mark.parametrize("counts", [(10, 11), (11, 10), (0, 1), (BULKY, 10), (10, BULKY), (400_000, 400_001)])
def test_counts_that_differ_are_a_mismatch_on_both_sides(counts: tuple[int, int], source: int) -> None:
    async def story(world: World) -> None:
        first, second, third = world.communicators
        sent, expected = counts
        receiving = second.recv(room(expected), source, 3)
        sending = first.send(message(1, sent), 1, 3)
        error = await failure(receiving)
        assert isinstance(error, CollectiveMismatch)
        words = "any" if source == ANY else "0"
        assert error.calls == {
            0: f"send(int32[{sent}], target=1, tag=3)",
            1: f"recv(int32[{expected}], source={words}, tag=3)",
        }
        # What went out from a copy was done; then the next call tells of it.
        await asyncio.sleep(1.0)
        with pytest.raises(CollectiveMismatch, match="rank 1 called recv"):
            await (first.barrier() if sending.exception() is None else sending)
        # All of the communicator failed, and the third rank hears of it.
        with pytest.raises(CollectiveMismatch, match="rank 1 called recv"):
            await third.barrier()

    simulate(story, ranks=3, close_timeout_s=0.1)


@pytest.mark.parametrize("call", ["send", "recv", "recv any", "recv behind any"])
def test_a_message_that_does_not_come_times_out(call: str) -> None:
    async def story(world: World) -> None:
        first, second, third = world.communicators
        work = {
            "send": lambda: first.send(bulky(1, BULKY), 1, 2, timeout=2.0),
            "recv": lambda: first.recv(room(), 1, 2, timeout=2.0),
            "recv any": lambda: first.recv(room(), ANY, 2, timeout=2.0),
            "recv behind any": lambda: (first.recv(room(), ANY, 2), first.recv(room(), 1, 2, timeout=2.0))[1],
        }[call]()
        other = second.barrier()
        began = world.clock.now()
        error = await failure(work)
        assert world.clock.now() - began == pytest.approx(2.0, abs=0.1)
        assert isinstance(error, CollectiveTimeout)
        assert error.call.startswith(call.split()[0])
        assert error.timeout_s == 2.0
        assert 1 in error.not_entered
        # It is everybody's failure.
        for failed in (other, third.barrier()):
            assert isinstance(await failure(failed), CollectiveTimeout | CommunicatorAborted)

    simulate(story, ranks=3, close_timeout_s=0.1)


def test_the_limit_of_a_receive_from_any_counts_from_the_call_also_when_its_message_has_begun() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        receiving = first.recv(bulky(0, BEYOND_CREDIT), ANY, timeout=2.0)
        await asyncio.sleep(1.9)
        second.send(bulky(1, BEYOND_CREDIT), 0)
        await asyncio.sleep(0.0005)
        assert receiving.source == 1
        world.fabric.freeze(1)
        error = await failure(receiving)
        assert world.clock.now() == pytest.approx(2.0, abs=0.1)
        assert isinstance(error, CollectiveTimeout)
        assert error.timeout_s == 2.0

    simulate(story, close_timeout_s=0.1)


@pytest.mark.parametrize("source", [1, ANY], ids=["specific", "any"])
def test_a_receive_from_a_rank_that_dies_ends(source: int) -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        waiting = [first.recv(room(), source), first.recv(room(), 1)]
        await asyncio.sleep(0.5)
        world.fabric.kill(1)
        for work in waiting:
            error = await failure(work)
            assert isinstance(error, PeerLost)
            assert (error.ranks, error.cause) == ((1,), "dead")
        with pytest.raises(PeerLost):
            first.recv(room())
        with pytest.raises(PeerLost):
            first.send(message(1), 2)

    simulate(story, ranks=3, close_timeout_s=0.1)


def test_a_send_to_a_rank_that_dies_ends() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        sending = first.send(bulky(1, BEYOND_CREDIT), 1)
        await asyncio.sleep(0.5)
        world.fabric.kill(1)
        assert isinstance(await failure(sending), PeerLost)

    simulate(story, close_timeout_s=0.1)


@pytest.mark.parametrize("called", ["before", "after"])
def test_a_receive_from_a_rank_that_closed_ends(called: str) -> None:
    """Though the other never heard of what it should have sent."""

    async def story(world: World) -> None:
        first, second, _ = world.communicators
        receiving = first.recv(room(), 1) if called == "before" else None
        await second.close(timeout=1.0)
        error = await failure(receiving or first.recv(room(), 1))
        assert isinstance(error, PeerLost)
        assert error.ranks == (1,)
        assert "closed" in str(error)

    simulate(story, ranks=3, close_timeout_s=0.1)


def test_a_receive_from_any_ends_when_the_last_other_rank_has_closed() -> None:
    async def story(world: World) -> None:
        first, second, third = world.communicators
        receiving = first.recv(room())
        closing = [asyncio.ensure_future(second.close())]
        await asyncio.sleep(0.5)
        assert not receiving.done()
        closing.append(asyncio.ensure_future(third.close()))
        error = await failure(receiving)
        assert isinstance(error, PeerLost)
        assert error.ranks == (1, 2)
        await asyncio.gather(*closing)

    simulate(story, ranks=3, close_timeout_s=3.0)


def test_what_a_rank_sent_before_it_closed_arrives() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        await second.send(message(6), 0)
        closing = asyncio.ensure_future(second.close())
        await asyncio.sleep(0.5)
        got = room()
        await first.recv(got)
        assert got[0] == 6
        await first.close()
        await closing

    simulate(story)


@pytest.mark.parametrize("source", [1, ANY], ids=["specific", "any"])
def test_closing_ends_receives_that_wait(source: int) -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        receiving = first.recv(room(), source)
        await first.close(timeout=0.5)
        assert isinstance(await failure(receiving), CommunicatorClosed)

    simulate(story, close_timeout_s=0.5)


def test_a_receive_that_fails_when_it_gets_its_turn_ends_those_behind_it_once() -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda comm: comm.split(0))
        sent = groups[1].send(np.ones(3), 0, 7)
        await groups[0].recv(np.zeros(3), 1, 7)
        await sent
        await groups[1].close()
        await asyncio.sleep(0.1)
        x = [np.zeros(3) for _ in range(4)]
        first, *others = (groups[0].recv(one, source, 7) for one, source in zip(x, (ANY, 1, 1, 1), strict=True))
        await groups[2].send(np.full(3, 5.0), 0, 7)
        await first
        assert (x[0] == 5.0).all()
        for work in others:
            with pytest.raises(PeerLost, match="closed"):
                await asyncio.wait_for(work, 1.0)

    simulate(story, ranks=3)
