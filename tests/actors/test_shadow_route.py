"""A link that becomes slow is left by new chunks, and taken again: in whole worlds, with the real actors."""

from __future__ import annotations

import asyncio
import math
import random

import numpy as np
import pytest

from r2ccl.protocol.evidence import Kind
from r2ccl.sim.world import World
from r2ccl.transport.memory_path import Model
from tests.actors.slow_links import (
    HISTORY,
    LONG_HISTORY,
    SLOW_NETWORK,
    SLOW_S,
    USUAL_S,
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
from tests.simulated import together


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
        # What it was measured at while it was slow is not believed for ever: in busy times it is probed.
        for _ in range(200):
            await all_reduce(world)
            await asyncio.sleep(0.01)
        assert sent_chunks(world, 0) > left + 200

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


@pytest.mark.parametrize("seed", range(6))
def test_links_that_are_left_and_taken_again_at_random_amid_faults_cost_no_operation(seed: int) -> None:
    rng = random.Random(seed)

    def meddle(world: World) -> None:
        runtime = rng.choice(world.runtimes)
        link = rng.choice([link for port in runtime.ports for link in port.links.values()])
        link.evidence.is_diverted = link.is_up and rng.random() < 0.7
        link.route()
        nic = (rng.randrange(3), 2)
        if rng.random() < 0.1:
            world.fabric.cut(nic)
            world.loop.call_later(0.05, world.fabric.restore, nic)

    async def story(world: World) -> None:
        await kept_full(world, 1.0, lambda: meddle(world))
        for runtime in world.runtimes:
            for port in runtime.ports:
                for link in port.links.values():
                    link.evidence.is_diverted = False
                    link.route()
        await asyncio.sleep(1.0)
        assert all(not runtime.courier.unsettled for runtime in world.runtimes)
        assert any(runtime.shared.counters.failovers for runtime in world.runtimes)
        lanes = [lane for runtime in world.runtimes for lanes in runtime.courier.lanes.values() for lane in lanes]
        assert all(not lane.is_diverted for lane in lanes)

    play(story, SLOW_NETWORK, ranks=3, nics=3, one_sided=seed % 2 == 1, settings={"chunk_bytes": 16384})


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
        await looks(world, 4)  # two of which see a slow answer
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
