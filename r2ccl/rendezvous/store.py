"""The store that rank 0 serves while ranks find one another: sockets and timers around a :class:`Roll`.

Each connection first proves itself (protocol.handshake), then announces a rank and waits: for the book, then for the
word that all are connected. Whoever has not announced a rank within seconds is sent away, and of more such half-open
connections than a bound some have to go (protocol.doorkeeper), so that strangers can't use up descriptors. No task runs
here: everything happens
in callbacks of the event loop, and what rank 0 waits for are the futures ``complete`` and ``all_connected``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Callable
from typing import cast

from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.protocol.doorkeeper import Doorkeeper
from r2ccl.protocol.handshake import HandshakeRefused, Identity, Listener, Purpose, Reason
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meeting import (
    HANDSHAKE_TIMEOUT_S,
    PORTS_TRIED,
    SAY_WHO_IS_MISSING_S,
    Meeting,
    is_same_host,
    no_secret,
)
from r2ccl.rendezvous.roll import Roll, did_not_come
from r2ccl.telemetry.strangers import CROWDED, LEFT, NONSENSE, SLOW, Strangers
from r2ccl.topology import AddressBook, Member, pack_member, unpack_member

#: Connections that have not announced a rank: every rank twice at once, and as many strangers as may be accepted in a
#: few turns of the loop, so that a rank among them has time to say who it is.
_HALF_OPEN_BASE = 256
#: Half of them: what is accepted in one turn of the loop has to fit, and somebody's Hello has to be read after it.
_BACKLOG = 128
_PORTS_IN_USE = frozenset({errno.EADDRINUSE, errno.EACCES})


class Store:
    """Rank 0's side of a meeting."""

    def __init__(self, meeting: Meeting, strangers: Strangers | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.meeting = meeting
        self.identity: Identity = meeting.identity
        self.port = 0
        self.complete: asyncio.Future[AddressBook] = loop.create_future()
        self.all_connected: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._roll = Roll(meeting.size)
        self._server: asyncio.Server | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._strangers = strangers
        #: All open connections; of these, those that have not announced a rank; and the others by rank.
        self._connections: set[_Connection] = set()
        self._half_open: set[_Connection] = set()
        self._doorkeeper: Doorkeeper[_Connection] = Doorkeeper(2 * meeting.size + _HALF_OPEN_BASE)
        self._admitted: dict[int, _Connection] = {}
        self._empty: asyncio.Future[None] | None = None
        self._failure: RendezvousError | None = None

    async def open(self) -> None:
        """Listen on the first free port of the meeting's range. Raises :class:`RendezvousError`."""
        for port in self.meeting.ports:
            try:
                # Without a loopback address in the invitation ranks may come over any NIC.
                # In two steps: a server that serves at once is lost, open, if we are cancelled before we are given it.
                self._server = await self._loop.create_server(
                    lambda: _Connection(self),
                    self.meeting.listening_host,
                    port,
                    reuse_address=True,
                    backlog=_BACKLOG,
                    start_serving=False,
                )
                await self._server.start_serving()
            except OSError as taken:
                if self._server is not None:
                    self._server.close()
                    self._server = None
                if taken.errno not in _PORTS_IN_USE:
                    raise RendezvousError(f"rank 0 cannot listen on {self.meeting.listening_host}: {taken}") from taken
                continue
            self.port = port
            break
        else:
            raise RendezvousError(
                f"rank 0 found none of the ports {self.meeting.port} to {self.meeting.ports[-1]} free; "
                f"it tries MASTER_PORT and {PORTS_TRIED - 1} more: choose another MASTER_PORT"
            )
        self._timers = [
            self._loop.call_later(self.meeting.timeout_s, self._expire),
            self._loop.call_later(SAY_WHO_IS_MISSING_S, self._say_who_is_missing),
        ]

    @property
    def own_address(self) -> str:
        """Where a process on this machine reaches stores like this one."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.meeting.listening_host, self.meeting.listening_host)

    def announce(self, member: Member) -> None:
        """Rank 0 itself is here."""
        self._roll.announce(member, self.meeting.size, "rank 0's own process", elsewhere=False)
        self._look()

    def connected(self) -> None:
        """Rank 0 itself is connected."""
        self._roll.connected(0)
        self._look_for_go()

    def fail(self, why: RendezvousError) -> None:
        """End the meeting for all who are here."""
        if self._failure is not None or self.all_connected.done():
            return
        self._failure = why
        self._broadcast(messages.Refused(f"rank 0 ended the rendezvous: {why}"))
        for future in (self.complete, self.all_connected):
            if not future.done():
                future.set_exception(why)
                # Rank 0 awaits the two one after the other, and perhaps not both.
                future.exception()
        for connection in list(self._connections):
            connection.close()

    async def emptied(self, timeout_s: float) -> None:
        """Listen no more, and wait until all ranks have heard the last word and hung up, but not for ever."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._half_open):
            connection.close()
        if self._connections:
            self._empty = self._loop.create_future()
            await asyncio.wait([self._empty], timeout=timeout_s)

    def close(self) -> None:
        """Stop listening, end every connection. May be called twice."""
        for timer in self._timers:
            timer.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()

    # What connections tell.

    def opened(self, connection: _Connection) -> bool:
        """Whether anybody is still let in. Somebody else may have to go."""
        if self._failure is not None:
            return False
        self._connections.add(connection)
        self._half_open.add(connection)
        leaves = self._doorkeeper.came(connection, connection.place)
        if leaves is not None:
            leaves.turn_away(CROWDED, "too many wait")
        return True

    def greeted(self, connection: _Connection) -> None:
        """A right Hello came."""
        self._doorkeeper.greeted(connection)

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._no_stranger(connection)
        rank = connection.rank
        if rank is not None and self._admitted.get(rank) is connection:
            del self._admitted[rank]
            if self._failure is None and (why := self._roll.leave(rank)) is not None:
                self.fail(why)
        if self._empty is not None and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    def _no_stranger(self, connection: _Connection) -> None:
        self._half_open.discard(connection)
        self._doorkeeper.gone(connection)

    def turned_away(self, reason: str, place: str, says: str) -> None:
        """Somebody was not admitted."""
        if self._strangers is not None:
            self._strangers.refuse(reason, "rendezvous", place, says)

    def refused(self, claimed_rank: int | None, place: str, reason: str, why: RendezvousError) -> None:
        """A peer failed the handshake, or was refused afterwards. Nobody waits any longer if it was the last one."""
        who = "a peer" if claimed_rank is None else f"rank {claimed_rank}"
        self.turned_away(reason, place, f"{who} was not admitted: {why}")
        self._roll.refuse(claimed_rank, why)
        self._look()

    def admit(self, connection: _Connection, member: Member, size: int) -> None:
        """A proven rank announces itself. Raises :class:`RendezvousError`."""
        self._roll.announce(member, size, connection.place, connection.elsewhere)
        self._no_stranger(connection)
        self._admitted[member.rank] = connection
        if self._roll.missing:
            connection.send(messages.pack(messages.Waiting(self._roll.missing)))
        self._look()

    def heard_connected(self, rank: int) -> None:
        if self._roll.missing:
            raise messages.BadMessage(f"rank {rank} is connected before it got the book")
        self._roll.connected(rank)
        self._look_for_go()

    # What follows from it.

    def _look(self) -> None:
        if (why := self._roll.verdict()) is not None:
            self.fail(why)
        elif not self._roll.missing and not self.complete.done():
            book = self._roll.book
            self._broadcast(messages.Book(tuple(pack_member(member) for member in book)))
            self.complete.set_result(book)

    def _look_for_go(self) -> None:
        if not self._roll.unconnected and not self.all_connected.done():
            self.all_connected.set_result(None)
            self._broadcast(messages.Go())

    def _expire(self) -> None:
        self.fail(self._roll.expired(self.meeting.timeout_s))

    def _say_who_is_missing(self) -> None:
        ranks = self._roll.missing or self._roll.unconnected
        if not ranks or self._failure is not None:
            return
        if self._roll.missing:
            logging.getLogger(__name__).info("rendezvous on port %d: %s yet", self.port, did_not_come(ranks))
        self._broadcast(messages.Waiting(ranks))
        self._timers[1] = self._loop.call_later(SAY_WHO_IS_MISSING_S, self._say_who_is_missing)

    def _broadcast(self, answer: messages.Answer) -> None:
        packed = messages.pack(answer)
        for _, connection in sorted(self._admitted.items()):
            connection.send(packed)


class _Connection(asyncio.Protocol):
    """One connection to the store."""

    def __init__(self, store: Store) -> None:
        self.rank: int | None = None
        self.place = "?"
        self.elsewhere = True
        self._store = store
        self._transport: asyncio.Transport | None = None
        self._machine = Listener(store.identity, 0, secrets.token_bytes(32), purposes=(Purpose.STORE,))
        self._cutter = messages.MessageCutter(messages.REQUEST_BYTES_MAX)
        self._hear: Callable[[bytes], None] = self._hear_handshake
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        # uvloop's transports have all of asyncio.Transport's methods without being subclasses of it.
        self._transport = cast(asyncio.Transport, transport)
        if peer:  # uvloop does not know where somebody came from who is gone already
            self.place = str(peer[0])
        self.elsewhere = not is_same_host(transport)
        if not self._store.opened(self):
            self._transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        self._hear(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._hear == self._hear_handshake:
            self._store.turned_away(LEFT, self.place, "ended during the handshake")
        self._hear = _ignore
        self._store.closed(self)

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End the connection once what was sent is out."""
        self._hear = _ignore
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._hear = _ignore
        if self._transport is not None:
            self._transport.abort()

    def turn_away(self, reason: str, says: str) -> None:
        """Whoever connected is not let in."""
        self._store.turned_away(reason, self.place, says)
        self.abort()

    def _too_slow(self) -> None:
        self.turn_away(SLOW, f"not announced in {HANDSHAKE_TIMEOUT_S:g} s")

    def _hear_handshake(self, data: bytes) -> None:
        try:
            self.send(self._machine.receive_data(data))
        except HandshakeRefused as refused:
            self.send(refused.farewell)
            self.close()
            # What a person can mend ends the wait; strangers, other jobs and searching ranks are everyday.
            if refused.reason in (Reason.VERSION, Reason.SECRET):
                self._store.refused(self._machine.claimed_rank, self.place, refused.reason, refused)
            else:
                self._store.turned_away(refused.reason, self.place, refused.sentence)
            return
        if self._machine.done:
            self._hear = self._hear_requests
            self._hear(self._machine.leftover)
        elif self._machine.greeted:
            self._store.greeted(self)

    def _hear_requests(self, data: bytes) -> None:
        try:
            for body in self._cutter.cut(data):
                self._handle(messages.unpack_request(body))
        except messages.BadMessage as bad:
            self.turn_away(NONSENSE, str(bad))
        except RendezvousError as refused:
            self.send(messages.pack(messages.Refused(str(refused))))
            self.close()
            self._store.refused(self._machine.peer.rank, self.place, "refused", refused)

    def _handle(self, request: messages.Request) -> None:
        match request:
            case messages.Announce():
                self._announce(request)
            case messages.Connected():
                if self.rank is None:
                    raise messages.BadMessage("connected, but never announced")
                self._store.heard_connected(self.rank)

    def _announce(self, request: messages.Announce) -> None:
        peer = self._machine.peer
        if self.rank is not None:
            raise messages.BadMessage("announced twice")
        if self.elsewhere and (why := no_secret(self._store.meeting, self.place)) is not None:
            raise AuthenticationError(why)
        try:
            member = unpack_member(request.member)
        except ValueError as bad:
            raise messages.BadMessage(str(bad)) from bad
        if (member.rank, member.incarnation) != (peer.rank, peer.incarnation):
            raise messages.BadMessage(f"rank {peer.rank} announced rank {member.rank}")
        self._store.admit(self, member, request.size)
        self.rank = member.rank
        if self._deadline is not None:
            self._deadline.cancel()


def _ignore(data: bytes) -> None:
    """What comes after the end."""
