"""Each collective's meaning is shown schedules that do less, or something else."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.schedule import semantics
from r2ccl.schedule.algorithms import algorithm, meaning
from r2ccl.schedule.ir import Shape
from tests.schedule.cases import even
from tests.schedule.mutants import Programs, changed_receive, changed_send, refused


def of_parts(collective: str, name: str) -> tuple[Programs, semantics.Collective]:
    shapes = even(algorithm(collective, name), 4, 8)
    return algorithm(collective, name).all_programs(shapes), meaning(collective, shapes)


def without_step(programs: Programs, step: int) -> Programs:
    """The schedule without the last of its steps."""
    return [
        dataclasses.replace(
            program,
            sends=tuple(send for send in program.sends if send.step != step),
            receives=tuple(receive for receive in program.receives if receive.step != step),
        )
        for program in programs
    ]


@pytest.mark.parametrize(
    ("collective", "name", "last", "rank", "lacking"),
    [
        ("reduce", "binomial", 1, 0, "2, 3"),
        ("reduce", "chain", 2, 0, "1, 2, 3"),
        ("all_gather", "bruck", 1, 0, "2"),
        ("all_gather", "ring", 2, 0, "1"),
        ("reduce_scatter", "direct", 2, 0, "1"),
        ("gather", "binomial", 1, 0, "2"),
        ("gather", "direct", 2, 0, "3"),
        ("scatter", "binomial", 1, 1, "0"),
        ("scatter", "direct", 2, 3, "0"),
        ("all_to_all", "bruck", 1, 2, "0"),
        ("all_to_all", "direct", 2, 3, "0"),
    ],
)
def test_a_schedule_that_ends_a_step_early_is_refused(
    collective: str, name: str, last: int, rank: int, lacking: str
) -> None:
    programs, means = of_parts(collective, name)
    error = refused(without_step(programs, last), means, f"the result lacks rank(s) {lacking}")
    assert error.rank == rank


def test_a_reduce_scatter_is_of_every_part() -> None:
    programs, means = of_parts("reduce_scatter", "ring")
    programs = changed_receive(programs, 2, 2, reduce=False, received_first=False)
    error = refused(programs, means, "the result lacks rank(s) 2")
    assert (error.rank, error.segment) == (2, (4, 6))


def test_a_gather_to_another_root_is_refused() -> None:
    programs = algorithm("gather", "direct").all_programs([Shape.in_parts([2, 2, 2], root=1)] * 3)
    refused(programs, semantics.gather([2, 2, 2], 2), "the result lacks rank(s) 0")


def test_an_all_to_all_that_swaps_two_blocks_is_refused() -> None:
    """Rank 0 sends rank 1 the block for rank 2; where that lies says whose it is."""
    programs, means = of_parts("all_to_all", "direct")
    first, second = programs[0].sends[:2]
    programs = changed_send(programs, 0, 0, start=second.start, stop=second.stop)
    refused(programs, means, "rank 1 receives it into")
    programs = changed_receive(programs, 1, 0, start=second.start, stop=second.stop)
    error = refused(programs, means, "the result lacks rank(s) 0")
    assert (error.rank, error.segment) == (1, (first.start, first.stop))
