"""One handshake machine against bytes that no friend would send."""

from __future__ import annotations

import dataclasses
import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.errors import InvalidTransition
from r2ccl.protocol.handshake import (
    Dialler,
    HandshakeRefused,
    Listener,
    Reason,
)
from r2ccl.protocol.handshake_messages import MAGIC, MESSAGE_BYTES_MAX
from tests.protocol.handshakes import (
    ALICE,
    BOB,
    NONCE_B,
    dialler,
    has_refused,
    join,
    listener,
    refusal,
)


def test_a_truncated_message_leaves_the_machine_waiting():
    hello = dialler().start()
    other = listener()
    assert other.receive_data(hello[:-1]) == b""
    assert not other.done
    assert other.receive_data(hello[-1:])


def test_a_giant_length_is_refused_before_its_bytes_come_and_unanswered():
    other = listener()
    with pytest.raises(HandshakeRefused) as refused:
        other.receive_data((MESSAGE_BYTES_MAX + 1).to_bytes(2, "big"))
    assert refused.value.reason is Reason.GARBAGE
    assert refused.value.farewell == b""


def test_a_web_browser_is_refused_silently():
    with pytest.raises(HandshakeRefused) as refused:
        listener().receive_data(b"GET / HTTP/1.1\r\n\r\n")
    assert refused.value.farewell == b""


def test_two_diallers_joined_by_mistake_refuse_each_other():
    one, other = dialler(), dialler(BOB)
    other.start()
    with pytest.raises(HandshakeRefused):
        other.receive_data(one.start())


def test_a_machine_that_refused_stays_refused():
    other = listener()
    with pytest.raises(HandshakeRefused) as first:
        other.receive_data(b"\xff\xff")
    with pytest.raises(HandshakeRefused) as second:
        other.receive_data(dialler().start())
    assert first.value is second.value


def test_a_machine_that_is_done_takes_no_more_bytes():
    one, other = dialler(), listener()
    join(one, other)
    with pytest.raises(InvalidTransition):
        other.receive_data(b"frame")


def test_a_dialler_starts_once_and_before_anything_arrives():
    one = dialler()
    one.start()
    with pytest.raises(InvalidTransition):
        one.start()
    with pytest.raises(InvalidTransition):
        dialler().receive_data(listener().receive_data(dialler().start()))


@pytest.mark.parametrize("nonce", [b"", b"short", b"x" * 33])
def test_a_nonce_of_the_wrong_length_is_a_mistake_of_the_caller(nonce):
    with pytest.raises(ValueError, match="nonce"):
        Listener(BOB, 0, nonce)


@pytest.mark.parametrize("job", ["j" * 129, "\u20ac" * 43, "\udcff" * 129])
def test_a_job_name_that_is_too_long_is_a_mistake_of_the_caller(job):
    with pytest.raises(ValueError, match="128 bytes"):
        Listener(dataclasses.replace(BOB, job=job), 0, NONCE_B)


def test_the_longest_names_in_four_byte_letters_still_make_a_message():
    job = "\U0001d11e" * 32
    one = dialler(dataclasses.replace(ALICE, job=job, package_version="\U0001d11e" * 32))
    other = listener(dataclasses.replace(BOB, job=job, package_version="\U0001d12a" * 32))
    ours, theirs = refusal(one, other)
    assert ours.reason is theirs.reason is Reason.VERSION


def test_a_strangers_sentence_cannot_steer_the_terminal():
    sentence = msgpack.packb([MAGIC, 5, 1, "0.1.0", "secret", "\x1b[2Jhello" + "x" * 500])
    one = dialler()
    one.start()
    with pytest.raises(HandshakeRefused) as refused:
        one.receive_data(len(sentence).to_bytes(2, "big") + sentence)
    assert refused.value.sentence.startswith("?[2Jhello")
    assert len(refused.value.sentence) == 300


def test_a_refusal_with_a_code_of_a_later_version_is_understood_as_other():
    message = msgpack.packb([MAGIC, 5, 7, "9.0", "full moon", "come back tomorrow", "more"])
    one = dialler()
    one.start()
    with pytest.raises(HandshakeRefused, match="come back tomorrow") as refused:
        one.receive_data(len(message).to_bytes(2, "big") + message)
    assert refused.value.reason is Reason.OTHER


def test_a_refusal_survives_a_journey_between_processes():
    refused = HandshakeRefused(Reason.JOB, "another job", by_peer=True, farewell=b"bye")
    again = pickle.loads(pickle.dumps(refused))
    assert (again.reason, again.sentence, again.by_peer, again.farewell) == (Reason.JOB, "another job", True, b"bye")
    assert str(again) == str(refused) == "the peer refused (job): another job"


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=40) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_garbage_never_gets_past_a_machine(pieces):
    one, other = dialler(), listener()
    one.start()
    for machine in (one, other):
        try:
            for piece in pieces:
                machine.receive_data(piece)
        except HandshakeRefused:
            assert has_refused(machine)
        assert not machine.done


@given(st.sampled_from(range(7)), st.lists(_values, max_size=10))
def test_well_formed_messages_of_any_content_never_get_past_a_machine(kind, fields):
    body = msgpack.packb([MAGIC, kind, 1, "0.1.0", *fields])
    message = len(body).to_bytes(2, "big") + body
    for machine in (dialler(), listener(), listener()):
        if isinstance(machine, Dialler):
            machine.start()
        try:
            machine.receive_data(message)
        except HandshakeRefused:
            assert has_refused(machine)
        assert not machine.done


@given(st.lists(_values, min_size=9, max_size=9))
def test_a_hello_with_any_fields_is_challenged_or_refused(fields):
    body = msgpack.packb([MAGIC, 1, 1, "0.1.0", *fields])
    other = listener()
    with pytest.raises(HandshakeRefused):
        other.receive_data(len(body).to_bytes(2, "big") + body if len(body) <= 1024 else b"\xff\xff")
