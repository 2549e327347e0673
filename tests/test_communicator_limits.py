"""Where a communicator's bounds are: how far a rank may run ahead, and what counts towards a time-out."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from r2ccl import calls
from r2ccl.actors.work import Work
from r2ccl.errors import CollectiveTimeout
from r2ccl.planner.requests import CollectiveKind
from r2ccl.protocol.collective import prepare
from r2ccl.reduction import Op
from r2ccl.schedule.ir import Program, Receive
from r2ccl.sim.world import World
from tests.simulated import simulate


def test_a_call_that_waits_for_its_turn_times_out_counted_from_the_call() -> None:
    async def story(world: World) -> None:
        first, _ = world.communicators
        works = [first.all_reduce(np.ones(1000, np.float32), timeout=timeout) for timeout in (50.0, 50.0, 0.5)]
        began = world.clock.now()
        with pytest.raises(CollectiveTimeout) as caught:
            await works[2]
        assert caught.value.operation == 2
        assert world.clock.now() - began == pytest.approx(0.5, abs=0.01)
        assert not works[0].done()

    simulate(story, running_max=2, close_timeout_s=0.1)


@pytest.mark.parametrize("count", [0, 1])
def test_a_root_far_ahead_of_the_others_waits_for_them_and_keeps_little(count: int) -> None:
    calls = 20_000

    async def story(world: World) -> None:
        first, second = world.communicators
        sent = np.zeros(count, np.uint8)

        async def give() -> None:
            for _ in range(calls):
                await first.broadcast(sent, 0)

        giving = asyncio.ensure_future(give())
        await asyncio.sleep(1.0)
        runtime = world.runtimes[0]
        assert runtime.courier.unsettled < 5000
        got = np.zeros(count, np.uint8)
        for _ in range(calls):
            await second.broadcast(got, 0)
        await giving

    simulate(story)


@pytest.mark.parametrize("number", [np.float32, np.int64, np.float64, int])
def test_a_time_out_may_be_any_kind_of_number(number: type) -> None:
    async def story(world: World) -> None:
        work = world.communicators[0].barrier(timeout=number(1))
        async with asyncio.timeout(10):
            with pytest.raises(CollectiveTimeout):
                await work

    simulate(story, close_timeout_s=0.1)


def test_thousands_of_waiting_calls_that_end_as_they_begin_do_not_nest() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        works = [first.broadcast(np.ones(100_000), 0)]
        works += [first.broadcast(np.ones(1), 0) for _ in range(3000)]
        await asyncio.sleep(0.1)
        received = [second.broadcast(np.zeros(100_000), 0)]
        received += [second.broadcast(np.zeros(1), 0) for _ in range(3000)]
        for work in (*works, *received):
            await work

    simulate(story, running_max=1)


def test_pieces_of_a_thousand_ranks_that_wait_for_one_another_do_not_nest() -> None:
    ranks = 1200
    receives = tuple(
        Receive(0, source, 0, 1, reduce=True, received_first=False, after=(source - 2,) if source > 1 else ())
        for source in range(1, ranks)
    )
    waits = prepare(Program(0, 1, (), receives), 1)

    async def story(world: World) -> None:
        first = world.runtimes[0].coordinators[next(iter(world.runtimes[0].coordinators))]
        x = np.zeros(1, np.int64)
        asked = calls.in_place(CollectiveKind.ALL_REDUCE, x, Op.SUM, 0, True)
        planned = dataclasses.replace(
            world.communicators[0]._epochs.newest.plan(asked.call),
            waits=waits,
            send_spans=(),
            receive_spans=(((0, 8),),) * (ranks - 1),
            receive_arrays=(0,) * (ranks - 1),
            receive_pieces=((),) * (ranks - 1),
            operands=(None,) * (ranks - 1),
            bulky_sources=(),
            targets=(),
            exchange=None,
        )
        work = Work("all_reduce", x, world.runtimes[0].shared.thread)
        first.submit(planned, asked.arrays, work, 0.0)
        operation = first.running[0]
        one = memoryview(np.ones(1, np.int64).tobytes())
        for receive in reversed(range(ranks - 1)):
            first.whole_arrived(operation, receive, 0, one)
        await work
        assert x[0] == ranks - 1

    simulate(story, close_timeout_s=0.1)
