"""Refusals at the door: each is counted, few are told, and none of those untold is forgotten."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.sim.loop import SimClock, run
from r2ccl.telemetry.event_log import EventLog
from r2ccl.telemetry.strangers import LEFT, QUIET_S, WORDS_MAX, Refusals, Strangers


def test_the_first_of_each_reason_is_told_at_once_and_what_follows_is_counted() -> None:
    refusals = Refusals()
    assert refusals.refuse("garbage", 0.0)
    assert not refusals.refuse("garbage", 1.0)
    assert refusals.refuse("secret", 1.0)
    assert not refusals.refuse("garbage", 2.0)
    assert refusals.due_s == QUIET_S
    assert refusals.take_due(QUIET_S - 0.1) == {}
    assert refusals.take_due(QUIET_S) == {"garbage": 2}
    assert refusals.due_s is None


def test_after_a_count_was_told_it_is_quiet_again_and_after_a_quiet_time_the_next_is_told_at_once() -> None:
    refusals = Refusals()
    refusals.refuse("garbage", 0.0)
    refusals.refuse("garbage", 1.0)
    refusals.take_due(QUIET_S)
    assert not refusals.refuse("garbage", QUIET_S + 1)
    assert refusals.take_due(2 * QUIET_S) == {"garbage": 1}
    assert refusals.refuse("garbage", 3 * QUIET_S)


def test_one_that_comes_when_a_count_is_due_but_not_told_yet_is_counted_with_it() -> None:
    refusals = Refusals()
    refusals.refuse("garbage", 0.0)
    refusals.refuse("garbage", 1.0)
    assert not refusals.refuse("garbage", QUIET_S + 1)
    assert refusals.take_due(QUIET_S + 1) == {"garbage": 2}


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 30)), max_size=60))
def test_every_refusal_is_told_once_alone_or_in_a_count_and_lines_are_few(steps: list[tuple[str, float]]) -> None:
    refusals, now = Refusals(), 0.0
    told = {"a": 0, "b": 0, "c": 0}
    lines: dict[str, list[float]] = {"a": [], "b": [], "c": []}

    def tell(counted: dict[str, int]) -> None:
        for reason, number in counted.items():
            told[reason] += number
            lines[reason].append(now)

    for reason, pause_s in steps:
        now += pause_s
        tell(refusals.take_due(now))
        if refusals.refuse(reason, now):
            tell({reason: 1})
    for reason in lines:
        gaps = [late - early for early, late in zip(lines[reason], lines[reason][1:], strict=False)]
        assert all(gap >= QUIET_S for gap in gaps)
    tell(refusals.take_all())
    assert told == {reason: sum(step[0] == reason for step in steps) for reason in told}


def lines_of(events: EventLog) -> list[str]:
    return [str(event) for event in events.since(0)]


def test_a_flood_makes_one_line_and_then_one_with_the_number(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        events = EventLog(SimClock(loop))
        strangers = Strangers(loop, events)
        for _ in range(5000):
            strangers.refuse("garbage", "nic0", "192.0.2.9", "no message of ours")
        assert lines_of(events) == ['stranger refused=garbage at=nic0 by=192.0.2.9 says="no message of ours"']
        await asyncio.sleep(QUIET_S + 0.1)
        assert lines_of(events)[1:] == ["stranger refused=garbage more=4999"]
        await asyncio.sleep(10 * QUIET_S)
        strangers.close()
        assert len(events) == 2
        assert strangers.refused == {"garbage": 5000}

    with caplog.at_level(logging.INFO, "r2ccl"):
        run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_what_is_untold_at_the_end_is_told_then_and_no_timer_is_left() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        events = EventLog(SimClock(loop))
        strangers = Strangers(loop, events)
        for reason in ("secret", "secret", "slow", "secret"):
            strangers.refuse(reason, "nic1", "192.0.2.9", "x")
        strangers.close()
        strangers.close()
        assert lines_of(events)[2:] == ["stranger refused=secret more=2"]
        await asyncio.sleep(10 * QUIET_S)
        assert len(events) == 3

    run(main())


def test_what_happens_every_day_is_no_warning_and_long_words_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        strangers = Strangers(loop, EventLog(SimClock(loop)))
        strangers.refuse(LEFT, "nic0", "192.0.2.9", "x" * 9999)
        strangers.close()

    with caplog.at_level(logging.INFO, "r2ccl"):
        run(main())
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert len(record.message) < WORDS_MAX + 100
