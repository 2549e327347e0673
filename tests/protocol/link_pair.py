"""The sessions of both ends of a link, joined by connections over a wire that dies and returns."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from r2ccl.protocol.nic_session import LinkState, NicSession, SessionTimes
from r2ccl.protocol.session_events import (
    CONTROL,
    AbortConnections,
    ArmTimer,
    CameUp,
    ConnectionFailed,
    Dial,
    Echoed,
    Established,
    Event,
    SendEcho,
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
    way_is_whole: bool = True
    ends: list[bool | None] = field(default_factory=lambda: [None, None])


class Pair:
    """Both ends. End 0 dials. ``alone``: no other link joins the two."""

    def __init__(self, alone: bool, backup: bool = False, wire: bool = True, ways: Sequence[bool] = ()) -> None:
        self.alone = alone
        self.now = 0.0
        self.wire = wire
        #: Of the sockets that are dialled from now on, in turn, whether each takes a way that is whole; then all do.
        self.ways = list(ways)
        self.dials: list[float] = []
        self.sessions = [NicSession(True, TIMES, backup), NicSession(False, TIMES, backup)]
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
                    self.dials.append(self.now)
                    for purpose in sorted(effect.purposes):
                        self.give_up_dial(purpose)
                        self.dial(Line(purpose, self.ways.pop(0) if self.ways else True))
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

    def give_up_dial(self, purpose: int) -> None:
        for line in [line for line in self.lines[0] if line.purpose == purpose]:
            assert line.ends[0] is None, "what stands is kept"
            line.ends[0] = False
            self.lines[0].remove(line)
            self.send(functools.partial(self.fail, 1, line))

    def dial(self, line: Line) -> None:
        self.lines[0].append(line)
        if line.way_is_whole:
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
