"""What a rank of ``r2ccl topology-check`` tries when asked to: reach, sizes of packets, a rate. It judges nothing.

Each probe has its own time limit, and so many run at once that a big job is done in seconds while no more than a few
descriptors are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from r2ccl.cli.topology_posts import RECEIPT
from r2ccl.cli.topology_wire import HANDSHAKE_TIMEOUT_S, prove
from r2ccl.clock import Clock
from r2ccl.planner.mtu_search import MtuSearch
from r2ccl.planner.network_picture import IP_BYTES_MAX, Outcome, Pair, PathMtu, Reach
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Identity, Purpose, Target
from r2ccl.topology import AddressBook, Nic
from r2ccl.transport.interface import Answer
from r2ccl.transport.mtu_probe import MtuProber
from r2ccl.transport.tcp_knock import Knock, bound_socket, is_no_route, knock

T = TypeVar("T")

#: A connect that takes longer is none that a job could use. One lost first packet is sent again after 1 s.
CONNECT_WAIT_S = 3.0
#: Knocks of which least and median are told.
KNOCKS = 5
_AT_ONCE = 64
_STREAM_BYTES = 1 << 20
#: What is still in flight when the sending ends has this long to arrive.
_RECEIPT_WAIT_S = 5.0


@dataclass(slots=True)
class Prober:
    """One rank's."""

    identity: Identity
    #: Own NICs.
    nics: Sequence[Nic]
    book: AddressBook
    probe_key: bytes
    clock: Clock
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def reach(self, pairs: Sequence[Pair], done: Callable[[], None] = lambda: None) -> list[Reach]:
        """See who answers at the other end of each pair, and how soon."""
        return await self._each([self._reach(pair) for pair in pairs], done)

    async def mtus(self, pairs: Sequence[Pair], done: Callable[[], None] = lambda: None) -> list[PathMtu]:
        """Find the largest packet that passes each pair."""
        return await self._each([self._mtu(pair) for pair in pairs], done)

    async def rate(self, pair: Pair, seconds: float) -> float:
        """Send for so long; bytes per second as they arrived, 0: it failed."""
        try:
            with self._socket(pair) as sock:
                await self._introduce(sock, pair, Purpose.BULK)
                return await self._send_for(sock, seconds)
        except (OSError, TimeoutError, HandshakeRefused):
            return 0.0

    async def _each(self, probes: Sequence[Coroutine[None, None, T]], done: Callable[[], None]) -> list[T]:
        async def one(probe: Coroutine[None, None, T]) -> T:
            async with self._slots:
                result = await probe
            done()
            return result

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(probe)) for probe in probes]
        return [task.result() for task in tasks]

    def _remote(self, pair: Pair) -> tuple[str, int]:
        endpoint = self.book[pair.target].nics[pair.target_nic].endpoint
        return endpoint.host, endpoint.port

    def _socket(self, pair: Pair) -> socket.socket:
        nic = self.nics[pair.source_nic]
        return bound_socket(socket.SOCK_STREAM, nic.name, nic.endpoint.host)

    async def _introduce(self, sock: socket.socket, pair: Pair, purpose: Purpose) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_WAIT_S):
            await loop.sock_connect(sock, self._remote(pair))
        target = Target(pair.target, pair.target_nic, self.book[pair.target].incarnation)
        await prove(sock, Dialler(self.identity, pair.source_nic, target, purpose, secrets.token_bytes(32)))

    async def _reach(self, pair: Pair) -> Reach:
        nic = self.nics[pair.source_nic]
        first = await knock(nic.name, nic.endpoint.host, self._remote(pair), CONNECT_WAIT_S, self.clock)
        if first.answer is not Answer.ANSWERED:
            return Reach(pair, _outcome(first), first.detail)
        try:
            with self._socket(pair) as sock:
                await self._introduce(sock, pair, Purpose.PROBE)
        except HandshakeRefused as refused:
            return Reach(pair, Outcome.STRANGER, refused.sentence)
        except TimeoutError:
            return Reach(pair, Outcome.STRANGER, f"it takes connections and says nothing for {HANDSHAKE_TIMEOUT_S:g} s")
        except OSError as error:
            outcome = Outcome.NO_ROUTE if is_no_route(error) else Outcome.STRANGER
            return Reach(pair, outcome, f"it hung up: {error.strerror or error}")
        more = [
            await knock(nic.name, nic.endpoint.host, self._remote(pair), CONNECT_WAIT_S, self.clock)
            for _ in range(KNOCKS - 1)
        ]
        times = [each.seconds for each in (first, *more) if each.answered]
        return Reach(pair, Outcome.REACHED, "", min(times), median(times))

    async def _mtu(self, pair: Pair) -> PathMtu:
        nic = self.nics[pair.source_nic]
        search = MtuSearch(min(nic.mtu_bytes, IP_BYTES_MAX))
        told = False
        try:
            with MtuProber(nic.name, nic.endpoint.host, self._remote(pair), nic.mtu_bytes, self.probe_key) as prober:
                while search.size_bytes is not None:
                    passage = await prober.passes(search.size_bytes)
                    told |= passage.told
                    search.heard(passage.passed)
        except OSError:
            # The NIC lost its address or route meanwhile: nothing is known, which is what 0 says.
            return PathMtu(pair, 0)
        return PathMtu(pair, search.path_bytes, told)

    async def _send_for(self, sock: socket.socket, seconds: float) -> float:
        loop, piece = asyncio.get_running_loop(), memoryview(bytes(_STREAM_BYTES))
        until = self.clock.now() + seconds
        # On a slow NIC the time is up in the middle of a piece.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.clock.now() < until:
                    await loop.sock_sendall(sock, piece)
        sock.shutdown(socket.SHUT_WR)
        receipt = b""
        async with asyncio.timeout(_RECEIPT_WAIT_S):
            while len(receipt) < RECEIPT.size and (data := await loop.sock_recv(sock, RECEIPT.size)):
                receipt += data
        if len(receipt) != RECEIPT.size:
            return 0.0
        received, took_s = RECEIPT.unpack(receipt)
        return float(received / took_s) if took_s > 0 else 0.0


def _outcome(first: Knock) -> Outcome:
    if first.no_route:
        return Outcome.NO_ROUTE
    match first.answer:
        case Answer.REFUSED:
            return Outcome.REFUSED
        case Answer.UNTRIED:
            return Outcome.FAILED
        case _:
            return Outcome.SILENT
