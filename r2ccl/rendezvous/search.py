"""How a rank finds rank 0's store: it knocks at every port where the store may be, until the right one answers.

The first port may belong to somebody else, who may accept and say nothing (torchrun's store does). So knocks overlap:
the next port's turn comes when the last one has failed or a moment has passed, and the first that completes the
handshake wins. Rank 0 may not be up yet, and its name may not resolve yet: rounds are repeated with growing pauses
until the caller's deadline. A store of our job that refuses our version or secret will do so again: that is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from r2ccl.errors import AuthenticationError
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, PeerIdentity, Purpose, Reason, Target
from r2ccl.rendezvous.meeting import HANDSHAKE_TIMEOUT_S, Meeting, is_same_host, no_secret

_FIRST_PAUSE_S = 0.05
_PAUSE_GROWTH = 1.5
#: Rank 0 is up at most this long before it is found. A thousand ranks then knock a few thousand times a second.
_PAUSE_S_MAX = 1.0
#: After this long without an answer the next port is tried as well. Local networks answer in less.
_STAGGER_S = 0.2
_READ_BYTES = 4096
_SAY_SO_EVERY_S = 10.0


@dataclass(slots=True)
class Door:
    """An open connection to the store, proven."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    store: PeerIdentity
    address: str

    async def close(self) -> None:
        """Hang up, after what was written is out."""
        self.writer.close()
        # The store may have hung up first; either way the connection is gone.
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass(slots=True)
class SearchState:
    """Why the search has not succeeded so far, for whoever's deadline ends it."""

    obstacle: str = "nobody was asked yet"


async def search(meeting: Meeting, state: SearchState) -> Door:
    """Knock until the store answers. Ends only by success, refusal, or the caller's time limit.

    Raises :class:`AuthenticationError`.
    """
    loop = asyncio.get_running_loop()
    pause_s, said_at = _FIRST_PAUSE_S, loop.time()
    while True:
        try:
            addresses = await _resolve(meeting.host)
        except OSError as unresolved:
            state.obstacle = f"the name {meeting.host!r} does not resolve ({unresolved.strerror or unresolved})"
        else:
            door = await knock_everywhere(meeting, addresses, meeting.ports, state)
            if door is not None:
                return door
        if loop.time() - said_at >= _SAY_SO_EVERY_S:
            said_at = loop.time()
            log = logging.getLogger(__name__)
            log.warning(
                "rank %d waits for rank 0 at %s:%d: %s", meeting.rank, meeting.host, meeting.port, state.obstacle
            )
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_S_MAX)


async def knock_everywhere(
    meeting: Meeting, addresses: list[str], ports: Iterable[int], state: SearchState
) -> Door | None:
    """One round: the first door that opens, or None. Raises :class:`AuthenticationError` if we were refused instead."""
    knocks = _Round(meeting)
    try:
        await knocks.walk([(address, port) for port in ports for address in addresses])
    except BaseException:
        for door in knocks.doors:
            door.writer.close()
        raise
    for superfluous in knocks.doors[1:]:
        await superfluous.close()
    if knocks.doors:
        return knocks.doors[0]
    if knocks.refusals:
        raise knocks.refusals[0]
    state.obstacle = knocks.obstacles[0] if knocks.obstacles else "no port to try"
    return None


class _Round:
    """One walk past all doors, and what came of it."""

    def __init__(self, meeting: Meeting) -> None:
        self.doors: list[Door] = []
        self.refusals: list[AuthenticationError] = []
        self.obstacles: list[str] = []
        self._meeting = meeting

    async def walk(self, places: list[tuple[str, int]]) -> None:
        """Knock at each place in turn, until one opens."""
        async with asyncio.TaskGroup() as group:
            waiting: set[asyncio.Task[None]] = set()
            for address, port in places:
                waiting.add(group.create_task(self._knock(address, port)))
                _, waiting = await asyncio.wait(waiting, timeout=_STAGGER_S, return_when=asyncio.FIRST_COMPLETED)
                if self.doors:
                    break
            while waiting and not self.doors:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    async def _knock(self, address: str, port: int) -> None:
        place = f"{address}:{port}"
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                self.doors.append(await _enter(self._meeting, address, port))
        except HandshakeRefused as refused:
            if refused.reason in (Reason.VERSION, Reason.SECRET):
                sentence = f"rendezvous at {place}: {refused.sentence}"
                self.refusals.append(HandshakeRefused(refused.reason, sentence, by_peer=refused.by_peer))
            self.obstacles.append(f"{place}: {refused}")
        except AuthenticationError as refused:
            self.refusals.append(refused)
        except TimeoutError:
            self.obstacles.append(f"{place} does not answer")
        except OSError as failed:
            self.obstacles.append(f"{place}: {failed.strerror or failed}")


async def _resolve(host: str) -> list[str]:
    """Addresses of a host, IPv4 first. Raises ``OSError``."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as impossible:
        raise OSError(f"no name can be {host!r}: {impossible}") from impossible
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in ordered))


async def _enter(meeting: Meeting, address: str, port: int) -> Door:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        if not is_same_host(writer.transport) and (why := no_secret(meeting, address)) is not None:
            raise AuthenticationError(why)
        machine = Dialler(meeting.identity, 0, Target(0, 0), Purpose.STORE, secrets.token_bytes(32))
        writer.write(machine.start())
        while not machine.done:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError(None, "whoever listens there hung up during the handshake")
            try:
                writer.write(machine.receive_data(data))
            except HandshakeRefused as refused:
                writer.write(refused.farewell)
                writer.close()
                raise
        if machine.leftover:
            raise ConnectionResetError(None, "whoever listens there spoke before it was asked")
        return Door(reader, writer, machine.peer, f"{address}:{port}")
    except BaseException:
        # Also when another port was faster and this knock is cancelled. Closing still sends the farewell.
        writer.close()
        raise
