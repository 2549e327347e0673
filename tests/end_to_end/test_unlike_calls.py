"""Ranks that do not all do the same: every rank learns which one did not, and what it did instead."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.ranks import Answer, Rank, loopback, wait_until

pytestmark = pytest.mark.end_to_end

#: Generous: the figure aimed at is printed, not asserted.
PATIENCE_S = 5.0


def errors_of(answers: list[Answer], told_s: float, what: str) -> list[dict[str, Any]]:
    """The error of each, which must come soon."""
    errors = [answer.error() for answer in answers]
    slowest_s = max(error["at_s"] for error in errors) - told_s
    print(f"{what}: all ranks knew after {slowest_s * 1e3:.0f} ms")
    assert slowest_s < PATIENCE_S
    return errors


@pytest.mark.parametrize("elements", [1000, 1_000_000])
def test_different_sizes_are_a_mismatch_that_names_every_call(elements: int, tmp_path: Path) -> None:
    with loopback(4, tmp_path) as ranks:
        ranks.connect()
        told_s = time.monotonic()
        answers = [rank.tell("all_reduce", elements=elements + (rank.number == 2)) for rank in ranks.all]
        for error in errors_of(answers, told_s, "mismatch of sizes"):
            assert error["kind"] == "CollectiveMismatch"
            assert error["calls"] == {
                str(rank): f"all_reduce(float32[{elements + (rank == 2)}], sum)" for rank in range(4)
            }
        # And from now on it refuses work with the same reason.
        for answer in ranks.tell("barrier"):
            assert answer.error()["kind"] == "CollectiveMismatch"


@pytest.mark.parametrize("elements", [50_000, 500_000], ids=["within the credit", "beyond the credit"])
def test_different_kinds_dtypes_and_roots_are_a_mismatch(elements: int, tmp_path: Path) -> None:
    with loopback(4, tmp_path) as ranks:
        ranks.connect()
        told_s = time.monotonic()
        answers = [
            ranks[0].tell("broadcast", elements=elements, root=0),
            ranks[1].tell("broadcast", elements=elements, root=1),
            ranks[2].tell("barrier"),
            ranks[3].tell("all_reduce", elements=50_000, dtype="float64"),
        ]
        for error in errors_of(answers, told_s, "mismatch of kinds"):
            assert error["kind"] == "CollectiveMismatch"
            assert error["calls"] == {
                "0": f"broadcast(float32[{elements}], root=0)",
                "1": f"broadcast(float32[{elements}], root=1)",
                "2": "barrier()",
                "3": "all_reduce(float64[50000], sum)",
            }


def test_a_rank_that_does_not_come_is_named_when_the_time_is_up(tmp_path: Path) -> None:
    with loopback(4, tmp_path) as ranks:
        ranks.connect()
        told_s = time.monotonic()
        answers = [ranks[rank].tell("all_reduce", elements=1_000_000, limit_s=1.5) for rank in (0, 1, 3)]
        for error in errors_of(answers, told_s, "time-out of 1.5 s"):
            assert error["kind"] == "CollectiveTimeout"
            assert error["not_entered"] == [2]
            assert set(error["entered"]) <= {0, 1, 3}
            assert len(error["entered"]) == 3
            assert error["finished"] == []


def test_the_environment_sets_the_time_limit_too(tmp_path: Path) -> None:
    with loopback(2, tmp_path, env={"R2CCL_TIMEOUT_SEC": "1"}) as ranks:
        ranks.connect()
        error = ranks[0].tell("barrier").error()
        assert error["kind"] == "CollectiveTimeout"
        assert error["not_entered"] == [1]


def hears_of_laggards(rank: Rank) -> bool:
    return bool(rank.ask("events", name="waiting"))


def test_without_a_limit_the_missing_rank_is_logged_and_may_still_come(tmp_path: Path) -> None:
    with loopback(3, tmp_path, env={"R2CCL_LAGGARD_LOG": "0.7"}) as ranks:
        ranks.connect()
        waiting = [ranks[rank].tell("all_reduce", elements=100_000) for rank in (0, 2)]
        for rank in (0, 2):
            wait_until(partial(hears_of_laggards, ranks[rank]), "a word about laggards")
            (event,) = ranks[rank].ask("events", name="waiting")
            assert "[1]" in str(event["fields"]["not_entered"])
        assert ranks[1].ask("all_reduce", elements=100_000) == 0
        assert [answer.value() for answer in waiting] == [0, 0]
        ranks.end_well()


def test_a_buffer_may_be_rewritten_the_moment_its_time_is_up(tmp_path: Path) -> None:
    """What is written to a buffer after the time-out reaches nobody as a result, and nobody writes to it any more."""
    with loopback(3, tmp_path) as ranks:
        ranks.connect()
        rewriting = [ranks[rank].tell("all_reduce_and_rewrite", elements=8_000_000, limit_s=1.0) for rank in (0, 1)]
        time.sleep(0.2)
        # It enters, and then reads nothing for so long that the others give up with their chunks under way.
        late = ranks[2].tell("all_reduce", elements=8_000_000)
        ranks[2].ask("block", seconds=1.3)
        for answer in rewriting:
            about = answer.value()
            assert about["kind"] == "CollectiveTimeout"
            assert about["overwritten"] == 0
        assert late.error()["kind"] == "CollectiveTimeout"
