"""Several sides take turns at each size, on the same cores, in the same minutes.

All ranks of all sides are started once; while one side works the others wait in a read. Each round begins with another
side than the round before, so that nobody always comes after the same one. A peer that cannot start or fails is left
out with what it said; if r2ccl fails, that is the end.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from r2ccl.cli.bench_collectives import IN
from r2ccl.cli.bench_teams import Program, RankFailed, Team
from r2ccl.cli.bench_turns import Answer, Turn
from r2ccl.cli.performance_figures import Measured, Part
from r2ccl.errors import UsageError

ITEM_BYTES: Final = 4
#: Operations of a turn; fewer than three have no median, more make answers long.
ITERATIONS_MIN, ITERATIONS_MAX = 3, 2000
TURN_TIMEOUT_S: Final = 300.0
#: From here up an operation takes so long that two of them warm up enough.
_LARGE_BYTES: Final = 4 << 20
#: Leaves room for as many checks, each with data of its own.
_SEED_STEP: Final = 1000
#: What starting a side costs, and a turn besides its operations.
START_S, AROUND_TURN_S = 2.0, 0.1


@dataclass(frozen=True, slots=True)
class SideStart:
    """How the ranks of one side are started."""

    name: str
    #: From the control socket to what is started. Raises :class:`UsageError`.
    programs: Callable[[Path], Sequence[Program]]
    is_ours: bool = False
    #: Sides that reduce nothing have nothing to check.
    is_checked: bool = True


@dataclass(frozen=True, slots=True)
class Course:
    """What all sides play."""

    key: str
    ranks: int
    sizes: tuple[int, ...]
    rounds: int
    #: As many operations as fill this time.
    seconds: float
    #: Instead of filling a time.
    iterations: int | None = None
    window: int = 1
    tick_s: float = 0.0
    checks: int = 1

    def estimate_s(self, sides: int) -> float:
        """How long it takes, about."""
        turns = len(self.sizes) * sides * (self.rounds + 1)
        return sides * START_S + turns * (1.3 * self.seconds + AROUND_TURN_S)


@dataclass(slots=True)
class Side:
    """One of them, ready to play."""

    start: SideStart
    team: Team

    @property
    def name(self) -> str:
        return self.start.name


@dataclass(slots=True)
class Played:
    """One side's turns at one size."""

    times_s: list[float] = field(default_factory=list)
    means_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    wrong: int = 0

    def add(self, answers: Sequence[Answer]) -> None:
        """One turn: an operation takes as long as its slowest rank."""
        slowest_s = [max(times) for times in zip(*(answer.times_s for answer in answers), strict=True)]
        self.times_s.append(statistics.median(slowest_s))
        self.means_s.append(statistics.fmean(slowest_s))
        self.cpu_s.append(sum(answer.cpu_s for answer in answers) / len(slowest_s))
        self.wrong += sum(answer.wrong for answer in answers)
        for answer in answers:
            self.gaps_s.extend(answer.gaps_s)


class Contest:
    """One part, from the first turn to the last."""

    def __init__(
        self, course: Course, sides: Sequence[Side], left_out: dict[str, str], tell: Callable[[str, float], None]
    ) -> None:
        self._course = course
        self._sides = list(sides)
        self._left_out = left_out
        self._tell = tell
        self._turns_done = 0
        self._about = {side.name: side.team.hellos[0].about for side in sides}

    def play(self) -> Part:
        """All sizes. Raises :class:`RankFailed`, :class:`UsageError` when r2ccl cannot go on."""
        measured: dict[str, list[Measured]] = {side.name: [] for side in self._sides}
        for index, size in enumerate(self._course.sizes):
            played = self._size(index, size)
            for side in self._sides:
                one, checked = played[side.name], side.start.is_checked and self._course.checks
                measured[side.name].append(
                    Measured(
                        side.name, size, tuple(one.times_s), tuple(one.means_s), tuple(one.cpu_s),
                        one.wrong if checked else None, tuple(one.gaps_s),
                    )
                )  # fmt: skip
        course, names = self._course, [side.name for side in self._sides]
        everything = tuple(one for name in names for one in measured[name])
        about = {name: self._about[name] for name in names}
        return Part(course.key, course.ranks, everything, course.window, course.tick_s, about)

    def _size(self, index: int, size: int) -> dict[str, Played]:
        played = {side.name: Played() for side in self._sides}
        iterations = self._iterations(index, size)
        for number in range(self._course.rounds):
            for side in in_turn(self._sides, index + number):
                checks = self._course.checks if side.start.is_checked and number == 0 else 0
                seed = (index * self._course.rounds + number) * _SEED_STEP
                turn = self._turn(size, iterations.get(side.name, ITERATIONS_MIN), seed, checks)
                self._play(side, turn, f"{side.name}, round {number + 1}", played[side.name])
        return played

    def _iterations(self, index: int, size: int) -> Mapping[str, int]:
        """As many as fill the time, for each side by a first turn that counts for nothing else."""
        course = self._course
        if course.iterations is not None:
            return MappingProxyType(dict.fromkeys((side.name for side in self._sides), course.iterations))
        found = {}
        for side in in_turn(self._sides, index):
            trial = Played()
            self._play(side, self._turn(size, ITERATIONS_MIN, 0, 0), f"{side.name}, trial", trial)
            if trial.times_s:
                found[side.name] = max(ITERATIONS_MIN, min(ITERATIONS_MAX, int(course.seconds / trial.times_s[0])))
        return MappingProxyType(found)

    def _turn(self, size: int, iterations: int, seed: int, checks: int) -> Turn:
        warmup = 2 if size >= _LARGE_BYTES or self._course.window > 1 else 5
        return Turn(
            "all_reduce", IN, max(1, size // ITEM_BYTES), "float32", "sum", 0, warmup, iterations, checks, seed,
            window=self._course.window, tick_s=self._course.tick_s,
        )  # fmt: skip

    def _play(self, side: Side, turn: Turn, what: str, played: Played) -> None:
        if side not in self._sides:
            return
        self._tell(f"{self._course.key}: {turn.count * ITEM_BYTES:,} bytes, {what}", self._done_s())
        self._turns_done += 1
        try:
            played.add(side.team.play(turn))
        except (RankFailed, UsageError) as failed:
            if side.start.is_ours:
                raise
            self._left_out[f"{side.name} in {self._course.key}"] = first_line(failed)
            self._sides.remove(side)

    def _done_s(self) -> float:
        """By the estimate."""
        course = self._course
        return len(self._about) * START_S + self._turns_done * (1.3 * course.seconds + AROUND_TURN_S)


def in_turn(sides: Sequence[Side], number: int) -> list[Side]:
    """Another one begins each time, and every second time they go the other way round."""
    first = number % len(sides)
    order = [*sides[first:], *sides[:first]]
    return order if number // len(sides) % 2 == 0 else order[::-1]


def first_line(error: Exception) -> str:
    """Of what a rank that failed had to say."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def started(
    starts: Sequence[SideStart], course: Course, directory: Path, left_out: dict[str, str]
) -> Iterator[list[Side]]:
    """All sides that can start. Raises :class:`RankFailed`, :class:`UsageError` when r2ccl cannot."""
    with contextlib.ExitStack() as ending:
        teams = [ending.enter_context(Team(start.name, course.ranks, directory, TURN_TIMEOUT_S)) for start in starts]

        def go(step: Callable[[SideStart, Team], None], those: Sequence[Side]) -> list[Side]:
            """Those that can."""
            able = []
            for side in those:
                try:
                    step(side.start, side.team)
                except (RankFailed, UsageError) as failed:
                    if side.start.is_ours:
                        raise
                    side.team.close(at_once=True)
                    left_out[f"{side.name} in {course.key}"] = first_line(failed)
                else:
                    able.append(side)
            return able

        # All are started before the first is waited for: importing torch takes long.
        begun = go(
            lambda start, team: team.start(start.programs(team.control)),
            [Side(start, team) for start, team in zip(starts, teams, strict=True)],
        )
        yield go(lambda _, team: team.meet(), begun)
