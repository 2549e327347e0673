"""After a loss, between real processes: the survivors go on, and ending never hangs. See recovery.py."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.torch_backend.jobs import run_job

pytestmark = [pytest.mark.end_to_end, pytest.mark.torchrun, pytest.mark.timeout(300)]


def told_by(torchrun: str, size: int, story: str, *dead: int) -> list[dict[str, Any]]:
    """What the ranks that live to tell said."""
    ranks = run_job(torchrun, size, "recovery", [story])
    assert [rank.number for rank in ranks if rank.code == -signal.SIGKILL] == list(dead)
    return [rank.ended_well() for rank in ranks if rank.number not in dead]


def test_the_default_group_goes_on_without_who_is_lost_and_loses_another(torchrun: str) -> None:
    told = told_by(torchrun, 4, "the_default_group_is_shrunk_after_losses", 1, 3)
    assert [one["rank"] for one in told] == [0, 2]
    for number, one in enumerate(told):
        first, second, before = one["errors"]
        assert [error["kind"] for error in one["errors"]] == ["PeerLost"] * 3
        # Errors name ranks of the job.
        assert (first["ranks"], second["ranks"], before["ranks"]) == ([1], [3], [1])
        assert (one["once"]["size"], one["twice"]["size"]) == (3, 2)
        assert (one["once"]["new_rank"], one["twice"]["new_rank"]) == (number, number)
        assert (one["once"]["total"], one["twice"]["total"]) == (3, 2)
        assert (one["once"]["in_part"], one["twice"]["in_part"]) == (2, 2)
        assert (one["once"]["told"], one["twice"]["told"]) == (2, 1)
        assert (one["twice"]["backend"], one["twice"]["name"]) == ("r2ccl", "default:shrunken")
        assert one["once"]["ok"]
        assert one["members"] == [0, 2]
        assert one["ended"]


def test_a_group_goes_on_while_the_default_group_cannot(torchrun: str) -> None:
    told = told_by(torchrun, 4, "a_group_is_shrunk_alone", 2)
    assert [one["error"]["kind"] for one in told] == ["PeerLost"] * 3
    assert [one["sizes"] for one in told] == [[1], [2, 2, 1, 3], [2, 2, 1, 3]]


def test_ranks_are_left_out_without_a_loss(torchrun: str) -> None:
    told = told_by(torchrun, 4, "some_are_left_out")
    assert [one["sizes"] for one in told] == [[3, 3, 2], [3, 3], [], [3, 3, 2]]
    assert all("must be ranks of the group, and not this one" in one["wrong"]["text"] for one in told)


def test_torchs_own_call_is_refused_where_the_members_agree_on_others(torchrun: str) -> None:
    """Before torch 2.14 its call cannot work, and says so."""
    for one in told_by(torchrun, 4, "torchs_own_call_agrees_after_a_loss", 3):
        assert (one["error"]["kind"], one["error"]["ranks"]) == ("PeerLost", [3])
        if one["torchs_own"]:
            assert one["refused"]["kind"] == "UsageError"
            assert "go on with [0, 1, 2]: exclude all others" in one["refused"]["text"]
        else:
            assert one["refused"]["kind"] == "TypeError"
            assert "does not support shrinking" in one["refused"]["text"]
        assert one["sizes"] == [3, 3]


def test_survivors_agree_and_are_reconfigured(torchrun: str) -> None:
    told = told_by(torchrun, 3, "it_is_reconfigured", 0)
    assert [one["rank"] for one in told] == [1, 2]
    first, second = told
    assert first["error"]["kind"] == "PeerLost"
    assert (first["uuid"], first["left"]) == (second["uuid"], second["left"])
    assert [handle.split(":")[1] for handle in first["left"]] == ["1", "2"]
    assert [one["sizes"][-4:] for one in told] == [[2, 0, 2, 2], [2, 1, 2, 2]]
    # From torch 2.14 on: all three again, and all three backwards.
    assert [one["sizes"][:-4] for one in told] in ([[], []], [[3, 3, 1, 3], [3, 3, 0, 3]])


def test_who_does_not_shrink_is_named(torchrun: str) -> None:
    told = told_by(torchrun, 4, "one_does_not_shrink", 1)
    assert [one["first"]["kind"] for one in told] == ["PeerLost"] * 3
    for one in (told[0], told[2]):
        assert (one["error"]["kind"], one["error"]["not_entered"]) == ("CollectiveTimeout", [2])
    assert told[1]["error"] is None


def test_several_threads_may_end_it_at_once_and_nobody_hangs(torchrun: str) -> None:
    for one in told_by(torchrun, 3, "it_is_destroyed_from_several_threads"):
        assert one["raised"][1:5] == [""] * 4
        # torch's own may have found that another one was faster.
        assert one["raised"][0] in ("", "AssertionError", "ValueError", "KeyError")
        assert all(raised in ("CommunicatorClosed", "PeerLost") for raised in one["raised"][5:])
        assert one["again"][0] in ("AssertionError", "ValueError")
        assert one["works"] == ["CommunicatorClosed"]


def test_it_ends_while_a_rank_is_stopped(torchrun: str) -> None:
    told = told_by(torchrun, 3, "a_rank_is_stopped_and_the_others_destroy")
    for one in (told[0], told[2]):
        assert one["raised"][0] == ""
        assert one["raised"][1] in ("CommunicatorClosed", "PeerLost")
    assert told[1]["error"]["kind"] in ("PeerLost", "CommunicatorAborted")
    assert told[1]["raised"] == [""]


def test_a_killed_rank_whose_workers_live_on_is_lost(torchrun: str) -> None:
    told = told_by(torchrun, 3, "a_killed_rank_leaves_workers_behind", 1)
    assert [one["rank"] for one in told] == [0, 2]
    for one in told:
        assert (one["error"]["kind"], one["error"]["ranks"], one["error"]["cause"]) == ("PeerLost", [1], "dead")
        # Its workers were there, and its own go on.
        assert one["alive"] == 2
        assert one["sizes"] == [2, 2]
        assert one["more"] == 15
