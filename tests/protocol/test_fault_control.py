"""The control port's machine: nobody unproven is heard, and what makes no sense ends the session with one reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.fault_control import (
    MESSAGE_BYTES_MAX,
    Effect,
    End,
    FaultSession,
    Inject,
    NotUnderstood,
    Send,
    Status,
    Undo,
    cut,
    pack,
    read_fault,
    read_request,
    write_fault,
)
from r2ccl.protocol.fault_kinds import Kind, Request, request
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Identity, Purpose, Target

ME = Identity("job", b"secret", 1, 77, "1.0")
MANY_PHASES = ", ".join(["0.123456789s down, 0.123456789s up"] * 32)
REQUESTS = [
    request(Kind.LINK_DOWN),
    request(Kind.SILENT_DROP),
    request(Kind.LOSS, "5%"),
    request(Kind.RATE, "100mbit"),
    request(Kind.DELAY, "5ms"),
    request(Kind.CORRUPT, "0.1%"),
    request(Kind.FLAP, flap_pattern=MANY_PHASES, times=20, flapping=Kind.SILENT_DROP),
]


def prove(session: FaultSession, secret: bytes = b"secret", purpose: Purpose = Purpose.FAULTS) -> list[Effect]:
    """The dialler's part; returns what the session did on hearing its proof."""
    dialler = Dialler(Identity("job", secret, 1, 5, "1.0"), 0, Target(1, 0), purpose, bytes(32))
    (challenge,) = session.receive_data(dialler.start())
    assert isinstance(challenge, Send)
    return session.receive_data(dialler.receive_data(challenge.data))


def admitted() -> FaultSession:
    session = FaultSession(ME, bytes(range(32)))
    assert [type(effect) for effect in prove(session)] == [Send]
    assert session.admitted
    return session


def test_who_proves_himself_is_heard() -> None:
    session = admitted()
    asked = session.receive_data(pack({"do": "status"}) + pack({"do": "undo", "stay": True}))
    assert asked == [Status(), Undo(stay=True)]


def test_a_request_may_come_in_pieces_and_right_behind_the_proof() -> None:
    session = FaultSession(ME, bytes(range(32)))
    dialler = Dialler(Identity("job", b"secret", 1, 5, "1.0"), 0, Target(1, 0), Purpose.FAULTS, bytes(32))
    (challenge,) = session.receive_data(dialler.start())
    assert isinstance(challenge, Send)
    stream = dialler.receive_data(challenge.data) + pack({"do": "inject", "fault": write_fault(REQUESTS[2]), "nic": 3})
    effects = [effect for byte in stream for effect in session.receive_data(bytes([byte]))]
    assert effects[1:] == [Inject(REQUESTS[2], 3, None, False)]


def test_who_does_not_know_the_secret_is_never_heard() -> None:
    session = FaultSession(ME, bytes(range(32)))
    with pytest.raises(HandshakeRefused, match="secret"):
        prove(session, secret=b"another")
    assert not session.admitted
    refused = session.receive_data(b"\x00\x02{}")
    assert not any(isinstance(effect, (Status, Inject, Undo)) for effect in refused)
    assert any(isinstance(effect, End) and effect.refused for effect in refused)


def test_a_proof_that_was_heard_before_admits_nobody() -> None:
    first, second = FaultSession(ME, bytes(range(32))), FaultSession(ME, bytes(range(1, 33)))
    dialler = Dialler(Identity("job", b"secret", 1, 5, "1.0"), 0, Target(1, 0), Purpose.FAULTS, bytes(32))
    hello = dialler.start()
    (challenge,) = first.receive_data(hello)
    assert isinstance(challenge, Send)
    proof = dialler.receive_data(challenge.data)
    second.receive_data(hello)
    effects = second.receive_data(proof)
    assert not second.admitted
    assert any(isinstance(effect, End) for effect in effects)


def test_a_connection_for_another_purpose_is_refused() -> None:
    session = FaultSession(ME, bytes(range(32)))
    dialler = Dialler(Identity("job", b"secret", 1, 5, "1.0"), 0, Target(1, 0), Purpose.BULK, bytes(32))
    *_, end = session.receive_data(dialler.start())
    assert isinstance(end, End)
    assert "purpose" in end.refused


@given(st.binary(max_size=300))
def test_a_strangers_bytes_reach_nothing(data: bytes) -> None:
    session = FaultSession(ME, bytes(range(32)))
    effects = session.receive_data(data)
    assert not session.admitted
    assert all(isinstance(effect, (Send, End)) for effect in effects)


@given(st.binary(max_size=300))
def test_nonsense_from_a_member_ends_the_session_with_a_reason(data: bytes) -> None:
    session = admitted()
    effects = session.receive_data(len(data).to_bytes(2, "big") + data)
    assert isinstance(effects[-1], End)
    assert effects[-1].refused
    assert session.receive_data(pack({"do": "status"})) == []


def test_a_giant_length_is_refused_before_anything_comes() -> None:
    *_, end = admitted().receive_data((MESSAGE_BYTES_MAX + 1).to_bytes(2, "big"))
    assert isinstance(end, End)
    assert "over the limit" in end.refused


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: asked.kind)
def test_every_fault_survives_the_way(asked: Request) -> None:
    buffer = bytearray(pack({"do": "inject", "fault": write_fault(asked), "nic": None, "for_s": 1, "stay": True}))
    message = cut(buffer)
    assert message is not None
    assert read_request(message) == Inject(asked, None, 1.0, True)


RIGHT: dict[str, Any] = {"do": "inject", "fault": {"kind": "loss", "value": 0.5}, "nic": 0, "for_s": 1.0}
WRONG: list[dict[str, Any]] = [
    {"do": "reboot"}, {"do": None}, {"do": "inject"}, {"fault": {}}, {"do": "undo", "stay": 1},
    {**RIGHT, "nic": -1}, {**RIGHT, "nic": "nic0"}, {**RIGHT, "nic": True}, {**RIGHT, "nic": 0.5},
    {**RIGHT, "for_s": 0}, {**RIGHT, "for_s": float("nan")}, {**RIGHT, "for_s": 1e9}, {**RIGHT, "for_s": "1s"},
    {**RIGHT, "stay": 1}, {**RIGHT, "fault": []},
    *({**RIGHT, "fault": fault} for fault in (
        {}, {"kind": 7}, {"kind": "loss"}, {"kind": "loss", "value": "5%"}, {"kind": "loss", "value": True},
        {"kind": "loss", "value": float("inf")}, {"kind": "delay", "value": 10**400},
        {"kind": "flap"}, {"kind": "flap", "phases": [[1, 2]]}, {"kind": "flap", "phases": [[True, "1"]]},
        {"kind": "flap", "phases": [[True, 1, 1]]}, {"kind": "flap", "phases": 5},
        {"kind": "flap", "phases": [[True, 1]], "times": 10**9}, {"kind": "flap", "phases": [[True, 10**400]]},
        {"kind": "flap", "phases": [[True, 1]], "flapping": "kill"}, {"kind": "kill"}, {"kind": "stop"},
    )),
]  # fmt: skip


@pytest.mark.parametrize("message", WRONG, ids=repr)
def test_what_makes_no_sense_is_not_understood(message: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood):
        read_request(message)


def test_the_message_next_to_the_wrong_ones_is_right() -> None:
    assert read_request(RIGHT) == Inject(Request(Kind.LOSS, 0.5), 0, 1.0, False)


def test_what_a_stranger_wrote_comes_back_short_and_printable() -> None:
    kind = "\x1b[2J" + "x" * 5000
    effects = admitted().receive_data(pack({"do": "inject", "fault": {"kind": kind}}))
    assert isinstance(effects[0], Send)
    assert isinstance(effects[1], End)
    assert effects[1].refused.isprintable()
    assert len(json.loads(effects[0].data[2:])["error"]) <= 400


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        pack({"text": "x" * MESSAGE_BYTES_MAX})


def test_a_fault_of_a_process_is_not_asked_of_it() -> None:
    with pytest.raises(NotUnderstood, match="process"):
        read_fault({"kind": "stop"})
