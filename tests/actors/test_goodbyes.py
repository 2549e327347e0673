"""How often goodbye is said, and after what."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from r2ccl import ANY
from r2ccl.actors.courier import Courier
from r2ccl.config import KIB
from r2ccl.errors import CollectiveTimeout
from r2ccl.protocol.wire import Kind
from r2ccl.sim.world import World
from tests.actors.relayed_worlds import carrier, part, relayed_world
from tests.simulated import simulate


class Said:
    """Counts the goodbyes between any two ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: Counter[tuple[int, int]] = Counter()
        tell = Courier.tell

        def counted(courier: Courier, peer: int, kind: Kind, body: list[Any]) -> bool:
            if kind is Kind.GOODBYE:
                self.times[id(courier), peer] += 1
            return tell(courier, peer, kind, body)

        monkeypatch.setattr(Courier, "tell", counted)


def test_whoever_hears_of_the_others_one_by_one_does_not_say_it_to_all_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 ranks that closed on two cores said it 1,100 times each, which took longer than the repetitions wait."""
    said = Said(monkeypatch)

    async def story(world: World) -> None:
        async def close_later(rank: int) -> None:
            await asyncio.sleep(0.01 * rank)
            await world.communicators[rank].close()

        await asyncio.gather(*map(close_later, range(8)))

    simulate(story, ranks=8, nics=1)
    # Once to all, once in answer to whoever says it later, and again after a tenth of a second.
    assert len(said.times) == 8 * 7
    assert max(said.times.values()) <= 3


def test_it_is_said_less_and_less_often_to_whoever_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(monkeypatch)

    async def story(world: World) -> None:
        closing = asyncio.ensure_future(world.communicators[0].close())
        await asyncio.sleep(3.5)
        # After 0, 0.1, 0.3, 0.7, 1.5, 2.5 and 3.5 seconds.
        assert 6 <= max(said.times.values()) <= 7
        await world.communicators[1].close()
        await closing

    simulate(story)


def test_a_path_that_comes_back_brings_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said last may have been lost with the path before, and the next repetition is a second away."""
    said = Said(monkeypatch)

    async def story(world: World) -> None:
        closing = asyncio.ensure_future(world.communicators[0].close())
        await asyncio.sleep(1.6)
        before = max(said.times.values())
        world.fabric.cut((0, 0))
        await asyncio.sleep(0.05)
        assert max(said.times.values()) == before + 1
        world.fabric.restore((0, 0))
        await world.communicators[1].close()
        await closing

    simulate(story)


@pytest.mark.parametrize("in_a_group", [False, True])
def test_messages_that_wait_for_credit_while_the_path_is_away_come_before_it(in_a_group: bool) -> None:
    """Their sends have ended, so they are to arrive, also where nobody is named who sends them."""

    async def story(world: World) -> None:
        sender, receiver = world.communicators
        if in_a_group:
            sender, receiver = await asyncio.gather(*(comm.new_group([0, 1]) for comm in world.communicators))
        await asyncio.gather(sender.send(np.zeros(1), 1), receiver.recv(np.zeros(1), 0))
        await asyncio.sleep(0.01)
        world.fabric.cut((0, 0))
        for number in range(2):
            await sender.send(np.full(5 * KIB, number), 1, tag=7)
        closing = asyncio.ensure_future(sender.close())
        received = np.zeros((2, 5 * KIB), int)
        coming = [receiver.recv(part, ANY, tag=7) for part in received]
        await asyncio.sleep(0.3)
        world.fabric.restore((0, 0))
        for work in coming:
            await work
        assert (received == [[0], [1]]).all()
        await asyncio.gather(closing, receiver.close())

    simulate(story, nics=1, credit_bytes=30 * KIB)


@pytest.mark.parametrize("nics", [1, 2])
def test_why_a_rank_gave_up_comes_before_it(nics: int) -> None:
    """A rank that times out while it is cut off, and closes: the others fail for the same cause (decision 8)."""

    async def story(world: World) -> None:
        first, second = world.communicators
        mine, theirs = np.ones(1 << 18), np.ones(1 << 18)
        await asyncio.gather(first.all_reduce(mine), second.all_reduce(theirs))
        for nic in range(nics):
            world.fabric.cut((0, nic))
        await asyncio.sleep(0.3)
        waiting = second.all_reduce(theirs)
        with pytest.raises(CollectiveTimeout):
            await first.all_reduce(mine, timeout=0.3)
        closing = asyncio.ensure_future(first.close())
        await asyncio.sleep(0.1)
        for nic in range(nics):
            world.fabric.restore((0, nic))
        with pytest.raises(CollectiveTimeout):
            await waiting
        await asyncio.gather(closing, second.close())

    simulate(story, nics=nics)


@pytest.mark.parametrize("later_s", [0.05, 0.5, 0.75, 1.55, 2.55])
def test_a_relay_that_closed_long_before_keeps_nobody_waiting(later_s: float) -> None:
    async def story(world: World) -> None:
        await part(world)
        relay = carrier(world, 0, 1)
        closing = asyncio.ensure_future(world.communicators[relay].close())
        await asyncio.sleep(later_s)
        began = world.clock.now()
        await asyncio.gather(closing, *(world.communicators[rank].close() for rank in range(3) if rank != relay))
        assert world.clock.now() - began < 0.4

    relayed_world(story, ranks=3, nics=2, closes=False)
