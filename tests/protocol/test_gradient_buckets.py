"""Gradients become ready in any order, and buckets are reduced in one."""

from __future__ import annotations

import random

import pytest

from r2ccl.errors import UsageError
from r2ccl.protocol.gradient_buckets import Gradient, GradientBuckets


def gradients(*sizes: int, kinds: str = "") -> list[Gradient]:
    return [
        Gradient(f"p{number}", (kinds or "f" * len(sizes))[number], size_bytes)
        for number, size_bytes in enumerate(sizes)
    ]


def test_buckets_are_filled_from_the_last_parameter_to_the_first():
    assert GradientBuckets(gradients(4, 4, 4, 4, 4), 8).buckets == ((4, 3), (2, 1), (0,))


def test_a_large_gradient_has_a_bucket_of_its_own():
    assert GradientBuckets(gradients(2, 100, 2, 2), 8).buckets == ((3, 2), (1,), (0,))


def test_what_would_be_too_much_begins_a_new_bucket():
    assert GradientBuckets(gradients(4, 5, 4), 8).buckets == ((2,), (1,), (0,))
    assert GradientBuckets(gradients(3, 5, 4), 8).buckets == ((2,), (1, 0))


def test_only_equal_kinds_share_a_bucket():
    assert GradientBuckets(gradients(1, 1, 1, 1, kinds="ffhf"), 8).buckets == ((3,), (2,), (1, 0))


def test_a_bucket_goes_when_its_last_gradient_is_ready():
    buckets = GradientBuckets(gradients(4, 4, 4, 4), 8)
    assert list(buckets.ready(3)) == []
    assert list(buckets.ready(2)) == [0]
    assert list(buckets.ready(0)) == []
    assert list(buckets.ready(1)) == [1]


def test_a_bucket_waits_for_those_before_it_and_goes_with_the_last_of_them():
    buckets = GradientBuckets(gradients(4, 4, 4), 4)
    assert list(buckets.ready(1)) == []
    assert list(buckets.ready(0)) == []
    assert not buckets.is_started
    assert list(buckets.ready(2)) == [0, 1, 2]
    assert buckets.is_started


def test_the_end_of_a_step_takes_what_is_left_in_order_and_begins_anew():
    buckets = GradientBuckets(gradients(4, 4, 4), 4)
    assert list(buckets.ready(2)) == [0]
    buckets.ready(0)
    assert list(buckets.end()) == [1, 2]
    assert buckets.is_idle
    assert not buckets.is_started
    assert list(buckets.ready(2)) == [0]


def test_a_step_without_a_backward_pass_takes_all():
    assert list(GradientBuckets(gradients(4, 4), 4).end()) == [0, 1]


def test_the_order_is_the_same_whatever_the_order_of_gradients():
    rng = random.Random(5)
    for _ in range(50):
        buckets = GradientBuckets(gradients(*(rng.randrange(1, 9) for _ in range(12))), 8)
        reached = rng.sample(range(12), rng.randrange(13))
        order = [bucket for number in reached for bucket in buckets.ready(number)]
        order += buckets.end()
        assert order == list(range(len(buckets.buckets)))


def test_gradients_that_are_accumulated_count_with_the_last_pass():
    buckets = GradientBuckets(gradients(4, 4), 8, passes=2)
    assert [list(buckets.ready(number)) for number in (1, 0, 1)] == [[], [], []]
    assert not buckets.is_idle
    assert list(buckets.ready(0)) == [0]


def test_a_gradient_that_is_made_too_often_is_refused_by_name():
    buckets = GradientBuckets(gradients(4, 4), 4, passes=2)
    buckets.ready(1)
    buckets.ready(1)
    with pytest.raises(UsageError, match=r"gradient of p1 was made more than 2 time.*backward_passes_per_step"):
        buckets.ready(1)


def test_the_number_of_passes_changes_between_steps_only():
    buckets = GradientBuckets(gradients(4), 4)
    buckets.set_passes(2)
    assert buckets.passes == 2
    buckets.ready(0)
    with pytest.raises(UsageError, match="between steps"):
        buckets.set_passes(1)
    buckets.end()
    buckets.set_passes(1)
    assert list(buckets.ready(0)) == [0]


@pytest.mark.parametrize(("limit_bytes", "passes"), [(0, 1), (8, 0)])
def test_what_makes_no_sense_is_refused(limit_bytes: int, passes: int):
    with pytest.raises(UsageError, match="at least 1"):
        GradientBuckets(gradients(4), limit_bytes, passes)


def test_no_parameters_are_no_buckets():
    buckets = GradientBuckets([], 8)
    assert buckets.buckets == ()
    assert list(buckets.end()) == []
