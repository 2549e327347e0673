"""Plays the aftermath of a scenario: ranks shrink their failed communicators and go on in what they get.

Each rank has a program of its own for each communicator: shrink, call, wait until all that may happen has happened,
call again; and if one of these fails, because a member died or gave up meanwhile, from the start with the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from r2ccl.communicator import Communicator
from r2ccl.errors import PeerLost, R2cclError
from r2ccl.sim.aftermath import (
    BEGINS_WITHIN_S,
    IMPATIENCE_S,
    Aftermath,
    End,
    Shrunken,
    WentOn,
    complaints,
    may_end_with,
)
from r2ccl.sim.checkers import Complaints
from r2ccl.sim.history import History
from r2ccl.sim.injector import Injector
from r2ccl.sim.scenario import Scenario
from r2ccl.vocabulary import ANY

#: One after another; each loses at least one rank, and one dies and one gives up in an aftermath.
GENERATIONS_MAX = 4
#: A call's array, in chunks.
CHUNKS = 3
ITEM_BYTES = 8
TAG = 5
#: From a death until all know of it, beyond the grace time.
KNOWN_WITHIN_S = 4.0

Spawn = Callable[[int, str, Coroutine[Any, Any, None]], None]
#: Which communicator: its number in the scenario, and the memberships it was shrunk to.
Name = tuple[Any, ...]


class Survivors:
    """All ranks in the aftermath."""

    def __init__(
        self,
        scenario: Scenario,
        aftermath: Aftermath,
        injector: Injector,
        history: History,
        found: Complaints,
        ended_well: Mapping[int, set[int]],
    ) -> None:
        self._scenario = scenario
        self._aftermath = aftermath
        self._injector = injector
        self._history = history
        self._complaints = found
        #: Operations of the job's communicator that ended well, by rank.
        self._ended_well = ended_well
        self._dead_before = frozenset(injector.dead)
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._members: dict[Name, tuple[int, ...]] = {}
        self._ends: dict[Name, dict[int, End]] = {}
        self.calls = 0

    @property
    def within_s(self) -> float:
        """All is over within so long."""
        grace_s = self._scenario.shape.settings.unreachable_after_s
        return (GENERATIONS_MAX + 1) * (BEGINS_WITHIN_S + IMPATIENCE_S + grace_s + 2 * KNOWN_WITHIN_S)

    @property
    def _quiet_from_s(self) -> float:
        """From then on nothing happens, and all know of what has."""
        settle_s = BEGINS_WITHIN_S + IMPATIENCE_S
        if not self._aftermath.is_quiet:
            settle_s += self._scenario.shape.settings.unreachable_after_s + KNOWN_WITHIN_S
        return self._began_s + settle_s

    def begin(self, handles: Mapping[tuple[int, int], Communicator], spawn: Spawn) -> None:
        """Everybody who is left, in every communicator that all who are left have."""
        for number, group in enumerate(self._scenario.groups):
            alive = [rank for rank in group.members if rank not in self._injector.dead]
            if any((rank, number) not in handles or handles[rank, number]._is_closed for rank in alive):
                continue
            if number and not any(handles[rank, number]._coordinator.failing.error for rank in alive):
                continue
            for rank in alive:
                part = self._go_on(rank, handles[rank, number], (number,))
                spawn(rank, f"shrinks communicator {number}", part)
        self._injector.trouble(self._aftermath.killed, self._aftermath.cuts)

    async def _go_on(self, rank: int, handle: Communicator, name: Name) -> None:
        for _ in range(GENERATIONS_MAX):
            await asyncio.sleep(self._aftermath.pauses_s[rank])
            made = await self._shrink(rank, handle, name)
            if made is None or await self._use(rank, made, name):
                return
            handle, name = made, (*name, made.members)
        self._complaints.add(f"rank {rank} shrank {name} and was not done")

    async def _shrink(self, rank: int, handle: Communicator, name: Name) -> Communicator | None:
        limit_s = self._aftermath.timeouts_s[rank] if len(name) == 1 else None
        self._history.tell(rank, f"shrinks {name} within {limit_s}")
        self._members[name] = tuple(sorted(handle.members))
        ends = self._ends.setdefault(name, {})
        try:
            made = await handle.shrink(timeout=limit_s)
        except R2cclError as error:
            self._history.tell(rank, f"does not go on: {error!r}")
            ends[rank] = error
            if not may_end_with(error, limit_s):
                self._complaints.add(f"rank {rank}: shrink of {name} ended with {error!r}")
            return None
        assert isinstance(made, Communicator)
        assert made.recovery is not None
        ends[rank] = WentOn(made.members, made.recovery)
        self._history.tell(rank, f"goes on with {made.members}, {made.recovery}")
        if made.members[made.rank] != rank or made.members != made.recovery.members:
            self._complaints.add(f"rank {rank}: shrink of {name} made {made!r} of {made.members}")
        return made

    async def _use(self, rank: int, handle: Communicator, name: Name) -> bool:
        """Call until all is over. False: a member is lost."""
        try:
            for turn in range(self._aftermath.calls):
                await self._call(rank, handle, turn)
            await asyncio.sleep(max(0.0, self._quiet_from_s - self._loop.time()))
            for turn in range(2):
                await self._call(rank, handle, turn)
        except R2cclError as error:
            self._history.tell(rank, f"failed in {name} shrunk to {handle.members}: {error!r}")
            known = {*self._injector.dead, *self._gave_up(name)}
            if self._aftermath.is_quiet or not isinstance(error, PeerLost) or not known & set(error.ranks):
                self._complaints.add(f"rank {rank}: {name} shrunk to {handle.members} failed with {error!r}")
            return False
        return True

    def _gave_up(self, name: Name) -> list[int]:
        return [rank for rank, end in self._ends[name].items() if isinstance(end, R2cclError)]

    async def _call(self, rank: int, handle: Communicator, turn: int) -> None:
        """Every kind of way that something travels, with results that tell who took part."""
        elements = CHUNKS * self._scenario.shape.settings.chunk_bytes // ITEM_BYTES + 1
        base = np.arange(elements, dtype=np.int64) * (turn + 1)
        x, right = base + 10_000 * rank, len(handle.members) * base + 10_000 * sum(handle.members)
        received, sent = np.zeros(7, np.int64), np.full(7, rank)
        calls: list[Callable[[], Awaitable[object]]] = [lambda: handle.all_reduce(x), handle.barrier]
        if handle.size > 1:
            calls.append(lambda: handle.send(sent, (handle.rank + 1) % handle.size, TAG))
            calls.append(lambda: handle.recv(received, ANY, TAG))
        for ended in await asyncio.gather(*map(_called, calls), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        self.calls += 1
        if handle.size > 1 and not (received == handle.members[handle.rank - 1]).all():
            self._complaints.add(f"rank {rank} received {received} in {handle.members}")
        if not (x == right).all():
            self._complaints.add(f"rank {rank} has a wrong sum of {handle.members}: {x[:3]}, not {right[:3]}")

    def judge(self) -> None:
        """In the end."""
        scenario, dead = self._scenario, frozenset(self._injector.dead)
        for name, ends in sorted(self._ends.items(), key=str):
            members = self._members[name]
            ended_well = {rank: frozenset(self._ended_well[rank]) for rank in members} if name == (0,) else None
            apart = frozenset(pair for pair in scenario.lost_pairs(members) if not self._dead_before & set(pair))
            shrunken = Shrunken(
                str(name), members, ends, ended_well, apart, self._dead_before & set(members), dead & set(members),
                self._aftermath.is_quiet,
            )  # fmt: skip
            for text in complaints(shrunken):
                self._complaints.add(text)


async def _called(call: Callable[[], Awaitable[object]]) -> None:
    """A call that is refused at once fails here, too, while others are under way."""
    await call()
