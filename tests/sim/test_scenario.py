"""What seeds draw: everything there is, the same each time, and only faults that keep the promise."""

from __future__ import annotations

import itertools

import pytest

from r2ccl.planner.requests import CollectiveKind
from r2ccl.sim.faults import BREAKING, FOREVER, FaultKind, Promise
from r2ccl.sim.scenario import Scenario, draw

SCENARIOS = tuple(draw(seed) for seed in range(300))


def test_a_seed_draws_the_same_scenario_again() -> None:
    assert all(draw(scenario.seed) == scenario for scenario in SCENARIOS[:50])
    assert SCENARIOS[0] != SCENARIOS[1]


def test_three_hundred_seeds_draw_all_there_is() -> None:
    assert {scenario.promise for scenario in SCENARIOS} == set(Promise)
    assert {fault.kind for scenario in SCENARIOS for fault in scenario.faults} == set(FaultKind)
    assert {scenario.shape.ranks for scenario in SCENARIOS} == set(range(2, 9))
    assert {scenario.shape.nics for scenario in SCENARIOS} == set(range(1, 5))
    calls = [call for scenario in SCENARIOS for calls in scenario.calls for call in calls]
    assert {call.kind for call in calls} == set(CollectiveKind)
    assert {0, 1} < {call.count for call in calls}
    assert {True, False} == {call.exact for call in calls if call.op is not None}
    assert {1, 2} == {len(scenario.calls) for scenario in SCENARIOS}


def whole_links(scenario: Scenario, at_s: float, one: int, other: int) -> int:
    """How many links of two ranks are whole at a moment."""
    nics = range(scenario.shape.nics + scenario.shape.spares)
    broken = [fault for fault in scenario.faults if fault.kind in BREAKING and fault.at_s <= at_s <= fault.until_s]
    return sum(
        not any(fault.breaks((one, a), (other, b)) for fault in broken) for a, b in itertools.product(nics, nics)
    )


def pairs_without_path(scenario: Scenario, at_s: float) -> set[tuple[int, int]]:
    pairs = itertools.combinations(range(scenario.shape.ranks), 2)
    return {pair for pair in pairs if not whole_links(scenario, at_s, *pair)}


@pytest.mark.parametrize("promise", [Promise.PATHS, Promise.KILLED])
def test_every_pair_keeps_a_link_at_every_moment(promise: Promise) -> None:
    kept = [scenario for scenario in SCENARIOS if scenario.promise is promise]
    assert len(kept) > 20
    for scenario in kept:
        for fault in scenario.faults:
            assert pairs_without_path(scenario, fault.at_s) == set(), scenario.describe()


def test_an_outage_ends_before_the_grace_time_and_does_happen() -> None:
    for scenario in (scenario for scenario in SCENARIOS if scenario.promise is Promise.OUTAGE):
        grace_s = scenario.shape.settings.unreachable_after_s
        without = sorted(fault.at_s for fault in scenario.faults if pairs_without_path(scenario, fault.at_s))
        assert without, scenario.describe()
        ends = max(fault.until_s for fault in scenario.faults if fault.kind in BREAKING and fault.at_s <= without[-1])
        assert ends - without[0] < grace_s


def test_what_is_unreachable_stays_so_and_only_that() -> None:
    for scenario in (scenario for scenario in SCENARIOS if scenario.promise is Promise.UNREACHABLE):
        lost = pairs_without_path(scenario, scenario.heals_s + 1000)
        ranks = scenario.shape.ranks
        assert len(lost) in (1, ranks - 1), scenario.describe()


def test_all_other_faults_are_over_when_the_healed_phase_begins() -> None:
    for scenario in SCENARIOS:
        for fault in scenario.faults:
            promised = scenario.promise.loses_a_peer and fault.until_s == FOREVER
            assert promised or fault.until_s <= scenario.heals_s


def test_the_same_world_without_faults_is_otherwise_the_same() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.promise is Promise.KILLED)
    unharmed = scenario.unharmed()
    assert unharmed.faults == ()
    assert unharmed.promise is Promise.PATHS
    assert (unharmed.calls, unharmed.parts, unharmed.shape) == (scenario.calls, scenario.parts, scenario.shape)
