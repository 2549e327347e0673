"""The examples do what they say, as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*command: str) -> str:
    """Run a command to its end and return what it printed; fail with that if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hello_all_reduce_is_right_on_every_rank():
    script = str(EXAMPLES / "hello_all_reduce.py")
    printed = run(sys.executable, "-m", "r2ccl.cli.main", "run", "-n", "4", script)
    for rank in range(4):
        assert f"rank {rank} of 4: 1048576 elements, each 10, as it should be" in printed


def test_the_stream_ends_on_all_ranks_after_the_same_operation():
    script = str(EXAMPLES / "all_reduce_stream.py")
    options = ("--seconds", "0.5", "--elements", "10000")
    printed = run(sys.executable, "-m", "r2ccl.cli.main", "run", "-n", "3", script, *options)
    ends = re.findall(r"rank (\d): the end: (\d+) operations \(\d+/s\), 0 wrong elements", printed)
    assert sorted(rank for rank, _ in ends) == ["0", "1", "2"]
    assert len({operations for _, operations in ends}) == 1


def test_without_a_loop_every_rank_finds_pi():
    printed = run(sys.executable, "-m", "r2ccl.cli.main", "run", "-n", "3", str(EXAMPLES / "without_a_loop.py"))
    found = re.findall(r"rank (\d) of 3: pi is about (3\.1[34]\d), by 999999 points", printed)
    assert sorted(rank for rank, _ in found) == ["0", "1", "2"]
    assert len({pi for _, pi in found}) == 1


def test_messages_and_groups_make_up_one_rod():
    printed = run(sys.executable, "-m", "r2ccl.cli.main", "run", "-n", "4", str(EXAMPLES / "messages_and_groups.py"))
    found = re.findall(r"rank (\d), (\d) of 2 in its half: at most (\d+\.\d) there", printed)
    assert sorted((rank, of_half) for rank, of_half, _ in found) == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    hottest = {rank: float(most) for rank, _, most in found}
    assert hottest["0"] == hottest["1"] > hottest["2"] == hottest["3"]


def test_survive_a_nic_prints_the_failover_and_only_right_results():
    printed = run(sys.executable, str(EXAMPLES / "survive_a_nic.py"))
    assert "WRONG" not in printed
    assert printed.count("right in all") == 8
    assert "cause=carrier" in printed
    assert "lane_dissolved" in printed
    resent = [int(line.split()[2]) for line in printed.splitlines() if "chunks were sent again" in line]
    assert len(resent) == 2
    assert sum(resent) > 0


def test_training_by_numpy_alone_learns_and_ends_with_the_same_parameters_everywhere():
    script = str(EXAMPLES / "train_numpy.py")
    printed = run(sys.executable, "-m", "r2ccl.cli.main", "run", "-n", "2", script, "--steps", "40")
    [steps, same] = re.findall(r"the end: (\d+) steps, longest .* ms; parameters are (.*)", printed)[0]
    assert (steps, same) == ("40", "the same on all ranks, to the bit")
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed)]
    assert losses[-1] < 2.08  # what guessing among eight gives
