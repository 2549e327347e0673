"""Who sends to whom while rates are measured."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from r2ccl.planner.network_picture import Pair
from r2ccl.planner.rate_rounds import rate_rounds
from tests.planner.pictures import healthy, hosts_with, picture_of, without_nic


def test_every_nic_sends_once_to_the_next_rank_on_its_rail() -> None:
    assert rate_rounds(healthy()) == [[Pair(rank, nic, (rank + 1) % 3, nic) for rank in range(3)] for nic in range(2)]


def test_a_nic_that_reaches_nobody_is_passed_over() -> None:
    rounds = rate_rounds(without_nic(healthy(), 1, 0))
    assert rounds[0] == [Pair(0, 0, 2, 0), Pair(2, 0, 0, 0)]
    assert len(rounds[1]) == 3


def test_where_nothing_is_reached_nothing_is_measured() -> None:
    assert rate_rounds(picture_of(hosts_with([2, 2]), lambda pair: False)) == []


def test_ranks_that_share_a_nic_do_not_send_at_once() -> None:
    hosts = hosts_with([1, 1, 1])
    hosts = (hosts[0], dataclasses.replace(hosts[0], rank=1), hosts[2])
    assert rate_rounds(picture_of(hosts)) == [[Pair(0, 0, 2, 0), Pair(2, 0, 0, 0)]]
    hosts = hosts_with([1, 1, 1, 1])
    hosts = (hosts[0], dataclasses.replace(hosts[0], rank=1), *hosts[2:])
    # Rank 1 would find rank 3's NIC free, and shares its own.
    assert rate_rounds(picture_of(hosts)) == [[Pair(0, 0, 2, 0), Pair(2, 0, 3, 0), Pair(3, 0, 0, 0)]]


@given(st.data())
def test_no_nic_sends_or_receives_twice_in_a_round(data: st.DataObject) -> None:
    hosts = hosts_with([data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(1, 6)))])
    every = [reach.pair for reach in picture_of(hosts).reaches]
    broken = data.draw(st.sets(st.sampled_from(every))) if every else set()
    picture = picture_of(hosts, lambda pair: pair not in broken)
    for pairs in rate_rounds(picture):
        assert len({pair.source for pair in pairs}) == len({pair.target for pair in pairs}) == len(pairs)
        assert set(pairs) <= picture.reached
        assert len({pair.source_nic for pair in pairs} | {pair.target_nic for pair in pairs}) == 1
