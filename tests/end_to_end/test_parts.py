"""Five hosts fall into three and two that reach one another no more: the three go on, and no sum is wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import PATIENCE_S, RunningStream, on_hosts

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

ELEMENTS = 200_000
ENV = {"R2CCL_UNREACHABLE_AFTER": "2", "R2CCL_CLOSE_TIMEOUT": "2"}
HERE, THERE = (0, 1), (2, 3, 4)


def test_of_five_hosts_that_fall_into_three_and_two_the_three_go_on(tmp_path: Path) -> None:
    with Lab(hosts=5, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path, env=ENV) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        parted_s = lab.part(HERE)
        for rank, answer in enumerate(stream.answers):
            error = answer.error()
            assert (error["kind"], error["cause"]) == ("PeerLost", "unreachable")
            # Whoever is told by another names its losses, too.
            assert set(error["ranks"]) <= set(range(5)) - {rank}
            print(f"rank {rank} lost {error['ranks']} after {error['at_s'] - parted_s:.2f} s")
        began_s = time.monotonic()
        answers = ranks.tell("shrink")
        for rank in HERE:
            error = answers[rank].error()
            assert error["kind"] == "NoQuorum"
            assert "only rank(s) 0, 1 left, and 3 are needed" in error["text"]
        assert [answers[rank].value() for rank in THERE] == [list(THERE)] * 3
        print(f"shrunk in {(time.monotonic() - began_s) * 1e3:.1f} ms")
        left = [ranks[rank] for rank in THERE]
        for _ in range(3):
            sums = [rank.tell("all_reduce", elements=ELEMENTS) for rank in left]
            assert [answer.value() for answer in sums] == [0] * 3
        for rank in HERE:
            assert ranks[rank].tell("all_reduce", elements=10).error()["kind"] == "PeerLost"
        ranks.ask("close")
        ranks.ask("leave")
        assert [rank.process.wait(PATIENCE_S) for rank in ranks.all] == [0] * 5
