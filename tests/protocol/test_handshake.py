"""Pairs of handshake machines joined back to back."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest

from r2ccl.errors import InvalidTransition
from r2ccl.protocol.handshake import (
    Dialler,
    HandshakeRefused,
    Listener,
    PeerIdentity,
    Purpose,
    Reason,
    Target,
)
from r2ccl.protocol.handshake_messages import MAGIC
from tests.protocol.handshakes import (
    ALICE,
    BOB,
    NONCE_B,
    dialler,
    join,
    listener,
    refusal,
)


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
