"""One end of a link under test: its session, the time, and its newest timer."""

from __future__ import annotations

from r2ccl.protocol.nic_session import LinkState, NicSession, SessionTimes
from r2ccl.protocol.session_events import (
    BULK,
    CONTROL,
    AbortConnections,
    ArmTimer,
    Dial,
    Effect,
    Established,
    Event,
    TimerFired,
    Wanted,
    WentDown,
    Withdrawn,
)

TIMES = SessionTimes(dial_timeout_s=1.0, redial_s=0.2, quiet_s=0.25, quiet_max_s=2.0, stable_s=10.0)
ABSENT, DIALLING, PROBATION, UP, DOWN = LinkState
BULK_UP = Established(BULK, alone=False)
CONTROL_UP = Established(CONTROL, alone=False)


class Driver:
    """A session, the time, and the newest timer that it armed."""

    def __init__(self, dialler: bool, backup: bool = False) -> None:
        self.session = NicSession(dialler, TIMES, backup)
        self.now = 0.0
        self.armed = ArmTimer(0, 0.0)

    def tell(self, *events: Event) -> list[Effect]:
        """Some events, and the effects of all."""
        effects = [effect for event in events for effect in self.session.handle(event, self.now)]
        self.armed = next((effect for effect in reversed(effects) if isinstance(effect, ArmTimer)), self.armed)
        return effects

    def ring(self) -> list[Effect]:
        """The newest timer fires."""
        self.now += self.armed.delay_s
        return self.tell(TimerFired(self.armed.token))

    @property
    def state(self) -> LinkState:
        return self.session.state

    def connect(self, alone: bool = False) -> list[Effect]:
        """Both connections stand."""
        return self.tell(Established(CONTROL, alone), Established(BULK, alone))


def link_in(state: LinkState, dialler: bool) -> Driver:
    """A link that came to the state by a usual way: never lost before where it is new, lost once elsewhere."""
    link = Driver(dialler)
    if state is ABSENT or (state is DIALLING and not dialler):
        return link
    link.tell(Wanted())
    if state is DIALLING:
        return link
    link.connect()
    if state is UP:
        return link
    link.tell(Withdrawn("silence"))
    if state is PROBATION:
        if dialler:
            link.ring()
        link.connect()
    assert link.state is state
    return link


def lost(link: Driver, cause: str, was_up: bool = False) -> list[Effect]:
    """What every loss does."""
    told: list[Effect] = [AbortConnections()]
    told += [WentDown(cause)] if was_up else []
    return told + ([ArmTimer(link.armed.token, TIMES.redial_s)] if link.session.dialler else [])


def dialled(link: Driver, timeout_s: float = TIMES.dial_timeout_s) -> list[Effect]:
    return [Dial(), ArmTimer(link.armed.token, timeout_s)]
