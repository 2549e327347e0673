"""The command topology-check, as ranks on this machine's loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from r2ccl.cli.main import app
from r2ccl.rendezvous.free_port import free_port
from tests.end_to_end.ranks import ROOT

PATIENCE_S = 120.0


def run_ranks(*arguments: str, ranks: int = 3, nics: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "r2ccl.cli.main", "run", "-n", str(ranks), "--nics-per-rank", str(nics)]
    program = ["--", "-m", "r2ccl.cli.topology_check", *arguments]
    return subprocess.run(
        [*command, *program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_ranks_on_loopback_reach_one_another_and_rank_0_prints() -> None:
    done = run_ranks("--json", "--rate-seconds", "0.05")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(line.startswith("[0] ") for line in lines), "the others say nothing"
    told = json.loads("\n".join(line.removeprefix("[0] ") for line in lines))
    assert told["exit_code"] == 0
    assert {each["outcome"] for each in told["reach"]} == {"reached"}
    assert len(told["reach"]) == 3 * 2 * 4
    assert len(told["rates"]) == 6
    assert all(each["bytes_s"] > 0 for each in told["rates"])
    assert {each["path_bytes"] for each in told["mtu"]} == {65535}
    assert all(each["survived"] for each in told["survival"])
    for step in ("waiting up to", "reaching: 3 ranks", "finding MTUs: 3 ranks", "measuring nic1: 3 ranks"):
        assert f"[0] topology-check: {step}" in done.stderr


def test_a_rank_alone_has_nobody_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_NICS", "lo")
    done = CliRunner().invoke(app, ["topology-check", "--rank", "0", "--size", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("fine")


def test_a_rank_that_waits_in_vain_ends_with_2_and_names_who_is_missing() -> None:
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    arguments = ["--rank", "0", "--size", "3", "--rendezvous", rendezvous, "--nics", "lo", "--timeout", "0.5"]
    done = CliRunner().invoke(app, ["topology-check", *arguments, "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout) == {"exit_code": 2, "error": "ranks 1, 2 did not come within 0.5 s"}
    assert "rank 0 could not check: ranks 1, 2 did not come within 0.5 s" in done.stderr


def run_alone(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an environment that has nothing of ours."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_without_a_secret_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    program = (
        "from r2ccl.transport import nics; from r2ccl.transport.nics import Interface;"
        "nics.discover = lambda: [Interface('eth9', ('10.9.9.9',))];"
        "from r2ccl.cli.topology_check import main; main()"
    )
    arguments = ["--rank", "0", "--size", "2", "--rendezvous", f"tcp://10.9.9.9:{free_port()}"]
    done = run_alone(tmp_path, "-c", program, *arguments)
    assert done.returncode == 2
    assert "eth9 (10.9.9.9) can be reached from other hosts, and the job has no secret" in done.stderr
    assert "Traceback" not in done.stderr


def test_outside_a_job_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = run_alone(tmp_path, "-m", "r2ccl.cli.topology_check")
    assert done.returncode == 2
    assert "torchrun, mpirun or srun" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_help_has_examples_and_exit_codes() -> None:
    done = CliRunner().invoke(app, ["topology-check", "--help"])
    assert done.exit_code == 0
    assert "srun --ntasks-per-node=1" in done.stdout
    assert "Exit code" in done.stdout
