"""``r2ccl tune`` with real ranks, and jobs that go by what it wrote."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import r2ccl
from r2ccl.communicator import Communicator
from r2ccl.planner.fit import Sample
from r2ccl.rendezvous.free_port import free_port
from r2ccl.tuning import Tuning, WireCost, read_tuning, write_tuning

pytestmark = pytest.mark.end_to_end

R2CCL = [sys.executable, "-m", "r2ccl.cli.main"]
PATIENCE_S = 240.0
COST = WireCost(25e-6, 0.5e-9, 5e-6, 1e-11)
TUNING = Tuning(0.1e-9, shared_memory=COST, loopback=WireCost(60e-6, 1e-9, 6e-6, 1e-11))


def r2ccl_says(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environ.pop("R2CCL_TUNING", None)
    return subprocess.run([*R2CCL, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=environ)


def test_it_starts_ranks_measures_and_writes_what_is_found_afterwards(tmp_path: Path) -> None:
    told = r2ccl_says("tune", "--turns", "1", "--json", cache=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    found = json.loads(told.stdout)
    written = read_tuning(tmp_path / "r2ccl" / "tuning.json")
    assert found["file"] == str(written.path)
    assert "loopback" in found["wires"]
    assert set(written.tuning.wires()) == set(found["wires"])
    for wire, cost in written.tuning.wires().items():
        assert found["wires"][wire]["alpha_s"] == cost.alpha_s
        samples = [Sample(**sample) for sample in found["wires"][wire]["samples"]]
        assert {one.algorithm for one in samples} == {"recursive_doubling", "ring", "halving_doubling"}
    told = r2ccl_says("info", "--json", cache=tmp_path)
    assert json.loads(told.stdout)["tuning"]["file"] == str(written.path)


def test_in_a_job_its_ranks_measure_and_one_of_them_speaks(tmp_path: Path) -> None:
    told = r2ccl_says(
        "run", "-n", "3", "--", "-m", "r2ccl.cli.main", "tune", "--turns", "1", "--dry-run", cache=tmp_path
    )
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert lines
    assert all(line.startswith("[0] ") for line in lines)
    assert "[0] 3 ranks on loopback:" in lines
    assert lines[-1] == "[0] nothing was written (--dry-run)"
    assert not (tmp_path / "r2ccl").exists()


async def both(tunings: tuple[str, str], **settings: Any) -> tuple[Communicator, Communicator]:
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    connecting = [
        r2ccl.connect(
            rank=rank, size=2, rendezvous=rendezvous, nics=f"127.0.1.{rank + 1}", tuning=tuning, job="tuned", **settings
        )
        for rank, tuning in enumerate(tunings)
    ]
    one, other = await asyncio.gather(*connecting)
    return one, other


async def reasons(comms: tuple[Communicator, Communicator]) -> list[str]:
    """Why both ranks do an all-reduce as they do, after they have done it."""
    await asyncio.gather(*(comm.all_reduce(np.ones(100, np.float32)) for comm in comms))
    planned = [next(iter(comm._epochs.newest._kept.values())).reason for comm in comms]
    await asyncio.gather(*(comm.close() for comm in comms))
    return planned


@pytest.mark.parametrize(("shared_memory", "wire"), [("off", "loopback"), ("auto", "")])
async def test_all_ranks_plan_by_the_figures_of_rank_0(tmp_path: Path, shared_memory: str, wire: str) -> None:
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    write_tuning(mine, TUNING, "mine")
    write_tuning(theirs, Tuning(9e-9), "theirs")
    for other in (str(theirs), "off"):
        comms = await both((str(mine), other), shared_memory=shared_memory)
        members = {comm._runtime.shared.tuning for comm in comms}
        one, two = await reasons(comms)
        assert one == two
        assert f"by what was measured on {wire}" in one
        assert members == {TUNING if shared_memory == "auto" else TUNING.without_shared_memory()}


async def test_what_only_another_rank_knows_counts_for_nobody(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.json"
    write_tuning(theirs, TUNING, "theirs")
    one, two = await reasons(await both(("off", str(theirs))))
    assert one == two
    assert "measured" not in one


async def test_a_file_that_cannot_be_right_stops_connect_before_anything_is_opened(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": 1}')
    with pytest.raises(r2ccl.ConfigurationError, match="this is no tuning: 'wires' is missing.*R2CCL_TUNING=off"):
        await r2ccl.connect(rank=0, size=2, rendezvous="tcp://127.0.0.1:1", tuning=str(broken))
    with pytest.raises(r2ccl.ConfigurationError, match="no algorithm for all_reduce is called 'rign'"):
        await r2ccl.connect(rank=0, size=2, rendezvous="tcp://127.0.0.1:1", algorithms="all_reduce=rign")


async def test_ranks_that_ask_for_different_algorithms_end_in_a_mismatch() -> None:
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    comms = await asyncio.gather(*(
        r2ccl.connect(
            rank=rank, size=2, rendezvous=rendezvous, nics=f"127.0.1.{rank + 1}", algorithms=asked, job="unlike"
        )
        for rank, asked in enumerate(("", "all_reduce=ring"))
    ))  # fmt: skip
    called = (comm.all_reduce(np.ones(4, np.float32)) for comm in comms)
    failures = await asyncio.gather(*called, return_exceptions=True)
    assert [type(failure) for failure in failures] == [r2ccl.CollectiveMismatch] * 2
    assert "R2CCL_ALGORITHMS all_reduce=ring" in str(failures[0])
    for comm in comms:
        comm.abort()
