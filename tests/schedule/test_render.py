"""A schedule as a table for people."""

from __future__ import annotations

import pytest

from r2ccl.schedule.algorithms import algorithm
from r2ccl.schedule.causality import ScheduleError
from r2ccl.schedule.ir import Shape
from r2ccl.schedule.render import render


def test_a_schedule_reads_as_one_line_for_each_transfer_in_order_of_steps() -> None:
    assert render(algorithm("all_reduce", "ring").all_programs([Shape(6)] * 3)).splitlines() == [
        "step  transfer  segment  applied as      send waits for  receive waits for  ack",
        "0     0 -> 1    [0:2)    received + own",
        "0     1 -> 2    [2:4)    received + own",
        "0     2 -> 0    [4:6)    received + own",
        "1     0 -> 1    [4:6)    received + own  0:2",
        "1     1 -> 2    [0:2)    received + own  0:0",
        "1     2 -> 0    [2:4)    received + own  0:1",
        "2     0 -> 1    [2:4)    copy            1:2                                needed",
        "2     1 -> 2    [4:6)    copy            1:0                                needed",
        "2     2 -> 0    [0:2)    copy            1:1                                needed",
        "3     0 -> 1    [0:2)    copy            2:2                                needed",
        "3     1 -> 2    [2:4)    copy            2:0                                needed",
        "3     2 -> 0    [4:6)    copy            2:1                                needed",
    ]


def test_signals_operands_and_waits_of_receives_are_shown() -> None:
    assert " signal " in render(algorithm("barrier", "dissemination").all_programs([Shape()] * 2))
    assert render(algorithm("all_reduce", "recursive_doubling").all_programs([Shape(1)] * 4)).splitlines()[5:7] == [
        "1     0 -> 2    [0:1)    received + own  0:1             0:3                needed",
        "1     1 -> 3    [0:1)    received + own  0:0             0:2                needed",
    ]


def test_programs_that_do_not_fit_together_are_not_rendered() -> None:
    with pytest.raises(ScheduleError):
        render([algorithm("broadcast", "chain").build(2, rank, Shape(4 + rank)) for rank in range(2)])


def test_all_segments_of_a_message_are_shown() -> None:
    programs = algorithm("gather", "binomial").all_programs([Shape.in_parts([2, 1, 3, 4], root=1)] * 4)
    assert "1     3 -> 1    [6:10)+[0:2)  copy" in render(programs)
