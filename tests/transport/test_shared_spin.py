"""Looking for news gives way to sleeping when it does not pay."""

from __future__ import annotations

from r2ccl.transport.shared_spin import (
    PAID_TO_FORGET,
    SKIP_MAX,
    SKIP_WHEN_PREEMPTED,
    SKIP_WHEN_PREEMPTED_MAX,
    SpinBudget,
)


def occasions_until_on(budget: SpinBudget) -> int:
    """How many are let pass."""
    for passed in range(2 * SKIP_WHEN_PREEMPTED_MAX):
        budget.begin()
        if budget.is_on:
            return passed
    raise AssertionError("it never looks again")


def test_with_a_core_for_every_rank_it_looks() -> None:
    assert occasions_until_on(SpinBudget(True)) == 0


def test_without_one_it_never_does() -> None:
    budget = SpinBudget(False)
    for _ in range(2 * SKIP_WHEN_PREEMPTED_MAX):
        budget.begin()
        assert not budget.is_on


def test_each_miss_lets_twice_as_many_occasions_pass_up_to_a_limit() -> None:
    budget = SpinBudget(True)
    passed = []
    for _ in range(12):
        budget.missed()
        assert not budget.is_on
        passed.append(occasions_until_on(budget))
    assert passed[:5] == [0, 2, 6, 14, 30]
    assert passed[-2:] == [SKIP_MAX - 1] * 2


def test_what_pays_lets_fewer_pass_after_the_next_miss() -> None:
    budget = SpinBudget(True)
    for _ in range(5):
        budget.missed()
    for _ in range(5):
        budget.paid()
    budget.missed()
    assert occasions_until_on(budget) == 0


def after_preemptions(budget: SpinBudget, count: int) -> list[int]:
    """How many occasions each of them lets pass."""
    passed = []
    for _ in range(count):
        budget.begin()
        budget.preempted()
        assert not budget.is_on
        passed.append(occasions_until_on(budget))
    return passed


def test_each_preemption_lets_four_times_as_many_occasions_pass_up_to_a_limit() -> None:
    assert after_preemptions(SpinBudget(True), 7) == [3, 15, 63, 255, 1023, 1023, 1023]


def test_a_preemption_after_it_has_paid_for_long_is_taken_for_the_first() -> None:
    budget = SpinBudget(True)
    after_preemptions(budget, 4)
    for _ in range(PAID_TO_FORGET - 1):
        budget.paid()
    assert after_preemptions(budget, 1) == [SKIP_WHEN_PREEMPTED_MAX - 1]
    for _ in range(PAID_TO_FORGET):
        budget.paid()
    assert after_preemptions(budget, 1) == [SKIP_WHEN_PREEMPTED - 1]
