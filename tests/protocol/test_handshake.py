"""Pairs of handshake machines joined back to back, and one machine against a stranger."""

from __future__ import annotations

import dataclasses
import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.errors import InvalidTransition
from r2ccl.protocol.handshake import (
    MAGIC,
    MESSAGE_BYTES_MAX,
    Dialler,
    HandshakeRefused,
    Identity,
    Listener,
    PeerIdentity,
    Purpose,
    Reason,
    Target,
)

ALICE = Identity(job="train", secret=b"open sesame", rank=3, incarnation=(1 << 64) - 1, package_version="0.1.0")
BOB = Identity(job="train", secret=b"open sesame", rank=0, incarnation=77, package_version="0.1.0")
BOBS_NIC = Target(rank=0, nic=1, incarnation=77)
NONCE_A = b"a" * 32
NONCE_B = b"b" * 32


def dialler(identity: Identity = ALICE, target: Target = BOBS_NIC, purpose: int = Purpose.BULK) -> Dialler:
    return Dialler(identity, 2, target, purpose, NONCE_A)


def listener(identity: Identity = BOB, nonce: bytes = NONCE_B, **more) -> Listener:
    return Listener(identity, 1, nonce, **more)


def deliver(machine: Dialler | Listener, data: bytes, piece_bytes: int) -> bytes:
    pieces = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]
    return b"".join(machine.receive_data(piece) for piece in pieces)


def join(one: Dialler, other: Listener, piece_bytes: int = 1 << 16) -> None:
    """Carry bytes to and fro until neither has more to say."""
    to_listener = one.start()
    while to_listener:
        to_dialler = deliver(other, to_listener, piece_bytes)
        to_listener = deliver(one, to_dialler, piece_bytes) if to_dialler else b""


def has_refused(machine: Dialler | Listener) -> bool:
    try:
        machine.receive_data(b"")
    except HandshakeRefused:
        return True
    return False


def refusal(one: Dialler, other: Listener) -> tuple[HandshakeRefused, HandshakeRefused]:
    """Run a handshake that must fail; what the refusing side raised, and what the other raised on hearing of it."""
    with pytest.raises(HandshakeRefused) as first:
        join(one, other)
    assert not one.done
    assert not other.done
    refusing, hearing = (one, other) if has_refused(one) else (other, one)
    with pytest.raises(HandshakeRefused) as again:
        refusing.receive_data(b"")
    assert again.value is first.value
    with pytest.raises(HandshakeRefused) as second:
        hearing.receive_data(first.value.farewell)
    assert not first.value.by_peer
    assert second.value.by_peer
    return first.value, second.value


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 100, 1 << 16])
def test_both_ends_know_each_other_however_the_bytes_are_cut(piece_bytes):
    one, other = dialler(), listener()
    join(one, other, piece_bytes)
    assert one.peer == PeerIdentity(rank=0, nic=1, incarnation=77, purpose=Purpose.BULK, package_version="0.1.0")
    assert other.peer == PeerIdentity(3, 2, (1 << 64) - 1, Purpose.BULK, "0.1.0")
    assert one.leftover == other.leftover == b""


def test_bytes_behind_the_handshake_are_left_for_the_frames():
    one, other = dialler(), listener()
    proof = one.receive_data(other.receive_data(one.start()))
    welcome = other.receive_data(proof + b"frame from the dialler")
    one.receive_data(welcome + b"frame from the listener")
    assert other.leftover == b"frame from the dialler"
    assert one.leftover == b"frame from the listener"


def test_a_listener_admits_nobody_before_it_verified_the_proof():
    one, other = dialler(), listener()
    proof = one.receive_data(other.receive_data(one.start()))
    assert not other.done
    assert other.claimed_rank == 3
    with pytest.raises(InvalidTransition):
        _ = other.peer
    with pytest.raises(InvalidTransition):
        _ = other.leftover
    other.receive_data(proof)
    assert other.done
    assert not one.done


def test_an_empty_secret_is_a_key_like_any_other():
    one = dialler(dataclasses.replace(ALICE, secret=b""))
    other = listener(dataclasses.replace(BOB, secret=b""))
    join(one, other)
    assert one.done
    assert other.done


def test_a_listener_with_another_secret_is_refused_by_the_dialler():
    one, other = dialler(), listener(dataclasses.replace(BOB, secret=b"guess"))
    ours, theirs = refusal(one, other)
    assert ours.reason is theirs.reason is Reason.SECRET
    assert "R2CCL_SECRET" in str(theirs)
    assert "open sesame" not in str(ours) + str(theirs) + repr(ALICE)


def test_a_dialler_that_skips_the_check_is_refused_by_the_listener():
    """A stranger that invents its proof instead of giving up at the listener's."""
    one, other = dialler(), listener()
    other.receive_data(one.start())
    forged = msgpack.packb([MAGIC, 3, 1, "0.1.0", b"\0" * 32])
    with pytest.raises(HandshakeRefused) as refused:
        other.receive_data(len(forged).to_bytes(2, "big") + forged)
    assert refused.value.reason is Reason.SECRET
    assert not other.done


def test_a_listeners_proof_played_back_to_it_is_refused():
    """The labels keep the two directions apart: what the listener signed is no proof of the dialler."""
    one, other = dialler(), listener()
    challenge = msgpack.unpackb(other.receive_data(one.start())[2:])
    reflected = msgpack.packb([MAGIC, 3, 1, "0.1.0", challenge[-1]])
    with pytest.raises(HandshakeRefused) as refused:
        other.receive_data(len(reflected).to_bytes(2, "big") + reflected)
    assert refused.value.reason is Reason.SECRET


def test_a_recorded_dialler_is_refused_by_a_listener_with_a_fresh_nonce():
    one, other = dialler(), listener()
    hello = one.start()
    proof = one.receive_data(other.receive_data(hello))
    later = listener(nonce=b"c" * 32)
    later.receive_data(hello)
    with pytest.raises(HandshakeRefused) as refused:
        later.receive_data(proof)
    assert refused.value.reason is Reason.SECRET


def test_a_recorded_challenge_is_refused_by_a_dialler_with_a_fresh_nonce():
    challenge = listener().receive_data(dialler().start())
    later = Dialler(ALICE, 2, Target(0, 1, 77), Purpose.BULK, b"d" * 32)
    later.start()
    with pytest.raises(HandshakeRefused) as refused:
        later.receive_data(challenge)
    assert refused.value.reason is Reason.SECRET


@pytest.mark.parametrize("changes", [{"package_version": "9.9.9"}, {"wire_version": 42}])
def test_unlike_versions_are_refused_and_both_sides_name_both(changes):
    ours, theirs = refusal(dialler(dataclasses.replace(ALICE, **changes)), listener())
    assert ours.reason is theirs.reason is Reason.VERSION
    for text in (str(ours), str(theirs)):
        assert "0.1.0" in text
        assert str(next(iter(changes.values()))) in text


@pytest.mark.parametrize(
    ("fields", "reason", "claimed_rank"),
    [
        (["train", 5, {"all": "new"}], Reason.VERSION, 5),
        (["another job", 5, {"all": "new"}], Reason.JOB, None),
        ([{"all": "new"}], Reason.VERSION, None),
    ],
)
def test_a_hello_of_a_later_version_is_refused_by_job_and_then_by_version(fields, reason, claimed_rank):
    hello = msgpack.packb([MAGIC, 1, 2, "1.0.0", *fields])
    other = listener()
    with pytest.raises(HandshakeRefused) as refused:
        other.receive_data(len(hello).to_bytes(2, "big") + hello)
    assert refused.value.reason is reason
    assert refused.value.farewell
    assert other.claimed_rank == claimed_rank


REFUSED = {
    "another job": (dialler(dataclasses.replace(ALICE, job="other")), listener(), Reason.JOB),
    "another rank": (dialler(target=Target(1, 1, 77)), listener(), Reason.NOT_ME),
    "another NIC": (dialler(target=Target(0, 0, 77)), listener(), Reason.NOT_ME),
    "the listener was restarted": (dialler(target=Target(0, 1, 76)), listener(), Reason.INCARNATION),
    "the dialler was restarted": (dialler(), listener(incarnations={3: 5}), Reason.INCARNATION),
    "a rank that the job does not have": (dialler(), listener(incarnations={0: 5}), Reason.INCARNATION),
    "a purpose not served here": (dialler(purpose=Purpose.STORE), listener(), Reason.PURPOSE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_does_not_belong_here_is_told_why(case):
    one, other, reason = REFUSED[case]
    ours, theirs = refusal(one, other)
    assert ours.reason is theirs.reason is reason


@pytest.mark.parametrize(
    "changes",
    [{"rank": 1}, {"incarnation": 78}],
)
def test_a_listener_that_lies_about_itself_after_the_hello_is_refused(changes):
    """The listener answers what the Hello wants, but announces another identity in its Challenge."""

    class Liar(Listener):
        def _check(self, hello: object) -> None:
            """Takes every caller for its own."""

    ours, _ = refusal(dialler(), Liar(dataclasses.replace(BOB, **changes), 1, NONCE_B))
    assert ours.reason is (Reason.NOT_ME if "rank" in changes else Reason.INCARNATION)


def test_an_incarnation_that_the_job_admitted_is_let_in():
    one, other = dialler(), listener(incarnations={3: ALICE.incarnation})
    join(one, other)
    assert other.done


def test_a_dialler_that_knows_no_incarnation_learns_it():
    one, other = dialler(target=Target(0, 1)), listener()
    join(one, other)
    assert one.peer.incarnation == 77


def test_every_single_bit_of_the_exchange_matters():
    """Flip one bit anywhere in any message: never are both sides done with an altered view of each other."""
    hello = dialler().start()
    challenge = listener().receive_data(hello)
    first = dialler()
    first.start()
    proof = first.receive_data(challenge)
    for bit in range(0, 8 * len(hello), 3):
        other = listener()
        one = dialler()
        one.start()
        try:
            answer = other.receive_data(_flipped(hello, bit))
            assert not answer or not _accepts(one, answer)
        except HandshakeRefused:
            assert not other.done
    for bit in range(0, 8 * len(challenge), 3):
        one = dialler()
        one.start()
        assert not _accepts(one, _flipped(challenge, bit))
    for bit in range(0, 8 * len(proof), 3):
        other = listener()
        other.receive_data(hello)
        assert not _accepts(other, _flipped(proof, bit))


def _flipped(message: bytes, bit: int) -> bytes:
    flipped = bytearray(message)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _accepts(machine: Dialler | Listener, data: bytes) -> bool:
    try:
        return bool(machine.receive_data(data))
    except HandshakeRefused:
        return False


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
