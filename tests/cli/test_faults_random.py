"""The drawing of random cuts: which NIC may go, what counts as felt, when there is no use in going on."""

from __future__ import annotations

import itertools
import random

from r2ccl.cli import faults_random
from r2ccl.cli.faults_figures import Happening
from r2ccl.cli.faults_random import Cutter, RandomCut, Round

HOSTS, NICS = 3, 2


def test_every_two_ranks_keep_a_rail_whatever_is_drawn():
    cutter, now = Cutter(random.Random(1), HOSTS, NICS), 0.0
    most = 0
    for _ in range(2000):
        now += cutter.pause_s()
        cutter.due(now)
        if cutter.may_cut:
            nic, kind = cutter.draw(())
            assert nic not in cutter.away
            cutter.cut(nic, kind, now)
        most = max(most, len(cutter.away))
        for one, other in itertools.combinations(range(HOSTS), 2):
            rails = [rail for rail in range(NICS) if not {(one, rail), (other, rail)} & set(cutter.away)]
            assert rails
    assert most == HOSTS
    assert {cut.kind for cut in cutter.made} == set(faults_random.KINDS)
    assert {cut.nic for cut in cutter.made} == set(itertools.product(range(HOSTS), range(NICS)))


def test_the_same_seed_draws_the_same_cuts():
    def drawn(seed: int) -> list[tuple[tuple[int, int], str]]:
        cutter = Cutter(random.Random(seed), HOSTS, NICS)
        return [cutter.draw(()) for _ in range(20)]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_a_nic_that_carries_is_mostly_preferred():
    cutter = Cutter(random.Random(3), HOSTS, NICS)
    out = {(host, nic) for host in range(HOSTS) for nic in range(NICS)} - {(1, 1)}
    hits = [cutter.draw(out)[0] for _ in range(200)].count((1, 1))
    assert 150 < hits < 200


def test_a_nic_comes_back_when_its_time_is_over():
    cutter = Cutter(random.Random(1), HOSTS, NICS)
    cutter.cut((0, 1), "deaf", 10.0)
    (cut,) = cutter.away.values()
    assert cutter.next_end_s() == cut.due_s
    assert cutter.due(cut.due_s - 0.001) == []
    assert cutter.due(cut.due_s) == [cut]
    assert cutter.next_end_s() is None


def loss(time_s: float, rank: int, link: str) -> Happening:
    return Happening(time_s, rank, "link", f"link={link} UP->DOWN cause=carrier epoch=0 op=1")


def test_a_cut_is_felt_by_its_own_rank_or_a_peer_while_it_lasts():
    cuts = [RandomCut((1, 0), "link-down", 1.0, 1.3), RandomCut((2, 1), "deaf", 5.0, 5.1)]
    assert faults_random.felt(cuts, [loss(1.1, 1, "nic0->rank2.nic0")]) == 1
    assert faults_random.felt(cuts, [loss(1.1, 0, "nic0->rank1.nic0"), loss(5.05, 2, "nic1->rank0.nic1")]) == 2
    # Another NIC, before, too late, and one that came back.
    others = [loss(1.1, 1, "nic1->rank2.nic1"), loss(0.9, 1, "nic0->rank2.nic0"), loss(2.0, 1, "nic0->rank2.nic0")]
    back = Happening(1.1, 1, "link", "link=nic0->rank2.nic0 DOWN->UP cause=readmitted")
    assert faults_random.felt(cuts, [*others, back]) == 0


def test_a_nic_is_out_of_service_when_its_own_rank_has_lost_all_its_links():
    down = {(0, "nic1->rank1.nic1"), (0, "nic1->rank2.nic1"), (2, "nic1->rank0.nic1")}
    assert faults_random.out_of_service(down, HOSTS) == {(0, 1)}


def test_rounds_add_up_and_survive_json():
    lost = (("PeerLost(unreachable)",), ("rank 1 said much",))
    rounds = [Round(10, 5, 100, 0, 7, 2.0, *lost), Round(20, 1, 50, 3, 1, 1.0)]
    kept = [Round.parse(one.as_json()) for one in rounds]
    assert Round.sum(kept) == Round(30, 6, 150, 3, 8, 3.0, *lost)


def test_rounds_in_which_nothing_can_be_cut_are_hopeless():
    failed, late = Round(cuts=0, errors=("killed",)), Round(cuts=300, errors=("PeerLost(dead)",))
    assert faults_random.is_hopeless([failed] * 3)
    assert not faults_random.is_hopeless([failed] * 2)
    assert not faults_random.is_hopeless([failed, failed, late])
    assert not faults_random.is_hopeless([Round(cuts=5)] * 3)
