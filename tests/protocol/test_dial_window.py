"""Few first dials at once, and none forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.dial_patience import CROWD_MAX, DialPatience, crowd
from r2ccl.protocol.dial_window import DIALS_MAX, DialWindow


def test_a_small_job_dials_everybody_at_once() -> None:
    window = DialWindow()
    assert all(window.admit((peer, 0)) for peer in range(DIALS_MAX))
    assert not window.over((0, 0))
    assert window.following() is None


def test_the_next_begins_when_one_is_over() -> None:
    window = DialWindow()
    admitted = [window.admit((peer, 0)) for peer in range(DIALS_MAX + 2)]
    assert admitted == [True] * DIALS_MAX + [False] * 2
    assert window.following() is None
    assert window.over((3, 0))
    assert window.following() == (DIALS_MAX, 0)
    assert window.admit((DIALS_MAX, 0))
    assert window.following() is None


def test_who_waits_already_does_not_wait_twice() -> None:
    window = DialWindow()
    for peer in range(DIALS_MAX):
        window.admit((peer, 0))
    assert not window.admit((99, 0))
    assert not window.admit((99, 0))
    window.over((0, 0))
    assert window.following() == (99, 0)
    assert window.following() is None


def test_the_end_of_a_dial_that_nobody_admitted_makes_no_room() -> None:
    window = DialWindow()
    for peer in range(DIALS_MAX + 1):
        window.admit((peer, 0))
    assert not window.over((77, 0))
    assert window.following() is None


@given(st.integers(1, 60), st.data())
def test_all_are_dialled_once_whatever_ends_first_and_whoever_does_not_want_any_more(
    ways: int, data: st.DataObject
) -> None:
    window, under_way, dialled = DialWindow(), [], []
    gone = data.draw(st.sets(st.integers(0, ways - 1)))

    def want(way: tuple[int, int]) -> None:
        if way[0] not in gone and window.admit(way):
            under_way.append(way)
            dialled.append(way)

    for peer in range(ways):
        want((peer, 0))
    while under_way:
        assert len(under_way) <= DIALS_MAX
        over = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        if window.over(over):
            while (following := window.following()) is not None:
                want(following)
    assert sorted(dialled) == [(peer, 0) for peer in range(ways) if peer not in gone]


def test_first_dials_of_a_crowd_take_longer_and_longer_up_to_a_limit() -> None:
    assert [crowd(ranks) for ranks in (1, 16, 64, 100_000)] == [1.0, 1.0, 4.0, CROWD_MAX]
    patience = DialPatience(dial_timeout_s=1.0, redial_s=0.2, redial_max_s=30.0)
    found = []
    for _ in range(4):
        found.append(patience.begin_first(crowd=3.0))
        patience.failed()
    assert found == [3.0, 6.0, 9.0, 9.0]
    assert patience.begin() == 1.0
    assert DialPatience(1.0, 0.2, 30.0).begin_first(crowd=1.0) == 1.0


def test_a_link_that_is_needed_at_once_is_hurried_also_in_a_crowd() -> None:
    patience = DialPatience(dial_timeout_s=1.0, redial_s=0.2, redial_max_s=30.0)
    patience.hurry()
    assert patience.begin_first(crowd=15.0) <= 1.0
