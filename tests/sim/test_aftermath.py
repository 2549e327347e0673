"""What must be true after ranks shrank a communicator; and that the swarm notices where it is not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from r2ccl.actors.failing import Failing
from r2ccl.actors.relaying import RelayPort
from r2ccl.errors import CollectiveTimeout, Evicted, NoQuorum, R2cclError
from r2ccl.protocol.membership import Decide, Effect, Shrinking
from r2ccl.sim import trial
from r2ccl.sim.aftermath import PATIENCE_S, End, Shrunken, WentOn, complaints, draw_aftermath, may_end_with
from r2ccl.sim.faults import BREAKING, FOREVER, Promise
from r2ccl.sim.scenario import Scenario, draw
from tests.sim.test_swarm import complains, seeds_where

NO_QUORUM, EVICTED = NoQuorum((0, 1), 3), Evicted("without you")


def went_on(*members: int, by_all: int = 2, by_any: int = 2) -> WentOn:
    return WentOn(members, Decide(members, by_all, by_any))


def shrunken(ends: dict[int, End], **changes: Any) -> Shrunken:
    """Of five ranks that fell into two and three."""
    apart = frozenset((one, other) for one in (0, 1) for other in (2, 3, 4))
    ended_well = dict.fromkeys(range(5), frozenset((0, 1)))
    known: dict[str, Any] = {
        "name": "it", "members": (0, 1, 2, 3, 4), "ends": ends, "ended_well": ended_well, "lost_pairs": apart,
        "dead_before": frozenset(), "dead_after": frozenset(), "is_quiet": True, **changes,
    }  # fmt: skip
    return Shrunken(**known)


THREE: dict[int, End] = dict.fromkeys((2, 3, 4), went_on(2, 3, 4))
TWO: dict[int, End] = dict.fromkeys((0, 1), NO_QUORUM)


def test_three_of_five_that_go_on_and_two_that_do_not_are_right() -> None:
    assert complaints(shrunken({**THREE, **TWO})) == []


def test_two_dead_that_are_proven_dead_leave_a_quorum_of_two() -> None:
    dead = frozenset((2, 3, 4))
    ends: dict[int, End] = dict.fromkeys((0, 1), went_on(0, 1))
    assert complaints(shrunken(ends, lost_pairs=frozenset(), dead_before=dead, dead_after=dead)) == []


@pytest.mark.parametrize(
    ("ends", "changes", "complaint"),
    [
        ({**THREE, **dict.fromkeys((0, 1), went_on(0, 1))}, {}, "several memberships go on"),
        ({**THREE, **dict.fromkeys((0, 1), went_on(0, 1))}, {}, "no quorum"),
        ({**THREE, 4: went_on(2, 3, 4, by_any=3), **TWO}, {"is_quiet": False}, "members were told different things"),
        ({**TWO, **dict.fromkeys((2, 3), went_on(2, 3, 4)), 4: NO_QUORUM}, {}, "go on, where [2, 3, 4] have to"),
        (dict.fromkeys(range(5), NO_QUORUM), {}, "[] go on, where [2, 3, 4] have to"),
        (dict.fromkeys(range(5), went_on(0, 1, 2, 3, 4)), {}, "have no path"),
        ({**THREE, **TWO}, {"dead_before": frozenset((4,))}, "dead were [4]"),
        ({**THREE, 0: NO_QUORUM, 1: EVICTED}, {}, "instead of NoQuorum"),
        ({**THREE, **TWO}, {"ended_well": dict.fromkeys(range(5), frozenset((0,)))}, "have not"),
        ({**THREE, **TWO}, {"ended_well": dict.fromkeys(range(5), frozenset((0, 1, 2)))}, "had more"),
        ({**THREE, **TWO}, {"lost_pairs": frozenset()}, "[2, 3, 4] go on, where [0, 1, 2, 3, 4] have to"),
    ],
)
def test_what_is_not_true_is_complained_of(ends: dict[int, End], changes: dict[str, Any], complaint: str) -> None:
    found = complaints(shrunken(ends, **changes))
    assert any(complaint in text for text in found), found


def test_of_two_that_lost_only_each_other_the_higher_is_evicted() -> None:
    lost = frozenset(((1, 2),))
    right: dict[int, End] = {0: went_on(0, 1, 3, 4), 1: went_on(0, 1, 3, 4), 3: went_on(0, 1, 3, 4)}
    right |= {4: went_on(0, 1, 3, 4), 2: EVICTED}
    assert complaints(shrunken(right, lost_pairs=lost)) == []
    assert complaints(shrunken({**right, 2: NO_QUORUM}, lost_pairs=lost)) != []


def test_only_who_has_little_patience_may_give_up() -> None:
    late = CollectiveTimeout(-1, "shrink()", 0.1)
    assert may_end_with(late, 0.1)
    assert not may_end_with(late, PATIENCE_S)
    assert not may_end_with(late, None)
    assert not may_end_with(R2cclError(), 0.1)
    assert all(may_end_with(error, None) for error in (NO_QUORUM, EVICTED))


def test_seeds_draw_aftermaths_of_all_sorts_where_something_fails() -> None:
    scenarios = [draw(seed) for seed in range(200)]
    assert all((s.aftermath is None) is not s.promise.ends_badly for s in scenarios)
    drawn = [draw_aftermath(s.seed, s.shape) for s in scenarios]
    assert {bool(one.killed) for one in drawn} == {bool(one.cuts) for one in drawn} == {True, False}
    assert {one.is_quiet for one in drawn} == {True, False}
    late = [s for s in scenarios if s.late is not None]
    assert late
    for scenario in late:
        assert scenario.late is not None
        assert scenario.groups[0].calls[scenario.late.call].timeout_s == scenario.late.timeout_s
        assert scenario.unharmed().late is None
        assert all(call.timeout_s in (None, 120.0) for call in scenario.unharmed().groups[0].calls)
    assert {call.timeout_s for s in scenarios for g in s.groups for call in g.calls} > {None, 120.0}


# What is broken on purpose is found.


def of(*promises: Promise) -> list[Scenario]:
    return seeds_where(lambda s: s.promise in promises and s.shape.ranks > 2, 4)


def test_halves_that_both_go_on_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shrinking, "_is_quorum", lambda *_: True)
    assert complains("no quorum", of(Promise.SPLIT))


def test_a_vote_that_comes_from_nowhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shrinking, "_all_voted", lambda *_: True)
    monkeypatch.setattr(Shrinking, "_allowed", lambda _, view: view)
    assert complains("", of(Promise.KILLED, Promise.UNREACHABLE, Promise.SPLIT))


def test_a_ghost_that_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Shrinking._follow

    def keeps_waiting(self: Shrinking, ballot: Any) -> list[Effect]:
        return follow(self, ballot) if self._rank in ballot.vote else []

    monkeypatch.setattr(Shrinking, "_follow", keeps_waiting)
    nobody_relays(monkeypatch)
    pairs = [scenario for scenario in map(draw, range(300)) if loses_one_pair(scenario)]
    assert complains("not all operations ended", pairs)


def nobody_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """With relays, no pair of several ranks is lost to each other alone, and nobody becomes a ghost."""

    def nothing(*_: Any) -> None:
        pass

    def without_direct_links(self: Scenario, members: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        broken = [fault for fault in self.faults if fault.until_s == FOREVER and fault.kind in BREAKING]
        no_nics = {fault.one for fault in broken if fault.other is None}
        no_links = {frozenset((fault.one, fault.other)) for fault in broken if fault.other is not None}
        pairs = itertools.combinations(members, 2)
        return (pair for pair in pairs if not self._reaches(*pair, no_nics, no_links))

    monkeypatch.setattr(RelayPort, "left_alone", nothing)
    monkeypatch.setattr(RelayPort, "probe", nothing)
    monkeypatch.setattr(Scenario, "lost_pairs", without_direct_links)


def loses_one_pair(scenario: Scenario) -> bool:
    """Of several ranks, in peace."""
    if scenario.promise is not Promise.UNREACHABLE or scenario.shape.ranks == 2:
        return False
    quiet = scenario.aftermath is not None and scenario.aftermath.is_quiet
    return quiet and len(list(scenario.lost_pairs(scenario.groups[0].members))) == 1


def test_operations_that_are_counted_though_they_failed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up = Failing.give_up
    monkeypatch.setattr(Failing, "give_up", lambda self: give_up(self) + 1)
    assert complains("where", of(Promise.KILLED, Promise.LATE))


def test_a_split_world_goes_on_and_is_right() -> None:
    for scenario in of(Promise.SPLIT)[:2]:
        outcome = trial.run(scenario)
        assert outcome.complaints == ()
        assert outcome.ended_badly
