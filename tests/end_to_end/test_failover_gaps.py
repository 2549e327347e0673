"""How long a cut stalls the ranks next to it. The figures are printed; a busy machine is no reason to fail.

A gap is the longest time between two chunks' arrivals within a second after the cut, less the median such time in the
second before it, on the rank whose NIC was cut and its neighbours on the ring.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from r2ccl.cli.demo_report import GAP_WINDOW_S, Cut, RankRecord, failover_gaps_ms
from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces, pytest.mark.slow]

SEED = 11
CUTS = 3
#: 4 MiB, as in the demo. One NIC short, ranks before the bottleneck wait in turns: one segment long, here 17 ms.
ELEMENTS = (1 << 20) - 1
#: Links come back soon, and flaps are forgotten soon.
QUICK = {"R2CCL_QUIET": "0.1", "R2CCL_STABLE": "0.5"}
#: Between the last return and the next cut; with what comes before, a second of health.
HEALTHY_S = 0.7
#: What is aimed at is 15 ms after a link down, and 120 ms after a silent drop.
GENEROUS_MS = 3000.0

Fault = Callable[[Lab, int, int], float]
KINDS: dict[str, tuple[Fault, Fault]] = {
    "link down": (Lab.link_down, Lab.link_up),
    "silent drop": (Lab.silent_drop, Lab.undrop),
}


def all_links_are_up(ranks: Ranks) -> bool:
    """As every rank sees it, on all rails."""
    return all(
        [link["state"] for link in stats["links"].values()].count("up") == (len(ranks) - 1) * 2
        for stats in ranks.ask("stats")
    )


def measure_gaps_ms(kind: str, cuts: int, lab: Lab, ranks: Ranks, stream: RunningStream) -> list[float]:
    """Cut a NIC now and then; the gap of each cut."""
    cut, restore = KINDS[kind]
    rng = random.Random(SEED)
    records = [RankRecord(rank) for rank in range(len(ranks))]
    made = []
    ranks.ask("record_arrivals")
    for _ in range(cuts):
        wait_until(lambda: all_links_are_up(ranks), "all links being up")
        time.sleep(HEALTHY_S)
        rank, nic = rng.randrange(lab.hosts), rng.randrange(lab.nics)
        cut_s = cut(lab, rank, nic)
        time.sleep(GAP_WINDOW_S + 0.05)
        made.append(Cut(rank, nic, cut_s, restore(lab, rank, nic)))
        stream.fail_early()
    for record, arrivals in zip(records, ranks.ask("arrivals"), strict=True):
        record.arrivals = [(time_s, on, size) for time_s, on, size in arrivals]
    return failover_gaps_ms(records, made, time.monotonic())


@pytest.mark.parametrize("kind", KINDS)
def test_failover_gaps_are_short(kind: str, tmp_path: Path) -> None:
    with Lab(hosts=4, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env=QUICK) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS, in_flight=3)
        stream.go_on(3)
        gaps_ms = measure_gaps_ms(kind, CUTS, lab, ranks, stream)
        shown = " ".join(f"{gap:.0f}" for gap in sorted(gaps_ms))
        print(f"{kind}: median gap {statistics.median(gaps_ms):.1f} ms of {len(gaps_ms)} cuts: {shown}")
        stream.stop()
        ranks.end_well()
    assert statistics.median(gaps_ms) < GENEROUS_MS
