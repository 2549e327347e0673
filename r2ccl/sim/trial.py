"""Runs one scenario: ranks that call, faults that happen, observers that look; then a healed phase that must converge.

safety phase     every rank calls its program at its own pace while faults come and go. What may end badly is said by
                 the scenario's promise; whatever ends well must be right.
healed phase     (where no peer was lost) links come back and lanes find them, without being asked; then all ranks call
                 once more. (Where one was lost) every call on every survivor raises PeerLost.
the end          nothing is owed or kept; all close; nothing is left open.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from r2ccl.actors.work import Work
from r2ccl.communicator import Communicator
from r2ccl.errors import PeerLost, R2cclError
from r2ccl.ids import WORLD_PARENT, communicator_id
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.sim import loop as sim_loop
from r2ccl.sim.checkers import Answers, Array, Complaints, Composure, Deliveries, kept, open_ends, stranded_bytes
from r2ccl.sim.faults import Promise
from r2ccl.sim.history import History, ToldLog
from r2ccl.sim.injector import Injector
from r2ccl.sim.loop import SimClock
from r2ccl.sim.scenario import Call, Scenario
from r2ccl.sim.world import World
from r2ccl.transport.memory import MemoryDevice

#: How long operations may take after the last fault is over: many times what the slowest world needs.
END_WITHIN_S = 20.0
#: Links must be back this long after the last fault, beyond the longest quiet time.
BACK_WITHIN_S = 6.0
#: After all operations ended, acknowledgements may take this long.
SETTLE_WITHIN_S = 3.0
#: From the moment that a peer is lost until everybody knows, beyond the grace time.
KNOWN_WITHIN_S = 4.0
#: Longer than any timer that is not a leak.
SILENCE_AFTER_S = 100.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run."""

    digest: str
    complaints: tuple[str, ...]
    story: str
    #: (communicator, number) -> digest of the result.
    results: dict[tuple[int, int], str]
    chunks: int
    resent_chunks: int
    failovers: int
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
        healed = Call(CollectiveKind.ALL_REDUCE, "int32", Op.SUM, 7 * scenario.shape.settings.chunk_bytes // 4 + 1)
        self.calls = tuple((*calls, healed, Call(CollectiveKind.BARRIER)) for calls in scenario.calls)
        self.answers = Answers(scenario.seed, scenario.shape.ranks, self.calls, self.complaints)
        self.injector = Injector(self.world, self.history, self._killed, scenario.seed)
        self.devices = [cast(MemoryDevice, port.device) for runtime in self.world.runtimes for port in runtime.ports]
        #: (rank, communicator) -> what stands between inbox and coordinator.
        self.deliveries: dict[tuple[int, int], Deliveries] = {}
        self._communicators: dict[tuple[int, int], Communicator] = {}
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}
        self._works: list[Work] = []
        self._failovers = 0
        self._ended_well = 0
        self._ended_badly = 0
        self._finished_at_s = 0.0
        for rank, communicator in enumerate(self.world.communicators):
            self._watch(rank, 0, communicator)

    # The run.

    async def run(self) -> None:
        """All phases. Complaints are kept, for :meth:`outcome`."""
        with Composure(self.complaints):
            await self.world.start()
            self.history.tell(-1, "connected")
            self.injector.arm(self.scenario.faults)
            began = self._loop.time()
            lost_s = self.scenario.shape.settings.unreachable_after_s if self.scenario.promise.loses_a_peer else 0.0
            await self._phase(self._safety, self.scenario.heals_s + lost_s + END_WITHIN_S)
            await asyncio.sleep(max(0.0, began + self.scenario.heals_s + 0.001 - self._loop.time()))
            self.history.tell(-1, "healed")
            if not self.scenario.promise.loses_a_peer:
                await self._until_nothing(self._missing, self.scenario.shape.settings.quiet_max_s + BACK_WITHIN_S)
                self.history.tell(-1, "all links are back")
            if not self.complaints.texts:
                await self._phase(self._healed, lost_s + END_WITHIN_S)
            if self.scenario.promise.loses_a_peer:
                await self._until_nothing(self._ignorant, lost_s + KNOWN_WITHIN_S)
            if not self.complaints.texts:
                await self._until_nothing(self._kept, SETTLE_WITHIN_S)
            self._failovers = sum(runtime.shared.counters.failovers for runtime in self.world.runtimes)
            await self._close()
            for work in self._works:
                work.exception()  # seen: what a failing trial left behind must not speak up in the next

    async def _phase(self, part: Callable[[int, int], Coroutine[Any, Any, None]], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for communicator in range(len(self.calls)):
                    for rank in self._alive:
                        task = group.create_task(
                            part(rank, communicator), name=f"rank {rank} communicator {communicator}"
                        )
                        self._tasks.setdefault(rank, []).append(task)
        except TimeoutError:
            for (rank, communicator), handle in sorted(self._communicators.items()):
                coordinator = handle._coordinator
                if coordinator.running and rank not in self.injector.dead:
                    open_calls = [f"{n} {op.planned.call}" for n, op in sorted(coordinator.running.items())]
                    self.complaints.add(
                        f"rank {rank} communicator {communicator} does not end: {'; '.join(open_calls)}"
                    )
            self.complaints.add(f"not all operations ended within {within_s:.1f} s")

    @property
    def _alive(self) -> list[int]:
        return [rank for rank in range(self.scenario.shape.ranks) if rank not in self.injector.dead]

    def _killed(self, rank: int) -> None:
        for task in self._tasks.get(rank, ()):
            task.cancel()

    # What ranks do.

    async def _safety(self, rank: int, communicator: int) -> None:
        part = self.scenario.parts[communicator][rank]
        await self._pause(rank, part.begins_s)
        handle = self._communicator(rank, communicator)
        pending: deque[tuple[int, Work, Array]] = deque()
        for number, pause_s in enumerate(part.pauses_s):
            await self._pause(rank, pause_s)
            started = self._call(rank, communicator, number, handle)
            if started is None:
                break
            pending.append(started)
            while len(pending) >= part.in_flight:
                await self._end(rank, communicator, *pending.popleft())
        while pending:
            await self._end(rank, communicator, *pending.popleft())

    async def _healed(self, rank: int, communicator: int) -> None:
        handle = self._communicator(rank, communicator)
        for number in range(len(self.scenario.calls[communicator]), len(self.calls[communicator])):
            started = self._call(rank, communicator, number, handle)
            if started is not None:
                await self._end(rank, communicator, *started)

    async def _pause(self, rank: int, pause_s: float) -> None:
        """The caller computes; longer, if its process is stopped."""
        if pause_s:
            await asyncio.sleep(pause_s)
        await self.injector.runs[rank].wait()

    def _communicator(self, rank: int, number: int) -> Communicator:
        """The rank's handle of the n-th communicator, made on first use: ranks don't make it at the same time."""
        handle = self._communicators.get((rank, number))
        if handle is None:
            runtime, settings = self.world.runtimes[rank], self.scenario.shape.settings
            most = len(runtime.shared.peers) * settings.credit_bytes
            if (stranded := stranded_bytes(runtime)) > most:
                self.complaints.add(f"rank {rank} kept {stranded} bytes for a communicator to come, of at most {most}")
            members = tuple(range(runtime.shared.size))
            handle = Communicator(runtime, communicator_id(WORLD_PARENT, 0, number), members)
            self._watch(rank, number, handle)
        return handle

    def _watch(self, rank: int, number: int, handle: Communicator) -> None:
        self._communicators[rank, number] = handle
        self.deliveries[rank, number] = Deliveries(handle._coordinator, number, self.history, self.complaints)

    def _call(self, rank: int, communicator: int, number: int, handle: Communicator) -> tuple[int, Work, Array] | None:
        """Start a call. None: the communicator refuses, as it may where a peer was lost."""
        call = self.calls[communicator][number]
        x: npt.NDArray[np.generic] = self.answers.given(communicator, number, rank)
        self.history.tell(rank, f"calls {communicator}.{number} {call}")
        try:
            match call.kind:
                case CollectiveKind.ALL_REDUCE:
                    assert call.op is not None
                    work = handle.all_reduce(x, call.op)
                case CollectiveKind.BROADCAST:
                    work = handle.broadcast(x, call.root)
                case _:
                    work = handle.barrier()
        except R2cclError as error:
            self._failed(rank, communicator, number, error)
            return None
        self._works.append(work)
        return number, work, x

    async def _end(self, rank: int, communicator: int, number: int, work: Work, x: Array) -> bool:
        try:
            await work
        except R2cclError as error:
            self._failed(rank, communicator, number, error)
            return False
        self._ended_well += 1
        self.deliveries[rank, communicator].ended(work.operation)
        digest = self.answers.ended(communicator, number, rank, x)
        self.history.tell(rank, f"ended {communicator}.{number} {digest}")
        return True

    def _failed(self, rank: int, communicator: int, number: int, error: R2cclError) -> None:
        self._ended_badly += 1
        self.history.tell(rank, f"failed {communicator}.{number} {error!r}")
        where = f"rank {rank} communicator {communicator} call {number}"
        promise = self.scenario.promise
        if not promise.loses_a_peer:
            self.complaints.add(f"{where} failed though {promise.value}: {error!r}")
        elif not isinstance(error, PeerLost):
            self.complaints.add(f"{where} failed with {error!r} instead of PeerLost")
        elif promise is Promise.KILLED and not self._is_right_loss(error):
            self.complaints.add(f"{where} blames {error!r}, but rank {sorted(self.injector.dead)} was killed")

    def _is_right_loss(self, error: PeerLost) -> bool:
        only_killed = len(self.scenario.faults) == 1
        return set(error.ranks) == self.injector.dead and (error.cause == "dead" or not only_killed)

    # What must be true in the end.

    async def _until_nothing(self, left: Callable[[], list[str]], within_s: float) -> None:
        """Wait until nothing is left, and complain of what is left in the end."""
        for _ in range(int(within_s / LOOK_EVERY_S)):
            if not left():
                return
            await asyncio.sleep(LOOK_EVERY_S)
        for text in left():
            self.complaints.add(text)

    def _ignorant(self) -> list[str]:
        """Every communicator of every survivor must have failed, also one with nothing to do."""
        return [
            f"rank {rank} communicator {communicator} never heard that a rank was lost"
            for (rank, communicator), handle in sorted(self._communicators.items())
            if rank not in self.injector.dead and handle._coordinator.failing.error is None
        ]

    def _missing(self) -> list[str]:
        """All links of the plan must be up again, and every lane must have one."""
        missing = []
        for runtime in self.world.runtimes:
            for peer in runtime.shared.peers:
                up = {(link.id.local_nic, link.id.remote_nic) for link in runtime.courier.links_up(peer)}
                missing += [
                    f"rank {runtime.shared.rank}: link nic{rail[0]}->rank{peer}.nic{rail[1]} did not come back"
                    for rail in runtime.rails(peer)
                    if rail not in up
                ]
                missing += [
                    f"rank {runtime.shared.rank}: lane {lane.index} to rank {peer} found no link"
                    for lane in runtime.courier.lanes[peer]
                    if lane.link is None
                ]
        return missing

    def _kept(self) -> list[str]:
        """Everything must be acknowledged, and nothing may be kept."""
        return [text for rank in self._alive for text in kept(self.world.runtimes[rank])]

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
            chunks=sum(delivery.total for delivery in self.deliveries.values()),
            resent_chunks=sum(total["resent_chunks"] for total in totals if isinstance(total, dict)),
            failovers=self._failovers,
            virtual_s=self._finished_at_s,
            ended_well=self._ended_well,
            ended_badly=self._ended_badly,
        )
