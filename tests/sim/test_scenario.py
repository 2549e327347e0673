"""What seeds draw: everything there is, the same each time, and only faults that keep the promise."""

from __future__ import annotations

import itertools

import pytest

from r2ccl.ids import SHARED_NIC
from r2ccl.reduction import Op
from r2ccl.sim.calls import DTYPES, Kind, Message, moved_elements
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
    calls = [call for scenario in SCENARIOS for group in scenario.groups for call in group.calls]
    assert {call.kind for call in calls} == set(Kind)
    assert {0, 1} < {call.count for call in calls}
    assert {True, False} == {call.exact for call in calls if call.op is not None}
    assert {call.op for call in calls} == {None, *Op}
    assert {call.dtype for call in calls} == set(DTYPES)
    cut = (Kind.ALL_GATHER_INTO, Kind.REDUCE_SCATTER)
    ways = {(call.kind, bool(call.parts), call.in_place) for call in calls if call.kind in cut}
    assert ways == set(itertools.product(cut, (False, True), (False, True)))
    assert {bool(call.blocks) for call in calls if call.kind is Kind.ALL_TO_ALL} == {False, True}


def test_three_hundred_seeds_draw_nodes_of_all_sorts_and_the_loss_of_their_memory() -> None:
    on_nodes = [scenario for scenario in SCENARIOS if scenario.shape.nodes]
    assert len(on_nodes) > 30
    assert not any(scenario.shape.one_node for scenario in on_nodes)
    assert {scenario.shape.settings.hierarchy for scenario in on_nodes} == {"on", "auto"}
    assert {scenario.shape.one_sided for scenario in on_nodes} == {True, False}
    assert {list(scenario.shape.nodes) == sorted(scenario.shape.nodes) for scenario in on_nodes} == {True, False}
    lost = [
        (scenario.shape, fault.one[0], fault.other[0])
        for scenario in on_nodes
        for fault in scenario.faults
        if fault.one[1] == SHARED_NIC and fault.other is not None
    ]
    assert len(lost) > 30
    assert all(shape.node(one) == shape.node(other) and shape.shares_memory for shape, one, other in lost)


def test_three_hundred_seeds_draw_groups_of_all_sorts() -> None:
    groups = [group for scenario in SCENARIOS for group in scenario.groups]
    assert {len(scenario.groups) for scenario in SCENARIOS} >= {1, 2, 3, 4}
    made = [group for group in groups if group.parent is not None]
    assert {(group.by_split, group.closes) for group in made} == set(itertools.product((False, True), (False, True)))
    assert {group.parent for group in made} > {0, 1}
    assert {len(group.members) for group in made} >= set(range(1, 9))
    assert any(list(group.members) != sorted(group.members) for group in made)
    assert {part.in_flight for group in groups for part in group.parts} == {1, 2, 3, 8}


def test_splits_make_the_groups_that_they_say() -> None:
    for scenario in SCENARIOS:
        for number, group in enumerate(scenario.groups):
            makes = [one for call in group.calls for _, one in call.makes]
            children = [n for n, other in enumerate(scenario.groups) if other.parent == number and other.by_split]
            assert sorted(makes) == children
            assert set(group.members) <= set(range(scenario.shape.ranks))


def channels(messages: tuple[Message, ...]) -> dict[tuple[int, int, int], list[int]]:
    found: dict[tuple[int, int, int], list[int]] = {}
    for index, m in enumerate(messages):
        found.setdefault((m.source, m.target, m.tag), []).append(index)
    return found


def test_rounds_of_messages_are_matched_pairs_and_keep_their_order_in_each_channel() -> None:
    rounds = [call for s in SCENARIOS for group in s.groups for call in group.calls if call.kind is Kind.MESSAGES]
    assert any(len(call.messages) > 12 for call in rounds)
    for call in rounds:
        issued = [(index, is_receive) for order in call.orders for index, is_receive in order]
        assert sorted(issued) == sorted(itertools.product(range(len(call.messages)), (False, True)))
        for (source, _, _), indices in channels(call.messages).items():
            assert [
                index for index, is_receive in call.orders[source] if not is_receive and index in indices
            ] == indices


def test_no_receive_is_left_without_a_message_whatever_those_from_any_take() -> None:
    """Of the receives with one tag in one rank, in their order: one from a certain rank must find a message of it,
    though all before it that take any took that one's."""
    mixed = 0
    for call in (call for s in SCENARIOS for group in s.groups for call in group.calls):
        for target, order in enumerate(call.orders):
            received = [call.messages[index] for index, is_receive in order if is_receive]
            for tag in {m.tag for m in received if m.from_any}:
                alike = [m for m in received if m.tag == tag]
                assert len({(m.dtype, m.count, m.target) for m in alike}) == 1
                mixed += len({m.from_any for m in alike}) > 1
                for place, one in enumerate(alike):
                    taken = sum(m.from_any or m.source == one.source for m in alike[:place])
                    sent = sum(m.source == one.source for m in alike)
                    assert one.from_any or taken < sent, f"{target}: {call}"
    assert mixed > 10


def test_calls_move_something() -> None:
    calls = [(call, len(g.members)) for s in SCENARIOS for g in s.groups for call in g.calls]
    for kind in set(Kind) - {Kind.BARRIER}:
        assert any(
            moved_elements(call, ranks) > 100 or kind is Kind.SPLIT for call, ranks in calls if call.kind is kind
        )
    assert max(m.count for call, _ in calls for m in call.messages) > 1 << 18


def test_only_a_communicator_with_a_lost_pair_or_that_is_made_by_one_may_fail() -> None:
    scenario = next(s for s in SCENARIOS if s.promise is Promise.KILLED and len(s.groups) > 2)
    (dead,) = {fault.one[0] for fault in scenario.faults if fault.kind is FaultKind.KILL}
    for number, group in enumerate(scenario.groups):
        assert scenario.loses_a_member(number) is (dead in group.members and len(group.members) > 1)
        assert scenario.may_fail(number) or dead not in group.members or len(group.members) == 1
    assert not any(scenario.unharmed().may_fail(number) for number in range(len(scenario.groups)))


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


def test_in_a_third_of_the_worlds_a_nic_is_lost_or_slow_for_long_enough_to_plan_anew() -> None:
    kinds = (FaultKind.CUT, FaultKind.SILENT_NIC, FaultKind.BANDWIDTH)
    lasting = [
        scenario
        for scenario in SCENARIOS
        if scenario.promise is Promise.PATHS
        and any(f.kind in kinds and 1.3 < f.until_s - f.at_s < f.until_s < scenario.heals_s for f in scenario.faults)
    ]
    assert 3 * len(lasting) > len(SCENARIOS)


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
    assert (unharmed.groups, unharmed.shape) == (scenario.groups, scenario.shape)
