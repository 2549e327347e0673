"""Strangers at a TCP device, over real sockets: bounded, each counted by why it went, and nothing left of any."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from r2ccl.clock import MonotonicClock
from r2ccl.protocol.handshake import Dialler, Identity, Purpose, Target
from r2ccl.protocol.handshake_messages import Kind
from r2ccl.telemetry.event_log import EventLog
from r2ccl.telemetry.strangers import Strangers
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer, Connection, Loss
from r2ccl.transport.interface import Purpose as WirePurpose
from r2ccl.transport.tcp import Admission, TcpDevice
from tests.strangers import SPEECHES

PATIENCE_S = 20.0
BOB = Identity("job", b"secret", 0, 1000, "0.1.0")
ALICE = dataclasses.replace(BOB, rank=1, incarnation=1001)
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


class Noting:
    """A receiver that notes who came and how it ended."""

    def __init__(self) -> None:
        self.came: list[Connection] = []
        self.losses: list[tuple[Loss, str]] = []

    def established(self, connection: Connection) -> None:
        self.came.append(connection)

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.losses.append((loss, detail))

    def batch_ended(self, connection: Connection) -> None:
        """Nothing to do."""


class Door:
    """Bob's device, and what it counts."""

    def __init__(self, family: str = "inet", host: str = "127.0.0.1") -> None:
        loop = asyncio.get_running_loop()
        self.strangers = Strangers(loop, EventLog(MonotonicClock()))
        self.noting = Noting()
        nic = Nic(0, "lo", Endpoint(family, host, 0))
        self.device = TcpDevice(nic, Admission(BOB, {1: ALICE.incarnation}, self.strangers), loop)
        endpoint = self.device.listen(self.noting)  # type: ignore[arg-type]
        self.place = (endpoint.host, endpoint.port)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - a device says nothing of those whom it turns away
                await asyncio.sleep(0)

    async def counts(self, **refused: int) -> None:
        """Wait until just these were refused, and nobody waits."""
        await self.until(lambda: self.strangers.refused == refused)
        assert len(self.device.waiting) == 0
        assert not self.device._open


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Door]:
    door = Door()
    try:
        yield door
    finally:
        door.device.close()
        door.strangers.close()


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], story: Callable[[Door], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened() as door:
            await story(door)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def visit(door: Door, source: str = "127.0.0.1") -> socket.socket:
    """Somebody who is connected and says nothing."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(sock, door.place)
    return sock


async def heard(sock: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    loop, said = asyncio.get_running_loop(), b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(loop.sock_recv(sock, 4096), PATIENCE_S):
            said += piece
    sock.close()
    return said


def alice(identity: Identity = ALICE, target: Target | None = None) -> Dialler:
    return Dialler(identity, 0, target or Target(0, 0, BOB.incarnation), Purpose.CONTROL, b"a" * 32)


@LOOPS
def test_scanners_and_other_protocols_are_counted_and_nothing_is_left_of_them(new_loop) -> None:
    async def story(door: Door) -> None:
        (await visit(door)).close()
        reset = await visit(door)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        await door.counts(left=2)
        long = [speech for speech in SPEECHES.values() if len(speech) > 60]
        for speech in long:
            sock = await visit(door)
            await asyncio.get_running_loop().sock_sendall(sock, speech)
            assert await heard(sock) == b""
        await door.counts(left=2, garbage=len(long))
        assert not door.noting.came

    run(new_loop, story)


WRONG = {
    "secret": (alice(dataclasses.replace(ALICE, secret=b"guessed")), True),
    "job": (alice(dataclasses.replace(ALICE, job="another")), False),
    "version": (alice(dataclasses.replace(ALICE, package_version="9")), False),
    "incarnation": (alice(dataclasses.replace(ALICE, incarnation=5)), False),
    "not me": (alice(target=Target(0, 7)), False),
}


@pytest.mark.parametrize("reason", WRONG)
async def test_who_does_not_belong_here_is_counted_by_why_and_nothing_is_left(reason: str) -> None:
    machine, shows_proof = WRONG[reason]
    async with opened() as door:
        loop = asyncio.get_running_loop()
        sock = await visit(door)
        hello = machine._hello or machine.start()[2:]
        await loop.sock_sendall(sock, len(hello).to_bytes(2, "big") + hello)
        if shows_proof:
            # Whoever keeps to the protocol would leave here, for the listener's proof is not right for it, either.
            assert await asyncio.wait_for(loop.sock_recv(sock, 4096), PATIENCE_S)
            await loop.sock_sendall(sock, machine._message(Kind.PROOF, b"p" * 32))
        said = await heard(sock)
        assert reason.encode() in said
        await door.counts(**{reason: 1})
        assert not door.noting.came


@LOOPS
def test_of_a_crowd_the_oldest_go_and_who_has_said_a_right_hello_stays(new_loop, monkeypatch) -> None:
    monkeypatch.setattr("r2ccl.transport.tcp.HALF_OPEN_MAX", 4)

    async def story(door: Door) -> None:
        loop = asyncio.get_running_loop()
        machine = alice()
        friend = await visit(door)
        await loop.sock_sendall(friend, machine.start())
        challenge = await asyncio.wait_for(loop.sock_recv(friend, 4096), PATIENCE_S)
        crowd = []
        for number in range(10):
            crowd.append(await visit(door))
            await door.until(lambda n=number: len(door.device.waiting) == min(4, n + 2))  # type: ignore[misc]
        await door.until(lambda: door.strangers.refused == {"crowded": 7})
        for gone in crowd[:7]:
            assert await heard(gone) == b""
        await loop.sock_sendall(friend, machine.receive_data(challenge))
        machine.receive_data(await asyncio.wait_for(loop.sock_recv(friend, 4096), PATIENCE_S))
        assert machine.done
        assert [connection.peer for connection in door.noting.came] == [1]
        assert len(door.device.waiting) == 3
        for sock in [*crowd[7:], friend]:
            sock.close()
        await door.until(lambda: len(door.device.waiting) == 0)
        door.noting.came[0].abort()
        assert not door.device._open

    run(new_loop, story)


@LOOPS
def test_who_says_nothing_or_half_a_message_is_turned_away_in_time(new_loop, monkeypatch) -> None:
    monkeypatch.setattr("r2ccl.transport.tcp_handshake.HANDSHAKE_TIMEOUT_S", 0.1)

    async def story(door: Door) -> None:
        silent, slow = await visit(door), await visit(door)
        await asyncio.get_running_loop().sock_sendall(slow, alice().start()[:-1])
        assert await heard(silent) == await heard(slow) == b""
        await door.counts(slow=2)

    run(new_loop, story)


async def test_a_stranger_where_we_dial_is_counted_too_and_gets_no_proof() -> None:
    async with opened() as door:
        with socket.create_server(("127.0.0.2", 0)) as squatter:
            squatter.setblocking(False)
            port = squatter.getsockname()[1]
            door.device.dial(1, 0, Endpoint("inet", "127.0.0.2", port), WirePurpose.CONTROL)
            loop = asyncio.get_running_loop()
            sock, _ = await asyncio.wait_for(loop.sock_accept(squatter), PATIENCE_S)
            await loop.sock_sendall(sock, SPEECHES["a secure shell"] * 9)
            await door.until(lambda: bool(door.noting.losses))
            hello = await heard(sock)
        assert door.noting.losses[0][0] is Loss.NOT_ADMITTED
        assert len(hello) < 200
        await door.counts(garbage=1)


async def test_a_place_of_another_family_is_not_dialled_and_not_knocked_at() -> None:
    async with opened() as door:
        answers: list[Answer] = []
        for endpoint in (Endpoint("memory", "rank1", 0), Endpoint("inet6", "::1", 1), Endpoint("memory", "a\0b", 7)):
            door.device.dial(1, 0, endpoint, WirePurpose.CONTROL)
            door.device.reach(1, 0, endpoint, 1.0, answers.append)
        await door.until(lambda: len(door.noting.losses) == len(answers) == 3)
        assert {loss for loss, _ in door.noting.losses} == {Loss.UNREACHABLE}
        assert set(answers) == {Answer.SILENT}
        assert not door.device._open
