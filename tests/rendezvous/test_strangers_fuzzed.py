"""Whatever comes to the rendezvous, from strangers and from ranks that talk nonsense: it is hung up on, counted, told
in few lines, and nothing is left of it; and whoever sits on the store's port lets nobody in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator

import msgpack  # type: ignore[import-untyped, unused-ignore]
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.clock import MonotonicClock
from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.protocol.handshake import Dialler, Purpose, Target
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meet import meet
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.rendezvous.roll import Roll
from r2ccl.telemetry.event_log import EventLog
from r2ccl.telemetry.strangers import Strangers
from r2ccl.topology import Endpoint, Member, Nic, pack_member, unpack_member
from tests.rendezvous.parties import PATIENCE_S, attend, free_ports, invitation, knock_until_open, member, stranger
from tests.strangers import SPEECHES, anything, arrivals, every_split, mutated, nested, peak_bytes


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    return free_ports(request.node.name)


# Messages.

STREAM = b"".join(
    messages.pack(message)
    for message in (
        messages.Announce(3, pack_member(member(1))),
        messages.Connected(),
    )
)


def requests(pieces: list[bytes]) -> list[messages.Request]:
    cutter = messages.MessageCutter(messages.REQUEST_BYTES_MAX)
    return [messages.unpack_request(body) for piece in pieces for body in cutter.cut(piece)]


def test_requests_come_whole_however_they_are_cut() -> None:
    expected = [messages.Announce(3, pack_member(member(1))), messages.Connected()]
    for pieces in every_split(STREAM):
        assert requests(pieces) == expected


@given(st.data())
def test_a_changed_stream_of_requests_is_read_or_a_bad_message(data: st.DataObject) -> None:
    pieces = data.draw(arrivals(data.draw(mutated(STREAM))))
    with contextlib.suppress(messages.BadMessage):
        for request in requests(pieces):
            if isinstance(request, messages.Announce):
                with contextlib.suppress(ValueError):
                    unpack_member(request.member)


@given(st.lists(anything, max_size=5), st.sampled_from(["announce", "connected", "waiting", "book", "go", "refused"]))
def test_bodies_of_wrong_types_are_bad_messages_or_say_the_same(fields: list[object], kind: str) -> None:
    body = msgpack.packb([kind, *fields])
    for unpack in (messages.unpack_request, messages.unpack_answer):
        with contextlib.suppress(messages.BadMessage):
            assert messages.pack(unpack(body))[messages.LENGTH_BYTES :] == body


RIGHT = [1, 101, "node", [[0, "lo", "inet", "127.0.0.1", 1001, 0, 1500, False]], []]


def test_a_member_is_read_as_it_was_packed() -> None:
    nics = (
        Nic(0, "eth0", Endpoint("inet", "192.0.2.7", 65535), 1 << 20, 9000, True),
        Nic(1, "eth1", Endpoint("inet6", "fe80::1%eth1", 0)),
        Nic(2, "nic2", Endpoint("memory", "rank0", 2)),
    )
    told = Member((1 << 32) - 1, (1 << 64) - 1, "n\u00f6de", nics)
    assert unpack_member(pack_member(told)) == told
    assert unpack_member(msgpack.packb(RIGHT)) == member(1)


@given(st.data())
def test_a_member_with_one_value_exchanged_is_refused_or_says_the_same(data: st.DataObject) -> None:
    body = msgpack.unpackb(msgpack.packb(RIGHT))
    holder = data.draw(st.sampled_from([body, body[3], body[3][0]]))
    holder[data.draw(st.integers(0, len(holder) - 1))] = data.draw(anything)
    with contextlib.suppress(ValueError):
        assert pack_member(unpack_member(msgpack.packb(body))) == msgpack.packb(body)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, float("inf")), (0, -1), (0, 1 << 32), (0, "1"), (0, True), (2, ["node"]), (2, "a\n"), (3, {}), (3, "nic"),
        (4, None), (4, {}), (4, [1e-9]), (4, [1] * 13), (4, [float("nan")] * 13),
    ],
)  # fmt: skip
def test_a_member_that_would_only_fit_after_a_conversion_is_refused(place: int, value: object) -> None:
    body = [*RIGHT]
    body[place] = value
    with pytest.raises(ValueError, match="not an announcement"):
        unpack_member(msgpack.packb(body))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 1), (1, "lo\0"), (1, "x" * 256), (2, "unix"), (3, "localhost"), (3, "127.0.0.1\0"), (3, "::1"),
        (4, 65536), (4, -1), (5, 1.5), (6, None), (7, 1),
    ],
)  # fmt: skip
def test_a_nic_that_would_only_fail_when_it_is_dialled_is_refused_when_it_is_announced(
    place: int, value: object
) -> None:
    nic = [0, "lo", "inet", "127.0.0.1", 1001, 0, 1500, False]
    nic[place] = value
    with pytest.raises(ValueError, match="not an announcement"):
        unpack_member(msgpack.packb([*RIGHT[:3], [nic], []]))


def test_lists_that_claim_to_be_long_are_refused_before_they_are_made() -> None:
    body = nested(messages.REQUEST_BYTES_MAX)
    assert peak_bytes(lambda: messages.unpack_request(body), messages.BadMessage) < 256 << 10


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["announce", "leave", "connected"]), st.integers(2, 4))))
def test_the_roll_has_room_for_its_ranks_only(steps: list[tuple[int, str, int]]) -> None:
    roll = Roll(3)
    for rank, step, size in steps:
        if step == "announce":
            with contextlib.suppress(RendezvousError):
                roll.announce(member(rank), size, "somewhere", elsewhere=False)
        elif step == "leave" and rank in roll._present:
            roll.leave(rank)
        elif not roll.missing and rank in range(3):
            roll.connected(rank)
        assert set(roll._present) | roll._connected | set(roll._refused) <= {0, 1, 2}


# The store, over real sockets.


@contextlib.asynccontextmanager
async def counted_store(port: int, size: int = 2) -> AsyncIterator[tuple[asyncio.Future[object], Strangers, EventLog]]:
    """Rank 0 in the background, and what it counts."""
    events = EventLog(MonotonicClock())
    strangers = Strangers(asyncio.get_running_loop(), events)

    async def host() -> object:
        rendezvous = await meet(invitation(0, size, port), member(0), strangers)
        try:
            await rendezvous.all_connected()
        finally:
            await rendezvous.aclose()
        return rendezvous.book

    serving = asyncio.ensure_future(host())
    _, writer = await knock_until_open(port)
    writer.close()
    yield serving, strangers, events
    serving.cancel()
    await asyncio.wait([serving])
    strangers.close()


async def say(port: int, speech: bytes, hangs_up: bool) -> None:
    """Say it, and hang up, or wait until the other side does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(speech)
    if not hangs_up:
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def scan(port: int) -> None:
    """As a port scanner: connect, and reset at once."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def everybody_comes(port: int) -> None:
    async with counted_store(port) as (host, strangers, events):
        for _ in range(3):
            for speech in SPEECHES.values():
                await say(port, speech, hangs_up=len(speech) < 100)
            scan(port)
        other = Dialler(invitation(1, 2, port, job="another").identity, 0, Target(0, 0), Purpose.STORE, b"n" * 32)
        hello = other.start()
        for _ in range(20):
            await say(port, hello, hangs_up=False)
        book, same = await asyncio.gather(host, attend(invitation(1, 2, port)))
        assert book == same
    assert strangers.refused["garbage"] >= 3 * sum(len(speech) > 100 for speech in SPEECHES.values())
    assert strangers.refused["left"] >= 6
    assert strangers.refused["job"] == 20
    told = [event for event in events.since(0) if event.name == "stranger"]
    assert len(told) <= 2 * len(strangers.refused)
    counted = {reason: 0 for reason in strangers.refused}
    for event in told:
        counted[str(event.fields["refused"])] += int(str(event.fields.get("more", 1)))
    assert counted == strangers.refused


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_whoever_comes_by_is_counted_and_told_in_few_lines_and_the_ranks_meet(
    port: int, new_loop: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), asyncio.Runner(loop_factory=new_loop) as runner:  # type: ignore[arg-type]
        runner.run(everybody_comes(port))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def flood(port: int, host: str, count: int) -> list[socket.socket]:
    """So many connections that say nothing and stay."""
    loop, crowd = asyncio.get_running_loop(), []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((host, 0))
        crowd.append(sock)
        with contextlib.suppress(OSError):
            await asyncio.wait_for(loop.sock_connect(sock, ("127.0.0.1", port)), PATIENCE_S)
    return crowd


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"])
async def test_in_a_flood_of_silent_connections_ranks_meet_all_the_same(port: int, source: str) -> None:
    async with counted_store(port) as (host, strangers, _):
        crowd = await flood(port, source, 600)
        try:
            book, same = await asyncio.gather(host, attend(invitation(1, 2, port)))
            assert book == same
        finally:
            for sock in crowd:
                sock.close()
        assert strangers.refused["crowded"] >= 600 - 2 * 2 - 256


async def test_who_sends_a_byte_a_second_is_sent_away_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2ccl.rendezvous.store.HANDSHAKE_TIMEOUT_S", 0.3)
    async with counted_store(port) as (_, strangers, _events):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError):
            for byte in b"\x00\x40" + bytes(60):
                writer.write(bytes([byte]))
                await writer.drain()
                if reader.at_eof():
                    break
                await asyncio.sleep(0.05)
        writer.close()
        assert strangers.refused["slow"] == 1


# Somebody else on the store's port.


@contextlib.asynccontextmanager
async def squatter(port: int, speech: bytes, hangs_up: bool) -> AsyncIterator[None]:
    """Somebody who listens where rank 0 should, and says this to whoever comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(speech)
        if not hangs_up:
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize("speech", SPEECHES)
async def test_whoever_sits_on_the_stores_port_and_says_anything_is_passed_by(
    port: int, speech: str, hangs_up: bool
) -> None:
    async with squatter(port, SPEECHES[speech], hangs_up):
        books = await asyncio.gather(*(attend(invitation(rank, 2, port)) for rank in range(2)))
    assert books[0] == books[1]


async def test_a_store_without_the_secret_lets_nobody_in_and_gets_no_proof(port: int) -> None:
    """An impostor that speaks our protocol perfectly, except that it guessed the secret. The rank says so at once."""
    impostor = asyncio.ensure_future(attend(invitation(0, 2, port, secret=b"guessed")))
    _, writer = await knock_until_open(port)
    writer.close()
    honest: Meeting = invitation(1, 2, port)
    with pytest.raises(AuthenticationError, match="does not know the job's secret"):
        await attend(honest)
    impostor.cancel()
    await asyncio.wait([impostor])


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_rank_that_has_the_secret_and_sends_anything_is_hung_up_on(data: st.DataObject) -> None:
    pieces = data.draw(arrivals(data.draw(mutated(STREAM)) + bytes(messages.REQUEST_BYTES_MAX) + b"\xff" * 8))

    async def main() -> None:
        port = free_ports("anything")
        async with counted_store(port, size=3) as (_, strangers, _events):
            rank = await stranger(invitation(1, 3, port))
            for piece in pieces:
                rank.writer.write(piece)
            await asyncio.wait_for(rank.hear_all(), PATIENCE_S)
            assert sum(strangers.refused.values()) >= 1

    asyncio.run(main())
