"""On real NICs: who is blamed for a fault, on all hosts, in the incident log and in what is logged."""

from __future__ import annotations

import functools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

#: 4 MiB of float32, less the vote.
ELEMENTS = (1 << 20) - 1
HOSTS = 3
#: Many times what makes a link silent, and what makes an idle one beat.
STOPPED_S = 2.5


def incidents(ranks: Ranks, rank: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = ranks[rank].ask("stats")["incidents"]
    return told


def verdicts(ranks: Ranks, rank: int) -> list[str]:
    return [incident["verdict"] for incident in incidents(ranks, rank)]


def has_verdict(ranks: Ranks, rank: int) -> bool:
    return bool(verdicts(ranks, rank)) and all(verdicts(ranks, rank))


@pytest.mark.parametrize(
    "fault", [pytest.param(Lab.link_down, id="link down"), pytest.param(Lab.silent_drop, id="silence")]
)
def test_a_nic_that_goes_is_named_by_every_host(fault: Callable[[Lab, int, int], float], tmp_path: Path) -> None:
    with Lab(hosts=HOSTS, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        fault(lab, 1, 0)
        expected = {0: "their NIC (rank 1 nic0)", 1: "our NIC (nic0)", 2: "their NIC (rank 1 nic0)"}
        for rank, verdict in expected.items():
            wait_until(functools.partial(has_verdict, ranks, rank), f"rank {rank}'s verdict")
            assert verdicts(ranks, rank) == [verdict]
        stream.go_on(3)
        stream.stop()
        for rank in range(HOSTS):
            (incident,) = incidents(ranks, rank)
            assert incident["repaired_after_s"] is not None
            assert incident["verdict_after_s"] > 0
            print(f"rank {rank}: {json.dumps(incident)}")
            (told,) = [event for event in ranks[rank].ask("events") if event["name"] == "incident"]
            print(f"rank {rank}: {told['fields']['report']}")
            assert told["fields"]["verdict"] == expected[rank]
        ranks.end_well()


def test_a_stopped_process_is_no_incident(tmp_path: Path) -> None:
    with Lab(hosts=HOSTS, nics=2, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        ranks[1].signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        ranks[1].signal(signal.SIGCONT)
        stream.go_on(3)
        stream.stop()
        assert [incidents(ranks, rank) for rank in range(HOSTS)] == [[], [], []]
        ranks.end_well()
