"""Asks and answers about reaching a third: there and back, refused where they make no sense, and not too many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.diagnosis_messages import (
    ASKS_BURST,
    ASKS_PER_S,
    Allowance,
    Reach,
    Reached,
    read_reach,
    read_reached,
)
from r2ccl.protocol.verdict import Said
from r2ccl.protocol.wire import BadFrame, Kind, pack_control, unpack_body

#: Of four ranks.
NICS = [2, 2, 1, 2]


def test_an_ask_is_read_as_it_was_written() -> None:
    reach = Reach(7, 1, 1, 0)
    _, body = pack_control(Kind.REACH, 0, 3, reach.body())
    assert read_reach(unpack_body(body), NICS, asker=0, answerer=3) == reach


@pytest.mark.parametrize("theirs", Said)
@pytest.mark.parametrize("askers", Said)
def test_an_answer_is_read_as_it_was_written(theirs: Said, askers: Said) -> None:
    reached = Reached(7, theirs, askers)
    _, body = pack_control(Kind.REACHED, 3, 0, reached.body())
    assert read_reached(unpack_body(body)) == reached


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([], id="nothing"),
        pytest.param([1, 1, 0], id="too short"),
        pytest.param([1, 1, 0, 0, 0], id="too long"),
        pytest.param([1, 4, 0, 0], id="no such rank"),
        pytest.param([1, 2, 1, 0], id="no such NIC"),
        pytest.param([1, 1, 0, 2], id="no such NIC of the asker"),
        pytest.param([1, 0, 0, 0], id="the asker itself"),
        pytest.param([1, 3, 0, 0], id="who is asked"),
        pytest.param([-1, 1, 0, 0], id="negative"),
        pytest.param([1, True, 0, 0], id="no number"),
        pytest.param([1, "1", 0, 0], id="text"),
        pytest.param([1 << 64, 1, 0, 0], id="too large"),
    ],
)
def test_an_ask_that_makes_no_sense_is_refused(body: list[Any]) -> None:
    with pytest.raises(BadFrame):
        read_reach(body, NICS, asker=0, answerer=3)


@pytest.mark.parametrize("body", [[], [1, 1], [1, 1, 4], [1, -1, 0], [1, None, 0], [1, True, 1], [1, 1, 1, 1]])
def test_an_answer_that_makes_no_sense_is_refused(body: list[Any]) -> None:
    with pytest.raises(BadFrame):
        read_reached(body)


@given(st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none(), st.booleans(), st.binary(max_size=3))))
def test_garbage_is_refused_or_makes_sense(body: list[Any]) -> None:
    for read in (lambda: read_reach(body, NICS, 0, 3), lambda: read_reached(body)):
        try:
            read()
        except BadFrame:
            continue


def test_a_flood_of_asks_is_not_answered() -> None:
    allowance = Allowance()
    assert sum(allowance.take(5.0) for _ in range(10 * ASKS_BURST)) == ASKS_BURST
    assert sum(allowance.take(6.0) for _ in range(10 * ASKS_BURST)) == int(ASKS_PER_S)
    assert sum(allowance.take(1000.0) for _ in range(10 * ASKS_BURST)) == ASKS_BURST


def test_asking_now_and_then_is_always_answered() -> None:
    allowance = Allowance()
    assert all(allowance.take(number / ASKS_PER_S * 1.01) for number in range(1000))
