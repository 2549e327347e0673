"""The short way of tiny operations is a short cut: whoever looks afterwards cannot tell that it was taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.express import Express
from r2ccl.actors.operation import Operation
from r2ccl.errors import CollectiveMismatch, CollectiveTimeout, PeerLost
from r2ccl.protocol.wire import Header
from r2ccl.reduction import Op
from r2ccl.sim.world import World
from tests.simulated import simulate

Story = Callable[[World], Awaitable[None]]


class Taken:
    """Counts how often the short way was taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: bool = True) -> None:
        self.started = self.arrived = 0
        start, arrived = Express.start, Express.arrived

        def counted_start(express: Express, operation: Operation) -> bool:
            taken = allowed and start(express, operation)
            self.started += taken
            return taken

        def counted_arrived(express: Express, operation: Operation, header: Header, payload: memoryview) -> bool:
            taken = allowed and arrived(express, operation, header, payload)
            self.arrived += taken
            return taken

        monkeypatch.setattr(Express, "start", counted_start)
        monkeypatch.setattr(Express, "arrived", counted_arrived)


def books(world: World) -> list[Any]:
    """What ledgers, outboxes, lanes and counters of all ranks say."""
    pages: list[Any] = []
    for runtime in world.runtimes:
        for number, coordinator in sorted(runtime.coordinators.items()):
            ledger, inbox = coordinator.ledger, coordinator.inbox
            pages.append((number, ledger.completed, ledger.duplicates, sorted(coordinator.running), len(ledger._open)))
            pages.append((sorted(inbox.acks_owed), sorted(inbox.acks_wanted), sorted(inbox.parked)))
        for peer, outbox in runtime.courier.outboxes.items():
            sent = [
                [number, *sorted(pieces)]
                for operations in outbox._sent.values()
                for number, pieces in operations.items()
            ]
            pages.append((peer, sent, outbox.unsolicited_bytes, outbox.copies, outbox.copied_bytes))
            pages.append([outbox.entered_by_peer(number) for number in runtime.coordinators])
        for lanes in runtime.courier.lanes.values():
            pages.append([(lane.outstanding_bytes, lane.window_bytes, len(lane.outstanding)) for lane in lanes])
        counters = runtime.shared.counters.snapshot()
        pages.append((runtime.courier.unsettled, counters["total"], counters["parked_bytes"]))
    return pages


def played(
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[World, list[Any]], Awaitable[None]],
    allowed: bool,
    **settings: Any,
) -> tuple[list[Any], Taken]:
    """What the story notes, with the short way or without it."""
    notes: list[Any] = []
    with monkeypatch.context() as patch:
        taken = Taken(patch, allowed)

        async def noted(world: World) -> None:
            await story(world, notes)

        simulate(noted, **settings)
    return notes, taken


async def mixed(world: World, notes: list[Any]) -> None:
    """Lockstep, windows, one rank ahead of the other, sizes and ops, a cut link and its return; looked at all along."""

    async def operate(rank: int) -> None:
        comm = world.communicators[rank]
        for number in range(30):
            x = np.arange(1 + number % 5, dtype=np.float32 if number % 2 else np.int64) + rank
            await comm.all_reduce(x, (Op.SUM, Op.MAX, Op.AVERAGE)[number % 3] if number % 2 else Op.SUM)
            notes.append((world.clock.now(), rank, x.tolist(), books(world)))
        for round_ in range(4):
            if round_ % 2 == rank:
                await asyncio.sleep(0.05)
            values = [np.full(3, rank + 1, np.float64) for _ in range(70)]
            for work in [comm.all_reduce(x) for x in values]:
                await work
            notes.append((world.clock.now(), rank, [x.tolist() for x in values]))
        await comm.broadcast(np.zeros(4, np.int8), 1)
        await comm.all_reduce(np.zeros(0, np.float32))
        await comm.barrier()

    async def look() -> None:
        for tick in range(60):
            notes.append((world.clock.now(), books(world)))
            if tick == 10:
                world.fabric.cut((0, 0))
            if tick == 30:
                world.fabric.restore((0, 0))
            await asyncio.sleep(0.005)

    await asyncio.gather(operate(0), operate(1), look())
    notes.append(books(world))


def test_the_books_and_results_are_those_of_the_long_way_at_every_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    short, taken = played(monkeypatch, mixed, True)
    long, _ = played(monkeypatch, mixed, False)
    assert taken.started > 500
    assert taken.arrived > 200
    assert short == long


@pytest.mark.parametrize("settings", [{"running_max": 2}, {"credit_bytes": 64}, {"eager_bytes": 0}])
def test_also_where_there_is_hardly_any_room(monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]) -> None:
    short, _ = played(monkeypatch, mixed, True, **settings)
    long, _ = played(monkeypatch, mixed, False, **settings)
    assert short == long


def test_what_is_more_than_one_chunk_there_and_one_back_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)

    async def story(world: World) -> None:
        values = [np.full(2, rank, np.int32) for rank in range(4)]
        await asyncio.gather(*(comm.all_reduce(x) for comm, x in zip(world.communicators, values, strict=True)))
        assert [x.tolist() for x in values] == [[6, 6]] * 4

    simulate(story, ranks=4)
    assert taken.started == taken.arrived == 0


def test_hardware_that_writes_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)

    async def story(world: World) -> None:
        values = [np.full(2, rank, np.int32) for rank in range(2)]
        await asyncio.gather(*(comm.all_reduce(x) for comm, x in zip(world.communicators, values, strict=True)))
        assert values[0].tolist() == values[1].tolist() == [1, 1]

    simulate(story, one_sided=True)
    assert taken.started == taken.arrived == 0


def test_unlike_calls_are_named_on_both_ranks() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        x, y = np.ones(3, np.float32), np.ones(3, np.float32)
        for _ in range(3):
            await asyncio.gather(first.all_reduce(x), second.all_reduce(y))
        before = x.copy()
        for work in (first.all_reduce(x), second.all_reduce(y, Op.MAX)):
            with pytest.raises(CollectiveMismatch) as caught:
                await work
            assert caught.value.calls[0] == "all_reduce(float32[3], sum)"
            assert caught.value.calls[1] == "all_reduce(float32[3], max)"
        assert x.tolist() == before.tolist()

    simulate(story, close_timeout_s=0.1)


def test_what_nobody_answers_times_out_and_fails_what_comes_after_it() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        works = [first.all_reduce(np.ones(1, np.float32), timeout=timeout) for timeout in (2.0, 0.5, 3.0)]
        for work in works[1:]:
            with pytest.raises(CollectiveTimeout):
                await work
        assert world.clock.now() < 1.0
        # The operation before the one that failed ends well yet.
        await second.all_reduce(np.ones(1, np.float32))
        await works[0]

    simulate(story, close_timeout_s=0.1)


def test_limits_of_thousands_of_operations_need_one_timer() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        before = len(world.runtimes[0].shared.timers)
        works = [first.all_reduce(np.ones(1, np.float32), timeout=5.0 + number) for number in range(1000)]
        assert len(world.runtimes[0].shared.timers) <= before + 3
        for _ in range(1000):
            await second.all_reduce(np.ones(1, np.float32))
        for work in works:
            await work

    simulate(story)


def test_a_limit_that_is_nearer_than_those_before_it_comes_first_and_later_ones_come_too() -> None:
    async def story(world: World) -> None:
        first, _ = world.communicators
        began = world.clock.now()
        ended: list[float] = []

        async def wait(group: Any, limit_s: float) -> None:
            with pytest.raises(CollectiveTimeout):
                await group.all_reduce(np.ones(1, np.float32), timeout=limit_s)
            ended.append(round(world.clock.now() - began, 2))

        groups = [await first.new_group([0, 1]) for _ in range(3)]
        await asyncio.gather(*(wait(group, limit) for group, limit in zip(groups, (3.0, 1.0, 2.0), strict=True)))
        assert ended == [1.0, 2.0, 3.0]

    simulate(story, close_timeout_s=0.1)


def test_a_closed_group_leaves_no_timer() -> None:
    async def story(world: World) -> None:
        groups = [await comm.new_group([0, 1]) for comm in world.communicators]
        await asyncio.gather(*(group.all_reduce(np.ones(1), timeout=1000.0) for group in groups))
        await asyncio.sleep(30.0)
        before = len(world.runtimes[0].shared.timers)
        await asyncio.gather(*(group.close() for group in groups))
        await asyncio.sleep(30.0)
        assert len(world.runtimes[0].shared.timers) < before

    simulate(story)


def test_what_needs_a_member_that_has_closed_fails_at_once() -> None:
    async def story(world: World) -> None:
        groups = [await comm.new_group([0, 1]) for comm in world.communicators]
        await asyncio.gather(*(group.all_reduce(np.ones(1)) for group in groups))
        closing = asyncio.ensure_future(groups[1].close())
        await asyncio.sleep(0.1)
        began = world.clock.now()
        with pytest.raises(PeerLost) as caught:
            await groups[0].all_reduce(np.ones(1))
        assert caught.value.ranks == (1,)
        assert world.clock.now() - began < 0.1
        await closing

    simulate(story)


def test_after_the_limit_of_one_that_ended_well_those_of_later_ones_are_still_watched() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        began = world.clock.now()
        works = [first.all_reduce(np.ones(1, np.float32), timeout=limit_s) for limit_s in (1.0, 3.0)]
        await second.all_reduce(np.ones(1, np.float32))
        await works[0]
        async with asyncio.timeout(10.0):
            with pytest.raises(CollectiveTimeout):
                await works[1]
        assert world.clock.now() - began == pytest.approx(3.0, abs=0.01)

    simulate(story, close_timeout_s=0.1)
