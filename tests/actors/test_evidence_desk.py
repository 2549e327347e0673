"""Faults of links that are not silent, in whole worlds: what is found, what is told, which way new chunks go."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.links import Link
from r2ccl.config import Settings
from r2ccl.protocol import lookout
from r2ccl.protocol.evidence import Kind, Look
from r2ccl.protocol.lookout import Lookout
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.topology import Nic
from r2ccl.transport.memory_path import Model
from tests.simulated import together

#: So many looks make a history: with a margin for the first, which only begin to count.
HISTORY = 40
#: So many make one in which no more than the least confirmations are needed.
LONG_HISTORY = 700
#: A fault is found within so many looks: all of the window while the history is short, after one in which the slow
#: answer is still awaited.
WINDOW = 6
USUAL_S = Model().latency_s
SLOW_S = 0.005


def play(story: Callable[[World], Awaitable[None]], model: Model | None = None, **shape: Any) -> None:
    """A world that is connected, plays, and closes."""
    settings = Settings(**shape.pop("settings", {}))

    async def main() -> None:
        world = World(Shape(settings=settings, model=model or Model(), **shape))
        await world.start()
        await story(world)
        await world.close()

    run(main())


async def looks(world: World, count: int) -> None:
    await asyncio.sleep(count * world.shape.settings.evidence_s)


def slow_down(world: World, one: tuple[int, int], other: tuple[int, int], latency_s: float = SLOW_S) -> None:
    world.fabric.path(one, other).latency_s = world.fabric.path(other, one).latency_s = latency_s


def told(world: World, rank: int, name: str) -> list[str]:
    """Events of a rank with this name: about what, and what changed."""
    return [
        " ".join(str(event.fields[key]) for key in ("nic", "link", "kind", "change") if key in event.fields)
        for event in world.communicators[rank].events.since(0)
        if event.name == name
    ]


def link_stats(world: World, name: str, rank: int = 0) -> dict[str, Any]:
    stats: dict[str, Any] = world.communicators[rank].stats()["links"][name]
    return stats


def link_between(world: World, nic: int, rank: int = 0) -> Link:
    """Of two ranks."""
    return world.runtimes[rank].ports[nic].link(1 - rank, nic)


def sent_chunks(world: World, nic: int, rank: int = 0) -> int:
    return world.communicators[rank].counters.link(nic, 1 - rank).sent_chunks


async def all_reduce(world: World, elements: int = 1 << 19) -> None:
    arrays = [np.full(elements, rank, np.int32) for rank in range(world.shape.ranks)]
    await together(world, lambda comm: comm.all_reduce(arrays[comm.rank]))
    assert all((array == sum(range(world.shape.ranks))).all() for array in arrays)


# Latency and the shadow route.


def test_new_chunks_leave_a_link_that_became_slow_and_come_home_when_it_was_clean_for_the_hold_down() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        assert link_stats(world, "nic0->rank1.nic0")["suspicion"] == "clear"
        slow_down(world, (0, 0), (1, 0))
        await looks(world, WINDOW)
        for rank in range(2):
            link = f"nic0->rank{1 - rank}.nic0"
            assert told(world, rank, "evidence") == [f"{link} latency CLEAR->SUSPECT"]
            assert told(world, rank, "route") == [f"{link} HOME->SHADOW"]
            stats = link_stats(world, link, rank)
            assert (stats["state"], stats["suspicion"], stats["route"]) == ("up", "suspect", "shadow")
            assert [evidence["kind"] for evidence in stats["evidence"]] == ["latency"]
            assert "latency 10 ms, usually 0.1" in stats["evidence"][0]["says"]
        left, taken = sent_chunks(world, 0), sent_chunks(world, 1)
        await all_reduce(world)
        assert sent_chunks(world, 0) == left
        assert sent_chunks(world, 1) > taken
        slow_down(world, (0, 0), (1, 0), USUAL_S)
        await asyncio.sleep(world.shape.settings.hold_down_s - 1)
        assert link_stats(world, "nic0->rank1.nic0")["route"] == "shadow"
        await looks(world, WINDOW + 2)
        assert told(world, 0, "evidence")[1:] == ["nic0->rank1.nic0 latency SUSPECT->CLEAR"]
        assert told(world, 0, "route")[1:] == ["nic0->rank1.nic0 SHADOW->HOME"]
        await all_reduce(world)
        assert sent_chunks(world, 0) > left

    play(story)


def test_a_link_in_the_shadow_stays_watched_and_its_death_is_noticed_as_ever() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, WINDOW)
        assert link_stats(world, "nic0->rank1.nic0")["route"] == "shadow"
        world.fabric.silent_drop((0, 0))
        await asyncio.sleep(world.shape.settings.idle_beat_s + 0.2)
        stats = link_stats(world, "nic0->rank1.nic0")
        assert (stats["state"], stats["cause"]) == ("dialling", "silence")
        assert (stats["suspicion"], stats["route"]) == ("clear", "home")
        assert link_between(world, 0).lookout.latest_rtt_s is None
        assert told(world, 0, "route")[-1] == "nic0->rank1.nic0 SHADOW->HOME"
        await all_reduce(world)

    play(story)


def test_an_operation_that_is_under_way_when_its_link_becomes_slow_ends_well() -> None:
    async def for_a_while(world: World, count: int) -> None:
        for _ in range(count):
            await all_reduce(world, 1 << 16)
            await asyncio.sleep(0.02)

    async def story(world: World) -> None:
        await for_a_while(world, 5 * HISTORY)
        slow_down(world, (0, 0), (1, 0))
        await for_a_while(world, 5 * WINDOW)
        for rank in range(2):
            assert told(world, rank, "route") == [f"nic0->rank{1 - rank}.nic0 HOME->SHADOW"]

    play(story, Model(piece_bytes=4096), settings={"evidence_s": 0.1})


def test_new_chunks_leave_at_the_moment_of_the_verdict() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        slow_down(world, (0, 0), (1, 0))
        link = link_between(world, 0)
        for _ in range(int(1000 * WINDOW)):
            if link.evidence.is_diverted:
                break
            await asyncio.sleep(0.001)
        assert link.evidence.is_diverted
        assert link.lane is not None
        assert link.lane.is_diverted

    play(story)


def test_a_lane_that_moves_to_a_link_that_is_late_gives_it_no_new_chunks() -> None:
    async def story(world: World) -> None:
        await looks(world, 2)
        spare = link_between(world, 2)
        world.fabric.cut((0, 0))
        while spare.lane is None:
            spare.is_late = True
            await asyncio.sleep(0)
        assert spare.lane.is_diverted

    play(story, spares=1)


def test_a_link_is_never_left_for_one_that_was_left_itself() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, WINDOW)
        slow_down(world, (0, 1), (1, 1), 3 * SLOW_S)
        for _ in range(5 * WINDOW):
            await looks(world, 1)
            assert not all(link_between(world, nic).evidence.is_diverted for nic in range(2))
        assert told(world, 0, "route") == [
            "nic0->rank1.nic0 HOME->SHADOW",
            "nic0->rank1.nic0 SHADOW->HOME",
            "nic1->rank1.nic1 HOME->SHADOW",
        ]

    play(story)


def test_where_there_is_no_other_lane_a_slow_link_is_accused_and_goes_on() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, WINDOW)
        assert told(world, 0, "evidence") == ["nic0->rank1.nic0 latency CLEAR->SUSPECT"]
        assert told(world, 0, "route") == []
        before = sent_chunks(world, 0)
        await all_reduce(world)
        assert sent_chunks(world, 0) > before
        # Nor is a spare left that carries nothing.
        slow_down(world, (0, 0), (1, 0), USUAL_S)
        slow_down(world, (0, 1), (1, 1))
        await looks(world, WINDOW)
        assert standing(world, Kind.LATENCY) == ["nic0->rank1.nic0", "nic1->rank1.nic1"]
        assert told(world, 0, "route") == []

    play(story, nics=1, spares=1)


def test_an_hour_of_healthy_noise_moves_nothing() -> None:
    async def story(world: World) -> None:
        rng = random.Random(7)
        until_s = world.loop.time() + 3600
        watched = [link.lookout for port in world.runtimes[0].ports for link in port.links.values()]
        answers_s = set()
        while world.loop.time() < until_s:
            for nic in range(2):
                slow_down(world, (0, nic), (1, nic), rng.lognormvariate(math.log(USUAL_S), 0.5))
            await asyncio.sleep(0.5)
            answers_s |= {one.latest_rtt_s for one in watched}
        for rank in range(2):
            assert told(world, rank, "route") == []
        assert len(answers_s) > 2 * 3500

    play(story)


def test_where_all_links_become_slow_at_once_nobody_switches() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        for nic in range(4):
            slow_down(world, (0, nic), (1, nic))
        await looks(world, 60)
        for rank in range(2):
            assert len(told(world, rank, "evidence")) == 4
            assert told(world, rank, "route") == []

    play(story, nics=4)


def test_where_links_become_slow_one_after_the_other_a_rank_leaves_no_more_than_its_budget() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        for nic in range(3):
            slow_down(world, (0, nic), (1, nic))
            await looks(world, WINDOW + 1)
        for rank in range(2):
            assert len(told(world, rank, "evidence")) == 3
            assert told(world, rank, "route") == [f"nic{nic}->rank{1 - rank}.nic{nic} HOME->SHADOW" for nic in (0, 1)]
        await looks(world, 60)
        assert told(world, 0, "route")[2:] == ["nic2->rank1.nic2 HOME->SHADOW"]

    play(story, nics=4, settings={"switch_burst": 2})


def test_what_was_found_before_a_stall_of_our_own_accuses_nobody_after_it() -> None:
    async def story(world: World) -> None:
        await looks(world, LONG_HISTORY)
        slow_down(world, (0, 0), (1, 0))
        await looks(world, 3)  # at the first of them the slow answer is still awaited
        world.fabric.freeze(0)
        await asyncio.sleep(3.0)
        world.fabric.thaw(0)
        await looks(world, 3)  # at the first of them nobody knows yet what to count from
        # The other rank was here all the time.
        assert told(world, 1, "evidence") == ["nic0->rank0.nic0 latency CLEAR->SUSPECT"]
        assert told(world, 0, "evidence") == []
        await looks(world, 2)
        assert told(world, 0, "evidence") == ["nic0->rank1.nic0 latency CLEAR->SUSPECT"]

    play(story)


def test_what_was_seen_since_the_last_look_is_void_after_a_stall_however_short() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(2.5)  # between two looks
        link = link_between(world, 0)
        arrays = [np.ones(1 << 19, np.int32) for _ in range(2)]
        reduction = asyncio.ensure_future(together(world, lambda comm: comm.all_reduce(arrays[comm.rank])))
        await asyncio.sleep(0)
        world.fabric.freeze(1)  # its kernel takes what fits its window, and no more
        await asyncio.sleep(0.05)
        assert link.lookout.carried_bytes > 0
        world.fabric.freeze(0)
        await asyncio.sleep(0.3)
        world.fabric.thaw(0)
        await asyncio.sleep(0.03)
        assert link.lookout.carried_bytes == 0
        world.fabric.thaw(1)
        await reduction

    play(story)


def test_a_rank_that_is_stopped_for_minutes_is_accused_of_nothing() -> None:
    async def story(world: World) -> None:
        await looks(world, HISTORY)
        world.fabric.freeze(1)
        await asyncio.sleep(120)
        world.fabric.thaw(1)
        await looks(world, HISTORY)
        for rank in range(2):
            assert told(world, rank, "evidence") == told(world, rank, "route") == []

    play(story)


# Throughput, resent ratio, errors.

#: A network slow enough to be kept full for seconds: 20 MB/s for each NIC, in pieces like those of a real one.
SLOW_NETWORK = Model(bandwidth_bytes_s=20e6, piece_bytes=8192, resend_after_s=0.002)
FAST_LOOKS = {"evidence_s": 0.1, "chunk_bytes": 16384}


async def kept_full(world: World, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """All-reduces back to back; ``meanwhile`` is called every 20 ms."""
    until_s = world.loop.time() + seconds

    async def reduce() -> None:
        while world.loop.time() < until_s:
            await all_reduce(world, 1 << 18)

    load = asyncio.ensure_future(reduce())
    while not load.done():
        meanwhile()
        await asyncio.sleep(0.02)
    await load


def standing(world: World, kind: Kind, rank: int = 0) -> list[str]:
    return [
        str(link.id)
        for port in world.runtimes[rank].ports
        for link in port.links.values()
        if kind in link.evidence.standing
    ]


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
