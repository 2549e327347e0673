"""Executes what the check proves, and tries to catch the check with schedules that were damaged at random."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm
from r2ccl.schedule.causality import ScheduleError
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Program
from r2ccl.schedule.semantics import Collective
from tests.schedule.execution import ExecutionError, World

algorithms = st.sampled_from(ALGORITHMS)
generators = st.integers(0, 1 << 32).map(random.Random)


def count_of(known: Algorithm, count: int) -> int:
    return 0 if known.collective == "barrier" else count


@settings(max_examples=150, deadline=None)
@given(algorithms, st.integers(1, 7), st.integers(0, 15), st.integers(0, 6), st.integers(1, 5), generators)
def test_every_algorithm_gives_right_results_in_any_order_of_execution(
    known: Algorithm, ranks: int, count: int, root: int, chunk_elements: int, generator: random.Random
) -> None:
    count, root = count_of(known, count), root % ranks
    programs = known.all_programs(ranks, count, root)
    World(programs, known.means(ranks, count, root), chunk_elements, generator).run()


@settings(max_examples=400, deadline=None)
@given(algorithms, st.integers(2, 6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32))
def test_whatever_the_check_accepts_executes_rightly(
    known: Algorithm, ranks: int, count: int, chunk_elements: int, damages: int, seed: int
) -> None:
    generator = random.Random(seed)
    count = count_of(known, count)
    collective = known.means(ranks, count, 0)
    programs = known.all_programs(ranks, count)
    for _ in range(damages):
        programs = damaged(programs, generator)
    try:
        check(programs, collective)
    except ScheduleError:
        event("refused")
        return
    event("accepted")
    for _ in range(3):
        World(programs, collective, chunk_elements, generator).run()


def damaged(programs: list[Program], generator: random.Random) -> list[Program]:
    """One thing of one rank is changed, so that sends and receives still match and the check has to look deeper."""
    program = generator.choice(programs)
    sends, receives = list(program.sends), list(program.receives)
    copies = program.sends_from_copies
    what = generator.randrange(6)
    if what == 0 and sends:
        at = generator.randrange(len(sends))
        sends[at] = dataclasses.replace(sends[at], needs_ack=not sends[at].needs_ack)
    elif what == 1 and sends:
        at = generator.randrange(len(sends))
        sends[at] = dataclasses.replace(sends[at], after=other_waits(sends[at].after, len(receives), generator))
    elif what == 2 and receives:
        at = generator.randrange(len(receives))
        receives[at] = dataclasses.replace(
            receives[at], after=other_waits(receives[at].after, len(receives), generator)
        )
    elif what == 3 and receives:
        at = generator.randrange(len(receives))
        receives[at] = dataclasses.replace(
            receives[at], received_first=receives[at].reduce and not receives[at].received_first
        )
    elif what == 4 and receives:
        at = generator.randrange(len(receives))
        receives[at] = dataclasses.replace(receives[at], reduce=not receives[at].reduce, received_first=False)
    elif what == 5:
        copies = not copies
    changed = dataclasses.replace(program, sends=tuple(sends), receives=tuple(receives), sends_from_copies=copies)
    return [changed if other.rank == program.rank else other for other in programs]


def other_waits(after: tuple[int, ...], receives: int, generator: random.Random) -> tuple[int, ...]:
    """One more or one fewer."""
    if not receives:
        return after
    toggled = generator.randrange(receives)
    return tuple(index for index in after if index != toggled) if toggled in after else (*after, toggled)


def test_the_execution_notices_a_buffer_that_is_given_back_too_early() -> None:
    (known,) = (known for known in ALGORITHMS if known.name == "chain")
    root, *others = known.all_programs(3, 4)
    hasty = dataclasses.replace(root, sends=(dataclasses.replace(root.sends[0], needs_ack=False),))
    with pytest.raises(ExecutionError, match="other bytes"):
        run_many([hasty, *others], known.means(3, 4, 0))


def run_many(programs: list[Program], collective: Collective) -> None:
    for seed in range(100):
        World(programs, collective, 2, random.Random(seed)).run()


def test_the_execution_notices_ranks_that_reduce_in_different_orders() -> None:
    (known,) = (known for known in ALGORITHMS if known.name == "recursive_doubling")
    first, second = known.all_programs(2, 4)
    turned = dataclasses.replace(first, receives=(dataclasses.replace(first.receives[0], received_first=True),))
    with pytest.raises(ExecutionError, match="another order"):
        World([turned, second], known.means(2, 4, 0), 4, random.Random(0)).run()
