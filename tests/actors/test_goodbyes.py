"""How often goodbye is said."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from r2ccl.actors.courier import Courier
from r2ccl.protocol.wire import Kind
from r2ccl.sim.world import World
from tests.simulated import simulate


class Said:
    """Counts the goodbyes between any two ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: Counter[tuple[int, int]] = Counter()
        tell = Courier.tell

        def counted(courier: Courier, peer: int, kind: Kind, body: object) -> None:
            if kind is Kind.GOODBYE:
                self.times[id(courier), peer] += 1
            tell(courier, peer, kind, body)  # type: ignore[arg-type]

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
