"""The life of one link: every event in every state, whole effect lists compared."""

from __future__ import annotations

import pytest

from r2ccl.protocol.nic_session import (
    BULK,
    CONTROL,
    AbortConnections,
    ArmTimer,
    CameUp,
    ConnectionFailed,
    Dial,
    Echoed,
    Effect,
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

TIMES = SessionTimes(dial_timeout_s=1.0, redial_s=0.2, quiet_s=0.25, quiet_max_s=2.0, stable_s=10.0)
ABSENT, DIALLING, PROBATION, UP, DOWN = LinkState
BULK_UP = Established(BULK, alone=False)
CONTROL_UP = Established(CONTROL, alone=False)


class Driver:
    """A session, the time, and the newest timer that it armed."""

    def __init__(self, dialler: bool) -> None:
        self.session = NicSession(dialler, TIMES)
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


def dialled(link: Driver) -> list[Effect]:
    return [Dial(), ArmTimer(link.armed.token, TIMES.dial_timeout_s)]


EVENTS: dict[str, Event] = {
    "wanted": Wanted(),
    "control stands": CONTROL_UP,
    "bulk stands": BULK_UP,
    "control failed": ConnectionFailed(CONTROL, "reset"),
    "bulk failed": ConnectionFailed(BULK, "reset"),
    "withdrawn": Withdrawn("silence"),
    "surrendered": Surrendered(),
    "encouraged": Encouraged(usable=True),
    "discouraged": Encouraged(usable=False),
    "left alone": LeftAlone(),
    "echoed": Echoed(),
    "timer": TimerFired(-1),
    "stale timer": TimerFired(-2),
}


def told(link: Driver, event: str) -> list[Effect]:
    return link.ring() if event == "timer" else link.tell(EVENTS[event])


#: What changes the state of a link that this end dials. All else does nothing.
DIALLER: dict[LinkState, dict[str, tuple[LinkState, str]]] = {
    ABSENT: {"wanted": (DIALLING, "dial"), "left alone": (DIALLING, "dial")},
    DIALLING: {
        "control failed": (DOWN, "lose"),
        "bulk failed": (DOWN, "lose"),
        "withdrawn": (DOWN, "lose"),
        "surrendered": (DIALLING, "lose and dial"),
        "encouraged": (DIALLING, "dial anew"),
        "timer": (DOWN, "lose"),
    },
    PROBATION: {
        "control stands": (DOWN, "lose"),
        "bulk stands": (DOWN, "lose"),
        "control failed": (DOWN, "lose"),
        "bulk failed": (DOWN, "lose"),
        "withdrawn": (DOWN, "lose"),
        "surrendered": (DIALLING, "lose and dial"),
        "left alone": (PROBATION, "wait for the echo"),
        "timer": (PROBATION, "wait for the echo"),
    },
    UP: {
        "control stands": (DOWN, "lose"),
        "bulk stands": (DOWN, "lose"),
        "control failed": (DOWN, "lose"),
        "bulk failed": (DOWN, "lose"),
        "withdrawn": (DOWN, "lose"),
        "surrendered": (DIALLING, "lose and dial"),
    },
    DOWN: {"encouraged": (DIALLING, "dial"), "left alone": (DIALLING, "dial"), "timer": (DIALLING, "dial")},
}
#: The same for a link that the peer dials. It is never DIALLING.
DIALLED: dict[LinkState, dict[str, tuple[LinkState, str]]] = {
    ABSENT: {},
    PROBATION: {
        event: (DOWN, "lose")
        for event in ("control stands", "bulk stands", "control failed", "bulk failed", "withdrawn", "surrendered")
    }
    | {"left alone": (PROBATION, "wait for the echo"), "timer": (PROBATION, "wait for the echo")},
    UP: {
        event: (DOWN, "lose")
        for event in ("control stands", "bulk stands", "control failed", "bulk failed", "withdrawn", "surrendered")
    },
    DOWN: {},
}
CAUSES = {
    "control stands": "replaced by the peer",
    "bulk stands": "replaced by the peer",
    "withdrawn": "silence",
    "surrendered": "a buffer was given back",
    "timer": "dial timed out",
}


def expected(link: Driver, was: LinkState, event: str, reaction: str) -> list[Effect]:
    token = link.armed.token
    match reaction:
        case "dial":
            return dialled(link)
        case "dial anew":
            return [AbortConnections(), *dialled(link)]
        case "lose":
            return lost(link, CAUSES.get(event, "reset"), was is UP)
        case "lose and dial":
            redial = ArmTimer(token - 1, TIMES.redial_s)
            return [*lost(link, CAUSES[event], was is UP)[:-1], redial, *dialled(link)]
        case "wait for the echo":
            return [ArmTimer(token, TIMES.dial_timeout_s)]
    return []


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    ("dialler", "state"),
    [*((True, state) for state in LinkState), *((False, state) for state in LinkState if state is not DIALLING)],
    ids=lambda value: value.value if isinstance(value, LinkState) else "dialler" if value else "dialled",
)
def test_every_event_in_every_state(dialler: bool, state: LinkState, event: str) -> None:
    link = link_in(state, dialler)
    table = DIALLER if dialler else DIALLED
    after, reaction = table[state].get(event, (state, ""))
    effects = told(link, event)
    assert link.state is after
    assert effects == expected(link, state, event, reaction)


@pytest.mark.parametrize("dialler", [True, False])
def test_the_first_time_two_standing_connections_are_enough(dialler: bool) -> None:
    link = Driver(dialler)
    link.tell(Wanted())
    assert link.tell(BULK_UP) == []
    assert link.tell(CONTROL_UP) == [CameUp()]
    assert (link.state, link.session.cause, link.session.flaps, link.session.incident) == (UP, "", 0, 0)


@pytest.mark.parametrize("dialler", [True, False])
@pytest.mark.parametrize("echo_first", [True, False])
def test_a_link_that_was_lost_must_echo_and_behave_for_the_quiet_time(dialler: bool, echo_first: bool) -> None:
    link = link_in(DOWN, dialler)
    assert (link.session.cause, link.session.incident) == ("silence", 1)
    if dialler:
        assert link.ring() == dialled(link)
    assert link.connect() == [SendEcho(), ArmTimer(link.armed.token, TIMES.quiet_s)]
    if echo_first:
        assert link.tell(Echoed()) == []
        assert link.ring() == [CameUp()]
    else:
        assert link.ring() == [ArmTimer(link.armed.token, TIMES.dial_timeout_s)]
        assert link.tell(Echoed()) == [CameUp()]
    assert (link.state, link.session.cause) == (UP, "")


def test_where_no_other_link_is_up_the_echo_alone_suffices() -> None:
    link = link_in(DOWN, dialler=True)
    link.ring()
    assert link.connect(alone=True) == [SendEcho(), ArmTimer(link.armed.token, TIMES.dial_timeout_s)]
    assert link.tell(Echoed()) == [CameUp()]


def test_a_link_on_probation_is_needed_at_once_when_the_last_other_is_lost() -> None:
    for echoed in (True, False):
        link = link_in(PROBATION, dialler=False)
        if echoed:
            assert link.tell(Echoed()) == []
            assert link.tell(LeftAlone()) == [CameUp()]
        else:
            assert link.tell(LeftAlone()) == [ArmTimer(link.armed.token, TIMES.dial_timeout_s)]
            assert link.tell(Echoed()) == [CameUp()]


@pytest.mark.parametrize("dialler", [True, False])
def test_an_echo_that_does_not_come_ends_the_probation(dialler: bool) -> None:
    link = link_in(PROBATION, dialler)
    link.ring()
    assert link.ring() == lost(link, "no echo")
    assert link.state is DOWN


def test_an_echo_of_an_earlier_probation_does_not_count() -> None:
    link = link_in(PROBATION, dialler=True)
    link.tell(Echoed(), ConnectionFailed(BULK, "reset"))
    link.ring()
    link.connect()
    assert link.ring() == [ArmTimer(link.armed.token, TIMES.dial_timeout_s)]
    assert link.state is PROBATION


def flap(link: Driver, up_for_s: float = 0.0) -> float:
    """Up, lost, dialled and on probation again; the quiet time that is asked for."""
    link.now += up_for_s
    link.tell(Withdrawn("silence"))
    link.ring()
    quiet = link.connect()[-1]
    assert isinstance(quiet, ArmTimer)
    assert link.tell(Echoed()) == []
    assert link.ring() == [CameUp()]
    return quiet.delay_s


def test_each_flap_doubles_the_quiet_time_up_to_a_limit_and_the_link_is_never_given_up() -> None:
    link = link_in(UP, dialler=True)
    assert [flap(link) for _ in range(6)] == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert {flap(link) for _ in range(2000)} == {TIMES.quiet_max_s}
    assert link.state is UP


def test_flaps_are_forgotten_after_a_stable_time_in_service() -> None:
    link = link_in(UP, dialler=True)
    assert [flap(link), flap(link)] == [0.25, 0.5]
    assert flap(link, up_for_s=TIMES.stable_s + 0.1) == 0.25
    assert flap(link, up_for_s=TIMES.stable_s - 0.1) == 0.5


def test_a_dial_that_fails_is_no_flap_and_the_first_success_still_needs_no_probation() -> None:
    link = Driver(dialler=True)
    link.tell(Wanted())
    for _ in range(5):
        link.tell(ConnectionFailed(CONTROL, "unreachable"))
        assert link.ring() == dialled(link)
    assert link.session.flaps == 0
    assert link.connect() == [CameUp()]


def test_only_a_link_that_was_up_tells_of_its_loss_and_counts_an_incident() -> None:
    link = link_in(PROBATION, dialler=True)
    assert link.session.incident == 1
    assert link.tell(ConnectionFailed(CONTROL, "reset")) == lost(link, "reset")
    assert link.session.incident == 1


def test_the_second_connection_of_a_lost_pair_fails_without_effect() -> None:
    link = link_in(UP, dialler=False)
    link.tell(ConnectionFailed(CONTROL, "reset"))
    assert link.tell(ConnectionFailed(BULK, "reset")) == []
    assert link.session.incident == 1


def test_half_a_pair_that_fails_is_ended_and_leaves_nothing_behind() -> None:
    link = Driver(dialler=False)
    link.tell(CONTROL_UP)
    assert link.tell(ConnectionFailed(CONTROL, "reset")) == lost(link, "reset")
    assert link.tell(BULK_UP) == []
    assert link.tell(CONTROL_UP) == [CameUp()], "never up before: no probation"


def test_a_peer_that_dials_anew_replaces_what_stands() -> None:
    link = link_in(UP, dialler=False)
    assert link.tell(CONTROL_UP) == lost(link, "replaced by the peer", was_up=True)
    assert link.tell(BULK_UP) == [SendEcho(), ArmTimer(link.armed.token, TIMES.quiet_s)]


@pytest.mark.parametrize("state", [UP, PROBATION])
def test_a_dialler_that_is_replaced_has_a_timer_and_so_does_not_wait_for_ever(state: LinkState) -> None:
    link = link_in(state, dialler=True)
    link.tell(CONTROL_UP)
    assert link.state is DOWN
    assert link.ring() == dialled(link)


def test_a_healthy_link_that_gave_a_buffer_back_returns_without_probation_or_flap() -> None:
    link = link_in(UP, dialler=True)
    assert link.tell(Surrendered()) == [
        AbortConnections(),
        WentDown("a buffer was given back"),
        ArmTimer(link.armed.token - 1, TIMES.redial_s),
        Dial(),
        ArmTimer(link.armed.token, TIMES.dial_timeout_s),
    ]
    assert link.connect() == [CameUp()]
    assert link.session.flaps == 0


def test_a_link_on_probation_that_gave_a_buffer_back_is_on_probation_again() -> None:
    link = link_in(PROBATION, dialler=True)
    link.tell(Surrendered())
    assert link.connect()[0] == SendEcho()


def test_who_does_not_dial_waits_for_the_peer_after_giving_a_buffer_back() -> None:
    link = link_in(UP, dialler=False)
    assert link.tell(Surrendered()) == [AbortConnections(), WentDown("a buffer was given back")]
    assert link.connect() == [CameUp()]


def test_a_buffer_given_back_on_a_nic_that_is_down_is_no_reason_to_dial() -> None:
    link = link_in(UP, dialler=True)
    link.tell(Encouraged(usable=False))
    assert link.tell(Surrendered()) == lost(link, "a buffer was given back", was_up=True)


def test_on_a_nic_that_is_down_the_timer_goes_on_and_nothing_is_dialled() -> None:
    link = link_in(UP, dialler=True)
    link.tell(Encouraged(usable=False), Withdrawn("carrier"))
    for _ in range(3):
        assert link.ring() == [ArmTimer(link.armed.token, TIMES.redial_s)]
    assert link.tell(LeftAlone()) == []
    assert link.tell(Encouraged(usable=True)) == dialled(link)


def test_a_dial_of_which_a_connection_stands_is_not_begun_anew() -> None:
    link = link_in(DIALLING, dialler=True)
    link.tell(CONTROL_UP)
    assert link.tell(Encouraged(usable=True)) == []
    assert link.tell(BULK_UP) == [CameUp()]


def test_whose_doing_the_latest_loss_was_is_remembered_whatever_dials_fail_after_it() -> None:
    link = link_in(UP, dialler=True)
    for event, by_peer in (
        (ConnectionFailed(BULK, "reset", by_peer=True), True),
        (Withdrawn("silence"), False),
        (Withdrawn("rank 1 gave it up", by_peer=True), True),
        (Surrendered(), False),
        (CONTROL_UP, True),
    ):
        link.tell(event)
        assert link.session.ended_by_peer is by_peer
        if link.state is DOWN:
            link.ring()
        link.tell(ConnectionFailed(CONTROL, "unreachable"))
        assert link.session.ended_by_peer is by_peer
        link.ring()
        link.connect()
        link.tell(Echoed())
        link.tell(LeftAlone())
        assert link.state is UP


def test_timers_of_the_past_are_ignored() -> None:
    link = link_in(UP, dialler=True)
    tokens = []
    for _ in range(3):
        link.tell(Withdrawn("silence"))
        tokens.append(link.armed.token)
        link.ring()
        tokens.append(link.armed.token)
        link.connect()
        tokens.append(link.armed.token)
        link.tell(Echoed())
        link.ring()
    assert link.state is UP
    for token in tokens:
        assert link.tell(TimerFired(token)) == []
