"""Horovod's names between real processes: what ranks check is in horovod_style.py and horovod_optimizer.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.torch_backend.jobs import PATIENCE_S, ROOT, environment, run_job

pytestmark = [pytest.mark.end_to_end, pytest.mark.torchrun, pytest.mark.timeout(300)]

CALLS, TRAININGS = 8, 9
ALONE = (
    "import torch, r2ccl.horovod_style as hvd; hvd.init(); "
    "print(hvd.size(), hvd.local_size(), hvd.allreduce(torch.ones(2)).tolist()); hvd.shutdown(); hvd.shutdown()"
)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("module", "checks"), [("horovod_style", CALLS), ("horovod_optimizer", TRAININGS)])
def test_every_call_and_the_trainings_are_as_they_should_be(torchrun: str, module: str, checks: int, size: int) -> None:
    for rank in run_job(torchrun, size, module):
        assert len(rank.ended_well()["held"]) == checks


def alone(torchrun: str, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(torchrun).with_name("python")), "-c", program],
        env=environment(**variables), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_a_job_of_one_needs_no_place_to_meet(torchrun: str) -> None:
    ran = alone(torchrun, ALONE, RANK="0", WORLD_SIZE="1")
    assert ran.stdout == "1 1 [1.0, 1.0]\n", ran.stderr[-2000:]


def test_a_process_that_nobody_placed_does_not_train_alone(torchrun: str) -> None:
    ran = alone(torchrun, ALONE)
    assert ran.returncode == 1
    assert "r2ccl.errors.ConfigurationError: missing: RANK (rank=) and WORLD_SIZE (size=)" in ran.stderr


def test_a_group_of_another_backend_is_refused(torchrun: str) -> None:
    program = "import torch.distributed as d; d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1); "
    ran = alone(torchrun, program + ALONE)
    assert "UsageError: communicator: the group is none of r2ccl: its backend is gloo" in ran.stderr


def test_torchrun_starts_it(torchrun: str) -> None:
    command = [torchrun, "--standalone", "--nproc-per-node=2", "-m", "tests.torch_backend.horovod_style"]
    ran = subprocess.run(
        [*command, "who_takes_part", "sums_and_averages"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.count('["who_takes_part", "sums_and_averages"]') == 2
