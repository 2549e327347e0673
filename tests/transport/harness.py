"""What the conformance suite needs of a transport: a world of devices, and receivers that remember what they hear."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from r2ccl.protocol.wire import Flag, Header, Kind, Landing, checksum, pack_header
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Connection, Device, Loss, Purpose

#: A wait longer than this, in the time of the loop, means that what is awaited will not come.
PATIENCE_S = 20.0
COMMUNICATOR = 77
KIB = 1 << 10
SMALL = 16 * KIB
LARGE = 256 * KIB
HUGE = 4 << 20


def chunk_header(
    payload: bytes | bytearray | memoryview, chunk: int = 0, operation: int = 1, communicator: int = COMMUNICATOR
) -> bytes:
    """The header of a checksummed chunk."""
    return pack_header(
        Kind.CHUNK, Flag.CHECKSUMMED, len(payload), communicator, operation, chunk=chunk,
        payload_checksum=checksum(memoryview(payload)),
    )  # fmt: skip


def spoiled_header(payload: bytes, chunk: int = 0) -> bytes:
    """The header of a chunk whose payload was other bytes when its checksum was taken."""
    return pack_header(
        Kind.CHUNK, Flag.CHECKSUMMED, len(payload), COMMUNICATOR, 1, chunk=chunk, payload_checksum=checksum(payload) ^ 1
    )


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes in which neither a shift nor another seed goes unnoticed."""
    block = bytes((index * 131 + seed * 29 + (index >> 8)) & 0xFF for index in range(8191))
    return (block * (size // len(block) + 1))[:size]


@dataclass(frozen=True, slots=True)
class Event:
    """One call of a receiver."""

    kind: str
    connection: Connection
    header: Header | None = None
    payload: bytes = b""
    loss: Loss | None = None


@dataclass(slots=True)
class Recorder:
    """A receiver that remembers. ``reactions`` run inside the call whose kind they are named for."""

    news: asyncio.Event
    events: list[Event] = field(default_factory=list)
    #: Chunk index -> where its payload goes; others get memory of their own, which is kept here too.
    places: dict[int, memoryview] = field(default_factory=dict)
    reactions: dict[str, Callable[[Connection], None]] = field(default_factory=dict)

    def established(self, connection: Connection) -> None:
        self._note(Event("established", connection))

    def destination(self, connection: Connection, header: Header) -> memoryview:
        place = self.places.setdefault(header.chunk, memoryview(bytearray(header.payload_bytes)))
        self._note(Event("destination", connection, header))
        return place

    def landed(self, connection: Connection, header: Header) -> None:
        place = self.places.get(header.chunk)
        self._note(Event("landed", connection, header, b"" if place is None else bytes(place)))

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        self._note(Event("chunk", connection, header, bytes(payload)))

    def spoiled(self, connection: Connection, header: Header) -> None:
        self._note(Event("spoiled", connection, header))

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        self._note(Event("control", connection, header, bytes(body)))

    def batch_ended(self, connection: Connection) -> None:
        self._note(Event("batch_ended", connection))

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        assert detail, "a loss without a word of explanation"
        self._note(Event("lost", connection, loss=loss))

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()
        if event.kind in self.reactions:
            self.reactions[event.kind](event.connection)

    def of(self, *kinds: str, connection: Connection | None = None) -> list[Event]:
        """Events of these kinds, on one connection if it is given."""
        return [e for e in self.events if e.kind in kinds and connection in (None, e.connection)]

    def payloads(self, connection: Connection | None = None) -> list[bytes]:
        """What arrived in chunks, in the order of arrival."""
        return [event.payload for event in self.of("chunk", "landed", connection=connection)]

    def chunk_numbers(self, connection: Connection | None = None) -> list[int]:
        """Which chunks arrived, in the order of arrival."""
        return [e.header.chunk for e in self.of("chunk", "landed", connection=connection) if e.header is not None]


@dataclass(frozen=True, slots=True)
class Side:
    """One NIC of one rank, listening."""

    rank: int
    device: Device
    endpoint: Endpoint
    hears: Recorder

    @property
    def nic(self) -> int:
        return self.device.nic.index


@dataclass(slots=True)
class World:
    """Devices that can reach one another."""

    open_device: Callable[[int, Nic], Device]
    #: Address of a rank's NIC before it listens.
    address: Callable[[int, int], Endpoint]
    #: Both directions of everything through this NIC are dead without a word, until the returned callable mends them.
    sever: Callable[[Side], Callable[[], None]] | None = None
    #: Let time pass, for those who measure it.
    pass_time: Callable[[float], Awaitable[None]] = asyncio.sleep
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _sides: list[Side] = field(default_factory=list)

    def side(self, rank: int, nic: int = 0) -> Side:
        device = self.open_device(rank, Nic(nic, f"nic{nic}", self.address(rank, nic)))
        hears = Recorder(self.news)
        side = Side(rank, device, device.listen(hears), hears)
        self._sides.append(side)
        return side

    def dial(self, source: Side, target: Side, purpose: Purpose = Purpose.BULK) -> Connection:
        return source.device.dial(target.rank, target.nic, target.endpoint, purpose)

    async def connect(
        self, source: Side, target: Side, purpose: Purpose = Purpose.BULK
    ) -> tuple[Connection, Connection]:
        """Both ends of a new connection."""
        before = len(target.hears.of("established"))
        dialled = self.dial(source, target, purpose)
        await self.until(lambda: bool(source.hears.of("established", connection=dialled)))
        await self.until(lambda: len(target.hears.of("established")) > before)
        return dialled, target.hears.of("established")[-1].connection

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for events until ``holds``."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.news.clear()
                await self.news.wait()

    async def until_true(self, holds: Callable[[], bool]) -> None:
        """Wait for something that is no event, turn by turn of the loop."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await self.pass_time(10e-6)

    async def pair(self) -> tuple[Side, Side, Connection, Connection]:
        """Two ranks and one bulk connection."""
        one, other = self.side(0), self.side(1)
        here, there = await self.connect(one, other)
        return one, other, here, there

    def close(self) -> None:
        for side in self._sides:
            side.device.close()


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport under test. ``build`` is called within the loop that ``run`` makes."""

    name: str
    run: Callable[[Coroutine[Any, Any, None]], None]
    build: Callable[[], World]
    one_sided: bool = False
    severable: bool = False
    #: Its hardware gives up on a severed path by itself.
    flushes: bool = False
    #: Its connections have a short way.
    posts: bool = False


Check = Callable[[World], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Law:
    """Something that every transport keeps, or every one that has what the law speaks of."""

    check: Check
    one_sided: bool
    severable: bool
    flushes: bool
    posts: bool

    @property
    def name(self) -> str:
        return self.check.__name__

    def binds(self, transport: Transport) -> bool:
        return (
            (transport.one_sided or not self.one_sided)
            and (transport.severable or not self.severable)
            and (transport.flushes or not self.flushes)
            and (transport.posts or not self.posts)
        )


def run_law(transport: Transport, law: Law) -> None:
    async def main() -> None:
        world = transport.build()
        try:
            await law.check(world)
        finally:
            world.close()
            # One turn, so that what closing has scheduled is not left for the loop to complain about.
            await asyncio.sleep(0)

    transport.run(main())


def run_on(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[Coroutine[Any, Any, None]], None]:
    """A runner on a real loop that fails when a callback does."""

    def run(main: Coroutine[Any, Any, None]) -> None:
        failures: list[BaseException] = []
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.get_loop().set_exception_handler(
                lambda _, context: failures.append(context.get("exception") or RuntimeError(context["message"]))
            )
            try:
                runner.run(main)
            finally:
                if failures:
                    raise failures[0]

    return run


def is_held(memory: bytearray) -> bool:
    """Whether anybody still has a view of it: memory that is viewed cannot be resized."""
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False


def landing_of(key: int, length: int, offset: int = 0) -> Landing:
    return Landing(step=0, region=key, offset=offset, length=length)


def numbers(events: Iterable[Event]) -> list[int]:
    return [event.header.chunk for event in events if event.header is not None]
