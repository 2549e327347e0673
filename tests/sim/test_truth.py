"""What the swarm holds for right, by hand and against the kernels; and memory that tells what was done to it."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from r2ccl.reduction import Op, finish, reducer, supported
from r2ccl.sim.calls import DTYPES, Call, Kind
from r2ccl.sim.performance import GUARD_ELEMENTS, Room
from r2ccl.sim.truth import expected, far_off, fold, handed_in, payload

COMBINABLE = [(dtype, op) for dtype in DTYPES for op in Op if supported(np.dtype(dtype), op)]


@pytest.mark.parametrize(("dtype", "op"), COMBINABLE)
def test_exact_payloads_give_the_same_bits_in_whatever_order_they_are_reduced(dtype: str, op: Op) -> None:
    call = Call(Kind.ALL_REDUCE, dtype, op, 50)
    payloads = [payload(call, (1, 0, 0), rank, 8) for rank in range(8)]
    right = fold(op, payloads)
    assert right.dtype == np.dtype(dtype)
    reduce, last = reducer(right.dtype, op), finish(op, 8)
    for order in list(permutations(range(8)))[::5000]:
        total = payloads[order[0]].copy()
        for rank in order[1:]:
            reduce(total, payloads[rank], rank < order[0])
        if last is not None:
            last(total)
        assert total.tobytes() == right.tobytes()


def test_exact_averages_are_whole_numbers_and_not_those_of_sums() -> None:
    call = Call(Kind.ALL_REDUCE, "float16", Op.AVERAGE, 50)
    payloads = [payload(call, (1, 0, 0), rank, 7) for rank in range(7)]
    average = fold(Op.AVERAGE, payloads)
    assert np.array_equal(average, np.rint(average))
    assert np.array_equal(7 * average, fold(Op.SUM, payloads))
    assert np.any(average)


def test_inexact_payloads_do_depend_on_the_order_so_that_a_wrong_order_is_seen() -> None:
    call = Call(Kind.ALL_REDUCE, "float32", Op.SUM, 200, exact=False)
    one, two, three = (payload(call, (1, 0, 0), rank, 3) for rank in range(3))
    assert ((one + two) + three).tobytes() != (one + (two + three)).tobytes()


@pytest.mark.parametrize(
    ("call", "given", "right"),
    [
        (Call(Kind.ALL_GATHER, count=1), [[1], [2], [3]], [[1, 2, 3]] * 3),
        (Call(Kind.ALL_GATHER_INTO, count=3, parts=(2, 0, 1)), [[1, 2], [], [3]], [[1, 2, 3]] * 3),
        (Call(Kind.GATHER, count=1, root=1), [[1], [2], [3]], [None, [1, 2, 3], None]),
        (Call(Kind.SCATTER, count=1, root=2), [[], [], [1, 2, 3]], [[1], [2], [3]]),
        (Call(Kind.REDUCE, op=Op.MAX, count=2), [[1, 9], [2, 8], [3, 7]], [[3, 9], None, None]),
        (Call(Kind.REDUCE_SCATTER, op=Op.SUM, count=4), [[1, 2, 3, 4]] * 3, [[3, 6], [9], [12]]),
        (Call(Kind.ALL_TO_ALL, count=1), [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 4, 7], [2, 5, 8], [3, 6, 9]]),
        (
            Call(Kind.ALL_TO_ALL, blocks=((0, 2, 0), (1, 0, 0), (0, 0, 1))),
            [[1, 2], [3], [4]],
            [[3], [1, 2], [4]],
        ),
        (Call(Kind.BROADCAST, count=1, root=1), [[1], [2], [3]], [[2]] * 3),
        (Call(Kind.BARRIER), [[], [], []], [None] * 3),
    ],
    ids=lambda value: str(value) if isinstance(value, Call) else "",
)
def test_what_is_right_by_hand(call: Call, given: list[list[int]], right: list[list[int] | None]) -> None:
    payloads = [np.asarray(x, np.uint8) for x in given]
    assert [len(x) for x in given] == [handed_in(call, rank, 3) for rank in range(3)]
    assert [None if x is None else x.tolist() for x in expected(call, payloads)] == right


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("op", [Op.SUM, Op.PRODUCT])
def test_an_inexact_result_may_be_off_by_rounding_and_no_more(dtype: str, op: Op) -> None:
    call = Call(Kind.REDUCE, dtype, op, 40, exact=False)
    payloads = [payload(call, (1, 0, 0), rank, 3) for rank in range(3)]
    result = fold(op, payloads[::-1])
    assert far_off(call, payloads, 0, result) == 0
    result[7] = result[7] * 1.1 + 0.1
    assert far_off(call, payloads, 0, result) == 1


# Memory on loan.


def test_memory_tells_what_was_done_to_it() -> None:
    room = Room(np.arange(9, dtype=np.int16), is_read_only=True)
    assert room.complaint() == ""
    room.array[3] = 0
    assert "only read" in room.complaint()
    around = Room(np.arange(9, dtype=np.int16))
    assert around.array.base is not None
    around.array[:] = 7
    assert around.complaint() == ""
    around.array.base.view(np.int16)[GUARD_ELEMENTS + 9] = 0
    assert "around" in around.complaint()


def test_memory_that_is_written_after_it_was_given_back_is_noticed() -> None:
    room = Room(np.zeros(4, np.float64))
    room.rewrite()
    assert room.is_as_rewritten
    room.array[2] = 1
    assert not room.is_as_rewritten
