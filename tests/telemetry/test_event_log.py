"""The event log: bounded, numbered, one line per event."""

from __future__ import annotations

import json
import logging

import pytest

from r2ccl.telemetry.event_log import EventLog


class HandClock:
    """A clock that stands until it is set."""

    time_s = 0.0

    def now(self) -> float:
        return self.time_s


def test_an_event_reads_as_one_line() -> None:
    log = EventLog(HandClock())
    event = log.record("nic", nic="nic1", change="UP->DOWN", cause="carrier", op=412)
    assert str(event) == "nic=nic1 UP->DOWN cause=carrier op=412"


def test_a_change_says_in_which_epoch_and_operation_it_happened() -> None:
    log = EventLog(HandClock())
    log.moment = lambda: {"epoch": 7, "op": 412}
    change = log.record("nic", nic="nic1", change="UP->DOWN", cause="carrier", device="eth1")
    assert str(change) == "nic=nic1 UP->DOWN cause=carrier epoch=7 op=412 device=eth1"
    assert (change.fields["epoch"], change.fields["op"]) == (7, 412)
    assert str(log.record("lane", lane=1, change="A->B", link="x")) == "lane=1 A->B epoch=7 op=412 link=x"
    assert str(log.record("waiting", op=3)) == "waiting op=3"


def test_what_an_event_says_of_its_operation_itself_holds() -> None:
    log = EventLog(HandClock())
    log.moment = lambda: {"epoch": 7, "op": 412}
    assert str(log.record("x", change="A->B", cause="c", op=5)) == "x A->B cause=c epoch=7 op=5"


def test_a_name_that_no_field_repeats_comes_first() -> None:
    event = EventLog(HandClock()).record("failover", lane=3, gap_s=0.0123456789)
    assert str(event) == "failover lane=3 gap_s=0.0123457"


@pytest.mark.parametrize(
    ("value", "spelt"),
    [("two words", '"two words"'), ("a\nb", r'"a\nb"'), ('say "no"', r'"say \"no\""'), ("", '""'), (None, "None")],
)
def test_a_value_that_is_no_single_word_is_quoted(value: object, spelt: str) -> None:
    assert str(EventLog(HandClock()).record("x", cause=value)) == f"x cause={spelt}"


def test_a_field_may_be_called_name() -> None:
    assert str(EventLog(HandClock()).record("nic_found", name="eth0")) == "nic_found name=eth0"


def test_events_carry_the_clocks_time_and_are_numbered_from_one() -> None:
    clock = HandClock()
    log = EventLog(clock)
    assert log.last_sequence == 0
    log.record("first")
    clock.time_s = 2.5
    log.record("second")
    assert [(e.sequence, e.time_s, e.name) for e in log.since(0)] == [(1, 0.0, "first"), (2, 2.5, "second")]
    assert log.last_sequence == 2


def test_since_gives_only_what_is_newer() -> None:
    log = EventLog(HandClock())
    for index in range(5):
        log.record("beat", index=index)
    assert [e.sequence for e in log.since(3)] == [4, 5]
    assert log.since(5) == []
    assert log.since(99) == []


def test_a_full_log_drops_its_oldest_and_the_numbers_show_it() -> None:
    log = EventLog(HandClock(), capacity=3)
    for index in range(10):
        log.record("beat", index=index)
    assert len(log) == 3
    assert [e.sequence for e in log.since(0)] == [8, 9, 10]
    assert [e.sequence for e in log.since(9)] == [10]


def test_a_log_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps nothing"):
        EventLog(HandClock(), capacity=0)


def test_each_event_goes_to_the_logger_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(HandClock())
    with caplog.at_level(logging.INFO, logger="r2ccl"):
        log.record("nic", nic="nic0", change="DOWN->UP")
        log.record("laggards", level=logging.WARNING, ranks=[2, 3])
    assert caplog.record_tuples == [
        ("r2ccl", logging.INFO, "nic=nic0 DOWN->UP"),
        ("r2ccl", logging.WARNING, 'laggards ranks="[2, 3]"'),
    ]


def test_the_rank_stands_before_each_line_of_the_log_and_not_in_the_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog(HandClock(), rank=3)
    with caplog.at_level(logging.INFO, logger="r2ccl"):
        event = log.record("nic", nic="nic0", change="DOWN->UP")
    assert str(event) == "nic=nic0 DOWN->UP"
    assert caplog.messages == ["rank 3 nic=nic0 DOWN->UP"]


def test_a_trace_is_logged_where_the_log_is_open_that_far_and_never_kept(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(HandClock())
    log.moment = lambda: {"epoch": 0, "op": 1}
    with caplog.at_level(logging.INFO, logger="r2ccl"):
        log.trace("session", change="DOWN->DIALLING")
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG, logger="r2ccl"):
        log.trace("session", change="DOWN->DIALLING")
    assert caplog.record_tuples == [("r2ccl", logging.DEBUG, "session DOWN->DIALLING epoch=0 op=1")]
    assert len(log) == log.last_sequence == 0


def test_an_events_fields_cannot_be_changed_afterwards() -> None:
    event = EventLog(HandClock()).record("nic", nic="nic0")
    with pytest.raises(TypeError):
        event.fields["nic"] = "nic1"  # type: ignore[index]


def test_an_event_becomes_json() -> None:
    event = EventLog(HandClock()).record("lost", ranks=(1, 2), cause="dead", gap_s=0.5)
    assert json.loads(json.dumps(event.as_json())) == {
        "sequence": 1,
        "time_s": 0.0,
        "name": "lost",
        "fields": {"ranks": "(1, 2)", "cause": "dead", "gap_s": 0.5},
    }
