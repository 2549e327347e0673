"""The benchmark's data: a right result has no wrong element, and whatever is wrong is counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

from r2ccl.cli.bench_collectives import COLLECTIVES, IN, Form, Shape
from r2ccl.cli.bench_data import (
    PERIOD,
    Array,
    Buffers,
    CannotCheck,
    Exercise,
    combined,
    dtype_named,
    largest_number,
    make_buffers,
    numbers,
    spoiled,
)
from r2ccl.cli.bench_options import DTYPES
from r2ccl.reduction import Op, reducer, supported

WITH_DATA = [name for name, collective in COLLECTIVES.items() if collective.has_data]
FORMS = [(name, form) for name in WITH_DATA for form in COLLECTIVES[name].forms]
RANKS = 3


def shapes(
    name: str, form: Form, count: int, ranks: int = RANKS, root: int = 1, dtype: str = "float32", op: str = "sum"
):
    op = op if COLLECTIVES[name].reduces else ""
    return [Shape(name, form, count, dtype, op, root, rank, ranks) for rank in range(ranks)]


def perform(shape: Shape, every: list[Buffers]) -> None:
    """What the collective has to do, by numpy, on the buffers of all ranks."""
    inputs = [None if buffers.x is None else buffers.x.copy() for buffers in every]
    for rank, buffers in enumerate(every):
        if buffers.out is not None:
            buffers.out[:] = right_output(shape, rank, inputs)


def right_output(shape: Shape, rank: int, inputs: list[Array | None]) -> Array:
    own = slice(rank * shape.count, (rank + 1) * shape.count)
    given = [x for x in inputs if x is not None]
    from_root, from_previous = inputs[shape.root], inputs[rank - 1]
    outputs: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: reduce(np.add, given),
        "reduce": lambda: reduce(np.add, given),
        "reduce_scatter": lambda: reduce(np.add, given)[own],
        "broadcast": lambda: from_root,
        "scatter": lambda: None if from_root is None else from_root[own],
        "all_gather": lambda: np.concatenate(given),
        "gather": lambda: np.concatenate(given),
        "all_to_all": lambda: np.concatenate([x[own] for x in given]),
        "sendrecv": lambda: from_previous,
    }
    return np.asarray(outputs[shape.collective]())


def exercised(name: str, form: Form, count: int) -> tuple[list[Exercise], list[Buffers], Shape]:
    """All ranks' buffers after a right collective."""
    every_shape = shapes(name, form, count)
    exercises = [Exercise(shape, seed=7) for shape in every_shape]
    every = [make_buffers(shape) for shape in every_shape]
    for exercise, buffers in zip(exercises, every, strict=True):
        exercise.fill(buffers)
    perform(every_shape[0], every)
    return exercises, every, every_shape[0]


@pytest.mark.parametrize("count", [1, 5, PERIOD + 3])
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_right_result_has_no_wrong_element_and_the_input_is_as_it_was(name, form, count):
    exercises, every, _ = exercised(name, form, count)
    for exercise, buffers in zip(exercises, every, strict=True):
        assert exercise.wrong_elements(buffers) == 0
        assert exercise.changed_inputs(buffers) == 0


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_damaged_element_is_counted(name, form):
    exercises, every, _ = exercised(name, form, 100)
    for exercise, buffers in zip(exercises, every, strict=True):
        has_result = buffers.out is not None
        assert exercise.wrong_elements(buffers, damage=3) == (3 if has_result else 0)
        if buffers.out is not None:
            buffers.out[-1] = np.nan
            assert exercise.wrong_elements(buffers) == 4


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_what_is_not_written_is_counted(name, form):
    """Except this rank's own input where it lies in the output and belongs there."""
    for shape in shapes(name, form, 100):
        exercise, buffers = Exercise(shape, 7), make_buffers(shape)
        exercise.fill(buffers)
        if buffers.out is None:
            continue
        wrong = exercise.wrong_elements(buffers)
        if name in ("all_reduce", "reduce", "reduce_scatter"):
            assert wrong > buffers.out.size * (0.9 if form == IN else 0.999)
        elif name == "broadcast" or (name == "scatter" and form == IN):
            assert wrong == (0 if shape.is_root else buffers.out.size)
        else:
            assert wrong == buffers.out.size - (shape.count if form == IN else 0)


def test_a_chunk_in_another_place_is_counted():
    exercises, every, _ = exercised("all_reduce", IN, 3 * (1 << 16))
    out = every[0].out
    assert out is not None
    chunk = 1 << 16
    out[:chunk] = out[chunk : 2 * chunk].copy()
    assert exercises[0].wrong_elements(every[0]) > 0.99 * chunk


def test_a_chunk_added_twice_or_not_at_all_is_counted():
    exercises, every, _ = exercised("all_reduce", IN, 1000)
    out, theirs = every[0].out, numbers(np.dtype(np.float32), "sum", 2, RANKS, 7)
    assert out is not None
    out[:100] += theirs[:100]
    out[200:300] -= theirs[200:300]
    assert exercises[0].wrong_elements(every[0]) > 190


def test_a_changed_input_is_counted_apart_from_the_result():
    exercises, every, _ = exercised("all_to_all", "out_of_place", 10)
    x = every[1].x
    assert x is not None
    x[4] += 1
    assert (exercises[1].wrong_elements(every[1]), exercises[1].changed_inputs(every[1])) == (0, 1)


def test_a_list_of_arrays_stands_for_the_output():
    exercises, every, shape = exercised("gather", "out_of_place", 10)
    right = every[shape.root].out
    assert right is not None
    parts = [part.copy() for part in np.split(right, RANKS)]
    assert exercises[shape.root].wrong_elements(every[shape.root], parts) == 0
    assert exercises[shape.root].wrong_elements(every[shape.root], parts[::-1]) == 20
    assert exercises[0].wrong_elements(every[0], None) == 0


def in_another_order(dtype: np.dtype[np.float32], op: Op, ranks: int) -> Array:
    """As r2ccl reduces, from the last rank to the first."""
    combine = reducer(dtype, op)
    each = [numbers(dtype, op, rank, ranks, 3) for rank in range(ranks)]
    total = each[-1].copy()
    for other in each[-2::-1]:
        combine(total, other, True)
    return total


@pytest.mark.parametrize("ranks", [2, 5, 11])
@pytest.mark.parametrize("name", DTYPES)
def test_what_must_come_out_is_exact_in_any_order(name, ranks):
    dtype = dtype_named(name)
    ops = [op for op in Op if supported(dtype, op) and op is not Op.AVERAGE]
    assert ops
    for op in ops:
        assert np.array_equal(in_another_order(dtype, op, ranks), combined(dtype, op, ranks, 3)), op


def test_an_average_is_the_rounded_quotient_of_the_exact_sum():
    for name in ("float16", "float32", "float64", "bfloat16"):
        dtype = dtype_named(name)
        total = combined(dtype, "sum", 3, 1).astype(np.float64)
        assert np.array_equal(combined(dtype, "average", 3, 1), (total / 3).astype(dtype))


@pytest.mark.parametrize(
    ("name", "op"),
    [(name, op) for name in DTYPES for op in ("", *Op) if not op or supported(dtype_named(name), Op(op))],
)
def test_data_is_not_all_the_same_and_differs_between_ranks_and_seeds(name, op):
    dtype = dtype_named(name)
    data = numbers(dtype, op, 0, 4, 1)
    assert data.dtype == dtype
    assert len(data) == PERIOD
    for others in (data[0], numbers(dtype, op, 1, 4, 1), numbers(dtype, op, 0, 4, 2)):
        assert np.count_nonzero(data != others) > 0.1 * PERIOD


@pytest.mark.parametrize("name", DTYPES)
def test_a_spoiled_element_is_always_another(name):
    dtype = dtype_named(name)
    for op in ("", "min"):
        if not op or supported(dtype, Op(op)):
            data = numbers(dtype, op, 0, 2, 5)
            assert np.all(spoiled(data) != data)


def test_sums_that_would_not_be_exact_are_refused():
    assert largest_number(dtype_named("bfloat16"), "sum", 128) == 2
    with pytest.raises(CannotCheck, match="129 ranks are not exact in bfloat16"):
        largest_number(dtype_named("bfloat16"), "sum", 129)
    assert largest_number(dtype_named("bfloat16"), "", 129) == 256
    with pytest.raises(CannotCheck):
        numbers(np.dtype(np.int8), "sum", 0, 100, 1)
