"""How long dials take and how long they wait."""

from __future__ import annotations

import itertools

from r2ccl.protocol.dial_patience import FRESH_SOCKETS, HURRIED_DIALS, DialPatience


def patience(dial_timeout_s: float = 1.0, redial_s: float = 0.2, redial_max_s: float = 30.0) -> DialPatience:
    return DialPatience(dial_timeout_s, redial_s, redial_max_s)


def test_a_link_that_has_a_route_is_dialled_with_equal_pauses() -> None:
    calm = patience()
    for _ in range(20):
        assert (calm.begin(), calm.pause_s(may_have_no_route=False)) == (1.0, 0.2)
        calm.failed()


def test_where_there_may_be_no_route_the_pause_doubles_up_to_its_limit_and_begins_anew() -> None:
    rare = patience(redial_max_s=1.0)
    for begin_anew in (rare.encourage, rare.hurry, rare.succeeded):
        pauses = []
        for _ in range(5):
            rare.failed()
            pauses.append(rare.pause_s(may_have_no_route=True))
        assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]
        begin_anew()
    for _ in range(5000):
        rare.failed()
    assert rare.pause_s(may_have_no_route=True) == 1.0


def test_a_limit_below_the_first_pause_is_that_pause() -> None:
    odd = patience(redial_s=2.0, redial_max_s=1.0)
    odd.failed()
    assert odd.pause_s(may_have_no_route=True) == 2.0


def test_hurried_dials_are_short_and_longer_in_turn_for_about_the_grace_time_and_never_longer_than_calm_ones() -> None:
    needed = patience()
    needed.hurry()
    times = []
    while needed.is_hurried:
        times.append(needed.begin())
    assert times == list(itertools.islice(itertools.cycle((0.2, 0.4, 0.8)), HURRIED_DIALS))
    assert sum(times) > 5.0
    assert needed.begin() == 1.0
    short = patience(dial_timeout_s=0.3)
    short.hurry()
    assert [short.begin(), short.begin()] == [0.2, 0.3]


def test_a_link_in_service_is_in_no_hurry() -> None:
    needed = patience()
    needed.hurry()
    needed.succeeded()
    assert not needed.is_hurried


def test_each_dial_has_its_own_fresh_sockets() -> None:
    keen = patience()
    for _ in range(2):
        keen.begin()
        assert [keen.try_again() for _ in range(FRESH_SOCKETS + 1)] == [1.0] * FRESH_SOCKETS + [None]
