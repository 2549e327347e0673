"""The work of planning grows with the number of ranks, not with its square: a plan for 1,024 ranks takes milliseconds.

Counted in lines that the interpreter runs, which are the same on every machine, however busy.
``scripts/plan_times.py`` tells the milliseconds.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from r2ccl.actors.planning import Call, Plans
from r2ccl.planner.picture import even_picture
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.schedule.algorithms import IN_PARTS
from tests.planner.tunings import FLOAT32

SMALL, LARGE = 64, 256
#: n log n: by 4 times 8/6. By the square it would be 16.
GROWTH_MAX = 6.5


def steps(ranks: int, rank: int, kind: CollectiveKind, part: int) -> int:
    """Lines that are run to make one plan. (Operations would tell more; Python 3.12 does not always trace them.)"""
    parts = (part,) * ranks if kind.value in IN_PARTS else ()
    out_parts = parts if kind is CollectiveKind.ALL_TO_ALL else ()
    count = 0 if kind is CollectiveKind.BARRIER else sum(parts) or part
    op = Op.SUM if "reduce" in kind.value else None
    plans = Plans(rank, even_picture(ranks), range(ranks))
    call = Call(kind, FLOAT32, "float32", count, op, 0, parts, out_parts)
    counted = 0

    def trace(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        counted += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        plans.plan(call)
    finally:
        sys.settrace(before)
    return counted


@pytest.mark.parametrize("part", [1, 1 << 14], ids=["tiny", "large"])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", CollectiveKind, ids=lambda kind: kind.value)
def test_planning_grows_with_the_number_of_ranks_and_not_with_its_square(
    kind: CollectiveKind, rank: int, part: int
) -> None:
    small, large = (steps(ranks, rank, kind, part) for ranks in (SMALL, LARGE))
    assert large < small * GROWTH_MAX
