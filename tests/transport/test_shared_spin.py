"""Looking for news gives way to sleeping when it does not pay."""

from __future__ import annotations

from r2ccl.transport.shared_spin import SKIP_MAX, SKIP_WHEN_PREEMPTED, SpinBudget


def occasions_until_on(budget: SpinBudget) -> int:
    """How many are let pass."""
    for passed in range(2 * SKIP_WHEN_PREEMPTED):
        budget.begin()
        if budget.is_on:
            return passed
    raise AssertionError("it never looks again")


def test_with_a_core_for_every_rank_it_looks() -> None:
    assert occasions_until_on(SpinBudget(True)) == 0


def test_without_one_it_never_does() -> None:
    budget = SpinBudget(False)
    for _ in range(2 * SKIP_WHEN_PREEMPTED):
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


def test_after_a_preemption_very_many_pass() -> None:
    budget = SpinBudget(True)
    budget.begin()
    budget.preempted()
    assert not budget.is_on
    assert occasions_until_on(budget) == SKIP_WHEN_PREEMPTED - 1
