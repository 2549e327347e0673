"""Ranks for tests of the rendezvous: well-behaved ones, and strangers that say what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import socket
from collections.abc import AsyncIterator, Iterator

from r2ccl.errors import RendezvousError
from r2ccl.protocol.handshake import Dialler, Purpose, Target
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meet import meet
from r2ccl.rendezvous.meeting import PORTS_TRIED, Meeting
from r2ccl.topology import Endpoint, Member, Nic, pack_member

#: Long enough that it is never reached on a busy machine, in tests that are not about time-outs.
PATIENCE_S = 20.0
#: For tests that are about time-outs.
IMPATIENCE_S = 0.4


def free_ports(seed: str) -> int:
    """The first of sixteen free ports, below the range from which the kernel gives ports to clients."""
    start = 20_000 + hash(seed) % 500 * PORTS_TRIED
    for base in itertools.chain(range(start, 28_000, PORTS_TRIED), range(20_000, start, PORTS_TRIED)):
        if all(is_free(port) for port in range(base, base + PORTS_TRIED)):
            return base
    raise AssertionError("no sixteen ports in a row are free")


def is_free(port: int) -> bool:
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


async def attend_when_the_first_is_gone(meeting: Meeting) -> tuple[Member, ...]:
    """The store hears of a closed connection some turns of the loop after we close it."""
    while True:
        try:
            return await attend(meeting)
        except RendezvousError as refused:
            if "second time" not in str(refused):
                raise


def is_free_to_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
