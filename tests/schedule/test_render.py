"""A schedule as a table for people."""

from __future__ import annotations

import pytest

from r2ccl.schedule.algorithms import algorithm
from r2ccl.schedule.causality import ScheduleError
from r2ccl.schedule.render import render


def test_a_schedule_reads_as_one_line_for_each_transfer_in_order_of_steps() -> None:
    assert render(algorithm("ring").all_programs(3, 6)).splitlines() == [
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
    assert " signal " in render(algorithm("dissemination").all_programs(2, 0))
    assert render(algorithm("recursive_doubling").all_programs(4, 1)).splitlines()[5:7] == [
        "1     0 -> 2    [0:1)    received + own  0:1             0:3                needed",
        "1     1 -> 3    [0:1)    received + own  0:0             0:2                needed",
    ]


def test_programs_that_do_not_fit_together_are_not_rendered() -> None:
    with pytest.raises(ScheduleError):
        render([algorithm("chain").build(2, 0, 4, 0), algorithm("chain").build(2, 1, 5, 0)])
