"""What a rank keeps is found wherever it hangs, and under its name."""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np

from r2ccl.actors.timers import Timers
from r2ccl.protocol.ledger import Ledger
from r2ccl.sim.census import census
from r2ccl.sim.world import World
from r2ccl.telemetry.event_log import EventLog
from tests.simulated import simulate, together


def test_entries_are_counted_by_class_and_attribute_through_slots_and_collections():
    ledger, other = Ledger(), Ledger()
    ledger._spoiled.update({(1, 2, 3, 4): 1, (1, 2, 3, 5): 1})
    other._finished.add(7)
    found = census([{"a": [ledger], "b": (other,)}])
    assert found["Ledger._spoiled"] == 2
    assert found["Ledger._finished"] == 1


def test_what_is_bounded_by_what_it_is_counts_as_nothing_with_all_that_is_in_it():
    class Clock:
        def now(self) -> float:
            return 0.0

    log = EventLog(Clock())
    for number in range(5):
        log.record("thing", number=number)
    found = census([log])
    assert "EventLog._events" not in found
    assert "Event.fields" not in found


def test_an_object_is_counted_once_and_cycles_end():
    ledger = Ledger()
    ledger._spoiled[1, 2, 3, 4] = 1
    ring: deque[object] = deque([ledger, ledger])
    ring.append(ring)
    assert census([ring, ledger])["Ledger._spoiled"] == 1


def test_a_leak_in_a_runtime_is_seen_from_outside():
    async def story(world: World) -> None:
        async def reduce(comm: object) -> None:
            await comm.all_reduce(np.ones(100))  # type: ignore[attr-defined]

        await together(world, reduce)
        await asyncio.sleep(1.0)
        before = census(world.runtimes)
        desk = world.runtimes[0].desk
        desk._retired.update(dict.fromkeys(range(50)))
        after = census(world.runtimes)
        assert after["ArrivalsDesk._retired"] == before["ArrivalsDesk._retired"] + 50
        assert {name for name in after if after[name] - before[name] > 5} == {"ArrivalsDesk._retired"}

    simulate(story)


def test_timers_that_wait_are_counted():
    async def main() -> int:
        timers = Timers(asyncio.get_running_loop())
        for _ in range(3):
            timers.after(10.0, lambda: None)
        found = census([timers])["Timers._waiting"]
        timers.cancel_all()
        return found

    assert asyncio.run(main()) == 3
