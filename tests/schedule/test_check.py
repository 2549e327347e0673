"""Each rule of the check is shown a schedule that breaks it, and must say so, and where."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from r2ccl.schedule import semantics
from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm, algorithm
from r2ccl.schedule.check import check, wasted_acks
from r2ccl.schedule.ir import Program, Receive, Send, Shape
from tests.schedule.cases import even, name_of, signalled_relay
from tests.schedule.mutants import Programs, changed_receive, changed_send, refused, with_


def ring(ranks: int = 4, count: int = 8) -> Programs:
    return all_programs("all_reduce", "ring", ranks, count)


def all_programs(collective: str, name: str, ranks: int, count: int, root: int = 0) -> Programs:
    return algorithm(collective, name).all_programs([Shape(count, root)] * ranks)


# What must match.


def test_a_send_that_nobody_receives_is_refused() -> None:
    programs = ring()
    programs[2] = dataclasses.replace(programs[2], receives=programs[2].receives[:-1])
    error = refused(programs, semantics.all_reduce(4, 8), "rank 2 does not receive this")
    assert (error.rank, error.step, error.segment) == (1, 5, (0, 2))
    assert str(error).startswith("rank 1, step 5, segment [0:2): ")


def test_a_receive_that_nobody_sends_is_refused() -> None:
    programs = ring()
    programs[1] = dataclasses.replace(programs[1], sends=programs[1].sends[:-1])
    error = refused(programs, semantics.all_reduce(4, 8), "rank 1 does not send this")
    assert (error.rank, error.step) == (2, 5)


def test_a_send_to_another_target_is_refused() -> None:
    error = refused(changed_send(ring(), 1, 2, target=0), semantics.all_reduce(4, 8), "rank 0 does not receive this")
    assert (error.rank, error.step) == (1, 2)


def test_a_send_in_another_step_is_refused() -> None:
    refused(changed_send(ring(), 1, 5, step=9), semantics.all_reduce(4, 8), "rank 1 does not send this")


def test_a_receive_of_another_length_is_refused() -> None:
    programs = changed_receive(ring(), 1, 0, stop=1)
    error = refused(programs, semantics.all_reduce(4, 8), "rank 1 receives it into [0:1)")
    assert (error.rank, error.step, error.segment) == (0, 0, (0, 2))


def test_a_receive_in_another_place_is_refused() -> None:
    programs = changed_receive(ring(), 1, 0, start=4, stop=6)
    refused(programs, semantics.all_reduce(4, 8), "rank 1 receives it into [4:6)")


def test_two_sends_of_one_name_are_refused() -> None:
    error = refused(changed_send(ring(), 1, 1, step=0), semantics.all_reduce(4, 8), "sends twice to rank 2")
    assert (error.rank, error.step) == (1, 0)


def test_two_receives_of_one_name_are_refused() -> None:
    error = refused(changed_receive(ring(), 1, 1, step=0), semantics.all_reduce(4, 8), "receives twice from rank 0")
    assert (error.rank, error.step) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 1}, "has rank 1 as its peer"),
        ({"target": 4}, "has rank 4 as its peer"),
        ({"target": -1}, "has rank -1 as its peer"),
        ({"step": -1}, "a step is negative"),
        ({"start": -1}, "lies outside"),
        ({"stop": 9}, "lies outside"),
        ({"start": 3, "stop": 2}, "lies outside"),
        ({"start": 3, "stop": 3}, "without elements has start and stop 0"),
        ({"after": (6,)}, "waits for receive 6 of 6"),
        ({"after": (-1,)}, "waits for receive -1"),
        ({"after": (0, 0)}, "waits for the same receive twice"),
    ],
)
def test_a_send_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    assert refused(changed_send(ring(), 1, 0, **changes), semantics.all_reduce(4, 8), message).rank == 1


def test_the_left_operand_of_a_copy_is_refused() -> None:
    programs = changed_receive(ring(), 1, 5, received_first=True)
    refused(programs, semantics.all_reduce(4, 8), "received_first means nothing without reduce")


def test_programs_of_other_ranks_counts_or_collectives_are_refused() -> None:
    programs = ring()
    refused(programs[:3], semantics.all_reduce(4, 8), "of 4 ranks has 3 programs")
    refused([programs[1], programs[0], *programs[2:]], semantics.all_reduce(4, 8), "has the program of rank 1")
    refused(programs, semantics.all_reduce(4, 9), "has 8 elements, all_reduce has 9")
    refused(with_(programs, ring(4, 12)[2]), semantics.all_reduce(4, 8), "has 12 elements, rank 0 has 8")


# What must not wait in a circle.


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    programs = [Program(0, 1, (Send(0, 1, 0, 1, (0,)),), (Receive(0, 1, 0, 1),)),
                Program(1, 1, (Send(0, 0, 0, 1, (0,)),), (Receive(0, 0, 0, 1),))]  # fmt: skip
    error = refused(programs, semantics.all_reduce(2, 1), "deadlock: step 0 from rank")
    assert "which waits for step 0 from rank" in str(error)


def test_a_circle_over_all_ranks_is_found_behind_what_still_moves() -> None:
    programs = ring()
    for rank in range(4):
        programs = changed_send(programs, rank, 2, after=(1, 2))
    error = refused(programs, semantics.all_reduce(4, 8), "deadlock")
    assert str(error).count("step 2 from rank") == 5
    assert error.step == 2


def test_a_receive_that_waits_for_itself_is_refused() -> None:
    refused(changed_receive(ring(), 0, 0, after=(0,)), semantics.all_reduce(4, 8), "deadlock")


# What must not be overwritten.


def test_two_writes_that_nothing_orders_are_refused() -> None:
    programs = changed_receive(all_programs("all_reduce", "recursive_doubling", 4, 8), 2, 1, after=())
    error = refused(programs, semantics.all_reduce(4, 8), "unordered writes")
    assert (error.rank, error.step, error.segment) == (2, 1, (0, 8))


def test_a_buffer_that_is_reduced_into_while_it_is_sent_is_refused() -> None:
    programs = [
        dataclasses.replace(program, sends_from_copies=False)
        for program in all_programs("all_reduce", "recursive_doubling", 4, 8)
    ]
    error = refused(programs, semantics.all_reduce(4, 8), "nothing proves that the send has arrived")
    assert (error.rank, error.step, error.segment) == (0, 0, (0, 8))


def test_a_send_that_has_begun_but_perhaps_not_arrived_does_not_permit_overwriting() -> None:
    """Rank 1 confirms with a message that it sends without waiting for the elements."""
    programs = [
        Program(0, 2, (Send(0, 1, 0, 2, needs_ack=True),), (Receive(1, 1, 0, 0), Receive(2, 2, 0, 2, after=(0,)))),
        Program(1, 2, (Send(1, 0, 0, 0, (0,)),), (Receive(0, 0, 0, 2),)),
        Program(2, 2, (Send(2, 0, 0, 2, needs_ack=True),), ()),
    ]
    programs = changed_send(programs, 1, 0, needs_ack=True)
    collective = semantics.Collective(
        "handing_over", 3, 2, semantics.all_reduce(3, 2).holdings, (semantics.Expectation(0, 0, 2, 0b100),)
    )
    check(programs, collective)
    programs = changed_send(programs, 1, 0, after=())
    refused(programs, collective, "nothing proves that the send has arrived")


def test_a_segment_that_is_forwarded_before_it_was_received_is_refused() -> None:
    root, first, second = all_programs("broadcast", "chain", 3, 8)
    hasty = changed_send([root, first, second], 1, 0, after=())
    error = refused(hasty, semantics.broadcast(3, 8, 0), "unsafe overwrite")
    assert (error.rank, error.step, error.segment) == (1, 1, (0, 8))


def test_a_copy_that_may_be_made_too_late_is_refused() -> None:
    """The send also waits for a signal; by the time that comes, more may have been reduced into its elements."""
    send = Send(1, 1, 0, 4, (0, 1), needs_ack=True)
    programs = [
        Program(0, 4, (send,), (Receive(0, 1, 0, 0), Receive(0, 2, 0, 0), Receive(2, 2, 0, 4, True)), True),
        Program(1, 4, (Send(0, 0, 0, 0, needs_ack=True),), (Receive(1, 0, 0, 4),)),
        Program(2, 4, (Send(0, 0, 0, 0, needs_ack=True), Send(2, 0, 0, 4, needs_ack=True)), ()),
    ]
    collective = semantics.Collective("mixture", 3, 4, semantics.all_reduce(3, 4).holdings, ())
    refused(programs, collective, "nothing proves that the send has copied by then")
    refused(changed_receive(programs, 0, 2, after=(0,)), collective, "nothing proves that the send has copied by then")
    check(changed_receive(programs, 0, 2, after=(0, 1)), collective)


def test_a_read_that_waits_for_what_it_reads_only_through_other_ranks_is_refused() -> None:
    error = refused(*signalled_relay(), "left, and waits for that only through other ranks")
    assert (error.rank, error.step, error.segment) == (0, 3, (0, 4))
    programs, collective = signalled_relay()
    check(changed_send(programs, 0, 1, after=(0, 1)), collective)
    check(changed_receive(programs, 0, 1, after=(0,)), collective)


def test_a_reduction_that_waits_for_its_own_operand_only_through_other_ranks_is_refused() -> None:
    """Rank 0 reduces what rank 1 sends when that has heard that the first arrived."""
    programs = [
        Program(0, 4, (Send(1, 1, 0, 0, (0,)),), (Receive(0, 2, 0, 4, True), Receive(2, 1, 0, 4, True))),
        Program(1, 4, (Send(2, 0, 0, 4, (0,), needs_ack=True),), (Receive(1, 0, 0, 0),)),
        Program(2, 4, (Send(0, 0, 0, 4, needs_ack=True),), ()),
    ]
    collective = semantics.reduce(3, 4, 0)
    error = refused(programs, collective, "left, and waits for that only through other ranks")
    assert (error.rank, error.step, error.segment) == (0, 2, (0, 4))
    check(changed_receive(programs, 0, 1, after=(0,)), collective)


# What must be there in the end.


def test_a_missing_contribution_is_refused() -> None:
    programs = all_programs("all_reduce", "recursive_doubling", 4, 8)
    forgetful = changed_receive(programs, 3, 0, reduce=False, received_first=False)
    error = refused(forgetful, semantics.all_reduce(4, 8), "the result lacks rank(s) 3")
    assert (error.rank, error.step, error.segment) == (1, None, (0, 8))


def test_a_copy_that_is_made_too_early_lacks_what_came_later() -> None:
    programs = changed_send(all_programs("all_reduce", "recursive_doubling", 4, 8), 1, 1, after=())
    error = refused(programs, semantics.all_reduce(4, 8), "the result lacks rank(s) 0")
    assert error.rank == 3


def test_a_contribution_that_comes_twice_is_refused() -> None:
    sends = tuple(Send(step, 1, 0, 8, needs_ack=True) for step in (0, 1))
    receives = tuple(Receive(step, 0, 0, 8, reduce=True, after=tuple(range(step))) for step in (0, 1))
    programs = [Program(0, 8, sends, ()), Program(1, 8, (), receives)]
    error = refused(programs, semantics.all_reduce(2, 8), "contributes twice: rank(s) 0")
    assert (error.rank, error.step, error.segment) == (1, 1, (0, 8))


def test_a_contribution_of_a_rank_that_has_none_is_refused() -> None:
    programs = changed_receive(all_programs("broadcast", "chain", 3, 8), 1, 0, reduce=True)
    error = refused(programs, semantics.broadcast(3, 8, 0), "reduces what was never written")
    assert (error.rank, error.step) == (1, 0)


def test_another_roots_elements_are_refused() -> None:
    programs = all_programs("broadcast", "binomial", 4, 8, root=1)
    refused(programs, semantics.broadcast(4, 8, 2), "the result lacks rank(s) 2")
    error = refused(ring(), semantics.broadcast(4, 8, 2), "reduces what was never written")
    assert error.step == 0


def test_a_result_with_too_much_in_it_is_refused() -> None:
    collective = dataclasses.replace(
        semantics.all_reduce(4, 8), expectations=(semantics.Expectation(2, 1, 3, contributors=0b0101),)
    )
    error = refused(ring(), collective, "the result wrongly has rank(s) 1, 3")
    assert (error.rank, error.segment) == (2, (1, 2))


def test_ranks_that_reduce_in_another_order_are_refused() -> None:
    programs = changed_receive(all_programs("all_reduce", "recursive_doubling", 4, 8), 2, 1, received_first=False)
    error = refused(programs, semantics.all_reduce(4, 8), "reduces in another order than rank 0")
    assert error.rank == 2


def test_a_barrier_that_leaves_somebody_out_is_refused() -> None:
    programs = [
        dataclasses.replace(
            program,
            sends=tuple(dataclasses.replace(send, needs_ack=True) for send in program.sends[:-1]),
            receives=program.receives[:-1],
        )
        for program in all_programs("barrier", "dissemination", 5, 0)
    ]
    error = refused(programs, semantics.barrier(5), "may leave before these have entered: rank(s) 1")
    assert error.rank == 0


def test_a_barrier_whose_news_does_not_spread_is_refused() -> None:
    programs = changed_send(all_programs("barrier", "dissemination", 4, 0), 0, 1, after=())
    error = refused(programs, semantics.barrier(4), "may leave before these have entered: rank(s) 3")
    assert error.rank == 2


# What must be acknowledged.


@pytest.mark.parametrize("known", ALGORITHMS, ids=name_of)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_each_send_that_causality_does_not_cover_must_be_marked(known: Algorithm, ranks: int) -> None:
    shapes = even(known, ranks, 2 * ranks + 1)
    programs, collective = known.all_programs(shapes), known.means(shapes)
    for program in programs:
        for at, send in enumerate(program.sends):
            flipped = changed_send(programs, program.rank, at, needs_ack=not send.needs_ack)
            if send.needs_ack:
                error = refused(flipped, collective, "needs an acknowledgement")
                assert (error.rank, error.step, error.segment) == (program.rank, send.step, (send.start, send.stop))
            else:
                (wasted,) = wasted_acks(check(flipped, collective))
                assert (wasted.source, wasted.target, wasted.step) == (program.rank, send.target, send.step)
