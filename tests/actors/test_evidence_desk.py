"""Throughput, resent ratio and interface errors of links, in whole worlds: what is found, and what is told."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from r2ccl.protocol import lookout
from r2ccl.protocol.evidence import Kind, Look
from r2ccl.protocol.lookout import Lookout
from r2ccl.sim.world import World
from r2ccl.topology import Nic
from tests.actors.slow_links import (
    FAST_LOOKS,
    HISTORY,
    SLOW_NETWORK,
    WINDOW,
    all_reduce,
    kept_full,
    link_between,
    link_stats,
    looks,
    play,
    sent_chunks,
    slow_down,
    standing,
    told,
)


def test_a_link_that_carries_far_less_than_its_fair_share_is_accused_and_keeps_what_it_can_carry() -> None:
    async def story(world: World) -> None:
        await kept_full(world, 1.0)
        assert standing(world, Kind.THROUGHPUT) == []
        world.fabric.path((0, 0), (1, 0)).bandwidth_bytes_s = 2e6
        await kept_full(world, 1.5)
        assert standing(world, Kind.THROUGHPUT) == ["nic0->rank1.nic0"]
        says = [e["says"] for e in link_stats(world, "nic0->rank1.nic0")["evidence"] if e["kind"] == "throughput"]
        assert "of the fair share, usually 100%" in says[0] or "of the fair share, usually 9" in says[0]
        # The way back is whole, and the other rank has nothing to say.
        assert standing(world, Kind.THROUGHPUT, rank=1) == []

    play(story, SLOW_NETWORK, settings=FAST_LOOKS)


class Asked(Lookout):
    """Notes what it is told of fair shares."""

    def __init__(self) -> None:
        super().__init__()
        self.fair_shares: list[float | None] = []

    def look(self, fair_share_bytes: float | None, *others: Any) -> Look:
        self.fair_shares.append(fair_share_bytes and fair_share_bytes / self.carried_bytes)
        return super().look(fair_share_bytes, *others)


def test_the_fair_share_is_by_the_speed_of_nics_and_a_link_in_the_shadow_has_none() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        links = [link_between(world, nic) for nic in range(3)]
        for link in links:
            link.lookout = Asked()
        port = world.runtimes[0].ports[1]
        port.nic = dataclasses.replace(port.nic, speed_mbit_s=3 * 10_000)
        theirs = world.runtimes[0].shared.members[1].nics[1]
        object.__setattr__(theirs, "speed_mbit_s", 3 * 10_000)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, WINDOW)
        assert links[0].evidence.is_diverted
        await kept_full(world, 2.5)
        shares = [[share for share in link.lookout.fair_shares if share] for link in links]  # type: ignore[attr-defined]
        assert shares[0] == []
        # Of what both carried, which is about as much, one should have had three quarters.
        assert shares[1][-1] == pytest.approx(1.5, abs=0.1)
        assert shares[2][-1] == pytest.approx(0.5, abs=0.1)

    play(story, SLOW_NETWORK, nics=3, settings={"chunk_bytes": 16384})


def test_a_link_that_is_offered_little_is_not_accused_of_carrying_little() -> None:
    async def story(world: World) -> None:
        for _ in range(200):
            await all_reduce(world, 16)
            await asyncio.sleep(0.01)
        carried = [sent_chunks(world, nic) for nic in range(2)]
        assert min(carried) * 4 < max(carried), "nothing was uneven"
        for rank in range(2):
            assert standing(world, Kind.THROUGHPUT, rank) == []

    play(story, settings={"evidence_s": 0.1})


def test_a_link_on_which_more_goes_out_again_than_ever_before_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    # The pieces of this network are larger than segments: as many bytes as ever are a sample.
    monkeypatch.setattr(lookout, "SEGMENTS_LEAST", 200)

    async def story(world: World) -> None:
        await kept_full(world, 5.0)
        assert standing(world, Kind.RESENT) == []

        def flicker() -> None:
            world.fabric.silent_drop_direction((0, 0), (1, 0))
            world.loop.call_later(0.001, world.fabric.restore_link, (0, 0), (1, 0))

        await kept_full(world, 1.5, flicker)
        assert standing(world, Kind.RESENT) == ["nic0->rank1.nic0"]
        assert link_stats(world, "nic0->rank1.nic0")["state"] == "up"
        says = [e["says"] for e in link_stats(world, "nic0->rank1.nic0")["evidence"] if e["kind"] == "resent"]
        assert "usually 0.00%" in says[0]

    play(story, SLOW_NETWORK, settings=FAST_LOOKS)


class Interfaces:
    """Interfaces that count so many errors at each look."""

    def __init__(self) -> None:
        self.errors = {0: 0, 1: 0}
        self.asked: list[str] = []

    def new_errors(self, nic: Nic) -> int | None:
        self.asked.append(nic.name)
        return self.errors[nic.index]


def test_an_interface_that_begins_to_count_errors_is_told_of_once_and_all_its_links_are_suspect() -> None:
    async def story(world: World) -> None:
        interfaces = Interfaces()
        world.runtimes[0].evidence.new_errors = interfaces.new_errors
        await looks(world, HISTORY)
        assert interfaces.asked[:4] == ["nic0", "nic1", "nic0", "nic1"]
        assert len(interfaces.asked) >= 2 * (HISTORY - 1)
        interfaces.errors[1] = 3
        await looks(world, WINDOW)
        assert told(world, 0, "evidence") == ["nic1 errors CLEAR->SUSPECT"]
        assert standing(world, Kind.ERRORS) == ["nic1->rank1.nic1", "nic1->rank2.nic1"]
        assert told(world, 0, "route") == []
        interfaces.errors[1] = 0
        await asyncio.sleep(world.shape.settings.hold_down_s + WINDOW)
        assert told(world, 0, "evidence")[1:] == ["nic1 errors SUSPECT->CLEAR"]
        assert standing(world, Kind.ERRORS) == []

    play(story, ranks=3)


def test_a_tick_that_comes_a_little_early_is_a_look_and_others_between_are_none() -> None:
    async def story(world: World) -> None:
        interfaces, desk = Interfaces(), world.runtimes[0].evidence
        desk.new_errors = interfaces.new_errors
        now, count = world.loop.time(), []
        for tick_s in (1.0, 1.01, 1.5, 1.995, 2.5, 3.0):
            desk.tick(now + tick_s)
            count.append(len(interfaces.asked) // 2)
        assert count == [1, 1, 1, 2, 2, 3]

    play(story)


def test_interfaces_that_count_nothing_accuse_nobody() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        assert standing(world, Kind.ERRORS) == []
        assert told(world, 0, "evidence") == []

    play(story)


def test_a_window_shorter_than_the_confirmations_asks_for_all_of_it() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, 4)
        assert told(world, 0, "route") == ["nic0->rank1.nic0 HOME->SHADOW"]

    play(story, settings={"evidence_window": 2})
