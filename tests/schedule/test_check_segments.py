"""The rules of the check for messages of several segments, each shown a schedule that breaks it."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.schedule.algorithms import algorithm, meaning
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Receive, Send, Shape
from tests.schedule.mutants import Programs, changed_receive, changed_send, refused


def wrapping() -> Programs:
    """A gather to rank 1 of 4: what rank 3 sends, its part and rank 0's, lies at the end and at the beginning."""
    return algorithm("gather", "binomial").all_programs([GATHERED] * 4)


GATHERED = Shape.in_parts([2, 1, 3, 4], root=1)
GATHER = meaning("gather", [GATHERED] * 4)


def test_a_message_may_have_several_segments() -> None:
    (send,) = wrapping()[3].sends
    assert (send.target, send.segments) == (1, ((6, 10), (0, 2)))
    check(wrapping(), GATHER)


def test_segments_in_another_order_are_refused() -> None:
    programs = changed_receive(wrapping(), 1, 1, start=0, stop=2, also=((6, 10),))
    error = refused(programs, GATHER, "rank 1 receives it into [0:2)+[6:10), not [6:10)+[0:2)")
    assert (error.rank, error.step, error.segment) == (3, 1, (6, 10))


def test_a_receive_that_lacks_a_segment_is_refused() -> None:
    refused(changed_receive(wrapping(), 1, 1, also=()), GATHER, "rank 1 receives it into [6:10), not [6:10)+[0:2)")


def test_a_message_that_lacks_a_segment_on_both_sides_is_refused() -> None:
    programs = changed_send(changed_receive(wrapping(), 1, 1, also=()), 3, 0, also=())
    error = refused(programs, GATHER, "the result lacks rank(s) 0")
    assert (error.rank, error.segment) == (1, (0, 2))


def test_each_segment_has_to_be_there_when_a_message_goes() -> None:
    programs = changed_send(wrapping(), 3, 0, after=())
    error = refused(programs, GATHER, "the result lacks rank(s) 0")
    assert (error.rank, error.segment) == (1, (0, 2))


def test_each_segment_counts_as_written() -> None:
    """Rank 1 gets part 0 also from rank 2, which nothing orders with the message that brings it second."""
    programs = wrapping()
    programs[2] = dataclasses.replace(programs[2], sends=(*programs[2].sends, Send(7, 1, 0, 2, needs_ack=True)))
    programs[1] = dataclasses.replace(programs[1], receives=(*programs[1].receives, Receive(7, 2, 0, 2)))
    error = refused(programs, GATHER, "unordered writes")
    assert (error.rank, error.segment) == (1, (0, 2))


def test_each_segment_counts_as_read() -> None:
    """Rank 3 is sent part 0 once more, when it may or may not have copied what it sends."""
    programs = wrapping()
    programs[2] = dataclasses.replace(programs[2], sends=(*programs[2].sends, Send(7, 3, 0, 2, needs_ack=True)))
    programs[3] = dataclasses.replace(programs[3], receives=(*programs[3].receives, Receive(7, 2, 0, 2)))
    refused(programs, GATHER, "unordered writes")
    ordered = changed_receive(programs, 3, 1, after=(0,))
    check(ordered, GATHER)
    late = changed_send(ordered, 3, 0, after=(0, 1))
    refused(late, GATHER, "the result lacks rank(s) 0")


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (((0, 2), (1, 3)), "has the same element in two segments"),
        (((6, 7),), "has the same element in two segments"),
        (((0, 0),), "one of several segments is empty"),
        (((0, 11),), "lies outside"),
        (((-1, 2),), "lies outside"),
    ],
)
def test_segments_that_make_no_sense_are_refused(also: tuple[tuple[int, int], ...], message: str) -> None:
    error = refused(changed_send(wrapping(), 3, 0, also=also), GATHER, message)
    assert (error.rank, error.step, error.segment) == (3, 1, (6, 10))


def test_several_segments_behind_an_empty_one_are_refused() -> None:
    refused(changed_send(wrapping(), 3, 0, start=0, stop=0), GATHER, "one of several segments is empty")


@pytest.mark.parametrize("rank", [1, 3])
def test_several_segments_without_a_copy_are_refused(rank: int) -> None:
    programs = wrapping()
    programs[rank] = dataclasses.replace(programs[rank], sends_from_copies=False)
    error = refused(programs, GATHER, "has several segments in a program that does not send from copies")
    assert error.rank == rank


def test_several_segments_are_not_reduced() -> None:
    refused(changed_receive(wrapping(), 1, 1, reduce=True), GATHER, "a message of several segments is never reduced")
