"""torch.distributed over r2ccl between real processes. torch is large: ``make test-torch`` makes a place for it.

What a rank does is in grid.py, surface.py, training.py and failures.py, which run in the interpreter that has torch.
"""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.torch_backend.jobs import PATIENCE_S, ROOT, environment, run_job

pytestmark = [pytest.mark.end_to_end, pytest.mark.torchrun, pytest.mark.timeout(300)]

COMPARED_MIN, WITH_GLOO_MIN = 700, 500
CHECKS_MIN, SCENARIOS = 15, 13


@pytest.mark.parametrize("size", [2, 4])
def test_every_call_gives_what_it_must_and_what_gloo_gives(torchrun: str, size: int) -> None:
    for rank in run_job(torchrun, size, "grid"):
        told = rank.ended_well()
        assert told["compared"] > COMPARED_MIN
        assert told["with_gloo"] > WITH_GLOO_MIN


def test_torchrun_needs_nothing_else_set(torchrun: str) -> None:
    command = [torchrun, "--standalone", "--nproc-per-node=3", "-m", "tests.torch_backend.surface"]
    ran = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert sorted(one["rank"] for one in told) == [0, 1, 2]
    assert all(len(one["done"]) >= CHECKS_MIN for one in told)


@pytest.mark.parametrize("size", [2, 3])
def test_what_torch_builds_on_collectives_trains_as_with_gloo(torchrun: str, size: int) -> None:
    for rank in run_job(torchrun, size, "training"):
        assert len(rank.ended_well()["agreed"]) == SCENARIOS


def test_the_example_learns_the_same_with_r2ccl_and_gloo(torchrun: str) -> None:
    losses = []
    for backend in ("r2ccl", "gloo"):
        example = [str(ROOT / "examples" / "train_gpt.py"), "--steps=6", "--json", f"--backend={backend}"]
        ran = subprocess.run(
            [torchrun, "--standalone", "--nproc-per-node=2", *example],
            env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-4000:]
        losses.append([json.loads(line)["bits"] for line in ran.stdout.splitlines() if line.startswith("{")])
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]


def errors_of(torchrun: str, size: int, story: str, dead: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """What the ranks were told; of the one that is to die, how it did."""
    ranks = run_job(torchrun, size, "failures", [story], **options)
    if dead is not None:
        assert ranks[dead].code == -signal.SIGKILL
        del ranks[dead]
    return [rank.ended_well() for rank in ranks]


def test_who_is_killed_is_named_with_all_that_is_known(torchrun: str) -> None:
    for told in errors_of(torchrun, 3, "a_rank_is_killed", dead=1):
        error = told["error"]
        assert (error["kind"], error["ranks"], error["cause"]) == ("PeerLost", [1], "dead")
        notes = "\n".join(error["notes"])
        assert "all_reduce(float32[1000], sum), of the process group '0' of ranks [0, 1, 2]" in notes
        assert "NICs of this rank: nic0 (lo) up" in notes
        assert "the group refuses further work" in notes
        assert told["again"]["kind"] == "PeerLost"
        assert "the group refuses further work" in told["again"]["notes"][-1]
        assert told["others"] == ["PeerLost", "PeerLost"]
        assert told["call"] == "all_reduce(float32[1000], sum)"
        assert told["nics"]


def test_ddp_raises_our_words_and_does_not_crash(torchrun: str) -> None:
    for told in errors_of(torchrun, 3, "a_rank_is_killed_in_a_backward", dead=1):
        assert "PeerLost" in told["error"]["text"] + told["error"]["kind"]
        assert "lost rank(s) 1: dead" in told["error"]["text"]


def test_a_timeout_names_who_has_not_come(torchrun: str) -> None:
    for told in errors_of(torchrun, 3, "a_rank_does_not_come"):
        assert told["error"]["kind"] == "CollectiveTimeout"
        assert told["error"]["not_entered"] == [1]
        assert sorted([*told["error"]["entered"], *told["error"]["finished"]]) == [0, 2]


def test_a_monitored_barrier_names_who_has_not_come(torchrun: str) -> None:
    for told in errors_of(torchrun, 3, "a_rank_does_not_come_to_the_monitored_barrier"):
        assert (told["error"]["kind"], told["error"]["not_entered"]) == ("CollectiveTimeout", [2])


def test_unlike_calls_are_named(torchrun: str) -> None:
    for told in errors_of(torchrun, 3, "ranks_call_differently"):
        assert told["error"]["kind"] == "CollectiveMismatch"
        assert "float32[100001]" in told["error"]["text"]


def test_who_aborts_the_job_is_lost_to_the_others(torchrun: str) -> None:
    first, *others = errors_of(torchrun, 3, "the_job_is_aborted_by_one")
    assert first["aborted"]
    assert [(told["error"]["kind"], told["error"]["ranks"]) for told in others] == [("PeerLost", [0])] * 2


def test_a_program_ends_though_calls_are_in_flight(torchrun: str) -> None:
    first, *others = errors_of(torchrun, 3, "the_end_with_a_call_in_flight")
    assert first["ended"]
    assert all(told["error"]["kind"] in ("PeerLost", "CollectiveMismatch") for told in others)


def test_to_destroy_a_group_with_a_call_in_flight_ends_it(torchrun: str) -> None:
    first, *others = errors_of(torchrun, 3, "it_is_destroyed_with_a_call_in_flight")
    assert all(told["error"]["kind"] in ("PeerLost", "CollectiveMismatch", "CommunicatorClosed") for told in others)
    assert first["error"]["kind"] in ("PeerLost", "CollectiveMismatch", "CommunicatorClosed")


def test_workers_that_load_data_do_no_harm(torchrun: str) -> None:
    for told in errors_of(torchrun, 2, "workers_load_the_data"):
        assert told["seen"] == [780.0, 780.0]


def test_a_secret_that_some_lack_is_found_before_anything_is_opened(torchrun: str) -> None:
    for told in errors_of(torchrun, 3, "some_have_a_secret", of_rank={1: {"R2CCL_SECRET": "known to one alone"}}):
        assert told["error"]["kind"] == "ConfigurationError"
        assert "rank(s) 0, 2 have no secret" in told["error"]["text"]
