"""A NIC of an emulated host becomes slow in the middle of a stream of all-reduces, and fast again: its share follows.

Only shares are looked at, and bits; how fast it goes is measured by ``measure_rebalancing``. Rates are low, so that
wires are slower than a busy machine.

What stood in the NIC's queues when it became slow takes ten times as long to come through: 200 ms at worst, in which
one peer's packets may stand behind those of the others. That is silence in every sense, and its lanes may go elsewhere
for it. Slow alone is not: once the share has moved, no link may be lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import RunningStream, on_hosts, wait_until
from tests.end_to_end.test_failover import share_of

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

RATE_MBIT_S = 80
ELEMENTS = 1 << 18
SETTINGS = {"R2CCL_CHUNK_BYTES": str(16 << 10)}


def test_a_nic_that_becomes_slow_loses_its_share_and_gets_it_back_and_is_not_lost_for_being_slow(
    tmp_path: Path,
) -> None:
    with (
        Lab(hosts=3, nics=2, rate_mbit_s=RATE_MBIT_S) as lab,
        on_hosts(lab, tmp_path, env=SETTINGS) as ranks,
    ):
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(5)
        assert 0.3 < share_of(ranks, 2, 0, stream) < 0.7
        lab.set_rate(1, 0, RATE_MBIT_S / 10)
        wait_until(lambda: share_of(ranks, 2, 0, stream) < 0.2, "the slow NIC's loss of its share")
        lost_by_the_change = ranks.failovers()
        stream.go_on(10)
        assert share_of(ranks, 2, 0, stream) < 0.25
        lab.set_rate(1, 0, RATE_MBIT_S)
        wait_until(lambda: share_of(ranks, 2, 0, stream) > 0.4, "the NIC's old share")
        stream.stop()
        assert ranks.failovers() == lost_by_the_change
        ranks.end_well()
