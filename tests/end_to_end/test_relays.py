"""Two emulated hosts lose different NICs, so that no packet passes between them, and a third carries what they say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from r2ccl.ids import RELAY_NIC
from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

#: 4 MiB of float32, less the vote.
ELEMENTS = (1 << 20) - 1
QUICK = {"R2CCL_QUIET": "0.1", "R2CCL_STABLE": "0.5"}
#: How long each rate is measured.
MEASURED_S = 2.0


def relayed_bytes(ranks: Ranks) -> list[int]:
    """What each rank carried for others."""
    return [stats["counters"]["relayed_bytes"] for stats in ranks.ask("stats")]


def carried_meanwhile(ranks: Ranks, stream: RunningStream) -> int:
    """For others, by all ranks, while some operations are done."""
    before = sum(relayed_bytes(ranks))
    stream.go_on(5)
    return sum(relayed_bytes(ranks)) - before


def links_to(ranks: Ranks, rank: int, peer: int) -> dict[str, str]:
    """Link -> state, for those that are in service or were."""
    links = ranks[rank].ask("stats")["links"]
    return {name: link["state"] for name, link in links.items() if f"->rank{peer}" in name}


def first_relayed_ms(ranks: Ranks, rank: int, since_s: float) -> float:
    """From a moment until a chunk that was relayed arrives."""
    moments = [moment for moment, nic, _ in ranks[rank].ask("arrivals") if nic == RELAY_NIC and moment >= since_s]
    return float(min(moments) - since_s) * 1e3


def rate(stream: RunningStream) -> float:
    """Operations in a second."""
    began, before = time.monotonic(), stream.operations
    time.sleep(MEASURED_S)
    return (stream.operations - before) / (time.monotonic() - began)


@pytest.mark.parametrize("kind", ["link down", "silent drop"])
def test_ranks_that_lost_different_nics_are_joined_by_a_third(kind: str, tmp_path: Path) -> None:
    with Lab(hosts=3, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env=QUICK) as ranks:
        lose, restore = (lab.link_down, lab.link_up) if kind == "link down" else (lab.silent_drop, lab.undrop)
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        whole = rate(stream)
        lose(0, 0)
        stream.go_on(3)
        one_less = rate(stream)
        ranks.ask("record_arrivals")
        lost_s = lose(1, 1)
        stream.go_on(5)
        # The ring leads from rank 0 to rank 1.
        first_ms = first_relayed_ms(ranks, 1, lost_s)
        relayed = rate(stream)
        assert relayed_bytes(ranks)[2] > ELEMENTS, "the third rank carries"
        assert relayed_bytes(ranks)[:2] == [0, 0]
        assert links_to(ranks, 0, 1)["relay->rank1"] == links_to(ranks, 1, 0)["relay->rank0"] == "up"
        restore(0, 0)
        restore(1, 1)
        wait_until(lambda: links_to(ranks, 0, 1)["relay->rank1"] == "down", "the relayed link being dismissed")
        wait_until(lambda: links_to(ranks, 1, 0)["relay->rank0"] == "down", "its other end, too")
        wait_until(lambda: carried_meanwhile(ranks, stream) < ELEMENTS, "nothing but beats being carried")
        rates = f"{whole:.1f} operations/s whole, {one_less:.1f} one NIC short, {relayed:.1f} relayed"
        print(f"{kind}: first relayed chunk after {first_ms:.0f} ms; {rates}")
        stream.stop()
        ranks.end_well()
