"""A link that flaps for an hour, or is gone for days: it always comes back, and soon. Two sessions on virtual time."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from r2ccl.protocol.nic_session import LinkState, NicSession, SessionTimes
from r2ccl.protocol.session_events import (
    BULK,
    CONTROL,
    ArmTimer,
    Dial,
    Echoed,
    Effect,
    Established,
    Event,
    SendEcho,
    TimerFired,
    Wanted,
    Withdrawn,
)

TIMES = SessionTimes(dial_timeout_s=1.0, redial_s=0.2, quiet_s=0.05, quiet_max_s=60.0, stable_s=10.0)
ROUND_TRIP_S = 0.001
#: From the moment that a cable is whole until a link that had been lost once in a long time is up.
BACK_WITHIN_S = TIMES.redial_s + TIMES.quiet_s + 0.1


class Cable:
    """The dialling end of a link whose cable is whole or not, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.session = NicSession(True, TIMES)
        self.is_whole = True
        self.dials = 0
        self.up_s = 0.0
        self._up_since_s = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Event]] = []
        self.tell(Wanted())

    def tell(self, event: Event) -> None:
        was = self.session.state
        effects = self.session.handle(event, self.now)
        if self.session.state is not was and LinkState.UP in (was, self.session.state):
            if was is LinkState.UP:
                self.up_s += self.now - self._up_since_s
            self._up_since_s = self.now
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, ArmTimer):
            self._later(effect.delay_s, TimerFired(effect.token))
        elif isinstance(effect, Dial):
            self.dials += 1
            if self.is_whole:
                self._later(ROUND_TRIP_S, Established(CONTROL, alone=False))
                self._later(ROUND_TRIP_S, Established(BULK, alone=False))
        elif isinstance(effect, SendEcho) and self.is_whole:
            self._later(ROUND_TRIP_S, Echoed())

    def _later(self, delay_s: float, event: Event) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), event))

    def run(self, for_s: float) -> None:
        until_s = self.now + for_s
        while self._due and self._due[0][0] <= until_s:
            self.now, _, event = heapq.heappop(self._due)
            if self.is_whole or isinstance(event, TimerFired):
                self.tell(event)
        self.now = until_s

    def until_up(self) -> float:
        began_s = self.now
        while self.session.state is not LinkState.UP:
            self.run(0.01)
        return self.now - began_s

    def cut(self, for_s: float) -> None:
        self.is_whole = False
        self.tell(Withdrawn("silence"))
        self.run(for_s)
        self.is_whole = True


@pytest.mark.parametrize("seed", range(5))
def test_in_an_hour_of_flaps_now_and_then_the_link_is_up_nearly_all_the_time(seed: int) -> None:
    rng = random.Random(seed)
    cable, whole_s = Cable(), 0.0
    cable.run(1.0)
    while cable.now < 3600:
        cable.cut(rng.uniform(0.01, 2.0))
        serves_s = rng.uniform(20.0, 120.0)
        cable.run(serves_s)
        whole_s += serves_s
    cable.cut(0.5)
    assert cable.until_up() < BACK_WITHIN_S + TIMES.dial_timeout_s
    assert cable.up_s > 0.97 * whole_s


def test_a_link_that_flaps_twice_a_second_for_an_hour_serves_most_of_the_time_and_is_back_at_once() -> None:
    cable = Cable()
    cable.run(1.0)
    up_before_s, flaps = cable.up_s, 3600 * 2
    for _ in range(flaps):
        cable.cut(0.1)
        cable.run(0.4)
    # Of 0.4 s the quiet time, and on average what is left of the period between dials.
    assert cable.up_s - up_before_s > 0.5 * 0.4 * flaps
    assert cable.until_up() < BACK_WITHIN_S


def test_flaps_that_come_faster_than_a_link_can_serve_are_waited_out_ever_longer_and_not_for_ever() -> None:
    cable = Cable()
    cable.run(1.0)
    losses = []
    for _ in range(30):
        cable.until_up()
        cable.run(0.02)
        cable.cut(0.02)
        losses.append(cable.now)
    gaps = [late - early for early, late in itertools.pairwise(losses)]
    assert gaps[0] < 1.0
    assert max(gaps) < TIMES.quiet_max_s + 2.0
    assert gaps[-1] > TIMES.quiet_max_s - 1.0
    cable.until_up()
    cable.run(TIMES.stable_s + 1.0)
    cable.cut(0.1)
    assert cable.until_up() < BACK_WITHIN_S + TIMES.dial_timeout_s


def test_a_link_that_is_gone_for_two_days_is_never_given_up() -> None:
    cable = Cable()
    cable.run(1.0)
    days_s = 2 * 24 * 3600.0
    cable.cut(days_s)
    # Each dial takes its time, and then a redial is waited for.
    assert cable.dials > 0.9 * days_s / (TIMES.dial_timeout_s + TIMES.redial_s)
    assert cable.until_up() < BACK_WITHIN_S + TIMES.dial_timeout_s
