"""``r2ccl bench`` with real ranks: what it prints, what it returns, and that nobody is left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from r2ccl.cli import bench as bench_command
from r2ccl.cli import bench_mptcp, bench_options, bench_report
from r2ccl.cli.bench_collectives import COLLECTIVES, IN, OUT
from r2ccl.cli.bench_options import Asked
from r2ccl.cli.bench_report import Traffic
from r2ccl.cli.bench_teams import Team

pytestmark = pytest.mark.end_to_end

BENCH = [sys.executable, "-m", "r2ccl.cli.main", "bench"]
QUICK = ["--iters", "3", "-w", "1", "-b", "1K", "-e", "64K", "-f", "64"]
PATIENCE_S = 100.0


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


class Benches:
    """Benchmarks of three ranks with two NICs each, all with the same ranks, which take longest to start."""

    def __init__(self, ending: contextlib.ExitStack) -> None:
        self._ending = ending
        self._teams: dict[str | None, tuple[Team, Team | None]] = {}

    def told(self, collective: str, *, peer: str | None = None, peer_python: str | None = None, **asked: Any) -> Any:
        """What the command prints with ``--json``."""
        options = bench_options.check(
            Asked(
                collective, 3, "1K", "64K", 64, iterations=3, warmup=1, root=1, nics_per_rank=2, peer=peer,
                peer_python=peer_python, rounds=2 if peer else 1, **asked,
            )
        )  # fmt: skip
        if peer not in self._teams:
            self._teams[peer] = self._ending.enter_context(bench_command.teams(options))
        ours, theirs = self._teams[peer]
        before = ours.stats()
        progress = bench_command.Progress(io.StringIO())
        rows = list(bench_command.Bench(options, ours, theirs, progress).rows())
        return bench_report.as_json(options, rows, Traffic.between(before, ours.stats()), {})


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    with contextlib.ExitStack() as ending:
        yield Benches(ending)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_timed_and_checked_over_two_nics(benches, collective):
    result = benches.told(collective)
    rows = result["rows"]
    assert len(rows) == (2 if COLLECTIVES[collective].has_data else 1)
    for row in rows:
        assert row["wrong"] == 0
        assert row["time_us"] > 0
        assert row["peer"] is None
        assert [form for form in (OUT, IN) if row[form]] == list(COLLECTIVES[collective].forms)
        assert (row["size"] > 0) == (row["algbw_gb_s"] > 0)
    assert set(result["nics"]) == {"nic0", "nic1"}
    assert (result["wrong"], result["resent_bytes"]) == (0, 0)


@pytest.mark.parametrize(("dtype", "op"), [("bfloat16", "avg"), ("int8", "prod"), ("bool", "logical_xor")])
def test_other_dtypes_and_ops_are_checked_too(benches, dtype, op):
    result = benches.told("reduce_scatter", dtype=dtype, op=op, checks=2)
    assert [row["type"] for row in result["rows"]] == [dtype] * 2
    assert result["wrong"] == 0


def test_a_damaged_result_is_counted(benches):
    """Three elements on each of three ranks, in each of two sizes, both forms and both checks."""
    result = benches.told("all_gather", damage=3, checks=2)
    assert [row["wrong"] for row in result["rows"]] == [36, 36]
    assert result["wrong"] == 72


def test_a_damaged_result_ends_with_1():
    table = bench("all_reduce", "--damage", "3", *QUICK)
    assert table.returncode == 1
    assert "# Out of bounds values : 12 FAILED" in table.stdout


def test_the_table_has_a_head_a_line_for_each_size_and_an_end():
    ended = bench("all_reduce", "--nics-per-rank", "2", *QUICK)
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert re.search(r"^# r2ccl \S+ bench all_reduce: 2 ranks, 2 NICs per rank, loopback TCP$", ended.stdout, re.M)
    assert re.search(r"^#  Rank   1 Pid +\d+ NICs 127\.0\.1\.2, 127\.0\.2\.2$", ended.stdout, re.M)
    lines = [line.split() for line in ended.stdout.splitlines() if not line.startswith("#")]
    assert [line[:2] for line in lines] == [["1024", "256"], ["65536", "16384"]]
    assert re.search(r"^# Sent per NIC, all ranks : nic0 [\d,]+ bytes \(\d+\.\d%\), nic1 ", ended.stdout, re.M)
    assert "# Out of bounds values : 0 OK" in ended.stdout


def test_what_is_asked_wrongly_is_one_line_and_nothing_is_started():
    ended = bench("all_reduce", "-b", "1G", "-e", "1M")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "r2ccl: -b 1073741824 is more than -e 1048576: the smallest size comes first\n"
    ended = bench("all_reduce", "--peer", "gloo", "--torch-python", "/nowhere/python")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "r2ccl: there is no interpreter /nowhere/python\n"


def test_a_turn_that_takes_too_long_ends_with_what_was_waited_for():
    ended = bench("all_reduce", "-b", "1M", "-e", "1M", "--iters", "100000", "-T", "0.2")
    assert ended.returncode == 1
    assert re.search(r"^r2ccl bench: r2ccl: rank \d gave no answer to all_reduce of 262144 in 0\.2 s", ended.stderr)


def start_endless() -> tuple[subprocess.Popen[str], list[int]]:
    """A benchmark in the middle of its first turn, and its ranks."""
    process = subprocess.Popen(
        [*BENCH, "all_reduce", "-b", "1M", "-e", "1M", "--iters", "100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    head = [process.stdout.readline() for _ in range(11)]
    assert "(B)" in head[-1]
    return process, [int(pid) for pid in re.findall(r"Pid +(\d+)", "".join(head))]


@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_ends_the_benchmark_ends_its_ranks(signal_, code):
    process, ranks = start_endless()
    assert len(ranks) == 2
    process.send_signal(signal_)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert said == ("r2ccl bench: interrupted\n" if signal_ == signal.SIGINT else "")
    for pid in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rank_that_is_killed_ends_the_benchmark_with_1():
    process, ranks = start_endless()
    os.kill(ranks[1], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "r2ccl bench: r2ccl: process " in said
    with pytest.raises(ProcessLookupError):
        os.kill(ranks[0], 0)


def test_whoever_reads_only_the_head_of_the_table_sees_no_trace():
    process = subprocess.Popen(
        [*BENCH, "all_reduce", *QUICK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 1


def check_beside(result: dict[str, Any], peer: str) -> None:
    for row in result["rows"]:
        assert (row["wrong"], row["peer"]["name"], row["peer"]["wrong"]) == (0, peer, 0)
        assert row["peer"]["time_us"] > 0
        least, most = row["ratio_range"]
        assert 0 < least <= row["ratio"] <= most


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_open_mpi_takes_turns_with_us(benches, collective):
    check_beside(benches.told(collective, peer="openmpi"), "openmpi")


def test_what_open_mpi_lacks_is_one_line():
    ended = bench("all_reduce", "-d", "float16", "--peer", "openmpi", *QUICK)
    assert (ended.returncode, ended.stderr) == (2, "r2ccl: openmpi: it has no float16\n")


@pytest.mark.parametrize("collective", ["all_reduce", "sendrecv"])
def test_plain_mptcp_takes_turns_with_us_where_the_kernel_has_it(benches, collective):
    if bench_mptcp.is_available():
        check_beside(benches.told(collective, peer="mptcp"), "mptcp")
    else:
        ended = bench(collective, "-n", "3", "--peer", "mptcp", *QUICK)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "this kernel makes no MPTCP sockets" in ended.stderr


@pytest.mark.torchrun
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_gloo_takes_turns_with_us(benches, collective, torchrun):
    python = str(Path(torchrun).with_name("python"))
    check_beside(benches.told(collective, peer="gloo", peer_python=python), "gloo")


@pytest.mark.torchrun
def test_what_gloo_lacks_is_one_line(torchrun):
    python = str(Path(torchrun).with_name("python"))
    ended = bench("all_reduce", "-d", "int16", "--peer", "gloo", "--torch-python", python, *QUICK)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("r2ccl: gloo: all_reduce of int16: ")


def test_iterations_can_fill_a_time_and_the_command_tells_it_beside_a_peer():
    ended = bench(
        "all_reduce", "--seconds", "0.05", "-b", "4", "-e", "4", "--peer", "openmpi", "--rounds", "2", "--json"
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    check_beside(result, "openmpi")
    assert 3 <= result["rows"][0]["iters"] <= 2000
