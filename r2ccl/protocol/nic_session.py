"""The life of one link: dialled, tried, in service, lost, and let in again.

Theory of operation. Exactly one end dials a link (the lower rank), so that two fresh pairs of connections never
compete. A link has a control and a bulk connection; it is in service when both stand. The first time that is enough.
A link that was lost comes back *half-open*: on probation it carries an echo but no share, and only after the echo
came home and a quiet time passed does it go UP. The quiet time doubles each time the link is lost again soon after it
had come back, so a flapping link costs little, and it is limited, so a link is never given up. Soon is measured by the
wait itself: a link that then served for several times as long has earned it, and one doubling is forgotten; so however
often a link flaps, its quiet times take a small part of the time in which it is whole, and a link that serves for
seconds between flaps waits no longer than at the first. After long service all is forgotten. Where no other link to
the peer is up, or none is left while this one waits, there is nothing to protect by waiting: the echo alone suffices.

A *backup* is a link across rails, for which there may be no route at all: until it was in service once, it is dialled
ever more rarely, and nobody hears of it. A link that is left alone is dialled ever anew in quick succession, for a
while. See ``dial_patience``.

Nothing is waited for without a limit. The end that dials has a timer in every state but ABSENT and UP; the other end
has one on probation, where nobody else watches the link, and else is moved on by the peer's dialling.

    state       what may happen                     -> state
    ABSENT      wanted                              DIALLING, or waits to be dialled; DOWN while our NIC is
    DIALLING    both connections stand              UP (first time), PROBATION (after a loss)
                time is up, and one stands          DIALLING: the other with a fresh socket, a few times
                time is up, and left alone lately   DIALLING: both with fresh sockets, a number of times
                a connection fails, time is up      DOWN
    PROBATION   echoed, and quiet or left alone     UP
                a connection fails, no echo, ...    DOWN
    UP          a connection fails, silence, NIC
                down here or there                  DOWN
    DOWN        redial timer, encouraged, left alone  DIALLING
                the peer dials                      as DIALLING
    any         dismissed                           DOWN, and no timer: only one that is left alone dials again

What is lost is told upward once (``WentDown``); what to do about it is not decided here. Timers are effects and carry a
token; a stale one is ignored, never cancelled.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from r2ccl.protocol.dial_patience import DialPatience
from r2ccl.protocol.flaps import Flaps
from r2ccl.protocol.session_events import (
    BOTH,
    AbortConnections,
    ArmTimer,
    CameUp,
    ConnectionFailed,
    Dial,
    Dismissed,
    Echoed,
    Effect,
    Encouraged,
    Established,
    Event,
    LeftAlone,
    SendEcho,
    Surrendered,
    TimerFired,
    Wanted,
    WentDown,
    Withdrawn,
)

#: The cause that a surrendered link gives.
SURRENDERED = "a buffer was given back"


class LinkState(enum.Enum):
    """See the table above."""

    ABSENT = "absent"
    DIALLING = "dialling"
    PROBATION = "probation"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """The periods that a session needs, in seconds (see config)."""

    dial_timeout_s: float
    redial_s: float
    quiet_s: float
    quiet_max_s: float
    stable_s: float
    #: Limit of the doubling period between dials of a backup that was never in service. A route that appears, such as a
    #: router that is back, is used half a minute later at the latest; one that never does costs two packets a minute.
    redial_max_s: float = 30.0
    #: See ``dial_patience.crowd``.
    crowd: float = 1.0


class NicSession:
    """The machine for one link. ``dialler``: this end dials. ``backup``: there may be no route."""

    __slots__ = (
        "_echoed",
        "_flaps",
        "_patience",
        "_quiet_over",
        "_standing",
        "_timer",
        "_trusted",
        "_up_since_s",
        "backup",
        "cause",
        "dialler",
        "ended_by_peer",
        "incident",
        "served",
        "state",
        "times",
        "usable",
    )

    def __init__(self, dialler: bool, times: SessionTimes, backup: bool = False) -> None:
        self.dialler = dialler
        self.backup = backup
        self.times = times
        self.state = LinkState.ABSENT
        #: Why it is down; empty when it is not.
        self.cause = ""
        #: The latest incident was the peer's doing, so the peer need not be told of it.
        self.ended_by_peer = False
        #: Our own NIC is up, as far as we know. While it isn't, dialling is pointless.
        self.usable = True
        #: How often the link was taken out of service. A notice names it, so that an old one is recognised.
        self.incident = 0
        #: It was in service once: the path exists, and whoever answers there is the peer's kernel.
        self.served = False
        #: The next establishment needs no probation: first time, or surrendered while healthy.
        self._trusted = True
        #: Purposes whose connection stands.
        self._standing: frozenset[int] = frozenset()
        self._echoed = False
        self._quiet_over = False
        self._up_since_s = 0.0
        self._timer = 0
        self._flaps = Flaps(times.quiet_s, times.quiet_max_s, times.stable_s)
        self._patience = DialPatience(times.dial_timeout_s, times.redial_s, times.redial_max_s)

    @property
    def flaps(self) -> int:
        """Losses in a row, each soon after the link had come back."""
        return self._flaps.count

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The only door. Total: every event is meaningful, or harmless, in every state."""
        match event:
            case Wanted():
                return self._wanted()
            case Established():
                return self._established(event, now)
            case ConnectionFailed() | Withdrawn():
                return self._gone(event.cause, now, event.by_peer)
            case Surrendered():
                return self._surrendered(now)
            case Dismissed():
                return self._dismissed(event, now)
            case Encouraged():
                return self._encouraged(event)
            case LeftAlone():
                return self._left_alone(now)
            case Echoed():
                self._echoed = True
                return self._leave_probation(now)
            case TimerFired():
                return self._timer_fired(event, now)

    def _wanted(self) -> list[Effect]:
        if self.state is not LinkState.ABSENT or not self.dialler:
            return []
        if self.usable:
            return self._dial()
        self.state = LinkState.DOWN
        return [self._arm(self.times.redial_s)]

    def _dial(self) -> list[Effect]:
        self.state = LinkState.DIALLING
        self._standing = frozenset()
        timeout_s = self._patience.begin() if self.served else self._patience.begin_first(self.times.crowd)
        return [Dial(), self._arm(timeout_s)]

    def _arm(self, delay_s: float) -> ArmTimer:
        self._timer += 1
        return ArmTimer(self._timer, delay_s)

    def _established(self, event: Established, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if event.purpose in self._standing:
            # The peer dialled anew, so to it the connection that we hold is gone.
            effects += self._lose("replaced by the peer", now, by_peer=True)
        self._standing |= {event.purpose}
        if self._standing != BOTH or self.state in (LinkState.UP, LinkState.PROBATION):
            return effects
        if self._trusted:
            return [*effects, self._go_up(now)]
        self.state = LinkState.PROBATION
        self._echoed = False
        self._quiet_over = event.alone
        return [*effects, SendEcho(), self._arm(self._probation_period_s())]

    def _probation_period_s(self) -> float:
        return self.times.dial_timeout_s if self._quiet_over else self._flaps.quiet_s

    def _go_up(self, now: float) -> Effect:
        self.state = LinkState.UP
        self.cause = ""
        self._trusted = False
        self.served = True
        self._patience.succeeded()
        self._up_since_s = now
        self._timer += 1
        return CameUp()

    def _leave_probation(self, now: float) -> list[Effect]:
        if self.state is LinkState.PROBATION and self._echoed and self._quiet_over:
            return [self._go_up(now)]
        return []

    def _gone(self, cause: str, now: float, by_peer: bool) -> list[Effect]:
        """A connection failed, or the link is out of service by decision; nothing to do if there is no link."""
        if self.state in (LinkState.ABSENT, LinkState.DOWN) and not self._standing:
            return []
        return self._lose(cause, now, by_peer)

    def _lose(self, cause: str, now: float, by_peer: bool = False) -> list[Effect]:
        was = self.state
        if was is LinkState.UP:
            self._flaps.served(now - self._up_since_s)
        if was in (LinkState.UP, LinkState.PROBATION):
            self._flaps.count += 1
            self._trusted = False
        elif was is LinkState.DIALLING:
            self._patience.failed()
        self.state = LinkState.DOWN
        self.cause = cause
        self._standing = frozenset()
        self._timer += 1  # one that was armed on probation must not fire here
        effects: list[Effect] = [AbortConnections()]
        if was is LinkState.UP:
            self.incident += 1
            self.ended_by_peer = by_peer
            effects.append(WentDown(cause))
        if self.dialler:
            effects.append(self._arm(self._patience.pause_s(self.backup and not self.served)))
        return effects

    def _surrendered(self, now: float) -> list[Effect]:
        if self.state in (LinkState.ABSENT, LinkState.DOWN) and not self._standing:
            return []
        was_up = self.state is LinkState.UP
        flaps = self.flaps
        effects = self._lose(SURRENDERED, now)
        if was_up:
            self._flaps.count = flaps
            self._trusted = True
        return [*effects, *(self._dial() if self.dialler and self.usable else [])]

    def _dismissed(self, event: Dismissed, now: float) -> list[Effect]:
        effects = self._gone(event.cause, now, by_peer=False)
        self._timer += 1  # also one that was armed before
        return [effect for effect in effects if not isinstance(effect, ArmTimer)]

    def _encouraged(self, event: Encouraged) -> list[Effect]:
        self.usable = event.usable
        if not event.usable or not self.dialler:
            return []
        self._patience.encourage()
        if self.state is LinkState.DOWN:
            return self._dial()
        if self.state is LinkState.DIALLING and not self._standing:
            # The first packets of this dial may have gone into the dead cable, and the kernel sends them again a second
            # later.
            return [AbortConnections(), *self._dial()]
        return []

    def _left_alone(self, now: float) -> list[Effect]:
        if self.state is LinkState.PROBATION:
            self._quiet_over = True
            return self._leave_probation(now) or [self._arm(self.times.dial_timeout_s)]
        if self.state is not LinkState.UP:
            self._patience.hurry()
        if self.dialler and self.usable and self.state in (LinkState.ABSENT, LinkState.DOWN):
            return self._dial()
        return []

    def _timer_fired(self, event: TimerFired, now: float) -> list[Effect]:
        if event.token != self._timer:
            return []
        if self.state is LinkState.DOWN:
            if self.usable:
                return self._dial()
            return [self._arm(self.times.redial_s)]
        if self.state is LinkState.DIALLING:
            return self._dial_timed_out(now)
        if self.state is LinkState.PROBATION:
            return self._probation_timer(now)
        return []

    def _dial_timed_out(self, now: float) -> list[Effect]:
        timeout_s = self._patience.try_again() if self._standing else None
        if timeout_s is not None:
            return [Dial(BOTH - self._standing), self._arm(timeout_s)]
        if self._patience.is_hurried:
            return [AbortConnections(), *self._dial()]
        return self._lose("dial timed out", now)

    def _probation_timer(self, now: float) -> list[Effect]:
        """Quiet for long enough; or, if that was over before, no echo for as long as a dial may take."""
        if self._quiet_over and not self._echoed:
            return self._lose("no echo", now)
        self._quiet_over = True
        return self._leave_probation(now) or [self._arm(self.times.dial_timeout_s)]
