"""Soak real processes in the lab: ranks on emulated hosts, a fault every second, and what the ranks say of themselves.

Ranks are started and watched as those of ``r2ccl faults`` are; soak_storm says what breaks next, soak_worker is what a
rank does. A rank that fails ends the soak: what was seen up to then counts.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from r2ccl.cli.demo_ranks import RankFailed, RankProgram
from r2ccl.cli.demo_stage import rank_program
from r2ccl.cli.demo_worker_options import Options
from r2ccl.cli.faults_kinds import Act
from r2ccl.cli.faults_stage import QUICK_RETURN, Hosts
from r2ccl.cli.faults_trial import Watch, running, why
from r2ccl.cli.soak_storm import EVERY_S, Storm, Trouble
from r2ccl.clock import MonotonicClock
from r2ccl.sim.gauges import Reading, Track
from r2ccl.sim.soaked import Soaked

if TYPE_CHECKING:
    from r2ccl.lab import Lab

#: After the last fault ranks work on for so long; before they end, they look for what did not come back or is kept.
CALM_S: Final = 2.0
#: Longer than any fault and all that follows it, also where many share the machine.
STANDSTILL_S: Final = 60.0
#: Of the latest faults, and of what was found wrong.
STORY_LINES: Final = 20
COMPLAINTS_MAX: Final = 50
#: Told how far it is, again and again.
Progress = Callable[[Soaked], None]


class Listener:
    """Takes in what ranks say, and compares what all must have alike."""

    def __init__(self, soaked: Soaked, ranks: int, begin_s: float) -> None:
        self._soaked = soaked
        self._ranks = ranks
        self._begin_s = begin_s
        #: Rounds that not all ranks have ended -> digests, by rank.
        self._open: dict[int, dict[int, str]] = {}
        self._failovers = [0] * ranks
        self._moved_at_s = begin_s
        soaked.tracks = [Track(f"rank {rank}") for rank in range(ranks)]

    def take(self, rank: int, told: Mapping[str, Any]) -> None:
        """What a rank said under ``soak``."""
        self._failovers[rank] = told["failovers"]
        for text in told["complaints"]:
            self._complain(text)
        for number, digest in told["rounds"]:
            digests = self._open.setdefault(number, {})
            digests[rank] = digest
            if len(digests) == self._ranks:
                del self._open[number]
                self._soaked.rounds += 1
                if len(set(digests.values())) > 1:
                    self._complain(f"round {number}: ranks do not have the same bits: {digests}")
        if "reading" in told:
            self._soaked.tracks[rank].add(Reading.parse(told["reading"], self._begin_s))

    def count(self, operations: int, now: float) -> None:
        """So many have ended on every rank by now: if there are no more for long, nobody goes on."""
        if operations > self._soaked.operations:
            self._soaked.operations, self._moved_at_s = operations, now
        elif now - self._moved_at_s > STANDSTILL_S and not self._soaked.complaints:
            self._complain(f"no operation ended on all ranks for {STANDSTILL_S:g} s")

    def failovers(self) -> int:
        """Of all ranks."""
        return sum(self._failovers)

    def _complain(self, text: str) -> None:
        if len(self._soaked.complaints) < COMPLAINTS_MAX:
            self._soaked.complaints.append(text)


class _Steps:
    """What is to be done when: the steps of all troubles that are under way."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._numbers = itertools.count()
        self._left: list[tuple[float, int, Act, Trouble]] = []

    def add(self, trouble: Trouble) -> None:
        """All its steps."""
        for step in trouble.steps:
            heapq.heappush(self._left, (trouble.begin_s + step.at_s, next(self._numbers), step.act, trouble))

    @property
    def next_s(self) -> float:
        """When the next is due."""
        return self._left[0][0] if self._left else float("inf")

    def do(self, now: float) -> None:
        """Those that are due."""
        while self._left and self._left[0][0] <= now:
            _, _, act, trouble = heapq.heappop(self._left)
            act(self._hosts, trouble.victim)


def soak_program(seed: int) -> RankProgram:
    """The worker."""

    def program(rank: int, report_descriptor: int) -> list[str]:
        return rank_program("r2ccl.cli.soak_worker", Options(report_descriptor, seed, 1, 0.0, "").as_argument())

    return program


def play(lab: Lab, seed: int, seconds: float, progress: Progress = lambda *_: None) -> Soaked:
    """One soak. What goes wrong is among the complaints."""
    soaked = Soaked()
    hosts = Hosts(lab, QUICK_RETURN)
    try:
        with running(hosts, soak_program(seed)) as watch:
            begin_s = MonotonicClock.now()
            listener = Listener(soaked, lab.hosts, begin_s)

            def look() -> None:
                _look(soaked, listener, watch)
                soaked.seconds = soaked.real_s = MonotonicClock.now() - begin_s
                progress(soaked)

            try:
                _storm(
                    hosts, watch, Storm(random.Random(f"storm of {seed}"), lab.hosts, lab.nics), soaked, seconds, look
                )
                watch.until(MonotonicClock.now() + CALM_S)
                watch.ranks.stop()
            except RankFailed as failed:
                soaked.complaints += [why(watch, failed), str(failed)]
            look()
    except RankFailed as failed:
        soaked.complaints.append(str(failed))
    return soaked


def _look(soaked: Soaked, listener: Listener, watch: Watch) -> None:
    for rank in watch.ranks.all:
        told, rank.more = rank.more, []
        for one in told:
            listener.take(rank.number, one)
        rank.record.arrivals.clear()
    listener.count(watch.ranks.operations, MonotonicClock.now())
    soaked.resent_bytes = sum(record.resent_bytes for record in watch.ranks.records)
    soaked.failovers = listener.failovers()
    watch.happenings.clear()


def _storm(hosts: Hosts, watch: Watch, storm: Storm, soaked: Soaked, seconds: float, look: Callable[[], None]) -> None:
    """A fault every second, until the time is over or something was found wrong; the last one healed."""
    steps = _Steps(hosts)
    latest: deque[str] = deque(maxlen=STORY_LINES)
    next_s = MonotonicClock.now()
    end_s = next_s + seconds
    while not soaked.complaints:
        now = MonotonicClock.now()
        steps.do(now)
        if now >= end_s:
            break
        if now >= next_s:
            next_s = max(next_s + EVERY_S, now)
            if (trouble := storm.draw(now)) is not None:
                steps.add(trouble)
                soaked.faults[trouble.key] += 1
                latest.append(f"{seconds - (end_s - now):8.2f} s  {trouble}")
                soaked.story = "\n".join(latest)
        watch.until(min(steps.next_s, next_s, end_s))
        look()
    while steps.next_s < float("inf"):
        watch.until(steps.next_s)
        steps.do(MonotonicClock.now())
        look()
