"""The sessions of both ends of a link, joined by connections over a wire that dies and returns.

Whatever happened, a link whose wire is whole comes back into service at both ends, within a time that does not depend
on the story: no state is one to be stuck in.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r2ccl.protocol.dial_patience import FRESH_SOCKETS
from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.session_events import (
    BULK,
    CONTROL,
    ConnectionFailed,
    Encouraged,
    Event,
    LeftAlone,
    Surrendered,
    Withdrawn,
)
from tests.protocol.link_pair import HEALED_WITHIN_S, LATENCY_S, TIMES, Pair, both_up


def test_a_fresh_link_is_up_at_both_ends_after_a_round_trip() -> None:
    pair = Pair(alone=False)
    pair.run(2.5 * LATENCY_S)
    assert pair.history == [(LATENCY_S, 1, "CameUp"), (2 * LATENCY_S, 0, "CameUp")]


@pytest.mark.parametrize("end", [0, 1])
def test_a_link_that_one_end_gives_up_is_down_and_on_probation_at_both(end: int) -> None:
    pair = Pair(alone=False)
    pair.run(1.5)
    pair.tell(end, Withdrawn("silence"))
    pair.run(1.51)
    assert pair.states == [LinkState.DOWN, LinkState.DOWN]
    pair.run(1.75)
    assert pair.states == [LinkState.PROBATION, LinkState.PROBATION]
    pair.run(2.0)
    assert both_up(pair)


def test_where_the_link_is_the_only_one_it_is_back_as_soon_as_an_echo_is() -> None:
    pair = Pair(alone=True)
    pair.run(1.5)
    pair.tell(0, Withdrawn("silence"))
    pair.run(1.5 + TIMES.redial_s + 5 * LATENCY_S)
    assert both_up(pair)


@pytest.mark.parametrize("end", [0, 1])
def test_a_link_whose_end_was_given_up_while_the_wire_was_dead_comes_back(end: int) -> None:
    pair = Pair(alone=False)
    pair.run(1.5)
    pair.wire = False
    pair.tell(end, Withdrawn("silence"))
    pair.run(1.6)
    pair.wire = True
    pair.run(1.6 + HEALED_WITHIN_S)
    assert both_up(pair)


def test_a_wire_that_dies_on_probation_does_not_leave_the_link_there_for_ever() -> None:
    pair = Pair(alone=False)
    pair.run(1.5)
    pair.tell(0, Withdrawn("silence"))
    pair.run(1.5 + TIMES.redial_s + 1.5 * LATENCY_S)
    pair.wire = False
    pair.run(60.0)
    assert LinkState.PROBATION not in pair.states
    pair.wire = True
    pair.run(60.0 + HEALED_WITHIN_S)
    assert both_up(pair)


@pytest.mark.parametrize("end", [0, 1])
def test_a_buffer_given_back_costs_a_redial_and_at_the_other_end_a_probation(end: int) -> None:
    pair = Pair(alone=False)
    pair.run(1.5)
    pair.tell(end, Surrendered())
    pair.run(1.5 + TIMES.redial_s + TIMES.quiet_s + 0.05)
    assert both_up(pair)
    assert pair.sessions[end].flaps == 0


def test_a_notice_that_comes_after_the_link_is_back_costs_one_more_flap_and_no_more() -> None:
    pair = Pair(alone=False)
    pair.run(1.5)
    pair.tell(0, Withdrawn("silence"))
    pair.run(2.5)
    assert both_up(pair)
    pair.tell(1, Withdrawn("rank 0 gave it up"))
    pair.run(2.5 + HEALED_WITHIN_S)
    assert both_up(pair)
    assert [name for _, _, name in pair.history].count("WentDown") == 4


def test_a_backup_without_a_route_is_dialled_ever_more_rarely_and_nobody_hears_of_it() -> None:
    pair = Pair(alone=False, backup=True, wire=False)
    pair.run(3600.0)
    pauses = [late - early for early, late in itertools.pairwise(pair.dials)]
    expected = [TIMES.dial_timeout_s + min(TIMES.redial_s * 2**n, TIMES.redial_max_s) for n in range(len(pauses))]
    assert pauses == pytest.approx(expected)
    assert len(pair.dials) < 10 + 3600 / TIMES.redial_max_s
    assert pair.history == []


def test_a_backup_is_in_service_soon_after_its_route_appears_and_then_is_dialled_as_any_link() -> None:
    pair = Pair(alone=False, backup=True, wire=False)
    pair.run(600.0)
    pair.wire = True
    pair.run(600.0 + TIMES.redial_max_s + TIMES.dial_timeout_s)
    assert both_up(pair)
    pair.wire = False
    pair.tell(0, Withdrawn("silence"))
    pair.dials.clear()
    pair.run(pair.now + 60.0)
    assert len(pair.dials) == 60.0 // (TIMES.dial_timeout_s + TIMES.redial_s)


@pytest.mark.parametrize("event", [LeftAlone(), Encouraged(usable=True)])
def test_a_backup_that_is_needed_or_may_have_a_route_is_dialled_at_once_and_soon_again(event: Event) -> None:
    pair = Pair(alone=False, backup=True, wire=False)
    pair.run(605.0)
    assert pair.states[0] is LinkState.DOWN
    pair.dials.clear()
    pair.tell(0, event)
    assert pair.dials == [605.0]
    pair.run(608.0)
    assert len(pair.dials) >= 3


def test_of_a_dial_whose_sockets_take_different_ways_the_one_that_stands_is_kept() -> None:
    pair = Pair(alone=False, ways=[True, False, False, True])
    pair.run(2 * TIMES.dial_timeout_s + 3 * LATENCY_S)
    assert both_up(pair)
    assert pair.dials == [0.0, TIMES.dial_timeout_s, 2 * TIMES.dial_timeout_s]


def test_a_socket_that_stands_is_not_kept_for_ever() -> None:
    pair = Pair(alone=False, ways=[True, False, *[False] * FRESH_SOCKETS])
    pair.run((FRESH_SOCKETS + 1) * TIMES.dial_timeout_s + TIMES.redial_s / 2)
    assert pair.states[0] is LinkState.DOWN
    pair.run(pair.now + TIMES.redial_s)
    assert both_up(pair)


def is_back_within_the_grace_time(rng: random.Random) -> bool:
    """A link that is left alone, each of whose sockets takes one of two ways by chance, one of which is dead."""
    pair = Pair(alone=True)
    pair.run(1.0)
    pair.ways = [rng.random() < 0.5 for _ in range(40)]
    pair.tell(0, Withdrawn("silence"))
    pair.tell(0, LeftAlone())
    pair.run(1.0 + 5.0)
    return both_up(pair)


def test_of_two_links_that_are_left_alone_one_finds_the_way_that_is_whole_within_the_grace_time() -> None:
    rng = random.Random(1)
    for _ in range(50):
        assert any([is_back_within_the_grace_time(rng), is_back_within_the_grace_time(rng)])


HAPPENINGS: dict[str, Event] = {
    "withdrawn": Withdrawn("by decision"),
    "surrendered": Surrendered(),
    "carrier back": Encouraged(usable=True),
    "left alone": LeftAlone(),
    "control reset": ConnectionFailed(CONTROL, "reset"),
    "bulk reset": ConnectionFailed(BULK, "reset"),
}


def happen(pair: Pair, what: str, end: int) -> None:
    if what == "wire":
        pair.wire = not pair.wire
    elif what == "carrier gone":
        pair.tell(end, Encouraged(usable=False))
        pair.tell(end, Withdrawn("carrier"))
    elif what.endswith("reset"):
        purpose = CONTROL if what.startswith("control") else BULK
        line = next((line for line in pair.lines[end] if line.purpose == purpose), None)
        if line is not None:
            pair.fail(end, line)
    else:
        pair.tell(end, HAPPENINGS[what])


@settings(max_examples=300, deadline=None)
@given(
    alone=st.booleans(),
    backup=st.booleans(),
    story=st.lists(
        st.tuples(
            st.sampled_from(["wire", "carrier gone", *HAPPENINGS]),
            st.integers(0, 1),
            st.sampled_from([0.0, 0.0005, 0.001, 0.002, 0.1, 0.2, 0.201, 0.25, 0.5, 1.0, 1.2, 3.0]),
        ),
        max_size=25,
    ),
)
@example(alone=False, backup=False, story=[("wire", 0, 1.0), ("withdrawn", 1, 0.1), ("wire", 0, 3.0)])
def test_after_any_story_a_link_whose_wire_is_whole_is_up_at_both_ends_and_stays_up(
    alone: bool, backup: bool, story: list[tuple[str, int, float]]
) -> None:
    pair = Pair(alone, backup)
    for what, end, then_s in story:
        happen(pair, what, end)
        pair.run(pair.now + then_s)
    pair.wire = True
    for end in (0, 1):
        pair.tell(end, Encouraged(usable=True))
    pair.run(pair.now + HEALED_WITHIN_S)
    assert both_up(pair), pair.states
    told = len(pair.history)
    pair.run(pair.now + 20.0)
    assert len(pair.history) == told, pair.history[told:]
    assert all(len(lines) == 2 for lines in pair.lines)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*HAPPENINGS, "wire"]), st.integers(0, 1), st.floats(0, 2)), max_size=25))
def test_every_end_tells_of_coming_up_and_going_down_in_turn(story: list[tuple[str, int, float]]) -> None:
    pair = Pair(alone=False)
    for what, end, then_s in story:
        happen(pair, what, end)
        pair.run(pair.now + then_s)
    for end in (0, 1):
        told = [name for _, who, name in pair.history if who == end]
        assert told == ["CameUp", "WentDown"] * (len(told) // 2) + ["CameUp"] * (len(told) % 2)
        assert pair.sessions[end].incident == told.count("WentDown")
