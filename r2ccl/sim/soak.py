"""A soak in virtual time: one world that lives for an hour, with faults every few seconds and work without pause.

Where the swarm makes thousands of worlds that live for seconds, this makes one that has to bear everything that came
before: flaps that add up, numbers that grow, tables that only fill. Work is sim.rounds; faults are drawn as the swarm's
are, a few seconds' worth at a time, each time under a promise of its own (paths remain, or an outage shorter than the
grace time), so that no operation may fail. Once a virtual second all is measured (sim.gauges). In the end everything
heals, all links come back, and nothing may be kept or left open.

    r2ccl soak --seconds 0 --virtual-seconds 3600 --seed 7
"""

from __future__ import annotations

import asyncio
import gc
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np
import psutil

from r2ccl.clock import MonotonicClock
from r2ccl.config import Settings
from r2ccl.errors import R2cclError
from r2ccl.sim import loop as sim_loop
from r2ccl.sim import rounds
from r2ccl.sim.checkers import Answers, Complaints, Composure, kept, missing_links, open_ends
from r2ccl.sim.faults import Fault, Promise, draw_faults, slowest_bytes_s
from r2ccl.sim.gauges import Track, read
from r2ccl.sim.history import History, ToldLog
from r2ccl.sim.injector import Injector
from r2ccl.sim.loop import SimClock
from r2ccl.sim.soaked import Soaked
from r2ccl.sim.world import Shape, World
from r2ccl.transport.memory import MemoryDevice
from r2ccl.transport.memory_path import Model

RANKS, NICS = 3, 2
CHUNK_BYTES: Final = 4096
#: No call moves more.
BYTES_MAX: Final = 256 << 10
#: A rank computes for up to so long before each round.
PAUSE_S: Final = 3.0
#: Faults of one draw begin within so long; the next are drawn when all of these are over.
SPELL_S: Final = 4.0
OUTAGES_SHARE: Final = 0.25
#: Between the last of a spell and the first of the next: a link needs so long to be relied on.
CALM_S: Final = 1.5
#: Objects and entries are counted once in so many readings, for that takes a while.
COUNT_EVERY: Final = 15
#: After the last fault: for links to come back, for acknowledgements, and until no timer may be left.
BACK_WITHIN_S: Final = 30.0
SETTLE_WITHIN_S: Final = 5.0
SILENCE_AFTER_S: Final = 300.0


#: Told how far it is, once a virtual second.
Progress = Callable[[Soaked], None]


def shape() -> Shape:
    """A job of middling size: chunks are small, so that there are many of them and little to compute."""
    bandwidth = 10 * slowest_bytes_s(CHUNK_BYTES, RANKS)
    settings = Settings(
        chunk_bytes=CHUNK_BYTES, eager_bytes=1024, credit_bytes=16 * CHUNK_BYTES, dial_timeout_s=0.3, redial_s=0.05,
        quiet_max_s=2.0, stable_s=2.0,
    )  # fmt: skip
    model = Model(bandwidth_bytes_s=bandwidth, piece_bytes=4096, dial_timeout_s=0.3)
    return Shape(RANKS, NICS, 0, False, settings, model)


class Soak:
    """One world. Make it inside the simulated loop."""

    def __init__(self, seed: int, seconds: float, progress: Progress) -> None:
        self._seed = seed
        self._seconds = seconds
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        clock = SimClock(self._loop)
        self._history = History(clock)
        self.complaints = Complaints(self._history)
        self._world = World(shape(), seed, lambda rank: ToldLog(clock, rank, self._history))
        self._injector = Injector(self._world, self._history, lambda _: None, seed)
        self._process = psutil.Process()
        self._answers: dict[int, tuple[rounds.Round, Answers]] = {}
        self._left: Counter[int] = Counter()
        self._is_over = False
        self._tally = rounds.Tally()
        self.soaked = Soaked(complaints=self.complaints.texts, tracks=[Track("all ranks")])

    async def run(self) -> None:
        """From the first connection to the silence after the last."""
        world = self._world
        with Composure(self.complaints):
            await world.start()
            async with asyncio.TaskGroup() as tasks:
                storm = tasks.create_task(self._storm(), name="storm")
                gauge = tasks.create_task(self._measure(), name="gauge")
                works = [tasks.create_task(self._work(rank), name=f"rank {rank}") for rank in range(RANKS)]
                await storm
                self._is_over = True
                await asyncio.wait(works)
                gauge.cancel()
            await self.complaints.until_nothing(self._missing, BACK_WITHIN_S)
            await self.complaints.until_nothing(self._kept, SETTLE_WITHIN_S)
            await world.close()
            await asyncio.sleep(SILENCE_AFTER_S)
            devices = [cast(MemoryDevice, port.device) for runtime in world.runtimes for port in runtime.ports]
            for text in open_ends(self._loop, devices):
                self.complaints.add(text)

    # The parts.

    async def _storm(self) -> None:
        rng = random.Random(f"storm of {self._seed}")
        while self._loop.time() < self._seconds and not self.complaints.texts:
            promise = Promise.OUTAGE if rng.random() < OUTAGES_SHARE else Promise.PATHS
            faults = draw_faults(rng, self._world.shape, promise, SPELL_S, lasting=rng.random() < 0.2)
            self._injector.arm(faults)
            self.soaked.faults.update(fault.kind.value for fault in faults)
            await asyncio.sleep(self._lasts_s(faults) + rng.uniform(CALM_S, 2 * CALM_S))

    @staticmethod
    def _lasts_s(faults: Sequence[Fault]) -> float:
        return max((fault.until_s for fault in faults), default=0.0)

    async def _work(self, rank: int) -> None:
        rng = random.Random(f"rank {rank} of {self._seed}")
        handle = self._world.communicators[rank]
        number = 0
        while True:
            await asyncio.sleep(rng.uniform(0.0, PAUSE_S))
            await self._injector.runs[rank].wait()
            drawn, answers = self._round(number)
            player = rounds.Player(drawn, answers, self.complaints, self._tally)
            try:
                await player.play(handle)
                stop = np.array([self._is_over or bool(self.complaints.texts)], np.int32)
                await handle.all_reduce(stop)
            except R2cclError as error:
                text = f"rank {rank} round {number} at {self._loop.time():.3f} s: {error!r}"
                self.complaints.add("\n  ".join((text, *getattr(error, "__notes__", ()))))
                raise
            player.look_back()
            self._leave(number)
            number += 1
            if stop[0]:
                return

    def _round(self, number: int) -> tuple[rounds.Round, Answers]:
        """One for all ranks, as long as any is in it."""
        if number not in self._answers:
            drawn = rounds.draw_round(self._seed, number, RANKS, CHUNK_BYTES, BYTES_MAX)
            self._answers[number] = (drawn, rounds.answers_of(drawn, self.complaints))
        return self._answers[number]

    def _leave(self, number: int) -> None:
        self._left[number] += 1
        if self._left[number] == RANKS:
            del self._left[number], self._answers[number]
            self.soaked.rounds += 1

    async def _measure(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(1.0)
            timers: list[asyncio.TimerHandle] = getattr(self._loop, "_scheduled", [])
            is_full = count % COUNT_EVERY == 0
            if is_full:
                gc.collect()
            set_timers = sum(not timer.cancelled() for timer in timers)
            self.soaked.tracks[0].add(
                read(self._loop.time(), self._world.runtimes, self._process, set_timers, counts=is_full)
            )
            self._count()
            self._progress(self.soaked)
            count += 1

    # The end.

    def _missing(self) -> list[str]:
        return [text for runtime in self._world.runtimes for text in missing_links(runtime)]

    def _kept(self) -> list[str]:
        return [text for runtime in self._world.runtimes for text in kept(runtime)]

    def _count(self) -> None:
        counters = [runtime.shared.counters for runtime in self._world.runtimes]
        totals = [each.snapshot()["total"] for each in counters]
        self.soaked.seconds = self._loop.time()
        self.soaked.operations = self._tally.operations
        self.soaked.failovers = sum(each.failovers for each in counters)
        self.soaked.resent_bytes = sum(total["resent_bytes"] for total in totals if isinstance(total, dict))

    def outcome(self, failure: str, real_s: float) -> Soaked:
        """What came of it; ``failure``: the traceback of what escaped."""
        if failure:
            self.complaints.add(failure)
        self.soaked.real_s = real_s
        self.soaked.story = self._history.story() if self.complaints.texts else ""
        return self.soaked


def run(seed: int, seconds: float, progress: Progress = lambda *_: None) -> Soaked:
    """One soak. Whatever escapes is a complaint."""
    soaks: list[Soak] = []
    begin_s = MonotonicClock.now()

    async def main() -> None:
        soaks.append(Soak(seed, seconds, progress))
        await soaks[0].run()

    failure = ""
    try:
        sim_loop.run(main())
    except Exception:  # noqa: BLE001 - whatever escapes from a world is what it is run for, and is told
        failure = traceback.format_exc()
    return soaks[0].outcome(failure, MonotonicClock.now() - begin_s)
