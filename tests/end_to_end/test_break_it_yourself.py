"""The tour of docs/break-it-yourself.md, command by command, as a reader would type it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "break-it-yourself.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 280


def commands() -> list[str]:
    """All of the page, in order."""
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def test_the_tour_goes_as_it_is_written(tmp_path: Path) -> None:
    tour = commands()
    assert len(tour) > 10
    # What it writes goes elsewhere; otherwise it is the page's text. A line that fails ends it.
    log = tmp_path / "train.log"
    script = ["set -e", "trap 'r2ccl lab down --name tour >/dev/null 2>&1 || true' EXIT"]
    script += [line.replace("train.log", shlex.quote(str(log))) for line in tour]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    said, trained = done.stdout, log.read_text() if log.exists() else ""
    assert done.returncode == 0, f"{said}\n{done.stderr}\n{trained}"
    assert "parameters are the same on all ranks, to the bit" in trained, trained
    assert "cause=carrier" in trained, trained
    assert "cause=silence" in trained, trained
    assert said.rstrip().endswith("tour is down"), said
    status = subprocess.run(
        ["r2ccl", "lab", "status"], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert "tour" not in status.stdout
