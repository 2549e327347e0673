"""The demo's data: sums come out exactly, and every kind of damage is seen."""

from __future__ import annotations

import numpy as np
import pytest

from r2ccl.cli import demo_payload
from r2ccl.cli.demo_payload import Payload, Vector

ELEMENTS = demo_payload.PIECE + 1000  # two pieces, one of them short
RANKS = 3


@pytest.fixture(scope="module")
def payloads() -> list[Payload]:
    return [Payload(seed=5, rank=rank, ranks=RANKS, elements=ELEMENTS) for rank in range(RANKS)]


def contribution(payload: Payload, operation: int) -> Vector:
    buffer = payload.new_buffer()
    for piece in payload.pieces():
        payload.fill(buffer, operation, piece)
    payload.set_stop(buffer, stop=False)
    return buffer


def total(payloads: list[Payload], operation: int) -> Vector:
    summed: Vector = np.sum([contribution(payload, operation) for payload in payloads], axis=0, dtype=np.float32)
    return summed


def wrong(payload: Payload, buffer: Vector, operation: int) -> int:
    return sum(payload.wrong_elements(buffer, operation, piece) for piece in payload.pieces())


@pytest.mark.parametrize("operation", [0, 1, 1000])
def test_the_right_sum_has_no_wrong_element_on_any_rank(payloads: list[Payload], operation: int):
    result = total(payloads, operation)
    assert [wrong(payload, result, operation) for payload in payloads] == [0] * RANKS


def test_ranks_and_operations_differ(payloads: list[Payload]):
    made = [contribution(payloads[rank], operation) for rank in range(RANKS) for operation in range(2)]
    for index, one in enumerate(made):
        for other in made[:index]:
            assert np.count_nonzero(one[:-1] == other[:-1]) < ELEMENTS // 100


def test_one_wrong_element_is_counted(payloads: list[Payload]):
    result = total(payloads, 4)
    result[[0, 17, ELEMENTS - 1]] += 1
    assert wrong(payloads[1], result, 4) == 3


def test_an_element_that_is_no_number_is_counted(payloads: list[Payload]):
    result = total(payloads, 4)
    result[5] = np.nan
    assert wrong(payloads[0], result, 4) == 1


def test_the_result_of_another_operation_is_wrong_nearly_everywhere(payloads: list[Payload]):
    assert wrong(payloads[0], total(payloads, 4), 5) > ELEMENTS * 0.99


def test_a_contribution_added_twice_or_not_at_all_is_wrong_nearly_everywhere(payloads: list[Payload]):
    result, own = total(payloads, 4), contribution(payloads[2], 4)
    assert wrong(payloads[0], result + own, 4) > ELEMENTS * 0.99
    assert wrong(payloads[0], result - own, 4) > ELEMENTS * 0.99


def test_a_piece_in_another_place_is_wrong(payloads: list[Payload]):
    result = total(payloads, 4)
    result[:1000] = result[1000:2000].copy()
    assert wrong(payloads[0], result, 4) > 900


def test_sums_of_many_ranks_are_exact_whatever_the_order():
    largest = 240 * (demo_payload.VECTOR_LIMIT + demo_payload.SHIFT_LIMIT)
    assert largest <= 1 << 24  # every integer up to here is a float32


def test_votes_to_stop_are_added_up(payloads: list[Payload]):
    buffer = payloads[0].new_buffer()
    payloads[0].set_stop(buffer, stop=True)
    assert payloads[0].stop_votes(buffer) == 1
    payloads[0].set_stop(buffer, stop=False)
    assert payloads[0].stop_votes(buffer) == 0


@pytest.mark.parametrize("votes", [-1.0, 0.5, RANKS + 1, np.nan, np.inf])
def test_votes_that_cannot_be_are_no_votes(payloads: list[Payload], votes: float):
    buffer = payloads[0].new_buffer()
    buffer[-1] = votes
    assert payloads[0].stop_votes(buffer) is None


def test_where_sizes_vary_all_ranks_agree_on_each_and_all_kinds_occur(payloads: list[Payload]):
    sizes = [payloads[0].size_of(operation) for operation in range(300)]
    assert [payloads[2].size_of(operation) for operation in range(300)] == sizes
    assert min(sizes) < 10
    assert max(sizes) > ELEMENTS // 10
    assert all(1 <= size <= ELEMENTS for size in sizes)


def test_a_smaller_operation_is_filled_and_checked_to_its_own_end(payloads: list[Payload]):
    size, operation = demo_payload.PIECE + 7, 12
    result = np.zeros(size + 1, np.float32)
    for payload in payloads:
        buffer = payload.new_buffer()[: size + 1]
        for piece in payload.pieces(size):
            payload.fill(buffer, operation, piece)
        payload.set_stop(buffer, stop=False)
        result += buffer
    assert sum(payloads[1].wrong_elements(result, operation, piece) for piece in payloads[1].pieces(size)) == 0
    assert payloads[1].stop_votes(result) == 0
    result[size - 1] += 1
    assert sum(payloads[1].wrong_elements(result, operation, piece) for piece in payloads[1].pieces(size)) == 1
