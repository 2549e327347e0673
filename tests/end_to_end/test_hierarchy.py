"""Two ranks on each of two hosts with two NICs: what they add up among themselves crosses each NIC once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

TWO_BY_TWO = (0, 0, 1, 1)
ELEMENTS = 1 << 21
PAYLOAD_BYTES = 4 * ELEMENTS
OPERATIONS = 4
#: Frames, headers of every packet, acknowledgements and beats, on top of the payload.
BESIDES = 1.05
#: Chunks go to the NIC that will be done first: on a busy machine not always to each in turn.
SHARE_LEAST = 0.15
PATIENCE_S = 120.0


def sent_bytes(lab: Lab, host: int) -> list[int]:
    """What each NIC of a host has sent, by the kernel's count."""
    text = lab.call(host, Path("/proc/thread-self/net/dev").read_text)
    rows = dict(line.strip().split(":") for line in text.splitlines()[2:])
    return [int(rows[f"nic{nic}"].split()[8]) for nic in range(lab.nics)]


def sent_by_all_reduces(lab: Lab, ranks: Ranks) -> list[list[int]]:
    """By host and NIC."""
    ranks.ask("all_reduce", elements=1000)  # all is connected and quiet
    before = [sent_bytes(lab, host) for host in range(lab.hosts)]
    for _ in range(OPERATIONS):
        assert ranks.ask("all_reduce", PATIENCE_S, elements=ELEMENTS) == [0] * len(ranks)
    after = [sent_bytes(lab, host) for host in range(lab.hosts)]
    return [[late - early for late, early in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]


def least(hosts: int) -> float:
    """For each host: it has to tell what its ranks add up to, and to pass on what all do."""
    return OPERATIONS * PAYLOAD_BYTES * 2 * (hosts - 1) / hosts


@pytest.mark.parametrize("places", [TWO_BY_TWO, (0, 1, 0, 1), (0, 0, 0, 1)], ids=str)
def test_each_byte_crosses_the_nics_of_a_host_once(places: Sequence[int], tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2, rate_mbit_s=2000) as lab, on_hosts(lab, tmp_path, places=places) as ranks:
        ranks.connect()
        for by_nic in sent_by_all_reduces(lab, ranks):
            assert least(2) < sum(by_nic) < BESIDES * least(2), by_nic
            assert min(by_nic) > SHARE_LEAST * least(2), by_nic
        assert ranks.ask("collectives", PATIENCE_S) == [0] * 4
        ranks.end_well()


def test_without_hierarchy_a_ring_takes_half_as_much_again(tmp_path: Path) -> None:
    """So what is counted above is what it seems to be."""
    flat = {"R2CCL_HIERARCHY": "off"}
    with Lab(hosts=2, nics=2, rate_mbit_s=2000) as lab, on_hosts(lab, tmp_path, places=TWO_BY_TWO, env=flat) as ranks:
        ranks.connect()
        for by_nic in sent_by_all_reduces(lab, ranks):
            assert sum(by_nic) > 1.4 * least(2), by_nic
        ranks.end_well()


def test_ranks_that_share_a_nic_lose_it_together_and_go_on_with_the_right_sums(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, places=TWO_BY_TWO) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS // 8)
        stream.go_on(5, PATIENCE_S)
        lab.link_down(1, 0)
        stream.go_on(5, PATIENCE_S)
        assert ranks.failovers() >= 4, "each of four ranks has lost a link that carried"
        lab.link_up(1, 0)
        stream.go_on(5, PATIENCE_S)
        assert stream.stop() > 15
        ranks.end_well()


def test_ranks_that_want_different_hierarchies_are_told_so(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=1, rate_mbit_s=2000) as lab, on_hosts(lab, tmp_path, places=TWO_BY_TWO) as ranks:
        connecting = [rank.tell("connect", hierarchy="off" if rank.number == 2 else "auto") for rank in ranks.all]
        assert [answer.value(PATIENCE_S)["size"] for answer in connecting] == [4] * 4
        answers = ranks.tell("all_reduce", elements=1000)
        assert {answer.error(PATIENCE_S)["kind"] for answer in answers} == {"CollectiveMismatch"}
