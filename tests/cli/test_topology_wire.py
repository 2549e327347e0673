"""The doors of topology-check, and what strangers find there."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from r2ccl.cli.topology_wire import Door, Ended, Messages, prove
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Identity, Listener, Purpose, Reason, Target
from r2ccl.rendezvous.messages import LENGTH_BYTES

HOST = "127.0.0.1"


def identity(rank: int, secret: bytes = b"secret", job: str = "job") -> Identity:
    return Identity(job, secret, rank, 1000 + rank, "1.0")


class House:
    """A door, and who was served behind it."""

    def __init__(self) -> None:
        self.served: list[int] = []
        listener = socket.create_server((HOST, 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        self.door = Door(
            listener,
            lambda: Listener(identity(0), 0, secrets.token_bytes(32), (Purpose.PROBE,), {1: 1001}),
            self._serve,
        )

    async def _serve(self, sock: socket.socket, machine: Listener) -> None:
        self.served.append(machine.peer.rank)
        messages = Messages(sock, machine.leftover)
        await messages.send(["hello", machine.peer.rank])


@contextlib.asynccontextmanager
async def attended() -> AsyncIterator[House]:
    house = House()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(house.door.attend())
        try:
            yield house
        finally:
            task.cancel()
            house.door.close()


async def dial(house: House, who: Identity, purpose: Purpose = Purpose.PROBE) -> Messages:
    sock = socket.socket()
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, house.address)
        machine = Dialler(who, 0, Target(0, 0, 1000), purpose, secrets.token_bytes(32))
        return Messages(sock, await prove(sock, machine))
    except BaseException:
        sock.close()
        raise


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  the door tells nobody whom it refused
            await asyncio.sleep(0)


async def test_a_rank_of_the_job_is_served() -> None:
    async with attended() as house:
        messages = await dial(house, identity(1))
        assert await messages.receive() == ["hello", 1]
        messages.close()
        assert (house.served, house.door.refused) == ([1], 0)


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (identity(1, secret=b"another"), Reason.SECRET),
        (identity(1, secret=b""), Reason.SECRET),
        (identity(1, job="another"), Reason.JOB),
        (identity(2), Reason.INCARNATION),
    ],
)
async def test_who_is_not_of_the_job_is_refused_and_never_served(who: Identity, reason: Reason) -> None:
    async with attended() as house:
        with pytest.raises(HandshakeRefused) as refused:
            await dial(house, who)
        assert refused.value.reason is reason
        await until(lambda: house.door.refused == 1)
        assert house.served == []


async def test_another_purpose_is_not_served() -> None:
    async with attended() as house:
        with pytest.raises(HandshakeRefused):
            await dial(house, identity(1), Purpose.BULK)
        await until(lambda: house.door.refused == 1)
        assert house.served == []


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 4096, b"\0\0"])
async def test_a_stranger_is_told_nothing_and_the_next_one_is_served(noise: bytes) -> None:
    async with attended() as house:
        loop = asyncio.get_running_loop()
        with socket.socket() as stranger:
            stranger.setblocking(False)
            await loop.sock_connect(stranger, house.address)
            await loop.sock_sendall(stranger, noise)
            stranger.shutdown(socket.SHUT_WR)
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                heard = await loop.sock_recv(stranger, 100)
            assert heard == b""
        await until(lambda: house.door.refused == 1)
        messages = await dial(house, identity(1))
        assert await messages.receive() == ["hello", 1]
        messages.close()


def pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


async def test_messages_arrive_as_they_were_sent() -> None:
    one, other = pair()
    with one, other:
        sent: list[list[Any]] = [["reach", [[0, 1, 2, 3]]], ["rate", 1.5], ["view", ["x" * 200_000, None, True]]]
        ours, theirs = Messages(one, b""), Messages(other, b"")
        async with asyncio.TaskGroup() as group:
            for message in sent[:2]:
                await ours.send(message)
            group.create_task(ours.send(sent[2]))
            assert [await theirs.receive() for _ in sent] == sent


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"",
        (1 << 31).to_bytes(LENGTH_BYTES, "big"),
        (1).to_bytes(LENGTH_BYTES, "big") + b"\xc1",
        (1).to_bytes(LENGTH_BYTES, "big") + b"\x07",
        (9).to_bytes(LENGTH_BYTES, "big") + b"\x93",
    ],
    ids=["nothing", "a giant", "no msgpack", "no list", "cut short"],
)
async def test_what_makes_no_sense_ends_the_conversation(bytes_sent: bytes) -> None:
    one, other = pair()
    with other:
        one.sendall(bytes_sent)
        one.close()
        with pytest.raises(Ended):
            await Messages(other, b"").receive()
