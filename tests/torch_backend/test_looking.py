"""What can be seen of torch's calls: flight-recorder files, read by torch's own analyser, and a profile."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.torch_backend.jobs import PATIENCE_S, environment, run_job

pytestmark = [pytest.mark.end_to_end, pytest.mark.torchrun, pytest.mark.timeout(300)]

#: Of all three ranks, and of two of them: calls that the analyser compares.
CALLS, MESSAGES_IN_RING = 14, 4


def looked_at(torchrun: str, story: str, directory: Path, **variables: Any) -> list[dict[str, Any]]:
    return [
        rank.ended_well() for rank in run_job(torchrun, 3, "looking", [story, str(directory)], **variables)
    ]  # fmt: skip


def analysed(torchrun: str, directory: Path, *options: str) -> str:
    """What torch's analyser says of the files."""
    command = [str(Path(torchrun).with_name("torchfrtrace")), *options, str(directory)]
    ran = subprocess.run(
        command, env=environment(), cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout + ran.stderr


def test_torchs_analyser_matches_every_kind_of_call(torchrun: str, tmp_path: Path) -> None:
    told = looked_at(torchrun, "all_is_well", tmp_path)
    assert [one["file"] for one in told] == ["trace_0", "trace_1", "trace_2"]
    assert told[0]["refused"]["kind"] == "UsageError"
    said = analysed(torchrun, tmp_path, "-v")
    assert "has errors" not in said, said
    assert "Not all ranks" not in said, said
    assert "non-matching" not in said, said
    # Each of both groups has its collectives, a message around the ring for each member, and one from anybody.
    matched = said.count("Collective(id=")
    assert matched >= 2 * CALLS + 3 + 2 + 2
    assert "collective_state='completed'" in said
    assert "collective_state='started'" not in said
    assert "collective_name='gloo:allreduce_coalesced', input_sizes=[[6], [3]]" in said
    assert "collective_name='gloo:send 1->0', input_sizes=[[6]]" in said


def test_torchs_analyser_names_who_called_something_else(torchrun: str, tmp_path: Path) -> None:
    prefix = str(tmp_path / "trace_")
    for told in looked_at(torchrun, "one_calls_something_else", tmp_path, TORCH_FR_DUMP_TEMP_FILE=prefix):
        assert told["error"]["kind"] == "CollectiveMismatch"
        assert told["files"] >= 1
    said = analysed(torchrun, tmp_path)
    assert "Collective sequence number: 3 has errors" in said, said
    assert "SIZE_OR_SYNTAX_MISMATCH" in said
    assert "[[100001]]" in said
    assert "one_calls_something_else at" in said


def test_torchs_analyser_names_who_did_not_come(torchrun: str, tmp_path: Path) -> None:
    for told in looked_at(torchrun, "one_does_not_come", tmp_path, TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "trace_")):
        assert told["error"]["kind"] == "CollectiveTimeout"
        assert told["error"]["not_entered"] == [2]
    said = analysed(torchrun, tmp_path)
    assert "Not all ranks joining collective, sequence number: 2" in said, said
    assert "missing ranks: {2}" in said
    assert "collective: gloo:all_reduce" in said
    assert "collective state: started" in said


def test_a_profile_has_calls_by_name_with_shapes_until_they_end(torchrun: str, tmp_path: Path) -> None:
    for told in looked_at(torchrun, "it_is_profiled", tmp_path):
        assert told["wrong"]["kind"] == "UsageError"
        kinds: dict[tuple[str, str], dict[str, Any]] = {}
        for event in told["events"]:
            kinds.setdefault((event["name"], event["kind"]), event)
        call, work = kinds["r2ccl:all_reduce", "cpu_op"], kinds["r2ccl:all_reduce", "user_annotation"]
        assert call["shapes"] == [[30, 40]]
        assert work["ended"] >= call["began"]  # another thread may end it before the call has returned
        assert ("r2ccl:all_gather", "user_annotation") in kinds
        assert [7] in kinds["r2ccl:all_gather", "cpu_op"]["shapes"]
        if told["rank"] == 0:
            barrier = kinds["r2ccl:barrier", "cpu_op"]
            assert call["ended"] <= barrier["began"] <= work["ended"]
