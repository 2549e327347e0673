"""What the control port of a running job hears and says. Sans-I/O: bytes in, effects out.

A session begins with the handshake that all connections of the job begin with (protocol.handshake, purpose FAULTS), so
nobody is listened to who does not know the job's secret, and we prove to him that we do. Behind it come messages, each
a length (u16, big-endian) and one JSON object; what is no such thing, or too long, ends the session.

    asked                                                  answered
    {"do": "status"}                                       {"ok": true, "rank": 1, "nics": [...], "faults": [...]}
    {"do": "inject", "fault": {...}, "nic": 0, "for_s": 1} {"ok": true, "fault": "..."} or {"ok": false, "error": "..."}
    {"do": "undo"}                                         {"ok": true, "undone": 2}

``nic`` null: all of the rank's. A fault belongs to the session that asked for it and ends with it, so that whoever
asks may die at any time; with ``"stay": true`` it belongs to none, and ends after ``for_s`` or at an undo with that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from r2ccl.protocol.fault_kinds import OF_PROCESSES, SECONDS_MAX, Direction, Kind, Phase, Request
from r2ccl.protocol.handshake import HandshakeRefused, Identity, Listener, Purpose
from r2ccl.protocol.handshake_messages import printable

#: Both ways; the longest legitimate request, a pattern of 64 phases, has about 3000, the longest answer 9000.
MESSAGE_BYTES_MAX: Final = 16 << 10
LENGTH_BYTES: Final = 2
#: What was wrong may quote what a stranger wrote.
ERROR_CHARACTERS_MAX: Final = 400


class NotUnderstood(ValueError):
    """A message that makes no sense; the text says why."""


@dataclass(frozen=True, slots=True)
class Status:
    """Who are you, and what is in force?"""


@dataclass(frozen=True, slots=True)
class Inject:
    """Put a fault in force."""

    request: Request
    nic: int | None
    for_s: float | None
    stay: bool


@dataclass(frozen=True, slots=True)
class Undo:
    """End all faults of this session; with ``stay`` those of no session instead."""

    stay: bool


Asked = Status | Inject | Undo


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the other end."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """Close the connection. ``refused``: why, where that is the other end's fault, for the log."""

    refused: str = ""


Effect = Send | End | Asked


class FaultSession:
    """The listener's side of one connection."""

    def __init__(self, identity: Identity, nonce: bytes) -> None:
        self._listener = Listener(identity, nic=0, nonce=nonce, purposes=(Purpose.FAULTS,))
        self._buffer = bytearray()
        self._ended = False

    @property
    def admitted(self) -> bool:
        """The other end has proven that it knows the job's secret."""
        return self._listener.done

    def receive_data(self, data: bytes) -> list[Effect]:
        """Take what arrived, in pieces of any size."""
        if self._ended:
            return []
        effects: list[Effect] = []
        try:
            if self.admitted:
                self._buffer += data
            elif answer := self._listener.receive_data(data):
                effects.append(Send(answer))
                if self.admitted:
                    self._buffer += self._listener.leftover
            while self.admitted and (message := cut(self._buffer)) is not None:
                effects.append(read_request(message))
        except HandshakeRefused as refused:
            effects += [Send(refused.farewell)] if refused.farewell else []
            effects.append(self._end(str(refused)))
        except NotUnderstood as wrong:
            why = printable(str(wrong))[:ERROR_CHARACTERS_MAX]
            effects += [Send(pack({"ok": False, "error": why})), self._end(why)]
        return effects

    def _end(self, why: str) -> End:
        self._ended = True
        return End(why)


def pack(message: Mapping[str, Any]) -> bytes:
    """With its length in front. Raises ``ValueError`` if it is too long."""
    body = json.dumps(message).encode()
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(body)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def cut(buffer: bytearray) -> dict[str, Any] | None:
    """Take the first message out of the buffer, if it is whole. Raises :class:`NotUnderstood`."""
    if len(buffer) < LENGTH_BYTES:
        return None
    length = int.from_bytes(buffer[:LENGTH_BYTES], "big")
    if length > MESSAGE_BYTES_MAX:
        raise NotUnderstood(f"a message of {length} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    end = LENGTH_BYTES + length
    if len(buffer) < end:
        return None
    body = bytes(buffer[LENGTH_BYTES:end])
    del buffer[:end]
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as broken:
        raise NotUnderstood(f"a message is no JSON ({type(broken).__name__})") from broken
    if not isinstance(message, dict):
        raise NotUnderstood("a message is no JSON object")
    return message


def read_request(message: Mapping[str, Any]) -> Asked:
    """Raises :class:`NotUnderstood`."""
    match message:
        case {"do": "status"}:
            return Status()
        case {"do": "undo"}:
            return Undo(_flag(message, "stay"))
        case {"do": "inject", "fault": dict(fault)}:
            nic, for_s = message.get("nic"), message.get("for_s")
            if not (nic is None or (_is_number(nic, int) and nic >= 0)):
                raise NotUnderstood("nic is neither null nor the index of one")
            if not (for_s is None or (_is_number(for_s, int, float) and 0 < for_s <= SECONDS_MAX)):
                raise NotUnderstood("for_s is neither null nor a time")
            span = None if for_s is None else float(for_s)
            return Inject(read_fault(fault), nic, span, _flag(message, "stay"))
    raise NotUnderstood("a request is none of status, inject and undo")


def _flag(message: Mapping[str, Any], name: str) -> bool:
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise NotUnderstood(f"{name} is neither true nor false")
    return value


def write_fault(request: Request) -> dict[str, Any]:
    """The inverse of :func:`read_fault`."""
    return {
        "kind": request.kind.value,
        "value": request.value,
        "phases": [[phase.down, phase.seconds] for phase in request.phases],
        "times": request.times,
        "flapping": request.flapping.value,
    }


def read_fault(fault: Mapping[str, Any]) -> Request:
    """Raises :class:`NotUnderstood`."""
    value, phases, times = fault.get("value", 0.0), fault.get("phases", []), fault.get("times", 1)
    if not (_is_number(value, int, float) and _is_number(times, int) and isinstance(phases, list)):
        raise NotUnderstood("a fault with fields of the wrong type")
    for phase in phases:
        if not (isinstance(phase, list) and len(phase) == 2 and isinstance(phase[0], bool)):
            raise NotUnderstood("a phase is not [down, seconds]")
        if not _is_number(phase[1], int, float):
            raise NotUnderstood("a phase is not [down, seconds]")
    try:
        kind, flapping = Kind(str(fault.get("kind"))), Kind(str(fault.get("flapping", Kind.LINK_DOWN)))
        turns = tuple(Phase(down, float(seconds)) for down, seconds in phases)
        request = Request(kind, float(value), Direction.BOTH, turns, times, flapping)
    except (ValueError, OverflowError) as wrong:
        raise NotUnderstood(str(wrong)) from wrong
    if request.kind in OF_PROCESSES:
        raise NotUnderstood(f"{request.kind} is done to a process, not by it")
    return request


def _is_number(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
