"""The sessions of both ends of a link, joined by connections over a wire that dies and returns.

Whatever happened, a link whose wire is whole comes back into service at both ends, within a time that does not depend
on the story: no state is one to be stuck in.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r2ccl.protocol.nic_session import (
    BULK,
    CONTROL,
    AbortConnections,
    ArmTimer,
    CameUp,
    ConnectionFailed,
    Dial,
    Echoed,
    Encouraged,
    Established,
    Event,
    LeftAlone,
    LinkState,
    NicSession,
    SendEcho,
    SessionTimes,
    Surrendered,
    TimerFired,
    Wanted,
    WentDown,
    Withdrawn,
)

LATENCY_S = 0.001
SILENCE_S = 0.060
IDLE_BEAT_S = 1.0
TIMES = SessionTimes(dial_timeout_s=1.0, redial_s=0.2, quiet_s=0.25, quiet_max_s=2.0, stable_s=10.0)
#: A dial that just began on a dead wire, a redial, the longest quiet time, an echo that is missed, and once more.
HEALED_WITHIN_S = 2 * (TIMES.dial_timeout_s + TIMES.redial_s + TIMES.quiet_max_s + TIMES.dial_timeout_s) + IDLE_BEAT_S


@dataclass(slots=True, eq=False)
class Line:
    """One connection; per end whether it stands (None: not yet, False: no more)."""

    purpose: int
    ends: list[bool | None] = field(default_factory=lambda: [None, None])


class Pair:
    """Both ends. End 0 dials. ``alone``: no other link joins the two."""

    def __init__(self, alone: bool) -> None:
        self.alone = alone
        self.now = 0.0
        self.wire = True
        self.sessions = [NicSession(True, TIMES), NicSession(False, TIMES)]
        self.lines: list[list[Line]] = [[], []]
        self.history: list[tuple[float, int, str]] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for end in (0, 1):
            self.tell(end, Wanted())
            self.later(IDLE_BEAT_S, functools.partial(self.beat, end))

    @property
    def states(self) -> list[LinkState]:
        return [session.state for session in self.sessions]

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), what))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.now = until

    def send(self, what: Callable[[], None]) -> None:
        """Over the wire, if it lives now and then."""
        if self.wire:
            self.later(LATENCY_S, lambda: what() if self.wire else None)

    # What a port does.

    def tell(self, end: int, event: Event, line: Line | None = None) -> None:
        effects = self.sessions[end].handle(event, self.now)
        for effect in effects:
            if isinstance(effect, AbortConnections):
                self.abort(end, besides=line)
        for effect in effects:
            match effect:
                case Dial():
                    assert end == 0, "two pairs of connections must never compete"
                    for purpose in (CONTROL, BULK):
                        self.dial(Line(purpose))
                case SendEcho():
                    self.echo(end)
                case ArmTimer():
                    self.later(effect.delay_s, functools.partial(self.tell, end, TimerFired(effect.token)))
                case CameUp() | WentDown():
                    self.history.append((self.now, end, type(effect).__name__))

    def abort(self, end: int, besides: Line | None) -> None:
        for line in self.lines[end]:
            if line is not besides:
                line.ends[end] = False
                self.send(functools.partial(self.fail, 1 - end, line))
        self.lines[end] = [line for line in self.lines[end] if line is besides]

    def dial(self, line: Line) -> None:
        self.lines[0].append(line)
        self.send(lambda: self.accept(line))

    def accept(self, line: Line) -> None:
        line.ends[1] = True
        self.lines[1].append(line)
        self.tell(1, Established(line.purpose, self.alone), line)
        self.send(lambda: self.accepted(line))

    def accepted(self, line: Line) -> None:
        if line.ends[0] is False:
            self.send(lambda: self.fail(1, line))
            return
        line.ends[0] = True
        self.tell(0, Established(line.purpose, self.alone), line)

    def fail(self, end: int, line: Line) -> None:
        if line in self.lines[end]:
            self.lines[end].remove(line)
            line.ends[end] = False
            self.tell(end, ConnectionFailed(line.purpose, "reset"))

    def standing(self, end: int) -> Line | None:
        """The control connection, as this end sees it."""
        return next((line for line in self.lines[end] if line.purpose == CONTROL and line.ends[end]), None)

    def ask(self, end: int, line: Line, answer: Callable[[], None]) -> None:
        """Something on a connection: answered, or reset where the other end has it no more."""

        def arrive() -> None:
            self.send(answer if line.ends[1 - end] else lambda: self.fail(end, line))

        self.send(arrive)

    def echo(self, end: int) -> None:
        line = self.standing(end)
        if line is not None:
            self.ask(end, line, lambda: self.tell(end, Echoed()) if line in self.lines[end] else None)

    # What health does: only for links in service.

    def beat(self, end: int) -> None:
        self.later(IDLE_BEAT_S, lambda: self.beat(end))
        line = self.standing(end)
        if self.sessions[end].state is LinkState.UP and line is not None:
            heard = [False]

            def hear() -> None:
                heard[0] = True

            self.ask(end, line, hear)
            self.later(SILENCE_S, lambda: None if heard[0] else self.silence(end, line))

    def silence(self, end: int, line: Line) -> None:
        if line in self.lines[end] and self.sessions[end].state is LinkState.UP:
            self.tell(end, Withdrawn("silence"))


def both_up(pair: Pair) -> bool:
    return pair.states == [LinkState.UP, LinkState.UP]


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
    story=st.lists(
        st.tuples(
            st.sampled_from(["wire", "carrier gone", *HAPPENINGS]),
            st.integers(0, 1),
            st.sampled_from([0.0, 0.0005, 0.001, 0.002, 0.1, 0.2, 0.201, 0.25, 0.5, 1.0, 1.2, 3.0]),
        ),
        max_size=25,
    ),
)
@example(alone=False, story=[("wire", 0, 1.0), ("withdrawn", 1, 0.1), ("wire", 0, 3.0)])
def test_after_any_story_a_link_whose_wire_is_whole_is_up_at_both_ends_and_stays_up(
    alone: bool, story: list[tuple[str, int, float]]
) -> None:
    pair = Pair(alone)
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
