"""Who has to go when a listener's room is full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.doorkeeper import Doorkeeper


def test_while_there_is_room_nobody_has_to_go() -> None:
    door: Doorkeeper[int] = Doorkeeper(3)
    assert [door.came(caller, "a") for caller in range(3)] == [None, None, None]
    assert len(door) == 3


def test_the_oldest_makes_room_and_not_the_newcomer() -> None:
    door: Doorkeeper[int] = Doorkeeper(2)
    assert [door.came(caller, "a") for caller in range(5)] == [None, None, 0, 1, 2]
    assert len(door) == 2


def test_a_flood_from_one_address_costs_nobody_else_a_place() -> None:
    door: Doorkeeper[str] = Doorkeeper(4)
    door.came("rank", "friend")
    left = [door.came(f"s{number}", "flood") for number in range(100)]
    assert "rank" not in left
    assert left[3] == "s0"


def test_who_has_said_a_right_word_stays_longest_wherever_it_came_from() -> None:
    door: Doorkeeper[str] = Doorkeeper(4)
    door.came("rank", "here")
    door.greeted("rank")
    left = [door.came(f"s{number}", "here") for number in range(100)]
    assert "rank" not in left
    door.came("other", "elsewhere")
    assert door.came("next", "here") == "s98"


def test_where_all_have_said_a_right_word_the_oldest_of_the_fullest_address_goes() -> None:
    door: Doorkeeper[str] = Doorkeeper(3)
    for caller, host in (("x", "a"), ("y", "b"), ("z", "b")):
        door.came(caller, host)
        door.greeted(caller)
    assert door.came("new", "c") == "y"


def test_a_place_is_free_again_when_somebody_went() -> None:
    door: Doorkeeper[int] = Doorkeeper(2)
    door.came(0, "a")
    door.came(1, "a")
    door.greeted(0)
    door.gone(0)
    door.gone(0)
    door.greeted(0)
    assert door.came(2, "a") is None
    assert door.came(3, "a") == 1


def test_a_room_for_nobody_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nobody"):
        Doorkeeper(0)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["came", "gone", "greeted"]), st.integers(0, 20), st.sampled_from("abc"))),
)
def test_the_room_is_never_exceeded_and_nothing_is_left_of_who_went(
    room: int, steps: list[tuple[str, int, str]]
) -> None:
    door: Doorkeeper[int] = Doorkeeper(room)
    inside: dict[int, None] = {}
    for number, (step, pick, host) in enumerate(steps):
        if step == "came":
            leaves = door.came(number, host)
            assert (leaves is None) is (len(inside) < room)
            if leaves is not None:
                del inside[leaves]
            inside[number] = None
        elif inside:
            caller = list(inside)[pick % len(inside)]
            if step == "gone":
                door.gone(caller)
                del inside[caller]
            else:
                door.greeted(caller)
        assert len(door) == len(inside) <= room
    for caller in inside:
        door.gone(caller)
    assert (door._hosts, door._crowd, door._greeted) == ({}, {}, {})
