"""Somebody in the middle who has all messages ever said and plays them to whom it likes, whole, changed, in any order:
nobody is let in who is not who it says, and in the end each side has talked to the other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.errors import InvalidTransition
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Listener, Purpose, Reason
from r2ccl.protocol.handshake_messages import LENGTH_BYTES, MESSAGE_BYTES_MAX
from tests.protocol.handshakes import ALICE, BOB, BOBS_NIC, dialler, listener
from tests.strangers import SPEECHES, arrivals, every_split, mutated, nested, peak_bytes

MALLORY = dataclasses.replace(ALICE, secret=b"guessed")
IMPOSTOR = dataclasses.replace(BOB, secret=b"guessed too")


def exchange() -> tuple[bytes, bytes, bytes, bytes]:
    """Hello, challenge, proof, welcome, as honest ends say them with the nonces of ``handshakes``."""
    one, other = dialler(), listener()
    hello = one.start()
    challenge = other.receive_data(hello)
    proof = one.receive_data(challenge)
    return hello, challenge, proof, other.receive_data(proof)


def hear(machine: Dialler | Listener, piece: bytes) -> bytes:
    """What it answers; nothing if it refuses, or if it is over already."""
    if machine.done:
        return b""
    try:
        return machine.receive_data(piece)
    except HandshakeRefused as refused:
        return refused.farewell


def test_every_way_to_cut_the_exchange_in_two_ends_well() -> None:
    hello, challenge, proof, welcome = exchange()
    for pieces in every_split(hello + proof):
        machine = listener()
        answers = b"".join(hear(machine, piece) for piece in pieces)
        assert machine.done
        assert answers == challenge + welcome
    for pieces in every_split(challenge + welcome):
        caller = dialler()
        caller.start()
        assert b"".join(hear(caller, piece) for piece in pieces) == proof
        assert caller.done


@given(st.data())
def test_an_exchange_that_was_changed_on_the_way_is_the_same_or_ends_without_anybody_let_in(
    data: st.DataObject,
) -> None:
    hello, challenge, proof, welcome = exchange()
    heard = data.draw(mutated(hello + proof))
    machine = listener()
    for piece in data.draw(arrivals(heard)):
        hear(machine, piece)
        assert len(machine._buffer) <= LENGTH_BYTES + MESSAGE_BYTES_MAX + len(heard)
    if machine.done:
        assert heard.startswith(hello)
        assert (machine.peer.rank, machine.peer.nic, machine.peer.incarnation) == (ALICE.rank, 2, ALICE.incarnation)
    caller = dialler()
    caller.start()
    for piece in data.draw(arrivals(data.draw(mutated(challenge + welcome)))):
        hear(caller, piece)
    if caller.done:
        assert (caller.peer.rank, caller.peer.nic, caller.peer.incarnation) == (BOB.rank, 1, BOB.incarnation)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_truncated_message_is_no_message(cut: int) -> None:
    for message in exchange():
        body = message[LENGTH_BYTES:-cut]
        shorter = len(body).to_bytes(LENGTH_BYTES, "big") + body
        for machine in (listener(), dialler()):
            if isinstance(machine, Dialler):
                machine.start()
            with pytest.raises(HandshakeRefused) as refused:
                machine.receive_data(shorter)
            assert refused.value.reason is Reason.GARBAGE


@pytest.mark.parametrize("speech", [name for name in SPEECHES if name != "nothing"])
def test_other_protocols_are_garbage_and_get_no_answer(speech: str) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        listener().receive_data(SPEECHES[speech])
    assert (refused.value.reason, refused.value.farewell) == (Reason.GARBAGE, b"")


@pytest.mark.parametrize("size", [100, 500, MESSAGE_BYTES_MAX])
def test_lists_that_claim_to_be_long_are_refused_before_they_are_made(size: int) -> None:
    message = size.to_bytes(LENGTH_BYTES, "big") + nested(size)
    assert peak_bytes(lambda: listener().receive_data(message), HandshakeRefused) < 64 << 10


@given(st.data())
@settings(max_examples=300)
def test_whoever_is_let_in_has_talked_to_the_one_who_let_it_in(data: st.DataObject) -> None:
    """Two honest diallers and listeners, and one of each that has guessed the secret; the intruder carries messages
    between them as it likes. For each end that is done there is an honest partner that meant it, with these nonces."""
    nonces = iter(bytes([number]) * 32 for number in range(1, 9))
    diallers = [
        Dialler(identity, 2, BOBS_NIC, Purpose.BULK, next(nonces)) for identity in (ALICE, ALICE, MALLORY)
    ]  # fmt: skip
    listeners = [Listener(identity, 1, next(nonces)) for identity in (BOB, BOB, IMPOSTOR)]
    machines: list[Dialler | Listener] = [*diallers, *listeners]
    #: What was said, by whom it was said, and to whom it was carried.
    said = [(number, machine.start()) for number, machine in enumerate(diallers)]
    carried: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(len(machines))}
    for _ in range(data.draw(st.integers(4, 24))):
        # Mostly what was said last, to make it far.
        speaker, message = data.draw(st.one_of(st.just(said[-1]), st.sampled_from(said)))
        hearer = data.draw(st.integers(0, len(machines) - 1))
        if machines[hearer].done:
            with pytest.raises(InvalidTransition):
                machines[hearer].receive_data(message)
            continue
        carried[hearer].append((speaker, message))
        answer = hear(machines[hearer], message)
        if answer:
            said.append((hearer, answer))
    for number, machine in enumerate(machines):
        if not machine.done:
            continue
        partners = {speaker for speaker, _ in carried[number]}
        honest = {0, 1} if isinstance(machine, Listener) else {3, 4}
        assert number in (0, 1, 3, 4)  # who has guessed is never let in, and lets nobody in
        (partner,) = partners & honest
        assert partners == {partner}
        assert any(speaker == number for speaker, _ in carried[partner])


def test_a_reflected_challenge_is_refused_by_who_made_it() -> None:
    """The intruder dials the listener with a Hello of its own making and plays its challenge back as a proof."""
    machine = listener()
    challenge = machine.receive_data(dialler(MALLORY).start())
    with pytest.raises(HandshakeRefused) as refused:
        machine.receive_data(challenge)
    assert refused.value.reason is Reason.GARBAGE
    assert not machine.done
