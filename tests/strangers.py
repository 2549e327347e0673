"""What strangers, and members who do not keep the rules, may send: strategies for whatever reads from a network.

arrivals(data)      the same bytes in any pieces, as reads may bring them
every_split(data)   all ways to cut them in two, and byte by byte: few enough to be tried one after the other
mutated(data)       almost those bytes: bits flipped, bytes inserted, left out, doubled, moved, cut off
SPEECHES            what comes to an open port without knowing us at all
anything            everything that msgpack can carry
nested(size)        a message of lists in lists, each of which claims to be as long as the message
peak_bytes(call)    what a call allocates at most, while it runs
frames(size)        frames with a right header and check, of any kind, about anything: what only a member can send
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack  # type: ignore[import-untyped, unused-ignore]
from hypothesis import strategies as st

from r2ccl.protocol.wire import Flag, Kind, checksum, pack_header

#: A client's first bytes in other languages.
SPEECHES: Final = {
    "nothing": b"",
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n",
    "a TLS client": bytes.fromhex("160301020001000001fc0303") + bytes(range(256)) + bytes(244),
    "a secure shell": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a database's client": b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "a giant length": b"\xff\xff\xff\xff\xff\xff\xff\xff",
}

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))

#: Everything that msgpack can carry.
anything: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(),
        st.text(max_size=8),
        st.binary(max_size=8),
        st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8)),
        st.builds(msgpack.Timestamp, st.integers(0, 1 << 33)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.one_of(st.integers(0, 9), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=20,
)


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    """Pieces with their borders there."""
    edges = [0, *sorted(places), len(data)]
    return [data[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


def arrivals(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """The bytes in any pieces, some of them empty."""
    return st.lists(st.integers(0, len(data)), max_size=8).map(lambda places: cut_at(data, places))


def every_split(data: bytes) -> Iterator[list[bytes]]:
    """All ways to cut them in two, and byte by byte."""
    yield [data[place : place + 1] for place in range(len(data))]
    for place in range(len(data) + 1):
        yield [data[:place], data[place:]]


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Almost those bytes; sometimes the very same."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        stop = min(len(changed), start + draw(st.integers(0, 12)))
        match draw(st.integers(0, 5)):
            case 0:
                for place in range(start, min(stop, start + 1)):
                    changed[place] ^= 1 << draw(st.integers(0, 7))
            case 1:
                changed[start:start] = draw(st.binary(max_size=12))
            case 2:
                del changed[start:stop]
            case 3:
                changed[start:start] = changed[start:stop]
            case 4:
                moved = changed[start:stop]
                del changed[start:stop]
                there = draw(st.integers(0, len(changed)))
                changed[there:there] = moved
            case 5:
                del changed[start:]
    return bytes(changed)


def nested(size: int) -> bytes:
    """So many bytes of lists in lists, each of which claims to have as many entries."""
    opening = b"\xdc" + min(size, 0xFFFF).to_bytes(2, "big")
    return (opening * 500)[:size].ljust(size, b"\x00")


def peak_bytes(call: Callable[[], object], *expected: type[BaseException]) -> int:
    """What a call allocates at most while it runs. It may raise what is expected."""
    tracemalloc.start()
    try:
        with contextlib.suppress(*expected):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def with_check(head: bytes) -> bytes:
    """A header whose own check is right, whatever else it says."""
    head = head[:-4]
    return head + struct.pack("<I", checksum(head) & 0xFFFFFFFF)


#: Numbers near those that mean something, and others.
_telling = st.one_of(st.integers(0, 4), u32, u64, st.just((1 << 64) - 1), st.integers(-2, -1))


def bodies(communicator: int) -> st.SearchStrategy[list[Any]]:
    """Control bodies: right ones, almost right ones, and anything. ``communicator``: one that exists."""
    number = st.one_of(st.just(communicator), _telling)
    entry = st.one_of(number, number, anything, st.lists(number, max_size=6), st.booleans(), st.binary(max_size=9))
    landing = st.lists(number, min_size=4, max_size=4)
    word = st.text(max_size=9)
    return st.one_of(
        st.lists(number, max_size=9),
        st.lists(entry, max_size=9),
        st.tuples(number, number, st.lists(landing, max_size=3), number).map(list),  # Ack
        st.tuples(number, number, number, word, st.booleans(), st.lists(landing, max_size=3), number, st.booleans(),
                  word).map(list),  # Entered
        st.tuples(number, number, st.sampled_from(["dead", "timeout", "mismatch", "aborted", "x"]), word,
                  st.lists(entry, max_size=3)).map(list),  # Abort
        st.tuples(number, st.lists(number, max_size=3), st.lists(st.lists(number, min_size=3, max_size=3), max_size=3),
                  st.lists(st.tuples(number, st.sampled_from(["inet", "memory", "x"]), word, u16).map(list),
                           max_size=2)).map(list),  # Notice
        st.tuples(number, number, st.lists(number, max_size=3), st.lists(number, max_size=3), number,
                  st.lists(number, max_size=2)).map(list),  # Shrunk
        st.tuples(number, st.integers(1, 10), number, number, number, number, st.lists(st.binary(max_size=9),
                  max_size=4)).map(list),  # the agreement
    )  # fmt: skip


@st.composite
def frames(draw: st.DrawFn, communicator: int, source: int, target: int) -> tuple[bytes, bytes]:
    """Header and payload of a frame that only a member can send: lengths and checks are right, what it says may not be.
    Mostly from the one rank to the other."""
    kind = draw(st.sampled_from(Kind))
    if kind in (Kind.CHUNK, Kind.RELAYED):
        payload = draw(st.one_of(st.binary(max_size=80), st.just(bytes(20_000))))
        if kind == Kind.RELAYED and draw(st.booleans()):
            header, inner = draw(frames(communicator, source, target))
            payload = header + inner
    else:
        body = draw(st.one_of(bodies(communicator), st.none()))
        payload = draw(st.binary(max_size=20)) if body is None else msgpack.packb(body)
    head = pack_header(
        kind,
        draw(st.sampled_from([0, Flag.CHECKSUMMED, Flag.ACK_WANTED, Flag.CHECKSUMMED | Flag.RESENT])),
        len(payload),
        draw(st.one_of(st.just(communicator), u64)),
        draw(st.one_of(st.integers(0, 3), u64)),
        draw(st.one_of(st.integers(0, 9), u32)),
        draw(st.one_of(st.just(source), st.integers(0, 3), u32)),
        draw(st.one_of(st.just(target), st.integers(0, 3), u32)),
        draw(st.one_of(st.integers(0, 4), u32)),
        draw(u32),
        draw(st.one_of(st.just(0), st.integers(0, 3), u64)),
        checksum(payload) if draw(st.integers(0, 9)) else draw(u64),
    )
    return head, payload
