"""What a job survives, over pictures of networks, and against a plain search over small random ones."""

from __future__ import annotations

import dataclasses
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from r2ccl.planner.network_picture import Pair, Picture
from r2ccl.planner.survival import Verdict, nic_losses, rail_losses, survival, unjoined
from tests.planner.pictures import healthy, hosts_with, on_rails, picture_of, touches, with_nic, without_nic


def verdicts(picture: Picture) -> dict[str, Verdict]:
    return {each.loss.what: each.verdict for each in survival(picture)}


def reasons(picture: Picture) -> dict[str, str]:
    return {each.loss.what: each.reason for each in survival(picture)}


def test_a_healthy_network_of_two_rails_survives_each_nic_and_each_rail() -> None:
    assert verdicts(healthy()) == {
        **{f"rank {rank} nic{nic} (eth{nic})": Verdict.DIRECT for rank in range(3) for nic in range(2)},
        "rail 0 (nic0 of all ranks)": Verdict.DIRECT,
        "rail 1 (nic1 of all ranks)": Verdict.DIRECT,
    }


def test_hosts_with_one_nic_survive_nothing() -> None:
    picture = healthy(nics=1)
    assert set(verdicts(picture).values()) == {Verdict.CUT}
    assert all(each.loss.is_all_of_a_rank for each in survival(picture))
    assert reasons(picture)["rank 0 nic0 (eth0)"] == "because rank 0 reaches rank 1, rank 0 reaches rank 2 only by it"


def test_where_a_nic_is_dead_its_host_does_not_survive_the_loss_of_its_other_one() -> None:
    picture = without_nic(healthy(), 1, 1)
    found = verdicts(picture)
    assert found["rank 1 nic1 (eth1)"] is Verdict.DIRECT, "it carries nothing"
    assert found["rank 1 nic0 (eth0)"] is Verdict.CUT
    assert reasons(picture)["rank 1 nic0 (eth0)"] == "because rank 0 reaches rank 1, rank 1 reaches rank 2 only by it"
    assert found["rail 0 (nic0 of all ranks)"] is Verdict.CUT
    assert reasons(picture)["rail 0 (nic0 of all ranks)"].endswith("only by these")


def test_two_ranks_with_nothing_in_common_go_on_through_a_third() -> None:
    # Rank 1 has rail 0 alone. Without rank 0's NIC 0 the two meet at rank 2, which has both.
    picture = without_nic(healthy(), 1, 1)
    assert verdicts(picture)["rank 0 nic0 (eth0)"] is Verdict.RELAYED
    assert reasons(picture)["rank 0 nic0 (eth0)"] == "rank 0 reaches rank 1 only through another rank, which is slower"


def test_of_two_ranks_there_is_no_third_to_relay() -> None:
    assert verdicts(without_nic(healthy(hosts=2), 1, 1))["rank 0 nic0 (eth0)"] is Verdict.CUT


def test_a_relay_is_one_hop_and_no_more() -> None:
    # A chain 0 - 1 - 2 - 3 of ranks that reach their neighbours only.
    picture = picture_of(hosts_with([1] * 4), lambda pair: abs(pair.source - pair.target) == 1)
    (loss,) = [each for each in survival(picture) if each.loss.what.startswith("rail")]
    assert loss.verdict is Verdict.CUT
    assert unjoined(picture) == [(0, 2), (0, 3), (1, 3)]
    # 0 and 2 meet at 1, 1 and 3 at 2; 0 and 3 meet nowhere, whatever is lost.
    assert reasons(picture)["rank 0 nic0 (eth0)"].startswith("because rank 0 reaches rank 1")


def test_what_does_not_work_now_is_no_matter_of_the_loss() -> None:
    picture = picture_of(hosts_with([2, 2]), lambda pair: False)
    assert reasons(picture)["rank 0 nic0 (eth0)"] == "rank 0 reaches rank 1: not even now, with all NICs there"


def test_backups_across_rails_count_where_there_is_a_route_and_where_they_would_be_made() -> None:
    def crossing(pair: Pair) -> bool:
        # Rank 0's NIC 0 and rank 1's NIC 1 are dead on their rails, but reach each other.
        return not on_rails(pair)

    assert verdicts(picture_of(hosts_with([2, 2]), crossing))["rank 0 nic0 (eth0)"] is Verdict.DIRECT
    assert verdicts(picture_of(hosts_with([2, 2]), crossing, backup_paths=0))["rank 0 nic0 (eth0)"] is Verdict.CUT


def test_a_link_that_works_one_way_only_does_not_count() -> None:
    picture = picture_of(hosts_with([2, 2]), lambda pair: on_rails(pair) and pair != Pair(1, 1, 0, 1))
    assert verdicts(picture)["rank 0 nic0 (eth0)"] is Verdict.CUT


def test_ranks_of_one_node_share_its_nics_and_need_no_network() -> None:
    hosts = hosts_with([1, 1, 1])
    twin = dataclasses.replace(hosts[0], rank=1)
    hosts = (hosts[0], twin, hosts[2])
    picture = picture_of(hosts)
    assert not any({reach.pair.source, reach.pair.target} == {0, 1} for reach in picture.reaches)
    (shared, other) = nic_losses(picture)
    assert shared.nics == {(0, 0), (1, 0)}
    assert shared.what == "rank 0 nic0 (eth0), which ranks 0, 1 share"
    assert other.nics == {(2, 0)}
    (cut, *_) = survival(picture)
    assert cut.ranks == ((0, 2), (1, 2)), "and not 0 and 1"
    assert cut.reason == "because rank 0 reaches rank 2, rank 1 reaches rank 2 only by it"


def test_loopbacks_stand_ins_for_nics_are_judged_like_nics() -> None:
    picture = healthy(hosts=2)
    for rank in range(2):
        for nic in range(2):
            picture = with_nic(picture, rank, nic, name="lo", address=f"127.0.{nic + 1}.{rank + 1}")
    hosts = tuple(dataclasses.replace(host, node="one") for host in picture.hosts)
    assert set(verdicts(picture_of(hosts)).values()) == {Verdict.DIRECT}
    assert len(nic_losses(picture_of(hosts))) == 4, "one name, four addresses"


def test_a_rail_that_one_rank_has_alone_is_no_rail() -> None:
    picture = picture_of(hosts_with([1, 2]))
    assert [loss.what for loss in rail_losses(picture)] == ["rail 0 (nic0 of all ranks)"]


@given(st.data())
def test_it_agrees_with_a_plain_search(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    hosts = hosts_with([data.draw(st.integers(1, 3)) for _ in range(size)])
    every = [reach.pair for reach in picture_of(hosts).reaches]
    broken = data.draw(st.sets(st.sampled_from(every)))
    picture = picture_of(hosts, lambda pair: pair not in broken, backup_paths=data.draw(st.integers(0, 3)))
    for judged in survival(picture):
        lost = judged.loss.nics
        joined = {
            (pair.source, pair.target)
            for pair in picture.links
            if pair not in broken
            and pair.back not in broken
            and not any(touches(pair, rank, nic) for rank, nic in lost)
        }
        joined |= {(other, one) for one, other in joined}
        apart = [two for two in combinations(range(size), 2) if two not in joined]
        alone = [
            (one, other)
            for one, other in apart
            if not any((one, third) in joined and (third, other) in joined for third in range(size))
        ]
        expected = Verdict.CUT if alone else Verdict.RELAYED if apart else Verdict.DIRECT
        assert judged.verdict is expected
        assert list(judged.ranks) == (alone or apart)
