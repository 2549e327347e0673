"""What a link goes through: first use, loss, probation, flaps, replacement, surrender."""

from __future__ import annotations

import pytest

from r2ccl.protocol.flaps import EARNED
from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.session_events import (
    BULK,
    CONTROL,
    AbortConnections,
    ArmTimer,
    CameUp,
    ConnectionFailed,
    Dial,
    Dismissed,
    Echoed,
    Encouraged,
    LeftAlone,
    SendEcho,
    Surrendered,
    TimerFired,
    Wanted,
    WentDown,
    Withdrawn,
)
from tests.protocol.link_driver import (
    BULK_UP,
    CONTROL_UP,
    DIALLING,
    DOWN,
    PROBATION,
    TIMES,
    UP,
    Driver,
    dialled,
    link_in,
    lost,
)


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
    assert [flap(link), flap(link)] == [1.0, 2.0]
    assert flap(link, up_for_s=TIMES.stable_s + 0.1) == 0.25


def test_a_link_that_served_for_several_times_its_quiet_time_has_earned_it_and_one_doubling_is_forgotten() -> None:
    link = link_in(UP, dialler=True)
    assert [flap(link), flap(link), flap(link)] == [0.25, 0.5, 1.0]
    assert flap(link, up_for_s=EARNED * 1.0 + 0.01) == 1.0
    assert flap(link, up_for_s=EARNED * 1.0 - 0.01) == 2.0
    link = link_in(UP, dialler=True)
    assert [flap(link, up_for_s=1.0) for _ in range(50)] == [0.25] * 50


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
    assert link.tell(Encouraged(usable=True)) == dialled(link, TIMES.redial_s)


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


def test_who_does_not_dial_does_not_begin_to_when_a_timer_of_its_probation_fires_late() -> None:
    link = link_in(PROBATION, dialler=False)
    link.tell(ConnectionFailed(CONTROL, "reset"))
    assert link.ring() == []
    assert link.state is DOWN


def test_a_link_that_is_left_alone_is_dialled_without_a_pause_until_it_is_up_and_then_as_any_other() -> None:
    link = link_in(DOWN, dialler=True)
    assert link.tell(LeftAlone()) == dialled(link, TIMES.redial_s)
    for doubled in (2, 4, 1):
        assert link.ring() == [AbortConnections(), *dialled(link, doubled * TIMES.redial_s)]
    link.connect(alone=True)
    link.tell(Echoed())
    assert link.state is UP
    link.tell(Withdrawn("silence"))
    assert link.ring() == dialled(link)
    assert link.ring() == lost(link, "dial timed out")


@pytest.mark.parametrize("state", [DIALLING, PROBATION, UP, DOWN])
def test_a_dismissed_link_is_dialled_again_only_when_it_is_left_alone(state: LinkState) -> None:
    link = link_in(state, dialler=True)
    link.tell(Dismissed("not needed"))
    assert link.ring() == []
    assert link.state is DOWN
    assert link.tell(LeftAlone())[0] == Dial()


def test_a_dismissed_link_counts_its_loss_and_must_echo_before_it_is_up_again() -> None:
    link = link_in(UP, dialler=False)
    link.tell(Dismissed("not needed"))
    assert (link.session.incident, link.session.ended_by_peer) == (1, False)
    link.connect(alone=True)
    assert link.state is PROBATION
    link.tell(Echoed())
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
