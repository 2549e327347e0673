"""Runs one scenario: ranks that call, faults that happen, observers that look; then a healed phase that must converge.

safety phase     every rank makes its communicators and calls their programs, each at its own pace and all at the same
                 time, while faults come and go. What may end badly is said by the scenario's promise; whatever ends
                 well must be right.
healed phase     (where no peer was lost) links come back and lanes find them, without being asked; then all ranks call
                 once more. (Where one was lost) every call on every survivor raises PeerLost, in communicators that
                 the lost one belongs to; others go on.
aftermath        (where operations failed) who is left shrinks what failed, and goes on in what that makes.
the end          nothing is owed or kept; all close; nothing is left open.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from r2ccl.communicator import Communicator
from r2ccl.errors import CollectiveTimeout, PeerLost, R2cclError
from r2ccl.sim import loop as sim_loop
from r2ccl.sim.aftermath import Aftermath
from r2ccl.sim.calls import Call, Kind
from r2ccl.sim.checkers import (
    Answers,
    Complaints,
    Composure,
    Deliveries,
    open_ends,
    unlike_epochs,
    watch,
)
from r2ccl.sim.faults import Promise
from r2ccl.sim.history import History, ToldLog
from r2ccl.sim.injector import Injector
from r2ccl.sim.loop import SimClock
from r2ccl.sim.performance import Room, Started, start
from r2ccl.sim.programs import healed_calls
from r2ccl.sim.scenario import Group, Scenario
from r2ccl.sim.survivors import Survivors
from r2ccl.sim.truths import Truths
from r2ccl.sim.world import World
from r2ccl.transport.memory import MemoryDevice

#: How long operations may take after the last fault is over: many times what the slowest world needs.
END_WITHIN_S = 20.0
#: Links must be back this long after the last fault, beyond the longest quiet time.
BACK_WITHIN_S = 6.0
#: All ranks must agree on the picture of the network this long after all links are back: what is told must have held
#: for a second, and who was cut off asks again after at most two.
AGREED_WITHIN_S = 10.0
#: After all operations ended, acknowledgements may take this long.
SETTLE_WITHIN_S = 3.0
#: From the moment that a peer is lost until everybody knows, beyond the grace time.
KNOWN_WITHIN_S = 4.0
#: Longer than any timer that is not a leak.
SILENCE_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run."""

    digest: str
    complaints: tuple[str, ...]
    story: str
    #: (communicator, number, part, rank) -> the epoch that its rounding hangs on, and the digest of the result.
    results: dict[tuple[int, ...], tuple[int, str]]
    chunks: int
    resent_chunks: int
    failovers: int
    #: The highest that any operation was planned in.
    epoch: int
    virtual_s: float
    #: Operations that ended well and badly, over all ranks.
    ended_well: int
    ended_badly: int


def run(scenario: Scenario, echo: Callable[[str], None] | None = None) -> Outcome:
    """One run of a scenario."""
    trials: list[Trial] = []

    async def main() -> None:
        trial = Trial(scenario, echo)
        trials.append(trial)
        await trial.run()

    failure = ""
    try:
        sim_loop.run(main())
    except Exception:  # noqa: BLE001 - whatever escapes from a world is what it is run for, and is told
        failure = traceback.format_exc()
    return trials[0].outcome(failure)


class Trial:
    """One world and everything around it."""

    def __init__(self, scenario: Scenario, echo: Callable[[str], None] | None) -> None:
        self.scenario = scenario
        self._loop = asyncio.get_running_loop()
        self.history = History(SimClock(self._loop), echo)
        self.complaints = Complaints(self.history)
        clock = SimClock(self._loop)
        self.world = World(scenario.shape, scenario.seed, lambda rank: ToldLog(clock, rank, self.history))
        chunk_bytes = scenario.shape.settings.chunk_bytes
        self.calls = tuple((*g.calls, *healed_calls(len(g.members), chunk_bytes)) for g in scenario.groups)
        sizes = tuple(len(group.members) for group in scenario.groups)
        self.answers = Answers(scenario.seed, sizes, self.calls, self.complaints)
        self.injector = Injector(self.world, self.history, self._killed, scenario.seed)
        self.devices = [
            cast(MemoryDevice, port.device)
            for runtime in self.world.runtimes
            for port in (*runtime.sharing.ports, *runtime.ports)
        ]
        #: What stands between inboxes and coordinators.
        self.deliveries: list[Deliveries] = []
        #: (rank in the job, number) -> the rank's handle of a communicator.
        self._handles: dict[tuple[int, int], Communicator] = {}
        self._truths = Truths(scenario, self.world, self.injector, self._handles)
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}
        #: The phase that is under way.
        self._group = asyncio.TaskGroup()
        self._started: list[Started] = []
        #: Memory that was given back, and by which call; nobody may write to it any more.
        self._given_back: list[tuple[str, Room]] = []
        #: By rank, of the job's communicator.
        self._numbers_ended_well: dict[int, set[int]] = {rank: set() for rank in range(scenario.shape.ranks)}
        #: (communicator, number) -> ranks that have called it.
        self._called: dict[tuple[int, int], set[int]] = {}
        self._failovers = 0
        self._ended_well = 0
        self._ended_badly = 0
        self._finished_at_s = 0.0
        for runtime in self.world.runtimes:
            watch(runtime, self.deliveries, self.history, self.complaints)

    async def run(self) -> None:
        """All phases. Complaints are kept, for :meth:`outcome`."""
        with Composure(self.complaints):
            await self.world.start()
            self.history.tell(-1, "connected")
            self.injector.arm(self.scenario.faults)
            began = self._loop.time()
            lost_s = self.scenario.shape.settings.unreachable_after_s if self.scenario.promise.loses_a_peer else 0.0
            await self._phase(self._begin, self.scenario.heals_s + lost_s + END_WITHIN_S)
            await asyncio.sleep(max(0.0, began + self.scenario.heals_s + 0.001 - self._loop.time()))
            self.history.tell(-1, "healed")
            if not self.scenario.promise.loses_a_peer:
                back_within_s = self.scenario.shape.settings.quiet_max_s + BACK_WITHIN_S
                await self.complaints.until_nothing(self._truths.missing, back_within_s)
                self.history.tell(-1, "all links are back")
                await self.complaints.until_nothing(self._truths.disagreed, AGREED_WITHIN_S)
            if not self.complaints.texts:
                await self._phase(self._begin_healed, lost_s + END_WITHIN_S)
            if self.scenario.promise.loses_a_peer:
                await self.complaints.until_nothing(self._truths.ignorant, lost_s + KNOWN_WITHIN_S)
            if not self.complaints.texts and self.scenario.aftermath is not None:
                await self._go_on(self.scenario.aftermath)
            if not self.complaints.texts:
                await self.complaints.until_nothing(self._truths.kept, SETTLE_WITHIN_S)
            for text in unlike_epochs(self.deliveries):
                self.complaints.add(text)
            self._failovers = sum(runtime.shared.counters.failovers for runtime in self.world.runtimes)
            await self._close()
            for number, (where, room) in enumerate(self._given_back):
                if not room.is_as_rewritten:
                    self.complaints.add(f"{where}: its memory was written after it had been given back, {number}")
            for one in self._started:
                one.work.exception()  # seen: what a failing trial left behind must not speak up in the next

    async def _phase(self, begin: Callable[[], None], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as self._group:
                begin()
        except TimeoutError:
            for one in self._started:
                if not one.work.done() and one.work.call:
                    self.complaints.add(f"a call does not end: {one.work!r}")
            self.complaints.add(f"not all operations ended within {within_s:.1f} s")

    async def _go_on(self, aftermath: Aftermath) -> None:
        survivors = Survivors(
            self.scenario, aftermath, self.injector, self.history, self.complaints, self._numbers_ended_well
        )
        await self._phase(lambda: survivors.begin(self._handles, self._spawn), survivors.within_s)
        survivors.judge()
        self._ended_well += survivors.calls

    def _spawn(self, rank: int, what: str, part: Coroutine[Any, Any, None]) -> None:
        self._tasks.setdefault(rank, []).append(self._group.create_task(part, name=f"rank {rank} {what}"))

    @property
    def _alive(self) -> list[int]:
        return [rank for rank in range(self.scenario.shape.ranks) if rank not in self.injector.dead]

    def _killed(self, rank: int) -> None:
        for task in self._tasks.get(rank, ()):
            task.cancel()

    # What ranks do.

    def _begin(self) -> None:
        for rank in self._alive:
            self._has(rank, 0, self.world.communicators[rank])

    def _has(self, rank: int, number: int, handle: Communicator) -> None:
        """The rank has a communicator from now on: it calls its program, and makes others from it."""
        self._handles[rank, number] = handle
        group = self.scenario.groups[number]
        if handle.members != group.members or handle.rank != group.members.index(rank):
            self.complaints.add(f"rank {rank} communicator {number} is {handle!r} of {handle.members}, not {group}")
        self._spawn(rank, f"communicator {number}", self._safety(rank, number, handle))
        for child, made in enumerate(self.scenario.groups):
            if made.parent == number and not made.by_split and rank in made.members:
                self._spawn(rank, f"makes communicator {child}", self._make(rank, child, made, handle))

    async def _make(self, rank: int, number: int, group: Group, parent: Communicator) -> None:
        """By ``new_group``; ranks don't at the same time."""
        await self._pause(rank, group.parts[group.members.index(rank)].begins_s)
        runtime = self.world.runtimes[rank]
        most = sum(map(runtime.shared.credit_bytes, runtime.shared.peers))
        if (stranded := runtime.desk.stranded_bytes()) > most:
            self.complaints.add(f"rank {rank} kept {stranded} bytes for a communicator to come, of at most {most}")
        self._has(rank, number, await parent.new_group([parent.members.index(member) for member in group.members]))

    def _split(self, rank: int, call: Call, parent: Communicator, made: Communicator | None) -> None:
        color = call.colors[parent.rank]
        if made is not None:
            self._has(rank, dict(call.makes)[cast(int, color)], made)
        if (made is None) is not (color is None):
            self.complaints.add(f"rank {rank} of color {color} has {made!r}")

    async def _safety(self, rank: int, communicator: int, handle: Communicator) -> None:
        part = self.scenario.groups[communicator].parts[handle.rank]
        pending: deque[tuple[int, list[Started]]] = deque()
        for number, pause_s in enumerate(part.pauses_s):
            await self._pause(rank, pause_s)
            started = self._call(rank, communicator, number, handle)
            if started is None:
                break
            pending.append((number, started))
            while len(pending) >= part.in_flight:
                await self._end(rank, communicator, handle, *pending.popleft())
        while pending:
            await self._end(rank, communicator, handle, *pending.popleft())

    def _begin_healed(self) -> None:
        for (rank, number), handle in sorted(self._handles.items()):
            if rank not in self.injector.dead:
                self._spawn(rank, f"healed communicator {number}", self._healed(rank, number, handle))

    async def _healed(self, rank: int, communicator: int, handle: Communicator) -> None:
        for number in range(len(self.scenario.groups[communicator].calls), len(self.calls[communicator])):
            started = self._call(rank, communicator, number, handle)
            if started is not None:
                await self._end(rank, communicator, handle, number, started)
        if self.scenario.groups[communicator].closes:
            self.history.tell(rank, f"closes {communicator}")
            await handle.close()

    async def _pause(self, rank: int, pause_s: float) -> None:
        """The caller computes; longer, if its process is stopped."""
        if pause_s:
            await asyncio.sleep(pause_s)
        await self.injector.runs[rank].wait()

    def _call(self, rank: int, communicator: int, number: int, handle: Communicator) -> list[Started] | None:
        """Start a call. None: the communicator refuses, as it may where a peer was lost."""
        call = self.calls[communicator][number]
        self.history.tell(rank, f"calls {communicator}.{number} {call}")
        self._called.setdefault((communicator, number), set()).add(handle.rank)

        def given(part: Call, index: int) -> Any:
            return self.answers.given(communicator, number, handle.rank, part, index)

        try:
            started = start(handle, call, given)
        except R2cclError as error:
            self._failed(rank, communicator, number, error)
            return None
        self._started += started
        return started

    async def _end(
        self, rank: int, communicator: int, handle: Communicator, number: int, started: list[Started]
    ) -> None:
        for one in started:
            where = f"rank {rank} communicator {communicator} call {number}.{one.index} {one.call}"
            try:
                returned = await one.work
            except R2cclError as error:
                self._failed(rank, communicator, number, error)
                if one.receives is not None and one.work.source is not None:
                    self.answers.missed(communicator, handle.rank, one.receives, one.work.source)
            else:
                self._ended_well += 1
                if communicator == 0 and one.call.kind not in (Kind.MESSAGES, Kind.BROADCAST_OBJECT):
                    self._numbers_ended_well[rank].add(one.work.operation)
                digest = self._look_at(rank, communicator, handle, number, one, returned)
                self.history.tell(rank, f"ended {communicator}.{number} {digest}")
                for room in one.rooms:
                    if complaint := room.complaint():
                        self.complaints.add(f"{where}: {complaint}")
            for room in one.rooms:
                room.rewrite()
                self._given_back.append((where, room))

    def _look_at(
        self, rank: int, communicator: int, handle: Communicator, number: int, one: Started, returned: Any
    ) -> str:
        """Compare what a call ended with. Returns its digest."""
        if one.call.kind is Kind.SPLIT:
            self._split(rank, one.call, handle, returned)
            return "-"
        if one.receives is not None:
            source, x = one.work.source, one.rooms[0].array
            return self.answers.received(communicator, number, handle.rank, one.receives, source, x)
        if one.call.kind is Kind.MESSAGES:
            return "sent"
        if one.call.kind is Kind.BARRIER and len(self._called[communicator, number]) < handle.size:
            self.complaints.add(f"rank {rank} passed barrier {communicator}.{number} before all had called it")
        epoch = self._epoch(rank, handle, one.work.operation) if one.call.op is not None else 0
        return self.answers.ended(communicator, number, handle.rank, one.call, one.index, one.result(returned), epoch)

    def _epoch(self, rank: int, handle: Communicator, operation: int) -> int:
        """What an operation that ended well was planned in."""
        [own] = [
            one for one in self.deliveries if one.rank == rank and one.communicator == handle._coordinator.communicator
        ]
        return own.epochs[operation]

    def _failed(self, rank: int, communicator: int, number: int, error: R2cclError) -> None:
        self._ended_badly += 1
        self.history.tell(rank, f"failed {communicator}.{number} {error!r}")
        where = f"rank {rank} communicator {communicator} call {number}"
        promise = self.scenario.promise
        late = self.scenario.late
        if late is not None and self.scenario.may_fail(communicator):
            if not isinstance(error, CollectiveTimeout) or late.rank not in (*error.not_entered, *error.entered):
                self.complaints.add(f"{where} failed with {error!r}, but {late} is to blame")
        elif not self.scenario.may_fail(communicator):
            self.complaints.add(f"{where} failed though {promise.value}, and that elsewhere if at all: {error!r}")
        elif not isinstance(error, PeerLost):
            self.complaints.add(f"{where} failed with {error!r} instead of PeerLost")
        elif promise is Promise.KILLED and not self._is_right_loss(error):
            self.complaints.add(f"{where} blames {error!r}, but rank {sorted(self.injector.dead)} was killed")

    def _is_right_loss(self, error: PeerLost) -> bool:
        only_killed = len(self.scenario.faults) == 1
        return set(error.ranks) == self.injector.dead and (error.cause == "dead" or not only_killed)

    # What must be true in the end.

    async def _close(self) -> None:
        began = self._loop.time()
        await asyncio.gather(*(self.world.communicators[rank].close() for rank in self._alive))
        took_s = self._loop.time() - began
        if took_s > self.scenario.shape.settings.close_timeout_s + 0.5:
            self.complaints.add(f"closing took {took_s:.1f} s")
        self.history.tell(-1, f"closed after {took_s:.3f} s")
        self._finished_at_s = self._loop.time()
        await asyncio.sleep(SILENCE_AFTER_S)
        for text in open_ends(self._loop, self.devices):
            self.complaints.add(text)

    def outcome(self, failure: str) -> Outcome:
        """What came of it; ``failure``: the traceback of what escaped."""
        if failure:
            self.complaints.add(failure)
        totals = [runtime.shared.counters.snapshot()["total"] for runtime in self.world.runtimes]
        return Outcome(
            digest=self.history.digest,
            complaints=tuple(self.complaints.texts),
            story=self.history.story(),
            results=self.answers.digests,
            chunks=sum(delivery.total for delivery in self.deliveries),
            resent_chunks=sum(total["resent_chunks"] for total in totals if isinstance(total, dict)),
            failovers=self._failovers,
            epoch=max((epoch for delivery in self.deliveries for epoch in delivery.epochs.values()), default=0),
            virtual_s=self._finished_at_s,
            ended_well=self._ended_well,
            ended_badly=self._ended_badly,
        )
