"""``r2ccl faults`` from begin to end, short: two faults once, beside plain streams, and a few random cuts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

FAULTS = ("link-down", "deaf")


def test_the_table_is_written_and_no_element_is_wrong(tmp_path: Path) -> None:
    page_file, kept = tmp_path / "faults.md", tmp_path / "kept.json"
    command = [sys.executable, "-m", "r2ccl.cli.main", "faults", ",".join(FAULTS), "--cuts", "1", "--random-cuts", "20"]
    files = ["--write", str(page_file), "--keep", str(kept), "--plot", str(tmp_path / "faults.svg")]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [*command, *files, "--no-peers", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        env=environ,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["wrong_elements"] == 0
    assert told["errors"] == []
    assert set(told["figures"]) == {f"{fault}/{who}" for fault in FAULTS for who in ("r2ccl", "plain")}
    for fault in FAULTS:
        ours = told["figures"][f"{fault}/r2ccl"]
        assert ours["trials"] == 1
        assert ours["operations"] > 0
        assert 0 < ours["detection_ms"]["median"] <= ours["repair_ms"]["median"]
        assert ours["gap_ms"]["median"] > 0
        assert ours["during_gbit_s"]["median"] > 0
    assert told["figures"]["link-down/r2ccl"]["detected_by"] == [["nic: carrier", 1]]
    assert told["random"]["cuts"] == 20
    assert told["random"]["operations"] > 0
    rows = [line for line in page_file.read_text().splitlines() if line.startswith("| ")]
    ours, beside = (line.split(" | ") for line in rows if line.startswith("| link down at the far end"))
    assert ours[1] == "nic: carrier"
    assert ours[8] == "0"
    assert beside[2:4] == ["–", "–"]
    assert "faults.svg" in page_file.read_text()
    assert json.loads(kept.read_text())["rounds"][0]["cuts"] == 20
