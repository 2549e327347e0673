"""Every algorithm is proved for many numbers of ranks and elements, and from every root."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.schedule import ring
from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm, algorithm
from r2ccl.schedule.causality import ScheduleError
from r2ccl.schedule.check import check, wasted_acks
from r2ccl.schedule.ir import Program
from r2ccl.schedule.semantics import all_reduce

each_algorithm = pytest.mark.parametrize("known", ALGORITHMS, ids=lambda known: known.name)
RANKS = range(1, 18)
MANY_RANKS = (32, 33, 64)
BIG = 1 << 40  # proofs look at segments, not at elements, so this costs no more


def counts(known: Algorithm, ranks: int) -> list[int]:
    if known.collective == "barrier":
        return [0]
    return sorted({0, 1, 2, ranks - 1, ranks, ranks + 1, 3 * ranks + 1, 1001, BIG})


def roots(known: Algorithm, ranks: int) -> range:
    return range(ranks if known.collective == "broadcast" else 1)


@each_algorithm
@pytest.mark.parametrize("ranks", RANKS)
def test_an_algorithm_does_what_its_collective_means(known: Algorithm, ranks: int) -> None:
    for count in counts(known, ranks):
        for root in roots(known, ranks):
            check(known.all_programs(ranks, count, root), known.means(ranks, count, root))


@each_algorithm
@pytest.mark.parametrize("ranks", MANY_RANKS)
def test_an_algorithm_does_what_its_collective_means_with_many_ranks(known: Algorithm, ranks: int) -> None:
    count = 0 if known.collective == "barrier" else 4097
    root = ranks - 3 if known.collective == "broadcast" else 0
    check(known.all_programs(ranks, count, root), known.means(ranks, count, root))


@each_algorithm
def test_no_send_waits_for_an_acknowledgement_that_causality_makes_superfluous(known: Algorithm) -> None:
    for ranks in RANKS:
        for count in counts(known, ranks):
            assert wasted_acks(check(known.all_programs(ranks, count), known.means(ranks, count, 0))) == []


@each_algorithm
@pytest.mark.parametrize("ranks", [4, 7, 8])
def test_no_wait_is_superfluous(known: Algorithm, ranks: int) -> None:
    if known.collective == "barrier":
        ranks = 8  # otherwise some news arrives by two ways
    count = counts(known, ranks)[-1]
    programs = known.all_programs(ranks, count)
    for program in programs:
        for at, send in enumerate(program.sends):
            for index in send.after:
                without = dataclasses.replace(send, after=tuple(i for i in send.after if i != index))
                sends = (*program.sends[:at], without, *program.sends[at + 1 :])
                with pytest.raises(ScheduleError):
                    check(with_(programs, dataclasses.replace(program, sends=sends)), known.means(ranks, count, 0))
        for at, receive in enumerate(program.receives):
            for index in receive.after:
                less = dataclasses.replace(receive, after=tuple(i for i in receive.after if i != index))
                receives = (*program.receives[:at], less, *program.receives[at + 1 :])
                with pytest.raises(ScheduleError):
                    check(
                        with_(programs, dataclasses.replace(program, receives=receives)), known.means(ranks, count, 0)
                    )


def with_(programs: list[Program], changed: Program) -> list[Program]:
    return [changed if program.rank == changed.rank else program for program in programs]


@each_algorithm
def test_one_rank_alone_and_no_elements_need_no_messages(known: Algorithm) -> None:
    alone = known.build(1, 0, 0 if known.collective == "barrier" else 5, 0)
    assert (alone.sends, alone.receives) == ((), ())
    if known.collective != "barrier":
        nothing = known.build(5, 2, 0, 0)
        assert (nothing.sends, nothing.receives) == ((), ())


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1), (1, 0, 4, 3, 2)])
def test_a_ring_may_run_in_any_order_of_ranks(order: tuple[int, ...]) -> None:
    for count in (2, 5, 23):
        programs = [ring.all_reduce(5, rank, count, order) for rank in range(5)]
        assert wasted_acks(check(programs, all_reduce(5, count))) == []
        neighbours = set(zip(order, (*order[1:], order[0]), strict=True))
        assert {(program.rank, send.target) for program in programs for send in program.sends} <= neighbours


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3)])
def test_a_ring_refuses_an_order_that_is_none(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no order of 3 ranks"):
        ring.all_reduce(3, 0, 9, order)


@pytest.mark.parametrize("name", ["halving_doubling", "recursive_doubling"])
def test_the_block_of_lower_ranks_is_the_left_operand(name: str) -> None:
    for ranks in RANKS:
        programs = algorithm(name).all_programs(ranks, 4 * ranks)
        for program in programs:
            for receive in program.receives:
                assert not receive.reduce or receive.received_first == (receive.source < program.rank)


@each_algorithm
def test_a_thousand_ranks_are_planned_one_by_one(known: Algorithm) -> None:
    """Each rank builds its own program only, and those of its peers fit."""
    ranks, count = 1024, 0 if known.collective == "barrier" else 1 << 20
    for rank in (0, 1, 513, 1023):
        program = known.build(ranks, rank, count, 0)
        assert len(program.sends) <= 2 * (ranks - 1)
        sent = {(send.step, send.target, send.start, send.stop) for send in program.sends}
        received = {
            (receive.step, peer, receive.start, receive.stop)
            for peer in {send.target for send in program.sends}
            for receive in known.build(ranks, peer, count, 0).receives
            if receive.source == rank
        }
        assert sent == received


def test_an_unknown_algorithm_is_refused_with_a_list_of_those_there_are() -> None:
    with pytest.raises(ValueError, match="no algorithm is called 'rign'; there are recursive_doubling"):
        algorithm("rign")
