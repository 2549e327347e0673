"""Rails and backups: the same from both ends, spread over NICs, none that shares a rail's fate."""

from __future__ import annotations

import itertools

import pytest

from r2ccl.protocol.paths import backups, is_rail, rails

COUNTS = range(1, 6)
SIZES = list(itertools.product(COUNTS, COUNTS))


def hosts(rank: int, nics: int) -> list[str]:
    return [f"10.0.{nic}.{rank}" for nic in range(nics)]


def swapped(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(remote, local) for local, remote in pairs]


@pytest.mark.parametrize(("ours", "theirs"), SIZES)
def test_both_ends_compute_the_same(ours: int, theirs: int) -> None:
    assert rails(ours, theirs) == swapped(rails(theirs, ours))
    here, there = hosts(1, ours), hosts(2, theirs)
    for count in range(5):
        first = backups(here, there, count, we_are_first=True)
        assert first == swapped(backups(there, here, count, we_are_first=False))


@pytest.mark.parametrize(("ours", "theirs"), SIZES)
def test_a_pair_is_a_rail_or_may_be_a_backup_and_never_both(ours: int, theirs: int) -> None:
    pairs = set(itertools.product(range(ours), range(theirs)))
    on_rails = {pair for pair in pairs if is_rail(*pair, ours, theirs)}
    assert on_rails == set(rails(ours, theirs))
    assert set(backups(hosts(1, ours), hosts(2, theirs), 99, we_are_first=True)) == pairs - on_rails


@pytest.mark.parametrize(("ours", "theirs"), [(ours, theirs) for ours, theirs in SIZES if min(ours, theirs) > 1])
@pytest.mark.parametrize("we_are_first", [True, False])
def test_the_loss_of_any_nic_leaves_one_of_two_backups(ours: int, theirs: int, we_are_first: bool) -> None:
    two = backups(hosts(1, ours), hosts(2, theirs), 2, we_are_first=we_are_first)
    assert len(two) == 2
    assert len({local for local, _ in two}) == len({remote for _, remote in two}) == 2


def test_two_nics_each_are_crossed() -> None:
    assert backups(hosts(0, 2), hosts(1, 2), 2, we_are_first=True) == [(0, 1), (1, 0)]
    assert backups(hosts(0, 2), hosts(1, 2), 0, we_are_first=True) == []


def test_lanes_over_one_nic_at_both_ends_have_no_backups() -> None:
    assert backups(["a", "a"], ["b", "b"], 2, we_are_first=True) == []


def test_lanes_over_one_nic_count_as_one_nic() -> None:
    assert backups(["a", "a"], ["b", "c"], 2, we_are_first=True) == []
    spread = backups(["a", "b", "a", "b"], ["c", "d", "c", "d"], 2, we_are_first=True)
    assert [(local % 2, remote % 2) for local, remote in spread] == [(0, 1), (1, 0)]


def test_the_peers_nics_are_spread_over_too() -> None:
    four = backups(hosts(1, 3), hosts(2, 4), 4, we_are_first=True)
    assert {remote for _, remote in four} == {0, 1, 2, 3}
