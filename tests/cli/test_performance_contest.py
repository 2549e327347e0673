"""Sides take turns: who begins alternates, who fails is left out, and turns become figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from r2ccl.cli import performance_parts as parts
from r2ccl.cli.bench_teams import OPENMPI_OVER_TCP, Program, RankFailed
from r2ccl.cli.bench_turns import Answer, Hello, Turn
from r2ccl.cli.performance_contest import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    Contest,
    Course,
    Played,
    Side,
    SideStart,
    first_line,
    in_turn,
)
from r2ccl.errors import UsageError


class Puppets:
    """A team of two ranks, each operation of which takes what it is told to."""

    def __init__(self, log: list[tuple[str, Turn]], name: str, time_s: float, fails_at: int | None = None) -> None:
        self.hellos = [Hello(0, 1, f"{name} 1.0")]
        self._log, self._name, self._time_s, self._fails_at = log, name, time_s, fails_at
        self._turns = 0

    def play(self, turn: Turn) -> list[Answer]:
        self._turns += 1
        if self._turns == self._fails_at:
            raise RankFailed(f"{self._name}: a rank is gone\n    its last words")
        self._log.append((self._name, turn))
        gaps = [0.005, 0.006] if turn.tick_s else []
        times = [[scale * self._time_s] * turn.iterations for scale in (0.5, 1.0)]
        return [
            Answer([0.0] * turn.iterations, each, turn.checks, cpu_s=0.25 * sum(each), gaps_s=gaps) for each in times
        ]


def side(log: list[tuple[str, Turn]], name: str, time_s: float, **changes: Any) -> Side:
    fails_at = changes.pop("fails_at", None)
    start = SideStart(name, lambda control: [], **changes)
    return Side(start, Puppets(log, name, time_s, fails_at))  # type: ignore[arg-type]


def a_course(**changes: Any) -> Course:
    return Course(**{"key": "tcp-2", "ranks": 2, "sizes": (4, 1 << 24), "rounds": 3, "seconds": 0.1, **changes})


def contest(course: Course, sides: Sequence[Side]) -> tuple[Contest, dict[str, str], list[tuple[str, float]]]:
    left_out: dict[str, str] = {}
    told: list[tuple[str, float]] = []
    return Contest(course, sides, left_out, lambda what, done_s: told.append((what, done_s))), left_out, told


def test_another_side_begins_each_round_and_later_the_order_turns_round():
    log: list[tuple[str, Turn]] = []
    a, b, c = (side(log, name, 0.1) for name in "abc")
    orders = ["".join(one.name for one in in_turn([a, b, c], number)) for number in range(7)]
    assert orders == ["abc", "bca", "cab", "cba", "acb", "bac", "abc"]


def test_an_operation_takes_as_long_as_its_slowest_rank():
    played = Played()
    played.add([Answer([], [1.0, 5.0, 2.0], 1, cpu_s=0.75), Answer([], [3.0, 1.0, 4.0], 2, cpu_s=2.25)])
    assert (played.times_s, played.means_s, played.cpu_s, played.wrong) == ([4.0], [4.0], [1.0], 3)


def test_every_side_plays_every_round_and_only_the_first_is_checked():
    log: list[tuple[str, Turn]] = []
    ours, peer = side(log, "r2ccl", 0.01, is_ours=True), side(log, "gloo", 0.02)
    floor = side(log, "exchange", 0.005, is_checked=False)
    playing, left_out, told = contest(a_course(), [ours, peer, floor])
    part = playing.play()
    assert part.sides == ["r2ccl", "gloo", "exchange"]
    assert part.sizes == [4, 1 << 24]
    assert part.about == {"r2ccl": "r2ccl 1.0", "gloo": "gloo 1.0", "exchange": "exchange 1.0"}
    assert [len(one.times_s) for one in part.measured] == [3] * 6
    assert [one.wrong for one in part.measured] == [2, 2, 2, 2, None, None]
    assert {turn.checks for name, turn in log if name == "exchange"} == {0}
    assert [turn.checks for name, turn in log if name == "gloo"] == [0, 1, 0, 0] * 2
    assert left_out == {}
    assert len(told) == len(log) == 24
    assert [done_s for _, done_s in told] == sorted(done_s for _, done_s in told)


def test_each_side_has_as_many_operations_as_fill_the_time():
    log: list[tuple[str, Turn]] = []
    sides = [side(log, "r2ccl", 0.01, is_ours=True), side(log, "slow", 1.0), side(log, "fast", 1e-6)]
    playing, _, _ = contest(a_course(sizes=(4,), rounds=1), sides)
    playing.play()
    counted = {name: turn.iterations for name, turn in log}
    assert counted == {"r2ccl": 10, "slow": ITERATIONS_MIN, "fast": ITERATIONS_MAX}


def test_where_the_number_is_given_there_is_no_trial():
    log: list[tuple[str, Turn]] = []
    course = a_course(sizes=(1024,), rounds=2, iterations=7, window=64, tick_s=0.005)
    playing, _, _ = contest(course, [side(log, "r2ccl", 0.01, is_ours=True)])
    part = playing.play()
    assert [(turn.iterations, turn.window, turn.tick_s) for _, turn in log] == [(7, 64, 0.005)] * 2
    assert part.measured[0].gaps_s == (0.005, 0.006) * 4
    assert (part.window, part.tick_s) == (64, 0.005)


def test_a_peer_that_fails_is_left_out_with_what_it_said_and_the_others_go_on():
    log: list[tuple[str, Turn]] = []
    sides = [side(log, "r2ccl", 0.01, is_ours=True), side(log, "gloo", 0.02, fails_at=6)]
    playing, left_out, _ = contest(a_course(), sides)
    part = playing.play()
    assert part.sides == ["r2ccl"]
    assert left_out == {"gloo in tcp-2": "gloo: a rank is gone"}
    assert len([name for name, _ in log if name == "r2ccl"]) == 8


def test_if_r2ccl_fails_that_is_the_end():
    log: list[tuple[str, Turn]] = []
    playing, _, _ = contest(a_course(), [side(log, "r2ccl", 0.01, is_ours=True, fails_at=2)])
    with pytest.raises(RankFailed, match="a rank is gone"):
        playing.play()


def test_of_many_lines_the_first_is_told():
    assert first_line(UsageError("\n  one\n two")) == "one"
    assert first_line(UsageError("")) == "UsageError"


# Who plays what.


@pytest.mark.parametrize("scale", [parts.WHOLE, parts.QUICK])
@pytest.mark.parametrize("key", parts.PARTS)
def test_every_part_has_a_course(key: str, scale: parts.Scale):
    course = parts.course(key, scale)
    assert course.key == key
    assert course.ranks == (4 if key.endswith("4") else 2)
    assert course.estimate_s(5) > 0
    assert (course.tick_s > 0) == (key == parts.SERVER)
    assert (course.window > 1) == (key == parts.SMALL)


def test_a_whole_run_has_100_000_small_operations_in_windows_of_64():
    course = parts.course(parts.SMALL, parts.WHOLE)
    assert course.iterations is not None
    assert abs(course.iterations * course.window * course.rounds - 100_000) < 64 * course.rounds
    assert (course.sizes, course.window) == ((1024,), 64)


@pytest.mark.parametrize("key", [key for key in parts.PARTS if key not in parts.IN_A_LAB])
def test_every_part_on_loopback_has_sides_of_which_some_are_ours(key: str):
    starts = parts.loopback_sides(key, 2, parts.Pythons("python", "python"), {})
    assert any(start.is_ours for start in starts)
    assert len({start.name for start in starts}) == len(starts)


def test_ours_go_the_way_that_their_name_says(tmp_path: Any):
    def ways(key: str, name: str) -> set[str]:
        starts = parts.loopback_sides(key, 2, parts.Pythons("python", "python"), {"R2CCL_SHARED_MEMORY": "auto"})
        (start,) = [start for start in starts if start.name == name]
        return {program.environment["R2CCL_SHARED_MEMORY"] for program in start.programs(tmp_path / "x.sock")}

    assert ways(parts.TCP_2, parts.OURS) == ways(parts.SMALL, parts.THREAD) == {"off"}
    assert ways(parts.MEMORY_2, parts.SHARED) == ways(parts.SERVER, parts.SHARED_THREAD) == {"auto"}


def test_open_mpi_is_told_to_share_memory_and_not_to_use_tcp_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    def as_elsewhere(*_: Any) -> list[Any]:
        return [Program(("mpirun",), {"PATH": "/bin", **OPENMPI_OVER_TCP})]

    monkeypatch.setattr(parts, "peer_programs", as_elsewhere)
    (program,) = parts.openmpi(2, "python", parts.OPENMPI_BY_MEMORY, {}).programs(tmp_path / "x.sock")
    assert program.environment == {"PATH": "/bin", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}


def test_parts_are_named_with_commas_or_one_by_one_and_come_in_their_order():
    assert parts.split_keys([]) == parts.PARTS
    assert parts.split_keys(["price, tcp-4", "tcp-2"]) == ("tcp-2", "tcp-4", "price")
    with pytest.raises(UsageError, match="there is no part"):
        parts.split_keys(["tcp"])
