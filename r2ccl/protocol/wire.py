"""What goes on the wire: one header of 64 bytes, then a payload of the length that it names.

Every frame has the same header, so that a receiver reads a fixed number of bytes, knows from them where the payload
belongs, and lets the kernel write it there. The header ends in a check of its own: a header that fails it means that
we no longer know where frames begin, so the connection ends. A payload that fails its checksum costs only that chunk.

Chunks carry raw bytes; all other frames carry a msgpack list, small by construction. Nothing is ever pickled.
Acknowledgements ride in the header of chunks going the other way (``acknowledged``) as well as in frames of their own.

    offset  0  magic u16 · kind u8 · flags u8 · payload_bytes u32
            8  communicator u64 · operation u64
           24  step u32 · source u32 · target u32 · chunk u32 · fingerprint u32
           44  acknowledged u64 (all operations below it; 0 says nothing) · checksum u64 · check u32
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped, unused-ignore]
import xxhash

from r2ccl.config import CHUNK_BYTES_MOST

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
#: The most that a transfer takes in an acknowledgement, beside its bitmap.
_TRANSFER_BYTES = 32
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
