"""Ranks on this machine: they meet, compute, close, and say clearly why if they cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from r2ccl.config import environment
from tests.end_to_end.ranks import PATIENCE_S, ROOT, loopback

pytestmark = pytest.mark.end_to_end

SCRIPT = """
import asyncio
import numpy as np
import r2ccl

async def main():
    async with r2ccl.connect() as comm:
        x = np.full(100_000, comm.rank + 1, np.float32)
        await comm.all_reduce(x)
        assert (x == comm.size * (comm.size + 1) // 2).all()
        await comm.barrier()
        print("rank", comm.rank, "of", comm.size, "is right")

asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_connect_compute_and_close(size: int, loop: str, tmp_path: Path) -> None:
    with loopback(size, tmp_path, loop=loop) as ranks:
        connected = ranks.ask("connect")
        assert [about["rank"] for about in connected] == list(range(size))
        assert all(about["loop"].startswith("uvloop") is (loop == "uvloop") for about in connected)
        assert ranks.ask("collectives") == [0] * size
        ranks.end_well()


def test_ranks_with_several_nics_use_them_all(tmp_path: Path) -> None:
    with loopback(2, tmp_path, nics=3, env={"R2CCL_SHARED_MEMORY": "off"}) as ranks:
        ranks.connect()
        ranks.ask("all_reduce", elements=4_000_000)
        for stats in ranks.ask("stats"):
            assert all(stats["counters"]["nics"][f"nic{nic}"]["sent_bytes"] > 0 for nic in range(3))
        ranks.end_well()


def test_a_script_runs_as_ranks_under_the_launcher(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    argv = [sys.executable, "-m", "r2ccl.cli.main", "run", "-n", "4", "--nics-per-rank", "2", str(script)]
    environ = {**environment(), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{rank}] rank {rank} of 4 is right" for rank in range(4)]


def test_after_connect_nobody_listens_for_newcomers(tmp_path: Path) -> None:
    with loopback(3, tmp_path) as ranks:
        ranks.connect()
        for rank in ranks.all:
            listening = [
                found.laddr
                for found in psutil.Process(rank.process.pid).net_connections("inet")
                if found.status == psutil.CONN_LISTEN
            ]
            # Only the NIC's own listener, where lost links come back in.
            assert [where.ip for where in listening] == [f"127.0.1.{rank.number + 1}"]
        assert ranks.ask("collectives") == [0] * 3
        ranks.end_well()


def test_a_wrong_secret_is_refused_on_both_sides(tmp_path: Path) -> None:
    with loopback(2, tmp_path, env_of={1: {"R2CCL_SECRET": "another"}}) as ranks:
        refused = [answer.error() for answer in ranks.tell("connect")]
    assert [about["kind"] for about in refused] == ["AuthenticationError"] * 2
    for about in refused:
        assert "secret" in about["text"]


def test_another_version_is_refused_and_both_are_named(tmp_path: Path) -> None:
    with loopback(2, tmp_path) as ranks:
        answers = [ranks[0].tell("connect"), ranks[1].tell("connect", version="0.0.7")]
        refused = [answer.error() for answer in answers]
    for about in refused:
        assert about["kind"] == "AuthenticationError"
        assert "0.0.7" in about["text"]


def test_a_rank_that_never_connects_is_named(tmp_path: Path) -> None:
    with loopback(3, tmp_path) as ranks:
        refused = [ranks[rank].tell("connect", timeout=2.0) for rank in (0, 2)]
        for answer in refused:
            about = answer.error()
            assert about["kind"] == "RendezvousError"
            assert "rank 1" in about["text"]
