"""Ranks that meet over loopback: each a coroutine, with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Purpose, Target
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meet import Rendezvous, meet
from r2ccl.rendezvous.meeting import PORTS_TRIED, Meeting
from r2ccl.topology import Endpoint, Member, Nic, pack_member

#: Long enough that it is never reached on a busy machine, in tests that are not about time-outs.
PATIENCE_S = 20.0
#: For tests that are about time-outs.
IMPATIENCE_S = 0.4


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    """The first of sixteen free ports, below the range from which the kernel gives ports to clients."""
    start = 20_000 + hash(request.node.name) % 500 * PORTS_TRIED
    for base in itertools.chain(range(start, 28_000, PORTS_TRIED), range(20_000, start, PORTS_TRIED)):
        if all(_is_free(port) for port in range(base, base + PORTS_TRIED)):
            return base
    raise AssertionError("no sixteen ports in a row are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def occupied(port: int) -> Iterator[socket.socket]:
    """Somebody else's server: accepts and says nothing."""
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        somebody.bind(("127.0.0.1", port))
        somebody.listen()
        yield somebody


def member(rank: int, incarnation: int | None = None, host: str = "127.0.0.1") -> Member:
    nic = Nic(0, "lo", Endpoint("inet", host, 1000 + rank))
    return Member(rank, 100 + rank if incarnation is None else incarnation, "node", (nic,))


def invitation(rank: int, size: int, port: int, **changes) -> Meeting:
    plain = Meeting(rank, size, "127.0.0.1", port, b"secret", "job", 100 + rank, "0.1.0", PATIENCE_S)
    return dataclasses.replace(plain, **changes)


async def attend(meeting: Meeting) -> tuple[Member, ...]:
    """A whole life at the meeting: come, connect, leave."""
    rendezvous = await meet(meeting, member(meeting.rank, meeting.incarnation))
    try:
        await rendezvous.all_connected()
    finally:
        await rendezvous.aclose()
    return rendezvous.book


async def outcomes(*meetings: Meeting) -> list[tuple[Member, ...] | BaseException]:
    return await asyncio.gather(*(attend(meeting) for meeting in meetings), return_exceptions=True)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
async def test_all_ranks_get_the_same_book_in_rank_order(port, size):
    books = await outcomes(*(invitation(rank, size, port) for rank in reversed(range(size))))
    assert books == [tuple(member(rank) for rank in range(size))] * size


async def test_a_rank_that_is_there_first_finds_rank_zero_later(port):
    early = asyncio.ensure_future(attend(invitation(1, 2, port)))
    with occupied(port + 1) as somebody:
        somebody.setblocking(False)
        connection, _ = await asyncio.get_running_loop().sock_accept(somebody)  # the early rank is searching
        connection.close()
        books = await asyncio.gather(attend(invitation(0, 2, port)), early)
    assert books[0] == books[1]


async def test_the_store_moves_on_when_the_port_belongs_to_somebody_else_who_keeps_silent(port):
    with occupied(port), occupied(port + 1):
        books = await outcomes(*(invitation(rank, 3, port) for rank in range(3)))
    assert books == [tuple(member(rank) for rank in range(3))] * 3


async def test_no_free_port_is_said_at_once(port):
    with contextlib.ExitStack() as others:
        for taken in range(port, port + PORTS_TRIED):
            others.enter_context(occupied(taken))
        with pytest.raises(RendezvousError, match=f"ports {port} to {port + 15} free"):
            await attend(invitation(0, 2, port))


async def test_two_jobs_with_overlapping_ports_do_not_mix(port):
    books = await outcomes(
        *(invitation(rank, 2, port, job="one", secret=b"1") for rank in range(2)),
        *(invitation(rank, 2, port, job="two", secret=b"2", incarnation=200 + rank) for rank in range(2)),
    )
    assert [[m.incarnation for m in book] for book in books if not isinstance(book, BaseException)] == [
        [100, 101],
        [100, 101],
        [200, 201],
        [200, 201],
    ]


async def test_unlike_versions_are_refused_at_once_on_both_sides_naming_both(port):
    results = await outcomes(invitation(0, 2, port), invitation(1, 2, port, package_version="9.9.9"))
    for result in results:
        assert isinstance(result, AuthenticationError)
        assert "0.1.0" in str(result)
        assert "9.9.9" in str(result)


async def test_another_secret_is_refused_at_once_on_both_sides(port):
    results = await outcomes(invitation(0, 2, port), invitation(1, 2, port, secret=b"guess"))
    for result in results:
        assert isinstance(result, AuthenticationError)
        assert "R2CCL_SECRET" in str(result)


async def test_a_refused_rank_does_not_end_the_meeting_while_others_are_on_their_way(port):
    host = asyncio.ensure_future(attend(invitation(0, 3, port)))
    with pytest.raises(AuthenticationError):
        await attend(invitation(2, 3, port, secret=b"guess"))
    mended = await admitted(invitation(2, 3, port))
    books = await asyncio.gather(host, attend(invitation(1, 3, port)), mended.attend())
    assert books[0] == books[1]


async def test_unlike_sizes_are_refused_on_both_sides(port):
    results = await outcomes(invitation(0, 2, port), invitation(1, 4, port))
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "WORLD_SIZE" in str(result)


async def test_a_second_process_of_a_rank_is_refused_and_the_first_goes_on(port):
    host = asyncio.ensure_future(attend(invitation(0, 3, port)))
    first = await admitted(invitation(1, 3, port))
    with pytest.raises(RendezvousError, match=r"rank 1 at 127\.0\.0\.1 came a second time"):
        await attend(invitation(1, 3, port, incarnation=999))
    books = await asyncio.gather(host, first.attend(), attend(invitation(2, 3, port)))
    assert books[0] == books[2]


async def test_a_second_rank_zero_is_refused_and_the_first_goes_on(port):
    async with serving(port, size=2) as first:
        with pytest.raises(RendezvousError, match="rank 0 came a second time"):
            await attend(invitation(0, 2, port, incarnation=999))
        books = await asyncio.gather(first, attend(invitation(1, 2, port)))
    assert books[0] == books[1]


@contextlib.asynccontextmanager
async def serving(port: int, size: int, **changes) -> AsyncIterator[asyncio.Future[tuple[Member, ...]]]:
    """Rank 0 in the background, once its port is open."""
    host = asyncio.ensure_future(attend(invitation(0, size, port, **changes)))
    _, writer = await knock_until_open(port)
    writer.close()
    yield host
    host.cancel()
    await asyncio.wait([host])


async def knock_until_open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0)


@dataclasses.dataclass
class Stranger:
    """Somebody who passes the handshake and then says what the test wants."""

    meeting: Meeting
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, request: messages.Request) -> None:
        self.writer.write(messages.pack(request))

    async def hear(self) -> messages.Answer:
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return messages.unpack_answer(await self.reader.readexactly(length))

    async def hear_all(self) -> list[messages.Answer]:
        answers = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                answers.append(await self.hear())
        self.writer.close()
        return answers

    async def attend(self) -> None:
        while not isinstance(await self.hear(), messages.Book):
            continue
        self.say(messages.Connected())
        while not isinstance(await self.hear(), messages.Go):
            continue
        self.writer.close()


async def stranger(meeting: Meeting) -> Stranger:
    reader, writer = await knock_until_open(meeting.port)
    machine = Dialler(meeting.identity, 0, Target(0, 0), Purpose.STORE, b"n" * 32)
    writer.write(machine.start())
    while not machine.done:
        writer.write(machine.receive_data(await reader.read(4096)))
    return Stranger(meeting, reader, writer)


async def admitted(meeting: Meeting) -> Stranger:
    """A rank that has announced itself, and that the store has taken in."""
    rank = await stranger(meeting)
    rank.say(messages.Announce(meeting.size, pack_member(member(meeting.rank, meeting.incarnation))))
    assert isinstance(await rank.hear(), messages.Waiting)
    return rank


async def test_a_rank_that_leaves_before_all_came_may_come_again(port):
    async with serving(port, size=3) as host:
        gone = await admitted(invitation(1, 3, port))
        gone.writer.close()
        again = attend_when_the_first_is_gone(invitation(1, 3, port, incarnation=555))
        books = await asyncio.gather(host, again, attend(invitation(2, 3, port)))
    assert books[0] == books[1] == books[2]
    assert books[0][1].incarnation == 555


async def attend_when_the_first_is_gone(meeting: Meeting) -> tuple[Member, ...]:
    """The store hears of a closed connection some turns of the loop after we close it."""
    while True:
        try:
            return await attend(meeting)
        except RendezvousError as refused:
            if "second time" not in str(refused):
                raise


async def test_a_rank_that_leaves_after_the_book_ends_the_meeting_for_all(port):
    host = asyncio.ensure_future(attend(invitation(0, 3, port)))
    gone = await admitted(invitation(1, 3, port))
    other = asyncio.ensure_future(attend(invitation(2, 3, port)))
    assert isinstance(await gone.hear(), messages.Book)
    gone.writer.close()
    for result in await asyncio.gather(host, other, return_exceptions=True):
        assert isinstance(result, RendezvousError)
        assert "rank 1 at 127.0.0.1 left before all ranks were connected" in str(result)


async def test_rank_zero_that_leaves_after_the_book_ends_the_meeting_for_all(port):
    host, guest = await asyncio.gather(*(meet(invitation(rank, 2, port), member(rank)) for rank in range(2)))
    await host.aclose()
    with pytest.raises(RendezvousError, match="rank 0 left before all ranks were connected"):
        await guest.all_connected()
    await guest.aclose()


async def test_a_killed_rank_zero_is_named_when_the_others_wait_for_all_to_be_connected(port):
    host, guest = await asyncio.gather(*(meet(invitation(rank, 2, port), member(rank)) for rank in range(2)))
    waiting = asyncio.ensure_future(host.all_connected())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(RendezvousError, match="rank 0 left before all ranks were connected"):
        await guest.all_connected()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_nobody_goes_before_everybody_is_connected(port):
    parties = await asyncio.gather(*(meet(invitation(rank, 3, port), member(rank)) for rank in range(3)))
    went: list[int] = []

    async def connect(rank: int, party: Rendezvous) -> None:
        await party.all_connected()
        went.append(rank)

    eager = [asyncio.ensure_future(connect(rank, parties[rank])) for rank in (0, 1)]
    with contextlib.closing(socket.socket()) as probe:
        probe.setblocking(False)
        await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", port))  # some turns of the loop
    assert went == []
    await asyncio.gather(*eager, connect(2, parties[2]))
    assert sorted(went) == [0, 1, 2]


async def test_after_the_meeting_the_port_is_free_again(port):
    await outcomes(*(invitation(rank, 3, port) for rank in range(3)))
    assert _is_free_to_connect(port)


def _is_free_to_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_a_time_out_names_the_ranks_that_did_not_come_on_every_rank(port):
    results = await outcomes(*(invitation(rank, 4, port, timeout_s=IMPATIENCE_S) for rank in (0, 2)))
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "ranks 1, 3 did not come within 0.4 s" in str(result)


async def test_a_time_out_names_the_ranks_that_could_not_connect(port):
    impatient = [invitation(rank, 3, port, timeout_s=IMPATIENCE_S) for rank in range(3)]
    parties = await asyncio.gather(*(meet(meeting, member(meeting.rank)) for meeting in impatient))
    results = await asyncio.gather(*(party.all_connected() for party in parties[:2]), return_exceptions=True)
    await parties[2].aclose()
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "rank 2 could not connect to all peers within 0.4 s" in str(result)


async def test_a_rank_that_finds_nobody_says_where_it_looked(port):
    with pytest.raises(
        RendezvousError, match=rf"rank 0 at 127.0.0.1, ports {port} to {port + 15}.*rank 0 did not come"
    ):
        await attend(invitation(1, 2, port, timeout_s=IMPATIENCE_S))


async def test_a_name_that_does_not_resolve_yet_is_waited_for_and_said(port, monkeypatch):
    """A container's name comes up after its neighbours do."""
    loop = asyncio.get_running_loop()
    asked = 0

    async def getaddrinfo(host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    books = await outcomes(invitation(0, 2, port), invitation(1, 2, port, host="store.example"))
    assert books[0] == books[1]
    assert asked == 2


async def test_a_name_that_never_resolves_is_in_the_error(port, monkeypatch):
    async def getaddrinfo(host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(RendezvousError, match="'store.example' does not resolve"):
        await attend(invitation(1, 2, port, host="store.example", timeout_s=IMPATIENCE_S))


async def test_a_cancelled_rank_leaves_nothing_open(port):
    for rank in (0, 1):
        waiting = asyncio.ensure_future(attend(invitation(rank, 2, port)))
        if rank == 0:
            _, writer = await knock_until_open(port)
            writer.close()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    assert _is_free_to_connect(port)


# Strangers at the store.


async def test_half_open_connections_are_bounded_and_those_beyond_are_sent_away(port):
    async with serving(port, size=2):
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * 2 + 16 + 3)]
        waits = {asyncio.ensure_future(reader.read(1)) for reader, _ in crowd}
        sent_away: set[asyncio.Future[bytes]] = set()
        while len(sent_away) < 3:
            done, waits = await asyncio.wait(waits, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            assert done
            sent_away |= done
        for wait in waits:
            wait.cancel()
        for _, writer in crowd:
            writer.close()
        assert len(sent_away) in (3, 4)  # the one that found the port open may still have been there


async def test_who_says_nothing_is_sent_away(port, monkeypatch):
    monkeypatch.setattr("r2ccl.rendezvous.store.HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving(port, size=2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        writer.close()


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00", b"\xff" * 5000])
async def test_garbage_is_hung_up_on_and_the_meeting_goes_on(port, nonsense):
    async with serving(port, size=2) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        writer.close()
        books = await asyncio.gather(host, attend(invitation(1, 2, port)))
    assert books[0] == books[1]


FORGED = {
    "a body that is no msgpack": b"\0\0\0\1\xc1",
    "a length over the limit": b"\xff\xff\xff\xff",
    "an unknown request": b"\0\0\0\1\x90",
    "connected before announced": messages.pack(messages.Connected()),
    "a member that is none": messages.pack(messages.Announce(3, b"\xc1")),
    "a member of another rank": messages.pack(messages.Announce(3, pack_member(member(2)))),
    "a member of another incarnation": messages.pack(messages.Announce(3, pack_member(member(1, 5)))),
    "announced twice": 2 * messages.pack(messages.Announce(3, pack_member(member(1)))),
    "connected before the book": messages.pack(messages.Announce(3, pack_member(member(1))))
    + messages.pack(messages.Connected()),
}


@pytest.mark.parametrize("case", FORGED)
async def test_a_proven_rank_that_talks_nonsense_is_hung_up_on_and_the_meeting_goes_on(port, case):
    async with serving(port, size=3) as host:
        liar = await stranger(invitation(1, 3, port))
        liar.writer.write(FORGED[case])
        assert all(isinstance(answer, messages.Waiting) for answer in await liar.hear_all())
        books = await asyncio.gather(
            host, attend_when_the_first_is_gone(invitation(1, 3, port)), attend(invitation(2, 3, port))
        )
    assert books[0] == books[1] == books[2]


async def test_a_rank_beyond_the_size_is_refused_and_the_meeting_goes_on(port):
    async with serving(port, size=2) as host:
        with pytest.raises(RendezvousError, match="rank 7 at 127.0.0.1 is impossible in a job of 2 ranks"):
            await attend(invitation(7, 2, port))
        books = await asyncio.gather(host, attend(invitation(1, 2, port)))
    assert books[0] == books[1]


async def test_a_purpose_other_than_the_store_is_not_served(port):
    async with serving(port, size=2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        machine = Dialler(invitation(1, 2, port).identity, 0, Target(0, 0), Purpose.BULK, b"n" * 32)
        writer.write(machine.start())
        with pytest.raises(HandshakeRefused, match="purpose"):
            machine.receive_data(await reader.read(4096))
        writer.close()


# Peers on other hosts, which a fixture pretends.


@pytest.fixture
def all_peers_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2ccl.rendezvous.store.is_same_host", lambda transport: False)
    monkeypatch.setattr("r2ccl.rendezvous.search.is_same_host", lambda transport: False)


@pytest.mark.usefixtures("all_peers_are_elsewhere")
async def test_without_a_secret_a_rank_does_not_talk_to_another_host_and_says_the_way_out(port):
    async with serving(port, size=2, secret=b""):
        with pytest.raises(AuthenticationError, match="R2CCL_INSECURE=1"):
            await attend(invitation(1, 2, port, secret=b""))


@pytest.mark.usefixtures("all_peers_are_elsewhere")
async def test_without_a_secret_the_store_refuses_another_host_and_both_say_the_way_out(port):
    results = await outcomes(invitation(0, 2, port, secret=b""), invitation(1, 2, port, secret=b"", insecure=True))
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "R2CCL_SECRET_FILE" in str(result)
        assert "R2CCL_INSECURE=1" in str(result)


@pytest.mark.usefixtures("all_peers_are_elsewhere")
@pytest.mark.parametrize("changes", [{"secret": b"", "insecure": True}, {}])
@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.3.4"])
async def test_an_address_that_means_another_machine_elsewhere_is_never_handed_out(port, changes, host):
    async def come(meeting: Meeting) -> None:
        await (await meet(meeting, member(meeting.rank, host=host))).aclose()

    results = await asyncio.gather(
        *(come(invitation(rank, 2, port, **changes)) for rank in range(2)), return_exceptions=True
    )
    for result in results:
        assert isinstance(result, RendezvousError)
        assert f"announced the address {host}" in str(result)


@pytest.mark.usefixtures("all_peers_are_elsewhere")
async def test_hosts_with_addresses_of_their_own_meet(port):
    parties = await asyncio.gather(
        *(meet(invitation(rank, 2, port), member(rank, host=f"10.0.0.{rank + 1}")) for rank in range(2))
    )
    await asyncio.gather(*(party.all_connected() for party in parties))
    assert parties[0].book == parties[1].book


async def test_without_a_secret_ranks_on_one_host_meet(port):
    books = await outcomes(*(invitation(rank, 2, port, secret=b"") for rank in range(2)))
    assert books[0] == books[1]


async def test_the_secret_is_in_no_log_and_no_repr(port, caplog):
    caplog.set_level(logging.DEBUG)
    meetings = [invitation(rank, 2, port, secret=secret) for rank, secret in enumerate((b"hush-hush", b"wrong-one"))]
    results = await outcomes(*meetings)
    for secret in ("hush-hush", "wrong-one"):
        assert secret not in caplog.text + repr(meetings) + repr(results)
