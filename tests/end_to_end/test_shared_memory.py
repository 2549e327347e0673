"""Ranks of one node, as processes, share memory; of it nothing is left when they are killed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.transport.shared_ring import rings_work_here
from tests.end_to_end.ranks import PATIENCE_S, ROOT, Ranks, RunningStream, loopback

pytestmark = [pytest.mark.end_to_end]

OURS = "memfd:r2ccl"


def segments_of(ranks: Ranks) -> set[str]:
    """Which files of ours the ranks have mapped: their inodes."""
    found = set()
    for rank in ranks.all:
        with open(f"/proc/{rank.process.pid}/maps") as maps:
            found |= {line.split()[4] for line in maps if OURS in line}
    return found


def segments_left(inodes: set[str]) -> set[str]:
    """Those of them that any process that we may look at still has mapped."""
    left = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text()
        except OSError:
            continue
        left |= {line.split()[4] for line in maps.splitlines() if OURS in line} & inodes
    return left


def listeners() -> set[str]:
    """Abstract sockets of ours that exist on this host."""
    with open("/proc/net/unix") as sockets:
        return {line.split()[-1] for line in sockets if "@r2ccl-" in line}


def sent_by_memory(ranks: Ranks) -> list[int]:
    return [stats["counters"]["nics"]["memory"]["sent_bytes"] for stats in ranks.ask("stats")]


def test_ranks_of_one_node_use_no_nic_for_their_data(tmp_path: Path) -> None:
    assert rings_work_here()
    with loopback(3, tmp_path, nics=2) as ranks:
        ranks.connect()
        ranks.ask("all_reduce", elements=4_000_000)
        assert min(sent_by_memory(ranks)) > 4_000_000
        for stats in ranks.ask("stats"):
            by_nics = [row["sent_bytes"] for nic, row in stats["counters"]["nics"].items() if nic != "memory"]
            assert sum(by_nics) == 0
        assert ranks.ask("collectives") == [0] * 3
        ranks.end_well()


def test_ranks_that_are_not_to_share_memory_do_not(tmp_path: Path) -> None:
    with loopback(2, tmp_path, env={"R2CCL_SHARED_MEMORY": "off"}) as ranks:
        ranks.connect()
        ranks.ask("all_reduce", elements=1_000_000)
        assert segments_of(ranks) == set()
        for stats in ranks.ask("stats"):
            assert stats["counters"]["nics"]["nic0"]["sent_bytes"] > 0
        ranks.end_well()


def test_ranks_of_which_one_shares_no_memory_go_by_nics(tmp_path: Path) -> None:
    with loopback(2, tmp_path, env_of={1: {"R2CCL_SHARED_MEMORY": "off"}}) as ranks:
        ranks.connect()
        assert ranks.ask("all_reduce", elements=1_000_000) == [0, 0]
        assert segments_of(ranks) == set()
        ranks.end_well()


@pytest.mark.parametrize("victims", [(0,), (1, 2), (0, 1, 2)])
def test_of_killed_ranks_no_memory_is_left(victims: tuple[int, ...], tmp_path: Path) -> None:
    before = listeners()
    with loopback(3, tmp_path) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, 1_000_000)
        stream.go_on(3)
        inodes, names = segments_of(ranks), listeners() - before
        assert len(names) >= 3
        assert len(inodes) >= 6, "a segment for control and one for bulk between any two"
        for victim in victims:
            ranks[victim].signal(signal.SIGKILL)
        for rank, answer in enumerate(stream.answers):
            if rank not in victims:
                error = answer.error()
                assert (error["kind"], error["cause"]) == ("PeerLost", "dead")
        for rank in range(3):
            if rank not in victims:
                ranks[rank].signal(signal.SIGKILL)
        assert [rank.process.wait(PATIENCE_S) for rank in ranks.all] == [-signal.SIGKILL] * 3
        assert segments_left(inodes) == set()
        assert not names & listeners()
        assert not [name for name in os.listdir("/dev/shm") if "r2ccl" in name]


def test_no_frame_is_slept_through() -> None:
    """Three pairs at once, so that every process is held up at every place: a lost wake-up was found so."""
    script, environ = str(Path(__file__).with_name("ping_pong.py")), {**os.environ, "PYTHONPATH": str(ROOT)}
    marks = [secrets.token_hex(8) for _ in range(3)]
    throwers, catchers = (
        [
            subprocess.Popen([sys.executable, script, rank, mark, "8"], env=environ, stdout=subprocess.PIPE, text=True)
            for mark in marks
        ]
        for rank in "01"
    )
    try:
        frames = [int(thrower.communicate(timeout=PATIENCE_S)[0]) for thrower in throwers]
        print(f"{frames} frames were thrown and came back")
        assert min(frames) > 0
        assert [process.wait(PATIENCE_S) for process in (*throwers, *catchers)] == [0] * 6
    finally:
        for process in (*throwers, *catchers):
            process.kill()
            process.communicate()
