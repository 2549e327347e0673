"""How the ranks of a process group find one another through the store that torch hands over.

    first     each rank says on which node it is and whether it has a secret; rank 0 puts all of that together, and a
              fresh secret where no rank has one. All have come then, however long some took to import torch.
    second    each rank says where its NICs listen; rank 0 puts the book together (Rendezvous.book).
    last      the ranks count themselves when they are connected. From then on the store is never asked again.

torch uses the same store, and the same names in it, for each default group of a process. So a rank counts how often it
has come, and looks only for what others said when they came as often.

A fresh secret in the store keeps out who reaches our ports and not the store. Who reads the store can join the job, and
who writes to it controls the job anyway: torch's store authenticates nobody. Nothing read from it is trusted to be well
formed, and nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped, unused-ignore]
import torch.distributed

from r2ccl.clock import MonotonicClock
from r2ccl.errors import ConfigurationError, RendezvousError
from r2ccl.rendezvous.meet import Rendezvous
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.telemetry.strangers import Strangers
from r2ccl.topology import AddressBook, Member, pack_member, unpack_member

T = TypeVar("T")

#: One visit to the store waits at most this long, so that nobody is stuck in it when the process is to end. torch warns
#: of each that was in vain.
VISIT_S = 10.0
#: What is there already is found in this time, however late we ask.
VISIT_S_MIN = 0.1
SECRET_BYTES = 32
_CONNECTED = b"connected"


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's view of the store, under a prefix of our own."""

    store: Any
    rank: int
    size: int
    prefix: str

    @classmethod
    def of(cls, store: Any, rank: int, size: int) -> Place:
        """A place where nobody has met before."""
        turn = store.add(f"r2ccl/turns of {rank}", 1)
        return cls(store, rank, size, f"r2ccl/{turn}")

    def said_by_all(self, what: str, word: bytes, timeout_s: float) -> list[bytes]:
        """Say a word and hear those of all ranks, in order of rank. Raises :class:`RendezvousError`, which on rank 0
        names who is missing."""
        self.store.set(f"{self.prefix}/{what}/{self.rank}", word)
        if self.rank:
            (packed,) = self.heard([f"{self.prefix}/{what}/all"], timeout_s)
            return _unpacked(packed, self.size)
        heard = self.heard([f"{self.prefix}/{what}/{rank}" for rank in range(self.size)], timeout_s)
        self.store.set(f"{self.prefix}/{what}/all", msgpack.packb(heard))
        return heard

    def heard(self, keys: list[str], timeout_s: float) -> list[bytes]:
        """What stands under the keys, when all of it does."""
        clock = MonotonicClock()
        deadline_s = clock.now() + timeout_s
        while True:
            left_s = deadline_s - clock.now()
            try:
                self.store.wait(keys, timedelta(seconds=min(VISIT_S, max(left_s, VISIT_S_MIN))))
                return [bytes(self.store.get(key)) for key in keys]
            except torch.distributed.DistNetworkError as lost:
                raise RendezvousError(f"torch's store is gone: {lost}") from lost
            except (torch.distributed.DistStoreError, RuntimeError) as not_there:
                if left_s <= 0:
                    raise RendezvousError(f"{self._missing(keys)} within {timeout_s:g} s") from not_there

    def _missing(self, keys: list[str]) -> str:
        if keys[0].endswith("/all"):
            return "rank 0 did not gather all ranks at torch's store"
        if keys[0].endswith("/end"):
            return "not all ranks were connected"
        missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
        return f"rank(s) {', '.join(map(str, missing))} did not come to torch's store"


def _unpacked(packed: bytes, size: int) -> list[bytes]:
    try:
        heard = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException) as bad:
        raise RendezvousError(f"torch's store has no list of ours: {bad}") from bad
    if not isinstance(heard, list) or len(heard) != size or any(type(one) is not bytes for one in heard):
        raise RendezvousError(f"torch's store has no list of {size} words of ours")
    return heard


@dataclass(frozen=True, slots=True)
class Company:
    """Who has come."""

    #: Each rank's node.
    nodes: tuple[str, ...]
    #: The job's secret, if rank 0 made one.
    secret: str


def find_company(place: Place, node: str, has_secret: bool, timeout_s: float) -> Company:
    """Wait until all ranks have come. Raises :class:`ConfigurationError` where some have a secret and others not."""
    fresh = "" if has_secret or place.rank else secrets.token_hex(SECRET_BYTES)
    words = place.said_by_all("hello", msgpack.packb([node, has_secret, fresh]), timeout_s)
    try:
        said = [(str(where), bool(has), str(new)) for where, has, new in map(msgpack.unpackb, words)]
    except (TypeError, ValueError, msgpack.UnpackException) as bad:
        raise RendezvousError(f"torch's store has no greetings of ours: {bad}") from bad
    without = [rank for rank, (_, has, _) in enumerate(said) if not has]
    if without and len(without) < place.size:
        raise ConfigurationError(
            f"rank(s) {', '.join(map(str, without))} have no secret and the others do: give all ranks the same "
            "R2CCL_SECRET or R2CCL_SECRET_FILE, or none any, and rank 0 makes one"
        )
    return Company(tuple(where for where, _, _ in said), said[0][2])


class StoreMeeting:
    """:func:`r2ccl.rendezvous.meet.meet`, by way of torch's store."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def __call__(self, meeting: Meeting, member: Member, strangers: Strangers) -> Rendezvous:
        """Announce ``member`` and wait until all ranks have. No stranger can come: nothing listens."""
        words = await _aside(partial(self._place.said_by_all, "book", pack_member(member), meeting.timeout_s))
        try:
            book = tuple(unpack_member(word) for word in words)
        except ValueError as bad:
            raise RendezvousError(f"torch's store has a book that cannot be read: {bad}") from bad
        if [one.rank for one in book] != list(range(meeting.size)):
            raise RendezvousError("torch's store has a book of other ranks than ours")
        return _Met(self._place, book, meeting.timeout_s)


class _Met:
    """All ranks have come."""

    def __init__(self, place: Place, book: AddressBook, timeout_s: float) -> None:
        self.book = book
        self._place = place
        self._timeout_s = timeout_s
        self._is_over = place.size == 1

    async def all_connected(self) -> None:
        if not self._is_over:
            await _aside(self._count)
            self._is_over = True

    async def aclose(self) -> None:
        if not self._is_over:
            self._is_over = True
            await _aside(partial(self._say, f"rank {self._place.rank} left before all ranks were connected"))

    def _count(self) -> None:
        store, prefix = self._place.store, self._place.prefix
        if store.add(f"{prefix}/connected", 1) == self._place.size:
            store.set(f"{prefix}/end", _CONNECTED)
        (end,) = self._place.heard([f"{prefix}/end"], self._timeout_s)
        if end != _CONNECTED:
            raise RendezvousError(end.decode(errors="replace"))

    def _say(self, sentence: str) -> None:
        self._place.store.set(f"{self._place.prefix}/end", sentence.encode())


async def _aside(blocking: Callable[[], T]) -> T:
    """What waits for the store must not keep the loop, on which peers are answered meanwhile."""
    asked: Awaitable[T] = asyncio.get_running_loop().run_in_executor(None, blocking)
    return await asked
