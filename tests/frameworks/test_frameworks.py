"""What others build on torch.distributed trains on r2ccl as on gloo. ``make test-frameworks`` gets the packages.

Each trains the same small network for some steps, once with each backend; with two ranks there is one order in which
to add, so the losses must be the same to the bit. A package that cannot be had is skipped, with the reason.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.torch_backend.jobs import Rank, run_job

pytestmark = [pytest.mark.end_to_end, pytest.mark.frameworks, pytest.mark.timeout(400)]

RANKS, STEPS = 2, 12
#: By the module that trains, the package that it needs.
FRAMEWORKS = {
    "train_horovod_style": "torch",
    "train_accelerate": "accelerate",
    "train_deepspeed": "deepspeed",
    "train_lightning": "lightning",
}


@pytest.fixture(scope="session")
def python(pytestconfig: pytest.Config) -> str:
    """The Python that has the frameworks."""
    path: str = pytestconfig.getoption("--frameworks")
    return str(Path(path).absolute())


def why_not(python: str, package: str) -> str:
    """Why a package is not there; empty if it is."""
    asked = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    if not subprocess.run([python, "-c", asked, package], check=False, timeout=100).returncode:
        return ""
    log = Path(python).parents[1] / "missing" / package
    errors = [line for line in log.read_text().splitlines() if line.startswith("ERROR")] if log.exists() else []
    return f"{package} cannot be had: {errors[0] if errors else 'it is not installed'}"


def trained(python: str, module: str, backend: str) -> list[Rank]:
    """The ranks, placed as torchrun places them."""
    of_rank = {rank: {"LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank)} for rank in range(RANKS)}
    variables = {"LOCAL_WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": "none", "DS_ACCELERATOR": "cpu"}
    return run_job(python, RANKS, module, [backend], of_rank, package="tests.frameworks", **variables)


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_framework_trains_as_with_gloo(python: str, module: str) -> None:
    if why := why_not(python, FRAMEWORKS[module]):
        pytest.skip(why)
    ours = [rank.ended_well() for rank in trained(python, module, "r2ccl")]
    theirs = [rank.ended_well() for rank in trained(python, module, "gloo")]
    assert [told["backend"] for told in ours] == ["r2ccl"] * RANKS
    assert [told["backend"] for told in theirs] == ["gloo"] * RANKS
    losses = ours[0]["losses"]
    assert len(losses) == STEPS
    assert sum(losses[-3:]) < sum(losses[:3]) / 2, "it has learnt nothing"
    assert all(told["losses"] == losses for told in (*ours, *theirs))
    assert len({told["sum"] for told in (*ours, *theirs)}) == 1, "the parameters differ"
