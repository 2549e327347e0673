"""The rendezvous' messages: round trips, and what a stranger can send."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.rendezvous import messages

REQUESTS: list[messages.Request] = [messages.Announce(4, b"member"), messages.Connected()]
ANSWERS: list[messages.Answer] = [
    messages.Waiting((1, 5)),
    messages.Book((b"one", b"two")),
    messages.Go(),
    messages.Refused("why"),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_survive_the_wire(request_):
    (body,) = messages.MessageCutter(1000).cut(messages.pack(request_))
    assert messages.unpack_request(body) == request_


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_survive_the_wire(answer):
    (body,) = messages.MessageCutter(1000).cut(messages.pack(answer))
    assert messages.unpack_answer(body) == answer


@given(st.lists(st.sampled_from(ANSWERS), max_size=5), st.integers(1, 50))
def test_a_stream_may_be_cut_anywhere(answers, piece_bytes):
    stream = b"".join(map(messages.pack, answers))
    cutter = messages.MessageCutter(1000)
    pieces = (stream[start : start + piece_bytes] for start in range(0, len(stream), piece_bytes))
    assert [messages.unpack_answer(body) for piece in pieces for body in cutter.cut(piece)] == answers


def test_a_length_over_the_limit_is_refused_before_the_bytes_come():
    with pytest.raises(messages.BadMessage, match="over the limit of 1000"):
        messages.MessageCutter(1000).cut(b"\0\0\3\xe9")


def test_a_long_sentence_is_cut():
    (body,) = messages.MessageCutter(9000).cut(messages.pack(messages.Refused("\u20ac" * 5000)))
    assert messages.unpack_answer(body) == messages.Refused("\u20ac" * messages.SENTENCE_CHARACTERS_MAX)


_any = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.binary(max_size=9) | st.sampled_from(["announce", "book", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@given(st.binary(max_size=60) | _any.map(msgpack.packb))
def test_garbage_is_a_bad_message_or_one_of_ours(body):
    for unpack, kinds in (
        (messages.unpack_request, (messages.Announce, messages.Connected)),
        (messages.unpack_answer, (messages.Waiting, messages.Book, messages.Go, messages.Refused)),
    ):
        try:
            message = unpack(body)
        except messages.BadMessage:
            continue
        assert isinstance(message, kinds)
