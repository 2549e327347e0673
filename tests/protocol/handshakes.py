"""Two parties for tests of the handshake, and how to join them."""

from __future__ import annotations

import pytest

from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Identity, Listener, Purpose, Target

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
