"""A path that swallows large packets alone: what is small gets through, and must not pass for all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

#: 1 MiB of float32, less the vote.
ELEMENTS = (1 << 18) - 1
HOSTS = 3
HOST, NIC = 2, 1
#: Longer than a link that is let in again waits at first, several times.
HOLE_S = 6.0


def cut_packets_small(lab: Lab) -> None:
    """No segments that only the wire of a real network would cut up: a veth lets those through whole."""
    for port in lab._ports.values():
        port.host.call(port.host.netlink.link, "set", index=port.host_index, gso_max_segs=1)


def set_mtu(lab: Lab, mtu: int) -> None:
    """Of the switch's end of the wire, of which the host hears nothing."""
    switch = lab._the_switch
    switch.call(switch.netlink.link, "set", index=lab._ports[HOST, NIC].switch_index, mtu=mtu)


def changes(ranks: Ranks) -> list[str]:
    """What became of the links to the host's NIC once they were up, on the other ranks."""
    events: list[Any] = [event for rank in range(HOSTS) if rank != HOST for event in ranks[rank].ask("events")]
    mine = f"rank{HOST}.nic{NIC}"
    of_links = [event["fields"] for event in events if event["name"] == "link" and mine in event["fields"]["link"]]
    return [fields["change"] for fields in of_links if not fields["change"].startswith("ABSENT")]


def test_a_link_that_swallows_large_packets_is_not_let_in_again(tmp_path: Path) -> None:
    with Lab(hosts=HOSTS, nics=2, rate_mbit_s=200) as lab, on_hosts(lab, tmp_path) as ranks:
        cut_packets_small(lab)
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        set_mtu(lab, 1400)
        wait_until(lambda: changes(ranks) == ["UP->DOWN"] * (HOSTS - 1), "the links to go down")
        time.sleep(HOLE_S)
        assert changes(ranks) == ["UP->DOWN"] * (HOSTS - 1)
        stream.go_on(3)
        set_mtu(lab, 1500)
        wait_until(lambda: changes(ranks).count("DOWN->UP") == HOSTS - 1, "the links to return")
        stream.go_on(3)
        # Every element of every operation was compared.
        stream.stop()
        ranks.end_well()
