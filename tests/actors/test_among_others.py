"""Links of NICs that others use, too, in whole worlds: others' queues accuse nobody, and what is ours is no others'."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from r2ccl.sim.world import World
from r2ccl.topology import Nic
from tests.actors.slow_links import (
    FAST_LOOKS,
    HISTORY,
    SLOW_NETWORK,
    USUAL_S,
    WINDOW,
    all_reduce,
    kept_full,
    looks,
    play,
    sent_chunks,
    slow_down,
    told,
)


class Interfaces:
    """A rank's interfaces, which count its own bytes with headers, and those of others, each second."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank
        self.others_bytes = {0: (0, 0), 1: (0, 0)}
        self.headers = 1.05
        self._before: dict[int, tuple[int, int]] = {}
        world.runtimes[rank].evidence.new_bytes = self.new_bytes

    def new_bytes(self, nic: Nic) -> tuple[int, int] | None:
        counters = self._world.communicators[self._rank].counters.link(nic.index, 1 - self._rank)
        before = self._before.get(nic.index, (0, 0))
        now = self._before[nic.index] = counters.sent_bytes, counters.received_bytes
        sent, received = (int(self.headers * (new - old)) for new, old in zip(now, before, strict=True))
        others = self.others_bytes[nic.index]
        return sent + others[0], received + others[1]


#: The simulated NICs announce 10 Gbit/s.
MUCH, LITTLE = 200_000_000, 50_000_000


@pytest.mark.parametrize("others", [(MUCH, 0), (0, MUCH)])
def test_a_link_that_others_make_slow_is_not_left_and_carries_its_share_when_they_end(others: tuple[int, int]) -> None:
    async def story(world: World) -> None:
        interfaces = [Interfaces(world, rank) for rank in range(2)]
        await looks(world, HISTORY)
        for each in interfaces:
            each.others_bytes[0] = others
        await looks(world, 2)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, 2 * WINDOW)
        slow_down(world, (0, 0), (1, 0), USUAL_S)
        for each in interfaces:
            each.others_bytes[0] = (0, 0)
        for rank in range(2):
            assert told(world, rank, "evidence") == told(world, rank, "route") == []
        before = sent_chunks(world, 0)
        await all_reduce(world)
        assert sent_chunks(world, 0) > before

    play(story)


def test_a_link_beside_little_of_others_or_others_on_another_nic_is_accused_as_ever() -> None:
    async def story(world: World) -> None:
        interfaces = Interfaces(world, 0)
        interfaces.others_bytes[0] = (LITTLE, LITTLE)
        await looks(world, HISTORY)
        interfaces.others_bytes[1] = (MUCH, MUCH)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, WINDOW)
        assert told(world, 0, "route") == ["nic0->rank1.nic0 HOME->SHADOW"]

    play(story)


def test_what_we_send_and_receive_ourselves_is_no_others() -> None:
    async def story(world: World) -> None:
        interfaces, desk = Interfaces(world, 0), world.runtimes[0].evidence
        for port in world.runtimes[0].ports:
            # As fast as the network: what is carried is nearly all that could be.
            port.nic = dataclasses.replace(port.nic, speed_mbit_s=160)
        loads: list[set[int]] = []
        look = desk._beset

        def noted(now: float) -> set[int]:
            loads.append(look(now))
            return loads[-1]

        desk._beset = noted  # type: ignore[method-assign]
        await kept_full(world, 3.0)
        assert len(loads) >= 20
        assert set().union(*loads[2:]) == set()
        interfaces.headers = 1.5
        await kept_full(world, 1.0)
        assert set().union(*loads[-8:]) == {0, 1}

    play(story, SLOW_NETWORK, settings=FAST_LOOKS)


def test_also_when_what_was_gathered_of_a_link_was_void_meanwhile() -> None:
    async def story(world: World) -> None:
        runtime, counters = world.runtimes[0], world.communicators[0].counters
        await looks(world, 2)
        runtime.evidence._beset(world.loop.time())
        runtime.evidence.new_bytes = lambda nic: (2 * MUCH, 0)
        await asyncio.sleep(0.1)
        counters.link(0, 1).sent_bytes += 2 * MUCH
        for port in runtime.ports:
            for link in port.links.values():
                link.lookout.restart()
        assert runtime.evidence._beset(world.loop.time()) == {1}

    play(story)


@pytest.mark.parametrize(("host", "beset"), [(None, set()), ("10.9.9.9", {0, 1})])
def test_lanes_over_one_interface_share_its_speed_and_addresses_do_not(host: str | None, beset: set[int]) -> None:
    """With two lanes 5 Gbit/s each: a tenth of what both could carry in a tenth of a second is 12.5 MB."""

    async def story(world: World) -> None:
        runtime = world.runtimes[0]
        await looks(world, 2)
        for port in runtime.ports:
            endpoint = runtime.ports[0].nic.endpoint if host is None or port.nic.index == 0 else None
            endpoint = endpoint or dataclasses.replace(port.nic.endpoint, host=host or "")
            port.nic = dataclasses.replace(port.nic, name="eth0", endpoint=endpoint, speed_mbit_s=5000)
        runtime.evidence._beset(world.loop.time())
        runtime.evidence.new_bytes = lambda nic: (10_000_000, 0)
        await asyncio.sleep(0.1)
        assert runtime.evidence._beset(world.loop.time()) == beset

    play(story)


def test_what_several_lanes_over_one_interface_carry_is_ours_together() -> None:
    async def story(world: World) -> None:
        runtime = world.runtimes[0]
        await looks(world, 2)
        ports = runtime.ports
        ports[1].nic = dataclasses.replace(ports[1].nic, name=ports[0].nic.name, endpoint=ports[0].nic.endpoint)
        runtime.evidence._beset(world.loop.time())
        counters = world.communicators[0].counters
        runtime.evidence.new_bytes = lambda nic: (0, 2 * MUCH)
        await asyncio.sleep(0.1)
        for nic in range(2):
            counters.link(nic, 1).received_bytes += MUCH
        assert runtime.evidence._beset(world.loop.time()) == set()
        await asyncio.sleep(0.1)
        counters.link(0, 1).received_bytes += MUCH
        assert runtime.evidence._beset(world.loop.time()) == {0, 1}

    play(story)
