"""Reductions to the bit: the order of operands, wrapping, silence about overflow, and the fast half-precision sums."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from r2ccl import reduction
from r2ccl.errors import UsageError
from r2ccl.reduction import Op, finish, reducer, supported
from r2ccl.sim.truth import UFUNCS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = [np.dtype("float16"), BFLOAT16]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [BFLOAT16]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
BOOL = np.dtype(bool)
COMPLEX = [np.dtype("complex64"), np.dtype("complex128")]
#: On which kinds of numbers each op is defined.
ON_ALL = {Op.SUM, Op.PRODUCT}
ON_ORDERED = {*ON_ALL, Op.MIN, Op.MAX}
ON_FLOATS = {*ON_ORDERED, Op.AVERAGE}
ON_INTEGERS = set(Op) - {Op.AVERAGE}
EVERY_PATTERN = np.arange(1 << 16, dtype=np.uint16)
#: One more than a piece, so that a last short piece is left to the ufunc.
PIECE_AND_ONE = reduction._WidenedSum.PIECE_ELEMENTS + 1

Array = np.ndarray[Any, Any]


def bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def combined(op: Op, own: Array, received: Array, received_first: bool) -> Array:
    """What a reducer makes of them, in place and beside: the same bits, and operands that stay as they were."""
    in_place, beside, before = own.copy(), np.full_like(own, 1), (own.tobytes(), received.tobytes())
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        reducer(own.dtype, op)(in_place, received, received_first)
        reducer(own.dtype, op)(beside, received, received_first, own)
    assert before == (own.tobytes(), received.tobytes())
    assert in_place.tobytes() == beside.tobytes()
    return in_place


def by_ufunc(op: Op, destination: Array, received: Array, received_first: bool) -> Array:
    operands = (received, destination) if received_first else (destination, received)
    with np.errstate(all="ignore"):
        result: Array = UFUNCS[op](*operands)
    return result.astype(destination.dtype)


def defined(dtype: np.dtype[Any]) -> list[Op]:
    """In their order."""
    if dtype in COMPLEX:
        ops = ON_ALL
    elif dtype in FLOATS:
        ops = ON_FLOATS
    else:
        ops = ON_INTEGERS
    return [op for op in Op if op in ops]


@given(
    data=st.data(),
    dtype_and_op=st.sampled_from(
        [(dtype, op) for dtype in (*INTEGERS, BOOL, *FLOATS[:3], *COMPLEX) for op in defined(dtype)]
    ),
    size=st.integers(0, 40),
    received_first=st.booleans(),
)
def test_a_reducer_is_the_ufunc_in_place_and_beside(data, dtype_and_op, size, received_first):
    dtype, op = dtype_and_op
    left, right = (data.draw(st_numpy.arrays(dtype, size)) for _ in range(2))
    result = combined(op, left, right, received_first)
    np.testing.assert_array_equal(result, by_ufunc(op, left, right, received_first), strict=True)


@given(
    op=st.sampled_from(defined(BFLOAT16)),
    pair=st.tuples(*[st.binary(min_size=34, max_size=34)] * 2),
    first=st.booleans(),
)
def test_a_reducer_of_bfloat16_is_the_ufunc_in_place_and_beside(op, pair, first):
    left, right = (np.frombuffer(half, BFLOAT16) for half in pair)
    np.testing.assert_array_equal(bits(combined(op, left, right, first)), bits(by_ufunc(op, left, right, first)))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around(dtype):
    largest, one = np.full(3, np.iinfo(dtype).max, dtype), np.ones(3, dtype)
    assert (combined(Op.SUM, largest, one, False) == np.iinfo(dtype).min).all()
    assert (combined(Op.PRODUCT, largest, largest, False) == 1).all()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op.SUM, [False, True, True, True]),
        (Op.PRODUCT, [False, False, False, True]),
        (Op.MIN, [False, False, False, True]),
        (Op.MAX, [False, True, True, True]),
        (Op.BITWISE_AND, [False, False, False, True]),
        (Op.BITWISE_OR, [False, True, True, True]),
        (Op.BITWISE_XOR, [False, True, True, False]),
        (Op.LOGICAL_AND, [False, False, False, True]),
        (Op.LOGICAL_OR, [False, True, True, True]),
        (Op.LOGICAL_XOR, [False, True, True, False]),
    ],
)
def test_of_bools_the_sum_is_or_and_the_product_is_and(op, expected):
    left, right = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert combined(op, left, right, False).tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op.BITWISE_AND, [0, 0, 0b0100, 0]),
        (Op.BITWISE_OR, [0, 0b0110, 0b1101, 0b0011]),
        (Op.BITWISE_XOR, [0, 0b0110, 0b1001, 0b0011]),
        (Op.LOGICAL_AND, [0, 0, 1, 1]),
        (Op.LOGICAL_OR, [0, 1, 1, 1]),
        (Op.LOGICAL_XOR, [0, 1, 0, 0]),
    ],
)
def test_of_integers_bits_are_combined_by_bitwise_ops_and_truth_by_logical_ones(dtype, op, expected):
    left, right = np.array([0, 0, 0b0101, 0b0001], dtype), np.array([0, 0b0110, 0b1100, 0b0010], dtype)
    assert combined(op, left, right, False).tolist() == expected


@pytest.mark.parametrize("received_first", [False, True])
def test_complex_numbers_are_added_and_multiplied(received_first):
    left, right = np.array([1 + 2j, 3 - 1j]), np.array([2 - 2j, 1j])
    assert combined(Op.SUM, left, right, received_first).tolist() == [3 + 0j, 3 + 0j]
    assert combined(Op.PRODUCT, left, right, received_first).tolist() == [6 + 2j, 1 + 3j]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [Op.MIN, Op.MAX])
@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 100])
def test_extremes_of_unlike_zeros_depend_on_operand_order_alone(dtype, op, size):
    """Which of the zeros it is differs between numpy's kernels; that both ranks of a pair see the same one must not."""
    plus, minus = np.zeros(size, dtype), np.full(size, -0.0, dtype)
    here, there = combined(op, plus, minus, False), combined(op, minus, plus, True)
    assert here.tobytes() == there.tobytes()
    assert combined(op, plus, minus, True).tobytes() == combined(op, minus, plus, False).tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", defined(FLOATS[0]))
@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 33, 1000, PIECE_AND_ONE])
def test_two_ranks_that_combine_two_nans_get_the_same_payload(dtype, op, size):
    """One has the left operand in its buffer, the other the right one."""
    quiet = {2: 0x7FC0 if dtype == BFLOAT16 else 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}[dtype.itemsize]
    left, right = (np.full(size, quiet | payload, f"u{dtype.itemsize}").view(dtype) for payload in (1, 2))
    here, there = combined(op, left, right, False), combined(op, right, left, True)
    assert np.isnan(here.astype(np.float64)).all()
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 20, PIECE_AND_ONE])
def test_overflow_and_invalid_operations_are_silent(dtype, size):
    largest = np.full(size, ml_dtypes.finfo(dtype).max, dtype)
    infinite = np.full(size, np.inf, dtype)
    assert np.isinf(combined(Op.SUM, largest, largest, False).astype(float)).all()
    assert np.isinf(combined(Op.PRODUCT, largest, largest, False).astype(float)).all()
    assert np.isnan(combined(Op.SUM, infinite, -infinite, False).astype(float)).all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("received_first", [False, True])
@pytest.mark.parametrize(
    "other", [0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0xBC01, 0x7BFF, 0xFBFF, 0x7C00, 0x7F80, 0x7FC1]
)
def test_every_pattern_of_16_bits_is_summed_to_the_ufuncs_bits(dtype, received_first, other):
    """All patterns in their order, so that pieces with and without NaN occur; each with one other operand."""
    left, right = EVERY_PATTERN.view(dtype), np.full(1 << 16, other, np.uint16).view(dtype)
    result = combined(Op.SUM, left, right, received_first)
    np.testing.assert_array_equal(bits(result), bits(by_ufunc(Op.SUM, left, right, received_first)))


def patterns_that_need_no_ufunc(dtype: np.dtype[Any], count: int, seed: int) -> Array:
    """Random finite values of all sizes and signs, none near overflow."""
    exponents_below = 0x7F00 if dtype == BFLOAT16 else 0x7400
    drawn = np.random.default_rng(seed).integers(0, exponents_below, count, dtype=np.uint16)
    drawn |= np.random.default_rng(seed + 1).integers(0, 2, count, dtype=np.uint16) << 15
    return drawn.view(dtype)


@pytest.fixture
def fast_sums(monkeypatch) -> list[bool]:
    """For each piece that was tried the fast way, whether it went."""
    answers = []
    add = reduction._WidenedSum._add

    def noted(*arguments: Any) -> bool:
        answers.append(add(*arguments))
        return answers[-1]

    monkeypatch.setattr(reduction._WidenedSum, "_add", noted)
    return answers


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("received_first", [False, True])
@pytest.mark.parametrize("other", [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x13FF, 0x3C00, 0xBC01])
def test_the_fast_sum_of_every_finite_pattern_has_the_ufuncs_bits(dtype, received_first, other, fast_sums):
    exponent = 0x7F80 if dtype == BFLOAT16 else 0x7C00
    left = EVERY_PATTERN[EVERY_PATTERN & exponent != exponent].view(dtype)
    right = np.full(left.size, other, np.uint16).view(dtype)
    result = combined(Op.SUM, left, right, received_first)
    np.testing.assert_array_equal(bits(result), bits(by_ufunc(Op.SUM, left, right, received_first)))
    assert fast_sums == [True] * 4  # two pieces, in place and beside


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("received_first", [False, True])
@pytest.mark.parametrize("count", [1 << 14, PIECE_AND_ONE, 3 * (1 << 15) - 5])
def test_the_fast_sum_of_random_values_has_the_ufuncs_bits(dtype, received_first, count, fast_sums):
    left, right = (patterns_that_need_no_ufunc(dtype, count, seed) for seed in (10, 20))
    result = combined(Op.SUM, left, right, received_first)
    np.testing.assert_array_equal(bits(result), bits(by_ufunc(Op.SUM, left, right, received_first)))
    assert fast_sums
    assert all(fast_sums)


def test_where_subnormals_are_flushed_the_ufunc_sums_float16(fast_sums, monkeypatch):
    monkeypatch.setattr(reduction, "_SUBNORMAL", np.float32(0))
    left, right = (patterns_that_need_no_ufunc(np.dtype("float16"), 1 << 15, seed) for seed in (10, 20))
    result = combined(Op.SUM, left, right, False)
    np.testing.assert_array_equal(bits(result), bits(by_ufunc(Op.SUM, left, right, False)))
    assert fast_sums == [False, False]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_ties_are_rounded_to_even_by_the_fast_sum(dtype):
    """1 + half a unit in the last place goes down to even, the next number and half a unit goes up to even."""
    unit = ml_dtypes.finfo(dtype).eps.astype(dtype)
    half = (unit / dtype.type(2)).astype(dtype)
    left = np.full(1 << 15, 1, dtype)
    left[1::2] += unit
    result = combined(Op.SUM, left, np.full(1 << 15, half, dtype), False)
    assert (result[::2] == dtype.type(1)).all()
    assert (result[1::2] == dtype.type(1) + dtype.type(2) * unit).all()


def test_one_nan_leaves_its_neighbours_right():
    left, right = (patterns_that_need_no_ufunc(np.dtype("float16"), 1 << 16, seed).copy() for seed in (30, 40))
    left[70] = np.nan
    result = combined(Op.SUM, left, right, False)
    assert np.flatnonzero(np.isnan(result)).tolist() == [70]
    np.testing.assert_array_equal(bits(result), bits(by_ufunc(Op.SUM, left, right, False)))


def test_memory_at_odd_addresses_is_reduced_like_any_other():
    count = 1 << 14
    for dtype in FLOATS:
        memory = np.zeros(count * dtype.itemsize + 1, np.uint8)
        odd = memory[1:].view(dtype)
        odd[:] = 1
        assert (combined(Op.SUM, np.ones(count, dtype), odd, False) == 2).all()
        reducer(dtype, Op.SUM)(odd, np.ones(count, dtype), True)
        assert (odd == 2).all()
        reducer(dtype, Op.SUM)(odd, np.ones(count, dtype), True, np.full(count, 3, dtype))
        assert (odd == 4).all()


@pytest.mark.parametrize("dtype", [*COMPLEX, *FLOATS, *INTEGERS, BOOL], ids=str)
def test_an_op_is_defined_where_it_means_something_and_refused_elsewhere(dtype):
    for op in Op:
        assert supported(dtype, op) == (op in defined(dtype))
        if op not in defined(dtype):
            with pytest.raises(UsageError, match=f"{op} is not defined for {dtype}"):
                reducer(dtype, op)


@pytest.mark.parametrize(
    "dtype", ["M8[s]", "m8[s]", object, "S3", "f4,f4", np.longdouble, ml_dtypes.float8_e5m2, ml_dtypes.int4]
)
@pytest.mark.parametrize("op", list(Op))
def test_other_dtypes_are_refused(dtype, op):
    assert not supported(np.dtype(dtype), op)
    with pytest.raises(UsageError, match="is not defined for"):
        reducer(np.dtype(dtype), op)


# What is left to do at the end.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_average_is_the_sum_divided_once_and_rounded_once(dtype):
    sums = np.array([0, 1, 6, 7, -5, 0.5, np.inf, ml_dtypes.finfo(dtype).max], dtype)
    for ranks in (1, 2, 3, 7, 300):
        result = sums.copy()
        finisher = finish(Op.AVERAGE, ranks)
        assert finisher is not None
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            finisher(result)
        assert result.dtype == dtype
        exact = (sums.astype(np.float64) / ranks).astype(dtype)
        assert result.tobytes() == exact.tobytes()


def test_a_float64_average_by_thousands_of_ranks_loses_nothing():
    result = np.array([1.0, 1e300])
    finisher = finish(Op.AVERAGE, 100_003)
    assert finisher is not None
    finisher(result)
    assert result.tolist() == [1.0 / 100_003, 1e300 / 100_003]


def test_an_average_of_not_a_number_stays_one_in_silence():
    result = np.array([np.nan, -np.inf], np.float16)
    finisher = finish(Op.AVERAGE, 2)
    assert finisher is not None
    with np.errstate(all="raise"):
        finisher(result)
    assert np.isnan(result[0])
    assert result[1] == -np.inf


@pytest.mark.parametrize("dtype", [*INTEGERS, BOOL], ids=str)
@pytest.mark.parametrize("op", [Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR])
def test_logical_ops_of_one_rank_leave_truth_though_nothing_was_combined(dtype, op):
    result = np.array([0, 1, 5, 100]).astype(dtype)
    finisher = finish(op, 1)
    assert finisher is not None
    finisher(result)
    assert result.tolist() == [0, 1, 1, 1]
    assert finish(op, 2) is None


def test_other_ops_are_over_when_the_last_operand_is_in():
    others = set(Op) - {Op.AVERAGE, Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR}
    assert all(finish(op, ranks) is None for op in others for ranks in (1, 2, 3))


def test_an_op_is_shown_and_found_by_its_name():
    assert [str(op) for op in Op] == [
        "sum", "product", "min", "max", "average",
        "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor",
    ]  # fmt: skip
    assert Op("max") is Op.MAX
    assert Op("bitwise_xor") is Op.BITWISE_XOR


def test_the_kernel_is_named_after_numpys_major_version_and_our_revision():
    assert reduction.kernel_name() == f"numpy-{np.__version__[0]}/1"
