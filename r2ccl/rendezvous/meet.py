"""The two steps by which all ranks of a job come together, the same for rank 0 and for the others.

    rendezvous = await meet(meeting, member)      # everybody is here; rendezvous.book says where
    ...                                           # connect to the peers in the book
    await rendezvous.all_connected()              # everybody has; the store is gone and never needed again

Rank 0 serves the store in its own process and takes part without a socket. What a rank listens on must be open before
it announces itself: peers dial as soon as they have the book.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from r2ccl.errors import RendezvousError
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.rendezvous.roll import did_not_come, name_ranks
from r2ccl.rendezvous.search import Door, SearchState, knock_everywhere, search
from r2ccl.rendezvous.store import Store
from r2ccl.telemetry.strangers import Strangers
from r2ccl.topology import AddressBook, Member, pack_member, unpack_member

#: How long rank 0 waits for the others to hang up after the last word. They do so at once unless they died.
_LINGER_S = 2.0
#: The store's own time-out names who is missing, so a rank gives it a moment longer to say so.
_GRACE_S = 2.0
_READ_BYTES = 64 << 10


class Rendezvous(Protocol):
    """All ranks have come."""

    @property
    def book(self) -> AddressBook:
        """All members in rank order."""

    async def all_connected(self) -> None:
        """Say that this rank is connected and wait until all are. Afterwards the rendezvous is closed.

        Raises :class:`RendezvousError` if a rank left or the time is up.
        """

    async def aclose(self) -> None:
        """Leave, whatever the state: before all are connected that ends the meeting for all. May be called twice."""


async def meet(meeting: Meeting, member: Member, strangers: Strangers | None = None) -> Rendezvous:
    """Announce ``member`` and wait until all ranks have. Raises :class:`RendezvousError`.

    ``strangers``: where rank 0 counts who was not admitted.
    """
    if (member.rank, member.incarnation) != (meeting.rank, meeting.incarnation):
        raise ValueError("the member that is announced must be the one that was invited")
    if meeting.size == 1:
        return _Alone(member)
    if meeting.rank == 0:
        return await _host(meeting, member, strangers)
    return await _visit(meeting, member)


class _Alone:
    """A job of one rank."""

    def __init__(self, member: Member) -> None:
        self.book: AddressBook = (member,)

    async def all_connected(self) -> None:
        """Nobody else is to be waited for."""

    async def aclose(self) -> None:
        """Nothing is open."""


class _Host:
    """Rank 0, once all have come."""

    def __init__(self, store: Store, book: AddressBook) -> None:
        self.book = book
        self._store = store

    async def all_connected(self) -> None:
        try:
            self._store.connected()
            await asyncio.wait([self._store.all_connected])
            await self._store.emptied(_LINGER_S)
        finally:
            self._store.close()
        self._store.all_connected.result()

    async def aclose(self) -> None:
        self._store.fail(RendezvousError("rank 0 left before all ranks were connected"))
        await self._store.emptied(_LINGER_S)
        self._store.close()


async def _host(meeting: Meeting, member: Member, strangers: Strangers | None) -> _Host:
    store = Store(meeting, strangers)
    try:
        await store.open()
        store.announce(member)
        async with asyncio.TaskGroup() as group:
            # A busy port may belong to another rank 0 of this very job, who would wait for the same ranks as we.
            guard = group.create_task(_find_another_rank_zero(store))
            await asyncio.wait([store.complete])
            guard.cancel()
        if store.complete.exception() is not None:
            await store.emptied(_LINGER_S)
        return _Host(store, store.complete.result())
    except BaseException:
        store.close()
        raise


async def _find_another_rank_zero(store: Store) -> None:
    meeting = store.meeting
    try:
        door = await knock_everywhere(meeting, [store.own_address], range(meeting.port, store.port), SearchState())
    except RendezvousError as refused:
        # A store of our name by whom our ranks will be refused as well, before they try the next port. They say so.
        logging.getLogger(__name__).warning("another store is near: %s", refused)
        return
    if door is not None:
        await door.close()
        store.fail(
            RendezvousError(
                f"rank 0 came a second time: {door.address} is already the store of job {meeting.job!r}; "
                "each process needs its own RANK, each job on the same port its own R2CCL_JOB"
            )
        )


class _StoreWentAway(Exception):
    """The store hung up without a word: its process ended. State: the connection is useless."""


class _Guest:
    """Any other rank, once it has found the store."""

    def __init__(self, meeting: Meeting, door: Door, deadline: float) -> None:
        self.book: AddressBook = ()
        self._meeting = meeting
        self._door = door
        self._deadline = deadline
        self._cutter = messages.MessageCutter(messages.book_bytes_max(meeting.size))
        self._bodies: list[bytes] = []
        #: For whom the store waited when it last said so.
        self._awaited: tuple[int, ...] = ()

    async def announce(self, member: Member) -> None:
        """Wait for the book. Raises :class:`_StoreWentAway`, or :class:`RendezvousError`."""
        self._door.writer.write(messages.pack(messages.Announce(self._meeting.size, pack_member(member))))
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self.book:
                    match await self._hear():
                        case messages.Book(members):
                            self.book = self._read_book(members)
                        case messages.Go():
                            raise RendezvousError(f"the store at {self._door.address} said go before it gave the book")
        except TimeoutError:
            raise self._expired("come") from None

    async def all_connected(self) -> None:
        try:
            self._door.writer.write(messages.pack(messages.Connected()))
            async with asyncio.timeout_at(self._deadline):
                while not isinstance(await self._hear(), messages.Go):
                    continue
        except TimeoutError:
            raise self._expired("connect to all peers") from None
        except _StoreWentAway as gone:
            raise RendezvousError("rank 0 left before all ranks were connected") from gone
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        await self._door.close()

    async def _hear(self) -> messages.Answer:
        try:
            while not self._bodies:
                data = await self._door.reader.read(_READ_BYTES)
                if not data:
                    raise _StoreWentAway
                self._bodies += self._cutter.cut(data)
            answer = messages.unpack_answer(self._bodies.pop(0))
        except messages.BadMessage as bad:
            raise RendezvousError(f"the store at {self._door.address} sent nonsense: {bad}") from bad
        except OSError as lost:
            raise _StoreWentAway from lost
        match answer:
            case messages.Refused(sentence):
                raise RendezvousError(sentence)
            case messages.Waiting(ranks):
                self._awaited = ranks
        return answer

    def _read_book(self, packed: tuple[bytes, ...]) -> AddressBook:
        try:
            book = tuple(unpack_member(member) for member in packed)
        except ValueError as bad:
            raise RendezvousError(f"the store at {self._door.address} sent a book that cannot be read: {bad}") from bad
        if [member.rank for member in book] != list(range(self._meeting.size)):
            raise RendezvousError(f"the store at {self._door.address} sent a book of other ranks than ours")
        return book

    def _expired(self, what: str) -> RendezvousError:
        if self._awaited:
            problem = did_not_come(self._awaited) if what == "come" else f"{name_ranks(self._awaited)} could not {what}"
        else:
            problem = f"the store at {self._door.address} stopped answering"
        return RendezvousError(f"{problem} within {self._meeting.timeout_s:g} s")


async def _visit(meeting: Meeting, member: Member) -> _Guest:
    deadline = asyncio.get_running_loop().time() + meeting.timeout_s
    state = SearchState()
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                door = await search(meeting, state)
        except TimeoutError:
            raise _not_found(meeting, state) from None
        guest = _Guest(meeting, door, deadline + _GRACE_S)
        try:
            await guest.announce(member)
        except _StoreWentAway:
            # Rank 0's process ended before all had come. If a launcher starts it anew, we are there.
            await guest.aclose()
            state.obstacle = f"the store at {door.address} went away"
        except BaseException:
            await guest.aclose()
            raise
        else:
            return guest


def _not_found(meeting: Meeting, state: SearchState) -> RendezvousError:
    ports = meeting.ports
    return RendezvousError(
        f"rank {meeting.rank} did not find rank 0 at {meeting.host}, ports {ports[0]} to {ports[-1]}, "
        f"within {meeting.timeout_s:g} s: {did_not_come([0])}, or its port is not reachable; last: {state.obstacle}"
    )
