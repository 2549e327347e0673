"""The agreement on the wire: read as it was said, and nothing else gets in."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.agreement_messages import (
    MEMBERS_MAX,
    NUMBER_MAX,
    PICTURE_BYTES_MAX,
    REPORT_BYTES_MAX,
    Accepted,
    Agreed,
    AskOutcome,
    Ballot,
    Commit,
    Inquire,
    Message,
    No,
    Propose,
    Report,
    Reported,
    State,
    Withdraw,
    Yes,
    read_message,
)
from r2ccl.protocol.wire import CONTROL_BYTES_MAX, BadFrame, Kind, pack_control, unpack_body

numbers = st.integers(0, NUMBER_MAX)
reports = st.binary(max_size=40)
ballots = st.builds(Ballot, numbers, st.integers(0, 2**32 - 1))
agreed = st.builds(Agreed, numbers, numbers, st.lists(reports, max_size=5).map(tuple))
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Report, numbers, reports),
    st.builds(Reported, numbers),
    st.builds(Inquire, ballots, numbers),
    st.builds(State, ballots, numbers, numbers, numbers, st.none() | st.builds(Accepted, ballots, agreed)),
    st.builds(Propose, ballots, agreed, st.booleans()),
    st.builds(Yes, ballots),
    st.builds(No, ballots, ballots, numbers),
    st.builds(Commit, agreed),
    st.builds(Withdraw, numbers, ballots),
    st.builds(AskOutcome, ballots, numbers),
)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | reports
garbage = st.recursive(scalars, lambda inner: st.lists(inner, max_size=6), max_leaves=20)


@given(messages)
def test_a_message_is_read_as_it_was_said(message: Message) -> None:
    _, packed = pack_control(Kind.BEAT, 0, 1, message.body())
    assert read_message(unpack_body(packed)) == message


@given(st.lists(garbage, max_size=9))
def test_garbage_is_refused_or_read_as_a_message_that_says_the_same(body: list[Any]) -> None:
    try:
        message = read_message(body)
    except BadFrame:
        return
    assert message.body() == body


@given(messages, st.data())
def test_a_message_with_one_field_exchanged_is_refused_or_says_the_same(message: Message, data: st.DataObject) -> None:
    body = message.body()
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(garbage)
    try:
        other = read_message(body)
    except BadFrame:
        return
    assert other.body() == body
    assert [type(field) for field in other.body()] == [type(field) for field in body]


@given(messages, st.booleans())
def test_a_field_too_few_or_too_many_is_refused(message: Message, more: bool) -> None:
    body = message.body()
    with pytest.raises(BadFrame, match="does not fit its kind"):
        read_message([*body, 0] if more else body[:-1])


@pytest.mark.parametrize(
    "body",
    [
        [],
        [0],
        [11, 1, 1],
        [True, 1, 1],
        [256, 1],
        [1, 1, "text"],
        [1, 1, b"x" * (REPORT_BYTES_MAX + 1)],
        [3, -1, 0, 0],
        [3, 1, 1 << 32, 0],
        [3, NUMBER_MAX + 1, 0, 0],
        [5, 1, 0, 1, 0, [b""], 1],
        [8, 1, 0, [b""] * (MEMBERS_MAX + 1)],
        [8, 1, 0, [b"x" * REPORT_BYTES_MAX] * (PICTURE_BYTES_MAX // REPORT_BYTES_MAX + 1)],
        [4, 1, 0, 0, 0, 0, [1, 0, 1, 0]],
    ],
)
def test_what_no_member_says_is_refused(body: list[Any]) -> None:
    with pytest.raises(BadFrame):
        read_message(body)


@pytest.mark.parametrize("members", [1, 48, MEMBERS_MAX])
def test_the_largest_answer_fits_a_frame(members: int) -> None:
    largest = NUMBER_MAX
    picture = (b"x" * min(REPORT_BYTES_MAX, PICTURE_BYTES_MAX // members),) * members
    ballot = Ballot(largest, 2**32 - 1)
    answer = State(ballot, largest, largest, largest, Accepted(ballot, Agreed(largest, largest, picture)))
    packed: bytes = msgpack.packb([largest, *answer.body()])
    assert len(packed) <= CONTROL_BYTES_MAX
    assert read_message(answer.body()) == answer
