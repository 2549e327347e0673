"""The bytes of a handshake: its messages, their limits, and what is signed. The machines are in protocol.handshake.

Every message is a length (u16, big-endian) and a msgpack list of at most 1 KiB that begins with magic, kind and both
versions. What a stranger sent is checked field by field here; bytes that are none of ours are a :class:`Garbage`.
"""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

#: First field of every message.
MAGIC = "r2ccl"
LENGTH_BYTES = 2
NONCE_BYTES = 32
#: The largest message, checked before anything is allocated for it. The longest legitimate one has about 400 bytes.
MESSAGE_BYTES_MAX = 1024
#: Longest texts: the name of a job or package version, in bytes, and the sentence of a refusal.
NAME_BYTES_MAX = 128
SENTENCE_CHARACTERS_MAX = 300
#: Longest list, with room for versions to come: the Hello's, of magic, kind, versions and nine fields.
FIELDS_MAX = 32
_U64_MAX = (1 << 64) - 1


class Garbage(ValueError):
    """Bytes that are no message of a handshake."""


class Kind(enum.IntEnum):
    """The kinds of messages."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5


@dataclass(frozen=True, slots=True)
class Opening:
    """How every message of every version begins, and the fields behind it."""

    kind: int
    wire_version: int
    package_version: str
    rest: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """The dialler's first message. Job and rank come first in every version to come."""

    job: str
    rank: int
    nic: int
    incarnation: int
    target_rank: int
    target_nic: int
    target_incarnation: int | None
    purpose: int
    nonce: bytes

    def fields(self) -> tuple[Any, ...]:
        who = (self.job, self.rank, self.nic, self.incarnation)
        whom = (self.target_rank, self.target_nic, self.target_incarnation)
        return (*who, *whom, self.purpose, self.nonce)


@dataclass(frozen=True, slots=True)
class Challenge:
    """The listener's answer, without its proof."""

    rank: int
    nic: int
    incarnation: int
    nonce: bytes

    def fields(self) -> tuple[Any, ...]:
        return (self.rank, self.nic, self.incarnation, self.nonce)


def pack(kind: Kind, wire_version: int, package_version: str, *fields: Any) -> bytes:
    """A message with its length in front."""
    body: bytes = msgpack.packb([MAGIC, kind, wire_version, package_version, *fields])
    assert len(body) <= MESSAGE_BYTES_MAX
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def cut(buffer: bytearray) -> bytes | None:
    """Take the first message's body out of the buffer, if it is whole. Raises :class:`Garbage` for a giant length."""
    if len(buffer) < LENGTH_BYTES:
        return None
    length = int.from_bytes(buffer[:LENGTH_BYTES], "big")
    if length > MESSAGE_BYTES_MAX:
        raise Garbage(f"a message of {length} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    end = LENGTH_BYTES + length
    if len(buffer) < end:
        return None
    body = bytes(buffer[LENGTH_BYTES:end])
    del buffer[:end]
    return body


def read_opening(body: bytes) -> Opening:
    """Raises :class:`Garbage`."""
    try:
        # No list or map of ours is longer, and what a stranger announces is allocated before it is filled: 1 KiB
        # of lists in lists, each said to be as long as the message, took 3 MiB.
        fields = msgpack.unpackb(body, max_array_len=FIELDS_MAX, max_map_len=FIELDS_MAX, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as bad:
        raise Garbage(f"a message is no msgpack ({type(bad).__name__})") from bad
    if not isinstance(fields, list) or len(fields) < 4 or fields[0] != MAGIC:
        raise Garbage("a message does not begin as one of ours")
    _, kind, wire, package, *rest = fields
    if not (is_number(kind) and is_number(wire) and is_name(package)):
        raise Garbage("a message does not begin as one of ours")
    return Opening(kind, wire, package, tuple(rest))


def read_hello(fields: tuple[Any, ...]) -> Hello:
    """Raises :class:`Garbage`."""
    if len(fields) != 9:
        raise Garbage(f"a hello with {len(fields)} fields")
    hello = Hello(*fields)
    numbers = (hello.rank, hello.nic, hello.incarnation, hello.target_rank, hello.target_nic, hello.purpose)
    right = (
        is_name(hello.job)
        and all(is_number(number) for number in numbers)
        and (hello.target_incarnation is None or is_number(hello.target_incarnation))
        and _is_nonce(hello.nonce)
    )
    if not right:
        raise Garbage("a hello with fields of the wrong type")
    return hello


def read_challenge(fields: tuple[Any, ...]) -> tuple[Challenge, bytes]:
    """The challenge and its proof. Raises :class:`Garbage`."""
    if len(fields) != 5:
        raise Garbage(f"a challenge with {len(fields)} fields")
    challenge = Challenge(*fields[:4])
    numbers = (challenge.rank, challenge.nic, challenge.incarnation)
    if not (all(map(is_number, numbers)) and _is_nonce(challenge.nonce) and isinstance(fields[4], bytes)):
        raise Garbage("a challenge with fields of the wrong type")
    return challenge, fields[4]


def read_proof(fields: tuple[Any, ...]) -> bytes:
    """Raises :class:`Garbage`."""
    if len(fields) != 1 or not isinstance(fields[0], bytes):
        raise Garbage("a proof that is none")
    return fields[0]


def read_refusal(fields: tuple[Any, ...]) -> tuple[str, str]:
    """Code and sentence; later versions may say more. Raises :class:`Garbage`."""
    if len(fields) < 2 or not isinstance(fields[0], str) or not isinstance(fields[1], str):
        raise Garbage("a refusal without a reason")
    return fields[0], printable(fields[1])[:SENTENCE_CHARACTERS_MAX]


def proof(secret: bytes, label: bytes, hello: bytes, challenge: bytes) -> bytes:
    """Over parts whose lengths are part of what is signed, so that no boundary can be moved."""
    signed = b"".join(len(part).to_bytes(4, "big") + part for part in (label, hello, challenge))
    return hmac.digest(secret, signed, "sha256")


def is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _U64_MAX


def is_name(value: object) -> bool:
    return isinstance(value, str) and len(value.encode(errors="replace")) <= NAME_BYTES_MAX


def _is_nonce(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == NONCE_BYTES


def printable(text: str) -> str:
    """A stranger's text may end up in a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
