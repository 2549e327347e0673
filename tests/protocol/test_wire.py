"""The wire's frames: what is packed is what is read, and whatever else arrives is a BadFrame and costs nothing."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from r2ccl.protocol import wire
from r2ccl.protocol.ledger import frames_of
from r2ccl.protocol.wire import (
    BITMAP_BYTES_MAX,
    CHUNK_BYTES_MAX,
    CONTROL_BYTES_MAX,
    HEADER_BYTES,
    RELAYED_BYTES_MAX,
    Abort,
    Ack,
    BadFrame,
    Entered,
    Flag,
    Kind,
    Landing,
    Notice,
    OpenTransfer,
    checksum,
    pack_control,
    pack_header,
    read_abort,
    read_ack,
    read_entered,
    read_notice,
    unpack_body,
    unpack_header,
)
from tests.strangers import anything, u16, u32, u64, with_check

READERS: list[Callable[[list[Any]], Any]] = [read_ack, read_entered, read_abort, read_notice]

headers: st.SearchStrategy[dict[str, int]] = st.builds(
    dict,
    kind=st.sampled_from(Kind),
    flags=st.integers(0, 7),
    payload_bytes=st.integers(0, CONTROL_BYTES_MAX),
    **dict.fromkeys(("communicator", "operation", "acknowledged", "payload_checksum"), u64),
    **dict.fromkeys(("step", "source", "target", "chunk", "fingerprint"), u32),
)
acks = st.builds(
    Ack,
    u64,
    u64,
    st.lists(st.builds(OpenTransfer, u64, u32, u32, st.binary(max_size=64)), max_size=5).map(tuple),
    u64,
)
landings = st.lists(st.builds(Landing, u32, u64, u64, u64), max_size=5).map(tuple)
entereds = st.builds(Entered, u64, u64, u32, st.text(max_size=80), st.booleans(), landings)
details = st.one_of(u32, st.lists(u32, max_size=4), st.dictionaries(u32, st.text(max_size=20), max_size=4))
aborts = st.builds(
    Abort,
    u64,
    u64,
    st.sampled_from(["timeout", "mismatch", "dead"]),
    st.text(),
    st.lists(details, max_size=3).map(tuple),
)
places = st.one_of(
    st.tuples(u32, st.just("inet"), st.ip_addresses(v=4).map(str), u16),
    st.tuples(u32, st.just("inet6"), st.ip_addresses(v=6).map(str), u16),
    st.tuples(u32, st.just("memory"), st.sampled_from(["rank0", "rank1.nic2"]), u16),
)
notices = st.builds(
    Notice,
    u64,
    st.lists(u32, max_size=4).map(tuple),
    st.lists(st.tuples(u32, u32, u64), max_size=4).map(tuple),
    st.lists(places, max_size=4).map(tuple),
)
bodies = st.lists(anything, max_size=7)


@given(fields=headers, before=st.binary(max_size=9))
def test_a_header_is_read_as_it_was_packed(fields, before):
    packed = pack_header(**fields)
    assert len(packed) == HEADER_BYTES
    header = unpack_header(before + packed + b"behind", len(before))
    read = header._asdict()
    read["payload_checksum"] = read.pop("checksum")
    assert (read.pop("magic"), read.pop("check")) == (wire.MAGIC, struct.unpack("<I", packed[-4:])[0])
    assert read == fields
    assert unpack_header(memoryview(bytearray(packed))) == header


@given(fields=headers)
def test_a_flipped_bit_anywhere_in_a_header_is_noticed(fields):
    packed = pack_header(**fields)
    whole = int.from_bytes(packed, "little")
    for bit in range(HEADER_BYTES * 8):
        with pytest.raises(BadFrame, match="fails its check"):
            unpack_header((whole ^ 1 << bit).to_bytes(HEADER_BYTES, "little"))


@given(noise=st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_noise_is_no_header(noise):
    with pytest.raises(BadFrame, match="fails its check"):
        unpack_header(noise)


@given(noise=st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_noise_with_a_right_check_is_no_header_without_the_magic(noise):
    foreign = with_check(b"\x00" + noise[1:])
    with pytest.raises(BadFrame, match="fails its check"):
        unpack_header(foreign)


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 255])
def test_a_kind_that_does_not_exist_is_refused(kind):
    with pytest.raises(BadFrame, match=f"no kind of frame has the number {kind}"):
        unpack_header(pack_header(kind, 0, 0))


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_less_than_a_header_is_refused(size):
    with pytest.raises(BadFrame, match="no whole header"):
        unpack_header(pack_header(Kind.BEAT, 0, 0)[:size])


@pytest.mark.parametrize("kind", Kind)
def test_a_payload_may_be_as_long_as_its_kind_allows_and_no_longer(kind):
    raw = {Kind.CHUNK: CHUNK_BYTES_MAX, Kind.RELAYED: RELAYED_BYTES_MAX}
    limit = raw.get(kind, CONTROL_BYTES_MAX)
    assert unpack_header(pack_header(kind, 0, limit)).payload_bytes == limit
    for giant in (limit + 1, 0xFFFFFFFF):
        with pytest.raises(BadFrame, match=f"a payload of {giant} bytes is over the limit"):
            unpack_header(pack_header(kind, 0, giant))


def test_the_offset_of_every_field_is_the_one_that_the_module_documents():
    packed = pack_header(2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24)
    read = struct.unpack_from
    assert read("<HBBI", packed, 0) == (0x52C2, 2, 4, 6)
    assert read("<QQ", packed, 8) == (8, 10)
    assert read("<IIIII", packed, 24) == (12, 14, 16, 18, 20)
    assert read("<QQ", packed, 44) == (22, 24)


@pytest.mark.parametrize(
    ("messages", "read"), [(acks, read_ack), (entereds, read_entered), (aborts, read_abort), (notices, read_notice)]
)
@given(data=st.data(), kind=st.sampled_from(Kind), source=u32, target=u32)
def test_a_control_body_is_read_as_it_was_packed(messages, read, data, kind, source, target):
    message = data.draw(messages)
    packed, body = pack_control(kind, source, target, message.body())
    header = unpack_header(packed)
    assert (header.kind, header.source, header.target) == (kind, source, target)
    assert (header.flags, header.payload_bytes, header.checksum) == (Flag.CHECKSUMMED, len(body), checksum(body))
    assert read(unpack_body(memoryview(body))) == message


@given(body=bodies)
def test_a_body_of_wrong_types_is_a_bad_frame_or_fits_exactly(body):
    """Nothing is converted on the way: what was read says again, to the type, what arrived."""
    arrived = unpack_body(msgpack.packb(body))
    for read in READERS:
        try:
            message = read(arrived)
        except BadFrame:
            continue
        assert msgpack.packb(message.body()) == msgpack.packb(arrived)


@given(data=st.data())
def test_a_body_with_one_value_exchanged_is_a_bad_frame_or_fits_exactly(data):
    messages, read = data.draw(
        st.sampled_from([(acks, read_ack), (entereds, read_entered), (aborts, read_abort), (notices, read_notice)])
    )
    body = data.draw(messages).body()
    holder = body
    nested = [value for value in body if isinstance(value, list) and value]
    if nested and data.draw(st.booleans()):
        holder = data.draw(st.sampled_from(nested))
        holder = holder[0] if isinstance(holder[0], list) and holder[0] else holder
    holder[data.draw(st.integers(0, len(holder) - 1))] = data.draw(anything)
    arrived = unpack_body(msgpack.packb(body))
    try:
        message = read(arrived)
    except BadFrame:
        return
    assert msgpack.packb(message.body()) == msgpack.packb(arrived)


@given(noise=st.binary(max_size=200))
@example(b"")
@example(b"\x90\x90")
@example(b"\xc1")
@example(b"\x91\xa1\xff")  # a text that is no UTF-8
@example(b"\x91\x81\x90\xc0")  # a map whose key is a list
@example(b"\x91\x81\x81\x01\x01\xc0")  # a map whose key is a map
@example(b"\x91\xd7\xff" + b"\xff" * 8)  # a timestamp with too many nanoseconds
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91\xc6\xff\xff\xff\xff")
@example(b"\x91\xdf\xff\xff\xff\xff")
def test_noise_as_a_body_is_a_list_or_a_bad_frame(noise):
    try:
        body = unpack_body(noise)
    except BadFrame:
        return
    assert type(body) is list


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01", b"\xdc\x00\x01"])
def test_a_body_nested_without_end_is_refused(opening):
    depth = (CONTROL_BYTES_MAX - 1) // len(opening)
    with pytest.raises(BadFrame, match="is no msgpack"):
        unpack_body(b"\x91" + opening * (depth - 1) + b"\xc0")


@pytest.mark.parametrize(
    "length", [b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"]
)
def test_a_body_that_names_a_giant_length_is_refused_and_nothing_is_allocated(length):
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame, match="is no msgpack"):
            unpack_body(b"\x91" + length + b"\x00" * 100)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_body_over_the_limit_is_refused_on_both_ends():
    full = [bytes(CONTROL_BYTES_MAX - 4)]
    _, body = pack_control(Kind.ACK, 0, 1, full)
    assert len(body) == CONTROL_BYTES_MAX
    assert unpack_body(body) == full
    with pytest.raises(ValueError, match="over the limit"):
        pack_control(Kind.ACK, 0, 1, [bytes(CONTROL_BYTES_MAX)])
    with pytest.raises(BadFrame, match="over the limit"):
        unpack_body(msgpack.packb([bytes(CONTROL_BYTES_MAX)]))


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_ack, [1, 2, []]),
        (read_ack, [1, 2, [], -1]),
        (read_ack, [1, 2, [], 0, 5]),
        (read_ack, [-1, 2, [], 0]),
        (read_ack, [1, 1 << 64, [], 0]),
        (read_ack, [1, True, [], 0]),
        (read_ack, [1, 2.0, [], 0]),
        (read_ack, [1, float("inf"), [], 0]),
        (read_ack, [1, "2", [], 0]),
        (read_ack, [1, 2, None, 0]),
        (read_ack, [1, 2, {}, 0]),
        (read_ack, [1, 2, [[1, 2, 3]], 0]),
        (read_ack, [1, 2, ["four"], 0]),
        (read_ack, [1, 2, [[1, 1 << 32, 3, b""]], 0]),
        (read_ack, [1, 2, [[1, 2, -3, b""]], 0]),
        (read_ack, [1, 2, [[1, 2, 3, 10**12]], 0]),  # bytes(10**12) would be a terabyte
        (read_ack, [1, 2, [[1, 2, 3, [1, 2]]], 0]),
        (read_entered, [1, 2, 3, b"call", False, []]),
        (read_entered, [1, 2, 3, "call", 0, []]),
        (read_entered, [1, 2, 1 << 32, "call", False, []]),
        (read_entered, [1, 2, 3, "call", False, [[1, 2, -3, 4]]]),
        (read_entered, [1, 2, 3, "call", False, [7]]),
        (read_abort, [1, 2, "dead", "text", "details"]),
        (read_abort, [1, 2, None, "text", []]),
        (read_notice, [1, [-1], [], []]),
        (read_notice, [1, [], [[1, 2]], []]),
        (read_notice, [1, [], [], [[0, "inet", "127.0.0.1", 65536]]]),
        (read_notice, [1, [], [], [[0, "inet", b"127.0.0.1", 1]]]),
        (read_notice, [1, [], [], [[0, "inet", "host", 1]]]),  # a name that we would have to look up
        (read_notice, [1, [], [], [[0, "inet", "127.0.0.1\0", 1]]]),
        (read_notice, [1, [], [], [[0, "inet", "::1", 1]]]),
        (read_notice, [1, [], [], [[0, "unix", "127.0.0.1", 1]]]),
        (read_notice, [1, [], [], [[0, "memory", "\0", 1]]]),
        (read_notice, [1, [], [], [[0, "inet", "127.0.0.1"]]]),
    ],
)
def test_a_value_that_does_not_fit_is_a_bad_frame(read, body):
    with pytest.raises(BadFrame, match="does not fit its kind"):
        read(body)


def test_the_complaint_about_a_long_value_is_short():
    with pytest.raises(BadFrame) as caught:
        read_ack(["x" * 60_000, 2, []])
    assert len(str(caught.value)) < 200


def test_an_acknowledgement_of_everything_open_is_cut_into_frames_that_fit() -> None:
    transfers = tuple(
        OpenTransfer(1 << 63, step, 0xFFFFFFFF, bytes(step % 7 * 2000)) for step in range(0xFFFF0000, 0xFFFF0000 + 9000)
    )
    frames = list(frames_of(transfers))
    assert tuple(transfer for frame in frames for transfer in frame) == transfers
    for frame in frames:
        pack_control(Kind.ACK, 0, 1, Ack((1 << 64) - 1, (1 << 64) - 1, frame, (1 << 64) - 1).body())
    assert list(frames_of(())) == [()]
    whole = (OpenTransfer(1, 1, 0, bytes(BITMAP_BYTES_MAX)),) * 9
    assert [len(frame) for frame in frames_of(whole)] == [3, 3, 3]
