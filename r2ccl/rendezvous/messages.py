"""What ranks and the store say to each other once the handshake has admitted them: a length (u32) and a msgpack list.

A rank says Announce, later Connected. The store says Waiting now and then, Book once, Go once; or Refused, once, and
nothing after it. Lengths are checked against a limit before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

LENGTH_BYTES = 4
#: One member: 64 NICs with long names have about 6 KiB.
MEMBER_BYTES_MAX = 16 << 10
#: What a rank may send. The book is as long as all members.
REQUEST_BYTES_MAX = MEMBER_BYTES_MAX + 64
#: Its longest list; the member is packed in it.
REQUEST_FIELDS_MAX = 8
SENTENCE_CHARACTERS_MAX = 2000
_U32_MAX = (1 << 32) - 1


class BadMessage(ValueError):
    """Bytes that are no message of the rendezvous."""


@dataclass(frozen=True, slots=True)
class Announce:
    """A rank's member, packed, and how many ranks it was told that there are."""

    size: int
    member: bytes


@dataclass(frozen=True, slots=True)
class Connected:
    """The rank has all the connections that it starts with."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Ranks that the store waits for."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Book:
    """All members, packed, in rank order."""

    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Go:
    """All ranks are connected."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The meeting is over for the one who hears this, and why."""

    sentence: str


Request = Announce | Connected
Answer = Waiting | Book | Go | Refused


def book_bytes_max(size: int) -> int:
    """The longest answer in a job of that size."""
    return size * (MEMBER_BYTES_MAX + 8) + 8 * SENTENCE_CHARACTERS_MAX


def pack(message: Request | Answer) -> bytes:
    """A message with its length in front."""
    body: bytes = msgpack.packb(_as_list(message))
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def _as_list(message: Request | Answer) -> list[Any]:
    match message:
        case Announce():
            return ["announce", message.size, message.member]
        case Connected():
            return ["connected"]
        case Waiting():
            return ["waiting", list(message.ranks)]
        case Book():
            return ["book", list(message.members)]
        case Go():
            return ["go"]
        case Refused():
            return ["refused", message.sentence[:SENTENCE_CHARACTERS_MAX]]


def unpack_request(body: bytes) -> Request:
    """Raises :class:`BadMessage`."""
    match _fields(body, max_array_len=REQUEST_FIELDS_MAX):
        case ["announce", int(size), bytes(member)] if len(member) <= MEMBER_BYTES_MAX and 0 < size <= _U32_MAX:
            return Announce(size, member)
        case ["connected"]:
            return Connected()
    raise BadMessage("not what a rank says to the store")


def unpack_answer(body: bytes) -> Answer:
    """Raises :class:`BadMessage`."""
    match _fields(body):
        case ["waiting", list(ranks)] if all(type(rank) is int and 0 <= rank <= _U32_MAX for rank in ranks):
            return Waiting(tuple(ranks))
        case ["book", list(members)] if all(isinstance(member, bytes) for member in members):
            return Book(tuple(members))
        case ["go"]:
            return Go()
        case ["refused", str(sentence)]:
            return Refused(sentence)
    raise BadMessage("not what the store says to a rank")


def _fields(body: bytes, max_array_len: int = -1) -> list[Any]:
    """``max_array_len``: -1 stands for as many as the body has bytes."""
    try:
        fields = msgpack.unpackb(body, max_array_len=max_array_len, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as bad:
        raise BadMessage(f"no msgpack ({type(bad).__name__})") from bad
    if not isinstance(fields, list):
        raise BadMessage("no list")
    return fields


class MessageCutter:
    """Cuts a stream into the bodies of messages."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def cut(self, data: bytes) -> list[bytes]:
        """The bodies that are complete now. Raises :class:`BadMessage` as soon as a length is over the limit."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + checked_length(self._buffer[:LENGTH_BYTES], self._limit_bytes)
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
        return bodies


def checked_length(prefix: bytes | bytearray, limit_bytes: int) -> int:
    """The length in front of a message. Raises :class:`BadMessage` if it is over the limit."""
    length = int.from_bytes(prefix, "big")
    if length > limit_bytes:
        raise BadMessage(f"a message of {length} bytes is over the limit of {limit_bytes}")
    return length
