"""NICs of emulated hosts go and come back in the middle of a stream of all-reduces, and no element is ever wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

#: 16 MiB of float32, less the vote.
ELEMENTS = (4 << 20) - 1
#: Where it is operations that matter, not bytes: 4 MiB.
FEWER_ELEMENTS = (1 << 20) - 1
#: Links that return are let in soon, also those that came and went: tests are impatient.
QUICK = {"R2CCL_QUIET": "0.1", "R2CCL_STABLE": "0.5"}

Fault = Callable[[Lab, int, int], float]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Four hosts, two rails, 500 Mbit/s."""
    with Lab(hosts=4, nics=2, rate_mbit_s=500) as opened:
        yield opened


def link_states(ranks: Ranks, rank: int, nic: int) -> list[str]:
    """The states of all links of a NIC, as its own rank sees them."""
    links = ranks[rank].ask("stats")["links"]
    same_rail = [name for name in links if name.startswith(f"nic{nic}->") and name.endswith(f".nic{nic}")]
    return [links[name]["state"] for name in same_rail]


def wait_for_links(ranks: Ranks, rank: int, nic: int, state: str) -> float:
    """Until all links of a NIC are in the state; returns how long it took."""
    return wait_until(
        lambda: set(link_states(ranks, rank, nic)) == {state}, f"links of rank {rank}'s nic{nic} being {state}"
    )


def received_bytes(ranks: Ranks, rank: int) -> list[int]:
    """By NIC."""
    nics = ranks[rank].ask("stats")["counters"]["nics"]
    return [nics[name]["received_bytes"] for name in sorted(nics)]


def share_of(ranks: Ranks, rank: int, nic: int, stream: RunningStream) -> float:
    """Of all that a rank receives during a few operations, how much comes by this NIC."""
    before = received_bytes(ranks, rank)
    stream.go_on(4)
    grown = [late - early for early, late in zip(before, received_bytes(ranks, rank), strict=True)]
    return grown[nic] / sum(grown)


@pytest.mark.parametrize(
    ("cut", "restore"),
    [pytest.param(Lab.link_down, Lab.link_up, id="link down"), pytest.param(Lab.silent_drop, Lab.undrop, id="silence")],
)
def test_a_nic_goes_in_the_middle_and_its_share_comes_back_with_it(
    cut: Fault, restore: Fault, lab: Lab, tmp_path: Path
) -> None:
    with on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        assert 0.2 < share_of(ranks, 1, 0, stream) < 0.8
        cut(lab, 1, 0)
        wait_for_links(ranks, 1, 0, "down")
        assert share_of(ranks, 1, 0, stream) == 0
        restore(lab, 1, 0)
        back_s = wait_for_links(ranks, 1, 0, "up")
        wait_until(lambda: share_of(ranks, 1, 0, stream) > 0.2, "a fair share on the NIC that came back")
        print(f"links were up {back_s:.2f} s after the NIC's return; its share: {share_of(ranks, 1, 0, stream):.2f}")
        stream.stop()
        failovers = [stats["counters"]["failovers"] for stats in ranks.ask("stats")]
        assert failovers[1] >= 1
        ranks.end_well()


def test_a_spare_takes_the_lanes_of_a_lost_nic(tmp_path: Path) -> None:
    with Lab(hosts=4, nics=3, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, spare_nics=1, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        assert received_bytes(ranks, 2)[2:] in ([], [0])  # the spare stands by
        lab.link_down(2, 1)
        wait_for_links(ranks, 2, 1, "down")
        wait_until(lambda: share_of(ranks, 2, 2, stream) > 0.2, "the spare carrying a share")
        names = [event["name"] for event in ranks[2].ask("events")]
        assert "lane_moved" in names
        stream.go_on(3)
        stream.stop()
        ranks.end_well()


def readdress(lab: Lab, host: int, nic: int, address: str) -> None:
    """Take the NIC's address away and give it another one of the same network."""

    def inside() -> None:
        with IPRoute() as netlink:
            (index,) = netlink.link_lookup(ifname=f"nic{nic}")
            netlink.flush_addr(index=index)
            netlink.addr("add", index=index, address=address, prefixlen=24)

    lab.call(host, inside)


@pytest.mark.parametrize("host", [0, 3], ids=["who dials", "who is dialled"])
def test_a_nic_that_is_given_another_address_carries_again(host: int, lab: Lab, tmp_path: Path) -> None:
    with on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, FEWER_ELEMENTS)
        stream.go_on(3)
        network = lab.address(host, 1).rpartition(".")[0]
        readdress(lab, host, 1, f"{network}.{200 + host}")
        wait_until(lambda: any(e["name"] == "nic_moved" for e in ranks[host].ask("events")), "the NIC's move")
        wait_for_links(ranks, host, 1, "up")
        wait_until(lambda: share_of(ranks, host, 1, stream) > 0.2, "a fair share on the NIC that moved")
        stream.stop()
        ranks.end_well()


def rehouse(lab: Lab, host: int, nic: int) -> None:
    """Give the NIC's address, and its wire, to a new interface: a bridge that it becomes a port of."""

    def inside() -> None:
        with IPRoute() as netlink:
            (index,) = netlink.link_lookup(ifname=f"nic{nic}")
            netlink.flush_addr(index=index)
            netlink.link("add", ifname="other", kind="bridge", br_forward_delay=0)
            (other,) = netlink.link_lookup(ifname="other")
            netlink.link("set", index=index, master=other)
            netlink.addr("add", index=other, address=lab.address(host, nic), prefixlen=24)
            netlink.link("set", index=other, state="up")

    lab.call(host, inside)


@pytest.mark.parametrize("host", [0, 3], ids=["who dials", "who is dialled"])
def test_a_nic_whose_address_comes_back_on_another_interface_carries_again(host: int, lab: Lab, tmp_path: Path) -> None:
    with on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, FEWER_ELEMENTS)
        stream.go_on(3)
        rehouse(lab, host, 1)
        wait_until(lambda: any(e["name"] == "nic_moved" for e in ranks[host].ask("events")), "the NIC's move")
        wait_for_links(ranks, host, 1, "up")
        wait_until(lambda: share_of(ranks, host, 1, stream) > 0.2, "a fair share on the interface that has the address")
        stream.stop()
        ranks.end_well()


def test_rank_zeros_first_nic_may_go_right_after_connect(lab: Lab, tmp_path: Path) -> None:
    """The rendezvous was there."""
    with on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        lab.link_down(0, 0)
        stream = RunningStream(ranks, FEWER_ELEMENTS)
        stream.go_on(3)
        stream.stop()
        ranks.end_well()


def test_a_nic_goes_while_another_failover_is_under_way(lab: Lab, tmp_path: Path) -> None:
    with on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, FEWER_ELEMENTS)
        stream.go_on(5)
        for pause_s in (0.0, 0.005, 0.05):
            lab.silent_drop(0, 0)
            time.sleep(pause_s)
            lab.link_down(2, 0)
            time.sleep(pause_s)
            lab.silent_drop(3, 0)
            stream.go_on(5)
            lab.undrop(0, 0)
            lab.link_up(2, 0)
            lab.undrop(3, 0)
            for rank in (0, 2, 3):
                wait_for_links(ranks, rank, 0, "up")
        stream.go_on(5)
        stream.stop()
        ranks.end_well()


def test_the_other_nic_goes_before_the_first_one_has_settled_in_again(lab: Lab, tmp_path: Path) -> None:
    """A NIC on probation is the only one left: nothing is protected by making it wait."""
    with on_hosts(lab, tmp_path, env={"R2CCL_QUIET": "8"}) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, FEWER_ELEMENTS)
        stream.go_on(5)
        lab.link_down(1, 0)
        stream.go_on(5)
        lab.link_up(1, 0)
        wait_for_links(ranks, 1, 0, "probation")
        lab.link_down(1, 1)
        stream.go_on(4)
        lab.link_up(1, 1)
        stream.go_on(5)
        stream.stop()
        ranks.end_well()
