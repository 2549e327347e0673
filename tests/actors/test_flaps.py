"""A NIC that flaps under load, with real actors in virtual time: no operation fails, and the NIC is used in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from r2ccl.config import Settings
from r2ccl.protocol.nic_session import NicSession
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.memory_path import Model

BANDWIDTH_BYTES_S = 20e6
ELEMENTS = 1 << 17
#: What flaps, at both ends.
NIC = (0, 0)


class Stream:
    """All-reduces on all ranks, two in flight, each checked to the last element, for so long."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations = 0

    async def run(self, for_s: float) -> float:
        """Returns operations a second."""
        began_s, before = self.world.loop.time(), self.operations
        await asyncio.gather(*(self._rank(rank, began_s + for_s) for rank in range(self.world.shape.ranks)))
        return (self.operations - before) / (self.world.loop.time() - began_s)

    async def _rank(self, rank: int, until_s: float) -> None:
        comm, running, over = self.world.communicators[rank], list[asyncio.Future[bool]](), False
        while running or not over:
            while len(running) < 2 and not over:
                running.append(asyncio.ensure_future(self._reduce(comm, self.world.loop.time() >= until_s)))
                # All ranks see the same votes, so all call the same number.
                await asyncio.sleep(0)
            over = await running.pop(0) or over

    async def _reduce(self, comm: object, votes: bool) -> bool:
        ranks, rank = comm.size, comm.rank  # type: ignore[attr-defined]
        x = np.arange(ELEMENTS + 1, dtype=np.int64) + rank
        x[-1] = votes
        await comm.all_reduce(x)  # type: ignore[attr-defined]
        assert (x[:-1] == ranks * np.arange(ELEMENTS) + sum(range(ranks))).all()
        self.operations += rank == 0
        return bool(x[-1])


def play(story: Callable[[World, Stream], Awaitable[None]], **settings: float) -> None:
    async def main() -> None:
        shape = Shape(
            2,
            2,
            settings=Settings(chunk_bytes=64 << 10, backup_paths=0).replace(**settings),
            model=Model(bandwidth_bytes_s=BANDWIDTH_BYTES_S),
        )
        world = World(shape)
        await world.start()
        await story(world, Stream(world))
        await world.close()

    run(main())


def session(world: World, rank: int) -> NicSession:
    """Of the link of the NIC that flaps."""
    return world.runtimes[rank].ports[0].links[1 - rank, 0].session


async def flap(world: World, times: int, down_s: float, up_s: float, silent: bool = False) -> None:
    for _ in range(times):
        (world.fabric.silent_drop if silent else world.fabric.cut)(NIC)
        await asyncio.sleep(down_s)
        world.fabric.restore(NIC)
        await asyncio.sleep(up_s)


async def share(world: World, stream: Stream) -> float:
    """Of what the first rank sends, how much goes by the NIC."""

    def sent() -> tuple[int, int]:
        nics = world.communicators[0].stats()["nics"]
        return nics["nic0"]["sent_bytes"], nics["nic1"]["sent_bytes"]

    before = sent()
    await stream.run(1.0)
    by_nic = [late - early for early, late in zip(before, sent(), strict=True)]
    return by_nic[0] / sum(by_nic)


def test_twenty_flaps_in_ten_seconds_cost_no_operation_and_less_than_a_fifth_of_the_throughput() -> None:
    rates: list[float] = []

    async def unharmed(world: World, stream: Stream) -> None:
        rates.append(await stream.run(10.0))

    async def flapping(world: World, stream: Stream) -> None:
        rate, _ = await asyncio.gather(stream.run(10.0), flap(world, 20, 0.1, 0.4))
        rates.append(rate)
        assert session(world, 0).incident == 20

    play(unharmed)
    play(flapping)
    print(f"{rates[1] / rates[0]:.3f} of the throughput without flaps")
    assert rates[1] > 0.8 * rates[0]


@pytest.mark.parametrize("silent", [False, True])
def test_flaps_of_any_length_cost_no_operation_and_never_more_than_the_nic_itself(silent: bool) -> None:
    async def story(world: World, stream: Stream) -> None:
        for down_s, up_s in ((0.001, 0.02), (0.03, 0.05), (0.15, 0.1), (0.4, 0.4)):
            rate, _ = await asyncio.gather(
                stream.run(2.0), flap(world, int(2.0 / (down_s + up_s)), down_s, up_s, silent)
            )
            # One NIC alone carries 19 a second; of silence each flap may cost what it takes to notice it.
            assert rate > (5 if silent else 17)

    play(story)


def test_one_flap_is_one_flap_though_the_news_of_it_comes_late() -> None:
    """Its notice goes by the other path, which is full, and comes when the link has been made anew."""

    async def story(world: World, stream: Stream) -> None:
        await asyncio.gather(stream.run(2.0), flap(world, 2, 0.06, 1.0, silent=True))
        assert [(session(world, rank).incident, session(world, rank).flaps) for rank in range(2)] == [(2, 1)] * 2

    play(story)


def test_after_an_hour_with_flaps_now_and_then_the_share_is_as_before() -> None:
    async def story(world: World, stream: Stream) -> None:
        before = await share(world, stream)
        for minute in range(60):
            await flap(world, 1 + minute % 3, 0.05 * (minute % 7), 0.3, silent=minute % 2 == 1)
            await asyncio.sleep(58.0)
            if minute % 10 == 0:
                await stream.run(0.1)
        await flap(world, 5, 0.05, 0.05)
        await asyncio.sleep(5.0)
        after = await share(world, stream)
        assert before == pytest.approx(0.5, abs=0.05)
        assert after > 0.9 * before

    play(story)


def test_a_nic_that_is_gone_for_two_days_comes_back_with_its_share() -> None:
    async def story(world: World, stream: Stream) -> None:
        before = await share(world, stream)
        world.fabric.silent_drop(NIC)
        await stream.run(0.3)
        await asyncio.sleep(2 * 24 * 3600.0)
        assert await share(world, stream) == 0
        world.fabric.restore(NIC)
        await asyncio.sleep(62.0)
        assert await share(world, stream) > 0.9 * before

    play(story, redial_s=60.0, idle_beat_s=60.0)
