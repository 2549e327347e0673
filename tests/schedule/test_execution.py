"""Executes what the check proves, and tries to catch the check with schedules that were damaged at random."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from r2ccl.schedule.algorithms import ALGORITHMS, IN_PARTS, Algorithm, algorithm
from r2ccl.schedule.causality import ScheduleError
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Program, Shape
from r2ccl.schedule.semantics import Collective
from tests.schedule.cases import even, name_of, random_parts, signalled_relay
from tests.schedule.execution import ExecutionError, World

algorithms = st.sampled_from(ALGORITHMS)
generators = st.integers(0, 1 << 32).map(random.Random)


def some_shapes(known: Algorithm, ranks: int, count: int, root: int, generator: random.Random) -> list[Shape]:
    """Even ones, or of parts at random."""
    if known.collective in IN_PARTS:
        count = -(-count // 2)
        if generator.random() < 0.7:
            return random_parts(known, ranks, count, root, generator)
    return even(known, ranks, count, root)


@pytest.mark.parametrize("known", ALGORITHMS, ids=name_of)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(0, 15), st.integers(0, 6), st.integers(1, 5), st.booleans(), generators)
def test_every_algorithm_gives_right_results_in_any_order_of_execution(
    known: Algorithm,
    ranks: int,
    count: int,
    root: int,
    chunk_elements: int,
    in_place: bool,
    generator: random.Random,
) -> None:
    shapes = some_shapes(known, ranks, count, root % ranks, generator)
    World(known.all_programs(shapes), known.means(shapes), chunk_elements, generator, in_place).run()


@settings(max_examples=600, deadline=None)
@given(algorithms, st.integers(2, 6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32))
def test_whatever_the_check_accepts_executes_rightly(
    known: Algorithm, ranks: int, count: int, chunk_elements: int, damages: int, seed: int
) -> None:
    generator = random.Random(seed)
    shapes = some_shapes(known, ranks, count, 0, generator)
    collective = known.means(shapes)
    programs = known.all_programs(shapes)
    for _ in range(damages):
        programs = damaged(programs, generator)
    try:
        check(programs, collective)
    except ScheduleError:
        event("refused")
        return
    event("accepted")
    for in_place in (True, False, True, False):
        World(programs, collective, chunk_elements, generator, in_place).run()


def damaged(programs: list[Program], generator: random.Random) -> list[Program]:
    """One thing of one rank is changed, so that sends and receives still match and the check has to look deeper."""
    if generator.random() < 0.15:
        return otherwise_segmented(programs, generator)
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


def otherwise_segmented(programs: list[Program], generator: random.Random) -> list[Program]:
    """A message of several segments has one fewer, or another order of them, on both sides."""
    several = [(program, send) for program in programs for send in program.sends if send.also]
    if not several:
        return programs
    program, send = generator.choice(several)
    segments = list(send.segments)
    if generator.random() < 0.5:
        generator.shuffle(segments)
    else:
        segments.remove(generator.choice(segments))
    (start, stop), also = segments[0], tuple(segments[1:])

    change: dict[str, Any] = {"start": start, "stop": stop, "also": also}
    name = send.step, program.rank, send.target
    return [
        dataclasses.replace(
            other,
            sends=tuple(
                dataclasses.replace(s, **change) if (s.step, other.rank, s.target) == name else s for s in other.sends
            ),
            receives=tuple(
                dataclasses.replace(r, **change) if (r.step, r.source, other.rank) == name else r
                for r in other.receives
            ),
        )
        for other in programs
    ]


def other_waits(after: tuple[int, ...], receives: int, generator: random.Random) -> tuple[int, ...]:
    """One more or one fewer."""
    if not receives:
        return after
    toggled = generator.randrange(receives)
    return tuple(index for index in after if index != toggled) if toggled in after else (*after, toggled)


def test_the_execution_notices_a_buffer_that_is_given_back_too_early() -> None:
    known, shapes = algorithm("broadcast", "chain"), [Shape(4)] * 3
    root, *others = known.all_programs(shapes)
    hasty = dataclasses.replace(root, sends=(dataclasses.replace(root.sends[0], needs_ack=False),))
    with pytest.raises(ExecutionError, match="other bytes"):
        run_many([hasty, *others], known.means(shapes))


def run_many(programs: list[Program], collective: Collective) -> None:
    for seed in range(100):
        World(programs, collective, 2, random.Random(seed)).run()


def test_the_execution_notices_ranks_that_reduce_in_different_orders() -> None:
    known, shapes = algorithm("all_reduce", "recursive_doubling"), [Shape(4)] * 2
    first, second = known.all_programs(shapes)
    turned = dataclasses.replace(first, receives=(dataclasses.replace(first.receives[0], received_first=True),))
    with pytest.raises(ExecutionError, match="another order"):
        World([turned, second], known.means(shapes), 4, random.Random(0)).run()


def test_the_execution_notices_a_rank_that_takes_initial_values_for_received_ones() -> None:
    """In place it is right, because what is read has arrived; apart from that the rank has no way to know."""
    programs, collective = signalled_relay()
    World(programs, collective, 2, random.Random(0)).run()
    with pytest.raises(ExecutionError, match="rank 2 has a wrong result"):
        World(programs, collective, 2, random.Random(0), in_place=False).run()
    with pytest.raises(ScheduleError, match="only through other ranks"):
        check(programs, collective)
