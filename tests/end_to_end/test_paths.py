"""Paths beside the rails: across them where a router joins them, and several over one NIC where the network has several
ways; and that a path which returns within the grace time is no error."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

#: 4 MiB of float32, less the vote.
ELEMENTS = (1 << 20) - 1
QUICK = {"R2CCL_QUIET": "0.1", "R2CCL_STABLE": "0.5"}
#: How long before a fault completions are compared with those after it.
BEFORE_S = 1.0


def up(ranks: Ranks, rank: int, peer: int) -> set[str]:
    """Links in service: ``0-1`` is from own NIC 0 to the peer's NIC 1."""
    links = ranks[rank].ask("stats")["links"]
    names = [name.removeprefix("nic") for name, link in links.items() if link["state"] == "up"]
    return {f"{name[0]}-{name[-1]}" for name in names if f"->rank{peer}." in name}


def longest_gap_s(ranks: Ranks, rank: int, since_s: float) -> float:
    """Between two completions, of which the later one was after the moment."""
    done: list[float] = ranks[rank].ask("completions")
    return max(late - early for early, late in itertools.pairwise(done) if late > since_s)


def test_across_rails_two_ranks_reach_each_other_when_one_lost_nic_0_and_the_other_nic_1(tmp_path: Path) -> None:
    with Lab(hosts=3, nics=2, rate_mbit_s=500, router=True) as lab, on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        every = {"0-0", "1-1", "0-1", "1-0"}
        wait_until(lambda: up(ranks, 0, 1) == up(ranks, 1, 0) == up(ranks, 2, 1) == every, "backups")
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(5)
        time.sleep(BEFORE_S)
        usual_s = longest_gap_s(ranks, 0, time.monotonic() - BEFORE_S)
        cut_s = lab.link_down(0, 0)
        lab.link_down(1, 1)
        stream.go_on(5)
        print(f"longest gap {longest_gap_s(ranks, 0, cut_s) * 1e3:.0f} ms, before the cuts {usual_s * 1e3:.0f} ms")
        assert (up(ranks, 0, 1), up(ranks, 1, 0)) == ({"1-0"}, {"0-1"})
        lab.link_up(0, 0)
        lab.link_up(1, 1)
        wait_until(lambda: up(ranks, 0, 1) == up(ranks, 1, 0) == every, "all links again")
        wait_until(lambda: on_rails(ranks), "lanes back on their rails")
        stream.go_on(3)
        stream.stop()
        ranks.end_well()


def on_rails(ranks: Ranks) -> bool:
    lanes = [lane["link"] for stats in ranks.ask("stats") for lane in stats["lanes"].values()]
    return all(link is not None and link[3] == link[-1] for link in lanes)


def test_rails_that_nothing_joins_have_no_backups_and_nobody_hears_of_it(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env={"R2CCL_DEBUG": "INFO"}) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        wait_until(lambda: any(link["backup"] for link in ranks[0].ask("stats")["links"].values()), "a dial")
        time.sleep(BEFORE_S)
        stream.go_on(3)
        stream.stop()
        links = ranks[0].ask("stats")["links"]
        assert {name for name, link in links.items() if link["state"] == "up"} == {
            "nic0->rank1.nic0",
            "nic1->rank1.nic1",
        }
        ranks.end_well()
        assert [line for rank in ranks.all for line in rank.said().splitlines() if "nic0->rank1.nic1" in line] == []


def test_two_lanes_over_one_nic_survive_a_silent_drop_on_one_of_two_ways(tmp_path: Path) -> None:
    """Whatever went that way finds the other one, with a fresh socket whose ports hash to it."""
    with Lab(hosts=2, nics=1, rate_mbit_s=500, ways=2) as lab, on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        assert [nic["device"] for nic in ranks[0].ask("stats")["nics"].values()] == ["nic0", "nic0"]
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        for way in (0, 1, 0, 1):
            wait_until(lambda: up(ranks, 0, 1) == up(ranks, 1, 0) >= {"0-0", "1-1"}, "both lanes")
            dropped_s = lab.silent_way(way)
            time.sleep(0.5)
            stream.go_on(5)
            gap_s = longest_gap_s(ranks, 0, dropped_s)
            print(f"way {way} is silent: {up(ranks, 0, 1)} in service, longest gap {gap_s:.2f} s")
            lab.restore_way(way)
        stream.go_on(3)
        stream.stop()
        ranks.end_well()


def test_a_lost_nic_is_the_loss_of_all_lanes_over_it_and_its_return_within_the_grace_time_no_error(
    tmp_path: Path,
) -> None:
    with Lab(hosts=2, nics=1, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        lab.link_down(1, 0)
        wait_until(lambda: not up(ranks, 0, 1) and not up(ranks, 1, 0), "no link")
        told = [event["fields"] for event in ranks[1].ask("events", name="nic")]
        assert [(fields["nic"], fields["change"]) for fields in told] == [("nic0", "UP->DOWN"), ("nic1", "UP->DOWN")]
        time.sleep(2.0)
        lab.link_up(1, 0)
        stream.go_on(5)
        stream.stop()
        ranks.end_well()


@pytest.mark.parametrize("silently", [False, True], ids=["link down", "silence"])
def test_without_any_path_for_2_s_there_is_no_error(silently: bool, tmp_path: Path) -> None:
    cut, restore = (Lab.silent_drop, Lab.undrop) if silently else (Lab.link_down, Lab.link_up)
    with Lab(hosts=3, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        for nic in (0, 1):
            cut(lab, 1, nic)
        wait_until(lambda: not up(ranks, 0, 1) and not up(ranks, 1, 0), "no link")
        stalled_at = stream.operations
        time.sleep(2.0)
        assert stream.operations <= stalled_at + 2
        restore(lab, 1, 1)
        stream.go_on(5)
        restore(lab, 1, 0)
        stream.stop()
        assert ranks[0].ask("events", name="peer_gone") == []
        ranks.end_well()


def test_without_any_path_for_the_grace_time_the_peer_is_unreachable_and_not_before(tmp_path: Path) -> None:
    grace_s = 1.5
    env = {"R2CCL_UNREACHABLE_AFTER": str(grace_s)}
    with Lab(hosts=2, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env=env) as ranks:
        ranks.connect()
        streams = ranks.tell("stream", elements=ELEMENTS)
        wait_until(lambda: min(progress["operations"] for progress in ranks.ask("progress")) > 3, "operations")
        cut_s = min(lab.link_down(1, nic) for nic in (0, 1))
        for rank, stream in enumerate(streams):
            error = stream.error()
            assert (error["kind"], error["ranks"], error["cause"]) == ("PeerLost", [1 - rank], "unreachable")
            assert error["at_s"] - cut_s >= grace_s
