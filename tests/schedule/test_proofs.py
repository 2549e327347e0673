"""Every algorithm is proved for many numbers of ranks and elements, and from every root."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest

from r2ccl.schedule import ring
from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm, algorithm, meaning
from r2ccl.schedule.causality import Causality, ScheduleError
from r2ccl.schedule.check import check, wasted_acks
from r2ccl.schedule.ir import Program, Segment, Shape
from r2ccl.schedule.semantics import all_reduce
from tests.schedule.cases import BIG, cases, even, from_parts, has_root, name_of

each_algorithm = pytest.mark.parametrize("known", ALGORITHMS, ids=name_of)
RANKS = range(1, 18)
MANY_RANKS = (32, 33, 64)


@each_algorithm
@pytest.mark.parametrize("ranks", RANKS)
def test_an_algorithm_does_what_its_collective_means(known: Algorithm, ranks: int) -> None:
    for root in range(ranks if has_root(known) else 1):
        for shapes in cases(known, ranks, root):
            check(known.all_programs(shapes), known.means(shapes))


@each_algorithm
@pytest.mark.parametrize("ranks", MANY_RANKS)
def test_an_algorithm_does_what_its_collective_means_with_many_ranks(known: Algorithm, ranks: int) -> None:
    shapes = even(known, ranks, 4097, ranks - 3 if has_root(known) else 0)
    check(known.all_programs(shapes), known.means(shapes))


@each_algorithm
def test_no_send_waits_for_an_acknowledgement_that_causality_makes_superfluous(known: Algorithm) -> None:
    for ranks in RANKS:
        for shapes in cases(known, ranks):
            if name_of(known) == "all_gather-bruck" and not all(shapes[0].parts):
                continue  # all sends are marked then; they go out from copies
            assert wasted_acks(check(known.all_programs(shapes), known.means(shapes))) == []


@each_algorithm
@pytest.mark.parametrize("ranks", [4, 7, 8])
def test_no_wait_is_superfluous(known: Algorithm, ranks: int) -> None:
    if known.collective == "barrier":
        ranks = 8  # otherwise some news arrives by two ways
    for shapes in [even(known, ranks, BIG), from_parts(known, [3, 0, 1, 2, 5, 0, 4, 1][:ranks])]:
        programs, collective = known.all_programs(shapes), known.means(shapes)
        for lacking in lacking_a_wait(programs):
            with pytest.raises(ScheduleError):
                check(lacking, collective)


def lacking_a_wait(programs: list[Program]) -> Iterator[list[Program]]:
    """The schedule without one of its waits, for each of them."""
    for program in programs:
        for at, send in enumerate(program.sends):
            for index in send.after:
                without = dataclasses.replace(send, after=tuple(i for i in send.after if i != index))
                sends = (*program.sends[:at], without, *program.sends[at + 1 :])
                yield with_(programs, dataclasses.replace(program, sends=sends))
        for at, receive in enumerate(program.receives):
            for index in receive.after:
                less = dataclasses.replace(receive, after=tuple(i for i in receive.after if i != index))
                receives = (*program.receives[:at], less, *program.receives[at + 1 :])
                yield with_(programs, dataclasses.replace(program, receives=receives))


def with_(programs: list[Program], changed: Program) -> list[Program]:
    return [changed if program.rank == changed.rank else program for program in programs]


@each_algorithm
def test_one_rank_alone_and_no_elements_need_no_messages(known: Algorithm) -> None:
    (alone,) = known.all_programs(even(known, 1, 5))
    assert (alone.sends, alone.receives) == ((), ())
    if known.collective == "barrier" or name_of(known) == "all_to_all-direct":
        return
    for nothing in known.all_programs(even(known, 5, 0)):
        assert (nothing.sends, nothing.receives) == ((), ())


def test_an_all_to_all_of_empty_blocks_still_exchanges_messages() -> None:
    """A rank that believes that a block is empty must not leave another waiting that does not."""
    known = algorithm("all_to_all", "direct")
    for program in known.all_programs(even(known, 5, 0)):
        assert [(send.target, send.segments) for send in program.sends] == [
            ((program.rank + places) % 5, ((0, 0),)) for places in range(1, 5)
        ]


def test_a_rank_of_an_all_to_all_needs_to_know_its_own_blocks_only() -> None:
    """With strides of their own ranks place blocks differently, and still agree on all sizes and names."""
    known = algorithm("all_to_all", "direct")
    shapes = from_parts(known, [3, 0, 1, 2, 5, 0, 4])
    own = [dataclasses.replace(shape, stride=0) for shape in shapes]
    for common, alone in zip(known.all_programs(shapes), known.all_programs(own), strict=True):
        for parts in ("sends", "receives"):
            together, single = getattr(common, parts), getattr(alone, parts)
            assert [(p.step, p.stop - p.start, p.after) for p in together] == [
                (p.step, p.stop - p.start, p.after) for p in single
            ]


@each_algorithm
@pytest.mark.parametrize("ranks", [5, 8])
def test_receives_of_the_same_elements_are_ordered_by_the_ranks_own_waits(known: Algorithm, ranks: int) -> None:
    """So that who executes a program knows which one is last. All-reduce works in one place, and need not."""
    if known.collective == "all_reduce":
        return
    shapes = even(known, ranks, 3 * ranks)
    causality = check(known.all_programs(shapes), known.means(shapes))
    for i, later in enumerate(causality.transfers):
        for earlier in causality.transfers[:i]:
            if later.target == earlier.target and overlap(later.segments, earlier.segments):
                assert causality.waits_of_receive[i] >> earlier.receive_index & 1


def overlap(some: Sequence[Segment], others: Sequence[Segment]) -> bool:
    return any(start < other_stop and other_start < stop for start, stop in some for other_start, other_stop in others)


@pytest.mark.parametrize("name", ["binomial", "chain"])
def test_a_reduce_has_its_operands_in_the_order_of_places_from_the_root(name: str) -> None:
    for ranks in RANKS:
        for root in range(ranks):
            shapes = [Shape(1, root)] * ranks
            causality = check(algorithm("reduce", name).all_programs(shapes), meaning("reduce", shapes))
            assert operands(causality)[root, 0] == [(root + place) % ranks for place in range(ranks)]


@pytest.mark.parametrize("name", ["direct", "ring"])
def test_a_reduce_scatter_has_its_operands_in_the_order_around_the_circle_up_to_the_owner(name: str) -> None:
    for ranks in RANKS:
        shapes = [Shape.in_parts([1] * ranks)] * ranks
        causality = check(algorithm("reduce_scatter", name).all_programs(shapes), meaning("reduce_scatter", shapes))
        for owner in range(ranks):
            assert operands(causality)[owner, owner] == [(owner + places) % ranks for places in range(1, ranks + 1)]


def operands(causality: Causality) -> dict[tuple[int, int], list[int]]:
    """What each (rank, position) holds in the end, as the ranks whose values were reduced, from left to right."""
    programs = causality.programs
    held = {(rank, at): [rank] for rank in range(len(programs)) for at in range(programs[0].count)}
    for i in causality.order:
        transfer, receive = causality.transfers[i], causality.receive_of(i)
        for at in range(transfer.start, transfer.stop):
            received, own = held[transfer.source, at], held[transfer.target, at]
            held[transfer.target, at] = received + own if receive.received_first else own + received
    return held


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1), (1, 0, 4, 3, 2)])
def test_a_ring_may_run_in_any_order_of_ranks(order: tuple[int, ...]) -> None:
    for count in (2, 5, 23):
        programs = [ring.all_reduce(5, rank, Shape(count), order) for rank in range(5)]
        assert wasted_acks(check(programs, all_reduce(5, count))) == []
        neighbours = set(zip(order, (*order[1:], order[0]), strict=True))
        assert {(program.rank, send.target) for program in programs for send in program.sends} <= neighbours


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3)])
def test_a_ring_refuses_an_order_that_is_none(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no order of 3 ranks"):
        ring.all_reduce(3, 0, Shape(9), order)


@pytest.mark.parametrize("name", ["halving_doubling", "recursive_doubling"])
def test_the_block_of_lower_ranks_is_the_left_operand(name: str) -> None:
    for ranks in RANKS:
        programs = algorithm("all_reduce", name).all_programs([Shape(4 * ranks)] * ranks)
        for program in programs:
            for receive in program.receives:
                assert not receive.reduce or receive.received_first == (receive.source < program.rank)


@each_algorithm
def test_a_thousand_ranks_are_planned_one_by_one(known: Algorithm) -> None:
    """Each rank builds its own program only, and those of its peers fit."""
    ranks = 1024
    if known.collective == "all_to_all":
        shapes = [Shape.in_blocks([4] * ranks, [4] * ranks)] * ranks
    else:
        shapes = even(known, ranks, 1 << 20)
    for rank in (0, 1, 513, 1023):
        program = known.build(ranks, rank, shapes[rank])
        assert len(program.sends) <= 2 * (ranks - 1)
        peers = sorted({send.target for send in program.sends})[:12]
        sent = {(send.step, send.target, *send.segments) for send in program.sends if send.target in peers}
        received = {
            (receive.step, peer, *receive.segments)
            for peer in peers
            for receive in known.build(ranks, peer, shapes[peer]).receives
            if receive.source == rank
        }
        assert sent == received


def test_an_unknown_algorithm_is_refused_with_a_list_of_those_there_are() -> None:
    with pytest.raises(
        ValueError, match="no algorithm for all_reduce is called 'rign'; there are recursive_doubling, "
    ):
        algorithm("all_reduce", "rign")
    with pytest.raises(ValueError, match="no algorithm for al_reduce is called 'ring'; there are none"):
        algorithm("al_reduce", "ring")


@each_algorithm
def test_the_list_says_which_programs_send_from_copies(known: Algorithm) -> None:
    for ranks in (1, 2, 5, 8):
        for shapes in cases(known, ranks):
            for program in known.all_programs(shapes):
                assert program.sends_from_copies == known.sends_from_copies


def test_names_are_unique_within_a_collective() -> None:
    assert len({(known.collective, known.name) for known in ALGORITHMS}) == len(ALGORITHMS)


def test_shapes_that_do_not_fit_are_refused() -> None:
    gather, exchange = algorithm("gather", "direct"), algorithm("all_to_all", "direct")
    with pytest.raises(ValueError, match="root 3 of 3 ranks"):
        gather.build(3, 0, Shape.in_parts([1, 1, 1], root=3))
    with pytest.raises(ValueError, match="gather of 3 ranks has 2 parts"):
        gather.build(3, 0, Shape.in_parts([1, 1]))
    with pytest.raises(ValueError, match="all_to_all of 2 ranks receives from 0"):
        exchange.build(2, 0, Shape(2, parts=(1, 1)))
    with pytest.raises(ValueError, match="blocks differ"):
        algorithm("all_to_all", "bruck").build(2, 0, Shape.in_blocks([1, 1], [1, 2]))
    with pytest.raises(ValueError, match="are 3 elements"):
        Shape(4, parts=(1, 2))
    with pytest.raises(ValueError, match="a negative number"):
        Shape.in_parts([3, -1])
    with pytest.raises(ValueError, match="sends to 2 ranks and receives from 1"):
        Shape.in_blocks([1, 1], [1])
    with pytest.raises(ValueError, match="overlap"):
        Shape.in_blocks([1, 3], [1, 1], stride=2)


def test_ranks_whose_shapes_do_not_fit_together_have_no_common_meaning() -> None:
    with pytest.raises(ValueError, match="shapes of broadcast differ between ranks"):
        meaning("broadcast", [Shape(3), Shape(4)])
    with pytest.raises(ValueError, match="ranks 0 and 1 differ about the block from 0 to 1"):
        meaning("all_to_all", [Shape.in_blocks([1, 1], [1, 1]), Shape.in_blocks([1, 1], [2, 1])])
    with pytest.raises(ValueError, match="no collective is called 'al_reduce'"):
        meaning("al_reduce", [Shape(3)])
