"""What goes on the wire: one header of 64 bytes, then a payload of the length that it names.

Every frame has the same header, so that a receiver reads a fixed number of bytes, knows from them where the payload
belongs, and lets the kernel write it there. The header ends in a check of its own: a header that fails it means that
we no longer know where frames begin, so the connection ends. A payload that fails its checksum costs only that chunk.

Chunks carry raw bytes, and relayed frames another frame (protocol.relay); all others carry a msgpack list, small by
construction. Nothing is ever pickled.
Acknowledgements ride in the header of chunks going the other way (``acknowledged``) as well as in frames of their own.

    offset  0  magic u16 · kind u8 · flags u8 · payload_bytes u32
            8  communicator u64 · operation u64
           24  step u32 · source u32 · target u32 · chunk u32 · fingerprint u32
           44  acknowledged u64 (all operations below it; 0 says nothing) · checksum u64 · check u32
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped, unused-ignore]
import xxhash

from r2ccl.checks import exactly, unsigned
from r2ccl.config import CHUNK_BYTES_MOST
from r2ccl.topology import checked_endpoint

T = TypeVar("T")

WIRE_VERSION = 1
MAGIC = 0x52C2
_LAYOUT = struct.Struct("<HBBIQQIIIIIQQI")
_UNCHECKED = struct.Struct("<HBBIQQIIIIIQQ")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _LAYOUT.size
assert HEADER_BYTES == 64

#: The largest payload of a chunk. Larger lengths are refused before anything is allocated.
CHUNK_BYTES_MAX = CHUNK_BYTES_MOST
#: The largest body of a control frame. An acknowledgement of everything open can be larger, and takes several.
CONTROL_BYTES_MAX = 64 << 10
#: The largest bitmap of an acknowledgement: chunks beyond the 131,072nd after a gap are told when it has moved on.
BITMAP_BYTES_MAX = 16 << 10
#: The longest description of a call that a peer may send.
CALL_CHARACTERS_MAX = 256


class Kind(enum.IntEnum):
    """The kinds of frames."""

    CHUNK = 1
    ACK = 2
    ENTERED = 3
    ABORT = 4
    ABORT_ACK = 5
    NOTICE = 6
    BEAT = 7
    ECHO = 8
    ECHO_REPLY = 9
    GOODBYE = 10
    REPEAT = 11
    FENCED = 12
    BALLOT = 13
    AGREEMENT = 14
    REACH = 15
    REACHED = 16
    RELAYED = 17


#: Versions of the wire do not mix (the handshake refuses that), so a kind that we do not know is no newer one.
_KIND_LAST = max(Kind).value
#: Kinds whose payload is raw and may be large: a transport asks where it goes. Numbers, for speed.
RAW_KINDS: Final = frozenset((Kind.CHUNK.value, Kind.RELAYED.value))
#: The largest payload of a relayed frame: a frame.
RELAYED_BYTES_MAX = HEADER_BYTES + max(CHUNK_BYTES_MAX, CONTROL_BYTES_MAX)
_RAW_BYTES_MAX: Final = MappingProxyType({Kind.CHUNK.value: CHUNK_BYTES_MAX, Kind.RELAYED.value: RELAYED_BYTES_MAX})


class Flag:
    """Bits of a header. Plain numbers: an IntFlag's operators cost a microsecond for every chunk."""

    CHECKSUMMED: Final = 1
    #: The sender's lane is filling up: acknowledge now what has arrived.
    ACK_WANTED: Final = 2
    #: Not the first time that this chunk goes out. For counters only; the name decides what is a duplicate.
    RESENT: Final = 4
    #: A move in lockstep (``actors.lockstep``): whoever sent it has all that was sent to it before this operation, and
    #: needs no acknowledgement.
    LOCKSTEP: Final = 8
    #: From here up: which copy of its chunk this is, in four bits.
    COPY_SHIFT: Final = 4
    COPY_MASK: Final = 15


class BadFrame(ValueError):
    """Bytes that cannot be a frame of ours. The connection they came from must end."""


class Header(NamedTuple):
    """A parsed header. A tuple, because one is made for every frame."""

    magic: int
    kind: int
    flags: int
    payload_bytes: int
    communicator: int
    operation: int
    step: int
    source: int
    target: int
    chunk: int
    fingerprint: int
    acknowledged: int
    checksum: int
    check: int


def checksum(payload: bytes | memoryview) -> int:
    """xxh3 of a payload: 50 to 120 GB/s on cached data."""
    return xxhash.xxh3_64_intdigest(payload)


def pack_header(
    kind: int,
    flags: int,
    payload_bytes: int,
    communicator: int = 0,
    operation: int = 0,
    step: int = 0,
    source: int = 0,
    target: int = 0,
    chunk: int = 0,
    fingerprint: int = 0,
    acknowledged: int = 0,
    payload_checksum: int = 0,
) -> bytes:
    """The 64 bytes of a header."""
    head = _UNCHECKED.pack(
        MAGIC, kind, flags, payload_bytes, communicator, operation, step, source, target, chunk, fingerprint,
        acknowledged, payload_checksum,
    )  # fmt: skip
    return head + _CHECK.pack(xxhash.xxh3_64_intdigest(head) & 0xFFFFFFFF)


def unpack_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """Parse and check the header at ``offset``. Raises :class:`BadFrame`; allocates nothing by a length it read."""
    try:
        header = Header._make(_LAYOUT.unpack_from(buffer, offset))
    except struct.error as short:
        raise BadFrame(f"no whole header: {short}") from short
    if header.check != xxhash.xxh3_64_intdigest(buffer[offset : offset + _UNCHECKED.size]) & 0xFFFFFFFF or (
        header.magic != MAGIC
    ):
        raise BadFrame("a header fails its check")
    if not 0 < header.kind <= _KIND_LAST:
        raise BadFrame(f"no kind of frame has the number {header.kind}")
    if header.payload_bytes > _RAW_BYTES_MAX.get(header.kind, CONTROL_BYTES_MAX):
        raise BadFrame(f"a payload of {header.payload_bytes} bytes is over the limit")
    return header


def peek_header(buffer: memoryview, offset: int) -> Header:
    """The header at ``offset``, of which 64 bytes are there. Nothing is checked: whoever looks for a certain one
    compares, and leaves all others to :func:`unpack_header`."""
    return Header._make(_LAYOUT.unpack_from(buffer, offset))


def repack_header(header: Header) -> bytes:
    """The 64 bytes that a header was read from."""
    return _LAYOUT.pack(*header)


def pack_control(kind: Kind, source: int, target: int, body: Sequence[Any]) -> tuple[bytes, bytes]:
    """Header and body of a control frame."""
    packed: bytes = msgpack.packb(body)
    if len(packed) > CONTROL_BYTES_MAX:
        raise ValueError(f"a control body of {len(packed)} bytes is over the limit of {CONTROL_BYTES_MAX}")
    header = pack_header(
        kind, Flag.CHECKSUMMED, len(packed), source=source, target=target, payload_checksum=checksum(packed)
    )
    return header, packed


def unpack_body(body: bytes | memoryview) -> list[Any]:
    """A control body as a list. Raises :class:`BadFrame`."""
    if len(body) > CONTROL_BYTES_MAX:
        raise BadFrame(f"a control body of {len(body)} bytes is over the limit")
    try:
        unpacked = msgpack.unpackb(body, strict_map_key=False)
    except (TypeError, ValueError, msgpack.UnpackException) as bad:
        raise BadFrame(f"a control body is no msgpack: {type(bad).__name__}: {bad}") from bad
    if not isinstance(unpacked, list):
        raise BadFrame("a control body is no list")
    return unpacked


# The bodies. Each knows how to become a list and how to be read from one; a list that does not fit is a BadFrame.


@dataclass(frozen=True, slots=True)
class OpenTransfer:
    """Which chunks of one unfinished transfer arrived: all below ``base``, then bit i of ``bits`` for ``base + i``."""

    operation: int
    step: int
    base: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """All operations below ``completed`` have arrived in full from the frame's target, and of others these chunks."""

    communicator: int
    completed: int
    transfers: tuple[OpenTransfer, ...]
    #: The frame's sender has entered all operations below it: no chunk of theirs counts against its credit.
    entered: int = 0

    def body(self) -> list[Any]:
        transfers = [[t.operation, t.step, t.base, t.bits] for t in self.transfers]
        return [self.communicator, self.completed, transfers, self.entered]


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a one-sided write of a transfer belongs: a region that the receiver registered, and an offset in it."""

    step: int
    region: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Entered:
    """The sender of this frame has called the operation; what it called, in words, and how far it is."""

    communicator: int
    operation: int
    fingerprint: int
    #: Such as ``all_reduce(float32[1000], sum)``.
    call: str
    finished: bool
    landings: tuple[Landing, ...] = ()
    #: Of a message between two ranks its tag, by which the other finds out what this is about.
    step: int = 0
    #: Chunks wait for the other's credit: it is to say when it is in the operation, too.
    asks: bool = False
    #: What plans depend on besides the call, such as ``epoch 0, chunks of 262144``; told where calls differ.
    under: str = ""

    def body(self) -> list[Any]:
        landings = [[p.step, p.region, p.offset, p.length] for p in self.landings]
        told = [self.communicator, self.operation, self.fingerprint, self.call, self.finished]
        return [*told, landings, self.step, self.asks, self.under]


@dataclass(frozen=True, slots=True)
class Abort:
    """Operation ``operation`` and all later ones of the communicator fail, on every rank, for this cause."""

    communicator: int
    operation: int
    #: ``timeout``, ``mismatch``, ``dead``, ``unreachable``, ``aborted``.
    cause: str
    text: str
    #: Lists of ranks or a map of calls, by cause; see actors.failing.
    details: tuple[Any, ...]

    def body(self) -> list[Any]:
        return [self.communicator, self.operation, self.cause, self.text, list(self.details)]


@dataclass(frozen=True, slots=True)
class Notice:
    """The sender's NICs and the links it gave up, with a version that only grows: state, so a repeat is harmless."""

    version: int
    #: Indices of the sender's NICs that are down.
    nics_down: tuple[int, ...]
    #: (sender's NIC, receiver's NIC, incident number) of links that the sender took out of service.
    links_down: tuple[tuple[int, int, int], ...]
    #: (index, family, host, port) of NICs whose endpoint changed.
    moved: tuple[tuple[int, str, str, int], ...] = ()

    def body(self) -> list[Any]:
        return [self.version, list(self.nics_down), [list(x) for x in self.links_down], [list(x) for x in self.moved]]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What a member of a failed communicator says about who goes on; see ``protocol.membership``."""

    communicator: int
    version: int
    view: tuple[int, ...]
    vote: tuple[int, ...]
    completed: int
    decided: tuple[int, int] | None

    def body(self) -> list[Any]:
        decided = [] if self.decided is None else list(self.decided)
        return [self.communicator, self.version, list(self.view), list(self.vote), self.completed, decided]


def read_body(body: list[Any], make: Callable[..., T]) -> T:
    try:
        return make(*body)
    except (TypeError, ValueError) as bad:
        raise BadFrame(f"a control body does not fit its kind: {bad}") from bad


def read_ack(body: list[Any]) -> Ack:
    """Raises :class:`BadFrame`."""

    def make(communicator: Any, completed: Any, transfers: Any, entered: Any) -> Ack:
        parsed = tuple(
            OpenTransfer(unsigned(operation), unsigned(step, 32), unsigned(base, 32), exactly(bytes, bits))
            for operation, step, base, bits in exactly(list, transfers)
        )
        return Ack(unsigned(communicator), unsigned(completed), parsed, unsigned(entered))

    return read_body(body, make)


def read_entered(body: list[Any]) -> Entered:
    """Raises :class:`BadFrame`."""

    def make(
        communicator: Any, operation: Any, fingerprint: Any, call: Any, finished: Any, landings: Any, *last: Any
    ) -> Entered:
        places = tuple(
            Landing(unsigned(step, 32), unsigned(region), unsigned(offset), unsigned(length))
            for step, region, offset, length in exactly(list, landings)
        )
        tag, asks, under = last
        for words in (call, under):
            if len(exactly(str, words)) > CALL_CHARACTERS_MAX:
                raise ValueError(f"a call described in {len(words)} characters")
        names = unsigned(communicator), unsigned(operation), unsigned(fingerprint, 32)
        return Entered(*names, call, exactly(bool, finished), places, unsigned(tag, 32), exactly(bool, asks), under)

    return read_body(body, make)


def read_abort(body: list[Any]) -> Abort:
    """Raises :class:`BadFrame`. What ``details`` hold is checked by who understands the cause."""

    def make(communicator: Any, operation: Any, cause: Any, text: Any, details: Any) -> Abort:
        told = exactly(str, cause), exactly(str, text), tuple(exactly(list, details))
        return Abort(unsigned(communicator), unsigned(operation), *told)

    return read_body(body, make)


def read_shrunk(body: list[Any]) -> Shrunk:
    """Raises :class:`BadFrame`."""

    def make(communicator: Any, version: Any, view: Any, vote: Any, completed: Any, decided: Any) -> Shrunk:
        reaches, votes = (tuple(unsigned(rank, 32) for rank in exactly(list, some)) for some in (view, vote))
        reached = tuple(unsigned(number) for number in exactly(list, decided))
        if len(reached) not in (0, 2):
            raise ValueError(f"{len(reached)} numbers of what was completed")
        both = (reached[0], reached[1]) if reached else None
        return Shrunk(unsigned(communicator), unsigned(version), reaches, votes, unsigned(completed), both)

    return read_body(body, make)


def read_notice(body: list[Any]) -> Notice:
    """Raises :class:`BadFrame`."""

    def make(version: Any, nics: Any, links: Any, moved: Any) -> Notice:
        down = tuple((unsigned(a, 32), unsigned(b, 32), unsigned(incident)) for a, b, incident in exactly(list, links))
        places = [(unsigned(nic, 32), checked_endpoint(*place)) for nic, *place in exactly(list, moved)]
        where = tuple((nic, place.family, place.host, place.port) for nic, place in places)
        return Notice(unsigned(version), tuple(unsigned(nic, 32) for nic in exactly(list, nics)), down, where)

    return read_body(body, make)
