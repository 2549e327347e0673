"""The example in the lab: four hosts train a GPT, one loses a NIC and gets it back, and the losses are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch_backend.jobs import ROOT

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.torchrun,
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

STEPS = 40
#: Losses are near 3; a float32 has seven digits.
DIGITS = 1e-5


def test_the_loss_of_a_nic_changes_no_bit_of_the_loss_until_a_replan(torchrun: str) -> None:
    example = str(ROOT / "examples" / "train_gpt_through_a_cut.py")
    path = "".join(f":{one}" for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one)
    options = ["--python", str(Path(torchrun).with_name("python")), f"--path={path}", f"--steps={STEPS}", "--json"]
    ran = subprocess.run(
        [sys.executable, example, *options], cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["steps"] == STEPS
    replanned, different = told["replanned_before_the_end_of_step"], told["first_different_step"]
    if different is not None:
        assert replanned is not None
        assert different >= replanned
    assert told["largest_difference"] < DIGITS
    assert told["loss"][0] < 3.5
