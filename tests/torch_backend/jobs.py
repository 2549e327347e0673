"""Starts the ranks of a job that uses torch, in the interpreter that has it, and collects what they say.

Without torchrun, which takes seconds to start: the variables that it sets are enough. One test uses it all the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r2ccl.rendezvous.free_port import free_port

ROOT = Path(__file__).parents[2]
#: torch takes seconds to import, on a busy machine many.
PATIENCE_S = 140.0


class Rank:
    """What became of one process."""

    def __init__(self, number: int, process: subprocess.Popen[str], said: str, errors: str) -> None:
        self.number = number
        self.code = process.returncode
        self.errors = errors
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.told: dict[str, Any] = lines[-1] if lines else {}

    def ended_well(self) -> dict[str, Any]:
        """What it said, if it ended as it should."""
        assert self.code == 0, f"rank {self.number} ended with {self.code}:\n{self.errors[-4000:]}"
        assert self.told, f"rank {self.number} said nothing:\n{self.errors[-4000:]}"
        return self.told


def environment(**variables: str) -> dict[str, str]:
    """Ours, with nothing in it that places a rank or configures r2ccl."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("R2CCL_", "TORCHELASTIC_", "MASTER_")) and name not in ("RANK", "WORLD_SIZE")
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    # One thread each: there are more ranks than cores.
    return {**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


def run_job(
    torchrun: str,
    size: int,
    module: str,
    arguments: Sequence[str] = (),
    of_rank: Mapping[int, Mapping[str, str]] | None = None,
    package: str = "tests.torch_backend",
    **variables: str,
) -> list[Rank]:
    """``size`` processes of a module of the tests."""
    python = str(Path(torchrun).with_name("python"))
    port = free_port()
    processes = []
    try:
        for rank in range(size):
            mine = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(
                subprocess.Popen(
                    [python, "-X", "faulthandler", "-m", f"{package}.{module}", *arguments],
                    env={**environment(**variables), **mine, **(of_rank or {}).get(rank, {})},
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = _outputs(processes)
    finally:
        for process in processes:
            process.kill()
    return [
        Rank(number, process, *output) for number, (process, output) in enumerate(zip(processes, outputs, strict=True))
    ]


def _outputs(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """What they say until they end. Where one does not, all are asked where they are."""
    try:
        return [process.communicate(timeout=PATIENCE_S) for process in processes]
    except subprocess.TimeoutExpired:
        ended = [process.poll() for process in processes]
        for process in processes:
            process.send_signal(signal.SIGABRT)  # faulthandler writes what each thread was doing
        told = [
            f"rank {number}, {'under way' if code is None else f'ended with {code}'}:\n{said[-1000:]}\n{errors[-6000:]}"
            for number, (code, (said, errors)) in enumerate(
                zip(ended, [process.communicate() for process in processes], strict=True)
            )
        ]
        raise AssertionError(f"not over after {PATIENCE_S:g} s:\n" + "\n".join(told)) from None
