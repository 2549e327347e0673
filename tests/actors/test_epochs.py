"""How ranks come to plan from a new picture of the network, with the real actors in simulated time."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.nic_reports import NicReports
from r2ccl.config import Settings
from r2ccl.planner.picture import announced_bandwidth
from r2ccl.protocol.steadiness import step_of
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.memory_path import Model
from tests.simulated import called, simulate, together

ELEMENTS = 20_000


async def reduce_for(world: World, seconds: float, elements: int = ELEMENTS, pause_s: float = 0.02) -> None:
    """All-reduces, one after the other, each of them checked."""
    until_s = world.loop.time() + seconds
    while world.loop.time() < until_s:
        await reduce_once(world, elements)
        await asyncio.sleep(pause_s)


async def reduce_once(world: World, elements: int = ELEMENTS) -> None:
    arrays = [np.full(elements, rank + 1, np.int64) for rank in range(len(world.communicators))]
    await asyncio.gather(*(one.all_reduce(x) for one, x in zip(world.communicators, arrays, strict=True)))
    total = sum(range(1, len(arrays) + 1))
    assert all((x == total).all() for x in arrays)


def epochs(world: World) -> list[int]:
    return [communicator.epoch for communicator in world.communicators]


def replans(world: World, rank: int) -> list[dict[str, Any]]:
    """The lines about new epochs in a rank's log, without their time."""
    return [dict(event.fields) for event in world.communicators[rank].events.since(0) if event.name == "replan"]


def fingerprints(world: World, rank: int) -> dict[int, tuple[int, str, str]]:
    """Of operations that ended lately: their fingerprint, in which the epoch is, and call."""
    return dict(world.communicators[rank]._coordinator.failing._finished)


def test_a_lost_nic_is_planned_around_by_all_from_one_operation_on_and_so_is_its_return() -> None:
    async def story(world: World) -> None:
        await reduce_for(world, 0.2)
        assert epochs(world) == [0, 0, 0]
        world.fabric.cut((1, 0))
        await reduce_for(world, 2.0)
        assert epochs(world) == [1, 1, 1]
        pictures = [one._epochs.newest._picture for one in world.communicators]
        assert pictures[0] == pictures[1] == pictures[2]
        assert [len(nics) for nics in pictures[0].nics] == [2, 1, 2]
        assert fingerprints(world, 0) == fingerprints(world, 1) == fingerprints(world, 2)
        world.fabric.restore((1, 0))
        await reduce_for(world, 3.0)
        assert epochs(world) == [2, 2, 2]
        assert [len(nics) for nics in world.communicators[0]._epochs.newest._picture.nics] == [2, 2, 2]
        told = [replans(world, rank) for rank in range(3)]
        assert [told[0][n]["first_operation"] for n in (0, 1)] == [told[2][n]["first_operation"] for n in (0, 1)]
        assert [one["cause"] for one in told[1]] == ["rank 1 nic0 carries nothing", "rank 1 nic0 10 Gbit/s"]

    simulate(story, ranks=3)


def test_a_nic_that_is_away_for_less_than_a_second_makes_nobody_plan_anew() -> None:
    async def story(world: World) -> None:
        await reduce_for(world, 0.2)
        world.fabric.cut((1, 0))
        await reduce_for(world, 0.5)
        world.fabric.restore((1, 0))
        await reduce_for(world, 2.0)
        assert epochs(world) == [0, 0, 0]
        assert all(one.stats()["agreement"] is None for one in world.communicators)

    simulate(story, ranks=3)


def test_what_nics_carry_is_measured_where_the_system_does_not_say_and_five_percent_change_nothing() -> None:
    async def story(world: World) -> None:
        await reduce_for(world, 3.0, 1_000_000, pause_s=0.0)
        assert len(set(epochs(world))) == 1
        known = epochs(world)[0]
        assert known >= 1
        pictures = [one._epochs.newest._picture for one in world.communicators]
        assert pictures[0] == pictures[1] == pictures[2]
        assert all(nic.bandwidth_bytes_s == pytest.approx(40e6, rel=0.25) for nics in pictures[0].nics for nic in nics)
        for factor in (0.95, 1.05):
            world.fabric.port((1, 0)).bandwidth_bytes_s = factor * 40e6
            await reduce_for(world, 1.2, 1_000_000, pause_s=0.0)
        assert epochs(world) == [known] * 3

    run_with(story, bandwidth_bytes_s=40e6)


def run_with(story: Any, **model: float) -> None:
    async def main() -> None:
        world = World(Shape(3, 2, settings=Settings(), model=Model(**model)))  # type: ignore[arg-type]
        await world.start()
        await story(world)
        await world.close()

    run(main())


def test_a_rank_that_was_away_delays_the_replan_and_no_operation() -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda one: one.new_group([0, 1]))
        world.fabric.cut((1, 0))
        world.fabric.freeze(2)
        before = called(groups[0])
        until_s = world.loop.time() + 3.0
        while world.loop.time() < until_s:
            x, y = np.ones(1000), np.ones(1000)
            await asyncio.sleep(0.01)
            await asyncio.gather(groups[0].all_reduce(x), groups[1].all_reduce(y))
        # The two agreed among themselves, in their group; with the third they cannot, and nothing waits for that.
        assert called(groups[0]) > before + 100
        assert [group.epoch for group in groups[:2]] == [1, 1]
        assert epochs(world)[:2] == [0, 0]
        waiting = world.communicators[0].stats()["agreement"]
        assert waiting["missing"] == (2,)
        assert waiting["held_from"] is None
        world.fabric.thaw(2)
        await asyncio.sleep(3.0)
        assert epochs(world) == [1, 1, 1]
        await reduce_once(world)

    simulate(story, ranks=3)


def test_a_communicator_that_is_made_later_hears_of_what_is_not_as_announced() -> None:
    async def story(world: World) -> None:
        world.fabric.cut((1, 0))
        await asyncio.sleep(2.0)
        groups = await together(world, lambda one: one.split(0, -one.rank))
        await asyncio.sleep(1.0)
        assert [group.epoch for group in groups] == [1, 1, 1]
        # The group's ranks go the other way round: its rank 1 is the job's.
        assert [len(nics) for nics in groups[0]._epochs.newest._picture.nics] == [2, 1, 2]

    simulate(story, ranks=3)


def test_operations_that_wait_for_the_outcome_of_a_proposal_start_when_it_is_known() -> None:
    async def story(world: World) -> None:
        one = world.communicators[1]
        agreement = one._epochs._agreement
        assert agreement is not None
        proposals: list[int] = []
        may_admit = agreement.may_admit

        def held_once(operation: int) -> bool:
            """As if this rank had promised to wait, until the others are that far."""
            if not proposals:
                proposals.append(operation)
            return operation < proposals[0] or is_known

        is_known = False
        one._epochs.may_admit = held_once  # type: ignore[method-assign]
        works = [other.all_reduce(np.ones(10)) for other in world.communicators]
        await asyncio.sleep(1.0)
        assert not any(work.done() for work in works)
        assert one.stats()["operations"] == {"called": 1, "running": 0, "waiting": 1}
        is_known = True
        assert may_admit(0)
        one._coordinator.start_waiting()
        for work in works:
            await work

    simulate(story, ranks=3)


def test_a_call_made_before_a_replan_and_started_after_it_is_planned_anew() -> None:
    async def story(world: World) -> None:
        world.fabric.cut((1, 0))
        running_max = world.shape.settings.running_max
        arrays = [[np.ones(50_000) for _ in range(400)] for _ in world.communicators]
        works = [
            [one.all_reduce(x) for x in mine] for one, mine in zip(world.communicators, arrays, strict=True)
        ]  # most of them wait for room
        assert called(world.communicators[0]) == 400 > running_max
        for mine in works:
            for work in mine:
                await work
        first = {rank: replans(world, rank)[0]["first_operation"] for rank in range(3)}
        assert first[0] == first[1] == first[2]
        assert 0 < first[0] < 400
        assert all((x == 3).all() for mine in arrays for x in mine)

    run_with(story, bandwidth_bytes_s=20e6)


def test_loopback_reports_no_bandwidth_but_that_a_nic_carries_nothing() -> None:
    async def story(world: World) -> None:
        runtime = world.runtimes[0]
        reports: list[bytes] = []
        runtime._nic_reports._tell = reports.append
        runtime._nic_reports._bandwidth = lambda port: 1e3  # type: ignore[method-assign]
        loopback = dataclasses.replace(runtime.ports[0].nic.endpoint, family="inet", host="127.0.0.1")
        for port in runtime.ports:
            port.nic = dataclasses.replace(port.nic, endpoint=loopback)
        runtime._nic_reports.look_closely()
        await reduce_for(world, 3.0)
        assert reports == []
        world.fabric.cut((0, 0))
        await asyncio.sleep(2.0)
        assert reports == [bytes([0, step_of(announced_bandwidth(world.members[0].nics[1])) + 1])]

    simulate(story)


def test_while_a_rank_is_cut_off_it_says_nothing_of_its_nics() -> None:
    async def story(world: World) -> None:
        for nic in (0, 1):
            world.fabric.cut((1, nic))
        await asyncio.sleep(3.0)
        for nic in (0, 1):
            world.fabric.restore((1, nic))
        await asyncio.sleep(3.0)
        assert epochs(world) == [0, 0]
        await reduce_once(world)

    simulate(story)


def test_looks_end_when_nothing_is_owed_and_nothing_is_about_to_change() -> None:
    async def story(world: World) -> None:
        await reduce_for(world, 0.5)
        await asyncio.sleep(3.0)
        assert [_timer(runtime._nic_reports) for runtime in world.runtimes] == [None, None]

    simulate(story)


def _timer(reports: NicReports) -> Any:
    return reports._timer


@pytest.mark.parametrize("one_sided", [False, True])
def test_flaps_while_operations_run_change_the_epoch_and_no_element(one_sided: bool) -> None:
    async def story(world: World) -> None:
        for _ in range(3):
            world.fabric.cut((2, 1))
            await reduce_for(world, 1.7, 20_000)
            world.fabric.restore((2, 1))
            await reduce_for(world, 2.9, 20_000)
        await asyncio.sleep(6.0)
        assert len(set(epochs(world))) == 1
        assert epochs(world)[0] >= 3

    simulate(story, ranks=4, one_sided=one_sided, quiet_max_s=0.5)
