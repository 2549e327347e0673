"""The memory of one connection: two rings in one anonymous file.

The file never has a name, neither in /dev/shm nor elsewhere: it is passed over a Unix socket as a descriptor, so
whichever ranks are killed at whatever moment, nothing of it remains when the last of them is gone. Its size is sealed
before it is passed and checked where it is received, or the other end could shorten it under our feet, which would be a
SIGBUS. A token in its first page, which the receiver must find there, proves that both see the same memory.
"""

from __future__ import annotations

import fcntl
import hmac
import mmap
import os
import struct
from dataclasses import dataclass

from r2ccl.transport.shared_ring import CONTROL_BYTES

#: One direction's bytes: the largest frame of control, and a second one. Rings for bulk have no less.
RING_BYTES_LEAST = 256 << 10
#: Of bulk: eight chunks. With four, and with other programs on the cores, twice as often an end had to wait for a core
#: before it could go on (16 MiB between two ranks: 18 switches instead of 10, a fifth more time).
RING_BYTES_MOST = 2 << 20
#: What a rank may have in rings for bulk, both ways, to all its neighbours together: 17 ranks have the largest.
RINGS_BYTES_MAX = 64 << 20
TOKEN_BYTES = 32

#: Token, bytes of one ring.
_OFFER = struct.Struct(f"={TOKEN_BYTES}sQ")
OFFER_BYTES = _OFFER.size


class BadSegment(ValueError):
    """What was passed is no memory of ours."""


def bulk_ring_bytes(ranks: int) -> int:
    """Of each direction of a bulk connection, where so many ranks are on the node: a power of two."""
    fair = RINGS_BYTES_MAX // (2 * max(1, ranks - 1))
    return max(RING_BYTES_LEAST, min(RING_BYTES_MOST, 1 << (fair.bit_length() - 1)))


@dataclass(frozen=True, slots=True)
class Segment:
    """Mapped memory. It goes when the last view of it is gone."""

    #: The dialler writes into the first ring, and reads from the second.
    first: memoryview
    second: memoryview


def create(each: int, token: bytes) -> tuple[Segment, int, bytes]:
    """New memory with rings of ``each`` bytes: the segment, its descriptor, and the words that go with it. Raises
    ``OSError``."""
    descriptor = os.memfd_create("r2ccl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _total(each))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
        memory = memoryview(mmap.mmap(descriptor, _total(each)))
    except BaseException:
        os.close(descriptor)
        raise
    memory[:TOKEN_BYTES] = token
    return _cut(memory, each), descriptor, _OFFER.pack(token, each)


def attach(descriptor: int, offer: bytes) -> Segment:
    """The memory that the other end made. Raises :class:`BadSegment` or ``OSError``."""
    if len(offer) != OFFER_BYTES:
        raise BadSegment(f"an offer of {len(offer)} bytes")
    token, each = _OFFER.unpack(offer)
    if not RING_BYTES_LEAST <= each <= RING_BYTES_MOST or each & (each - 1):
        raise BadSegment(f"rings of {each} bytes")
    # What cannot be sealed is no memory file: this raises OSError for it.
    seals = _seals()
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals != seals or os.fstat(descriptor).st_size != _total(each):
        raise BadSegment("memory whose size is not what was agreed, or can change")
    memory = memoryview(mmap.mmap(descriptor, _total(each)))
    if not hmac.compare_digest(bytes(memory[:TOKEN_BYTES]), token):
        raise BadSegment("memory without the token: not the same memory")
    return _cut(memory, each)


def _seals() -> int:
    """Its size stays as it is. Asked for when needed, since other systems have no such words."""
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _total(each: int) -> int:
    return CONTROL_BYTES + 2 * (CONTROL_BYTES + each)


def _cut(memory: memoryview, each: int) -> Segment:
    """Behind the page with the token come the rings."""
    middle = CONTROL_BYTES + CONTROL_BYTES + each
    return Segment(memory[CONTROL_BYTES:middle], memory[middle:])
