"""The demo itself, with real processes: short, but whole."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.lab.leftovers import sweep

pytestmark = pytest.mark.end_to_end

PROGRAM = "import typer; from r2ccl.cli.demo import demo_command; typer.run(demo_command)"
ONE_CUT = ["--cuts", "1", "--seconds", "5", "--seed", "1"]


def demo(*arguments: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", PROGRAM, *arguments], **pipes, text=True, env=environ
    )


def result(*arguments: str) -> tuple[dict[str, object], str]:
    process = demo("--json", *ONE_CUT, *arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    told = json.loads(out)
    assert isinstance(told, dict)
    return told, err


def expect_recovery(told: dict[str, object], emulation: str) -> None:
    assert told["emulation"] == emulation
    assert told["wrong_elements"] == 0
    assert told["failovers"] == 1
    assert int(str(told["operations"])) > 0


@pytest.mark.namespaces
@pytest.mark.parametrize("fault", ["link-down", "silent-drop"])
def test_a_cut_between_emulated_hosts_is_survived(fault: str):
    told, said = result("--fault", fault)
    expect_recovery(told, "namespaces")
    assert f"({fault})" in said
    assert "[R2CCL] Successfully recovered in 0." in said


@pytest.mark.namespaces
def test_a_spare_takes_over_and_the_picture_is_drawn(tmp_path: Path):
    told, _ = result("--spare", "--plot", str(tmp_path / "demo.png"))
    expect_recovery(told, "namespaces")
    assert told["nics_per_rank"] == 3
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_cut_on_loopback_is_survived_and_it_says_why_loopback():
    told, said = result("--loopback", "--ranks", "2")
    expect_recovery(told, "loopback")
    assert "as you asked" in said


def test_what_cannot_be_done_is_refused_in_one_line():
    process = demo("--cuts", "10", "--seconds", "5")
    out, err = process.communicate()
    assert process.returncode == 2
    assert len((out + err).splitlines()) == 1
    assert "10 cuts need 26.5 s" in out + err


@pytest.mark.namespaces
def test_a_demo_that_is_killed_leaves_no_rank_behind():
    with demo() as process:
        assert process.stdout is not None
        while "are connected" not in (line := process.stdout.readline()):
            assert line, "the demo ended"
        # Ranks are children of the threads that live in their namespaces.
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        ranks = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        descriptors = [os.pidfd_open(pid) for pid in ranks]
        assert len(descriptors) == 4
        process.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 5.0)[0]
        os.close(descriptor)
    assert sweep() == []
