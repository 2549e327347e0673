"""The parent's view of its ranks, with small programs in their place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from r2ccl.cli import demo_stage
from r2ccl.cli.demo_ranks import RankFailed, Ranks, demo_program
from r2ccl.cli.demo_stage import Process

#: Finds its report descriptor as a rank does.
PROLOGUE = """
import json, os, sys
descriptor = json.loads(sys.argv[-1])["report_descriptor"]
def report(**what): os.write(descriptor, json.dumps(what).encode() + b"\\n")
"""
COUNTERS = '{"total": {"resent_bytes": 5}, "nics": {"nic1": {"sent_bytes": 10, "received_bytes": 20}}}'
GOOD = f"""
report(kind="ready")
assert sys.stdin.readline() == "stop\\n"
report(kind="sample", time_s=1.0, counters={COUNTERS}, arrivals=[[0.9, 1, 7]], completions=[0.95],
       wrong_elements=0, events=[[0.5, "nic", "nic=nic1 UP->DOWN"]])
report(kind="done")
"""


class ProgramsInsteadOfRanks:
    """A stage on which each rank runs the given program."""

    emulation = "loopback"
    emulate_mbit_s = 0.0

    def __init__(self, *programs: str) -> None:
        self.programs = programs

    def start(self, rank: int, argv: Sequence[str], descriptors: Sequence[int]) -> Process:
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0, "pass_fds": tuple(descriptors)}
        program = [sys.executable, "-c", PROLOGUE + self.programs[rank], argv[-1]]
        return subprocess.Popen(program, **pipes)  # type: ignore[call-overload, no-any-return]

    def cut(self, rank: int, nic: int) -> float:
        return 0.0

    def restore(self, rank: int, nic: int) -> float:
        return 0.0


@pytest.fixture
def start() -> Iterator[object]:
    opened: list[Ranks] = []

    def start_programs(*programs: str) -> Ranks:
        stage = ProgramsInsteadOfRanks(*programs)
        opened.append(Ranks(stage, len(programs), demo_program(stage, 0, 1, "link-down")))
        return opened[-1]

    yield start_programs
    for ranks in opened:
        ranks.close()


def until_ready(ranks: Ranks) -> None:
    while not all(rank.is_ready for rank in ranks.all):
        ranks.wait(0.02)


def until_ended(ranks: Ranks) -> None:
    while not all(rank.is_done for rank in ranks.all):
        ranks.wait(0.02)


def test_what_a_rank_tells_is_kept_by_kind(start):
    ranks = start(GOOD, GOOD)
    until_ready(ranks)
    ranks.stop()
    record = ranks.records[1]
    assert record.arrivals == [(0.9, 1, 7)]
    assert (record.completions, record.wrong_elements, record.resent_bytes) == ([0.95], 0, 5)
    assert [(sample.sent_bytes, sample.received_bytes) for sample in ranks.all[1].samples[1]] == [(10, 20)]
    assert list(ranks.all[1].events) == [(0.5, "nic", "nic=nic1 UP->DOWN")]
    assert ranks.operations == 1


def test_a_rank_that_fails_is_named_with_the_end_of_what_it_wrote(start):
    ranks = start(GOOD, 'report(kind="ready"); print("\\n".join(map(str, range(100))), file=sys.stderr); sys.exit(3)')
    with pytest.raises(RankFailed, match=r"(?s)rank 1 ended with exit status 3\n.*    98\n    99$") as failed:
        until_ended(ranks)
    assert "\n    79\n" not in str(failed.value)


def test_a_rank_that_was_killed_is_named_with_the_signal(start):
    ranks = start("os.kill(os.getpid(), 9)")
    with pytest.raises(RankFailed, match="rank 0 was killed by signal 9 and wrote no error"):
        until_ended(ranks)


def test_a_rank_that_may_end_is_no_failure_and_what_it_was_told_is_kept(start):
    ranks = start(
        'report(kind="lost", time_s=3.5, error="PeerLost(dead): rank 1"); sys.exit(1)', "os.kill(os.getpid(), 9)"
    )
    for rank in ranks.all:
        rank.may_end = True
    while ranks.all[0].lost is None or any(rank.process.poll() is None for rank in ranks.all):
        ranks.wait(0.02)
    ranks.wait(0.02)
    assert [rank.lost for rank in ranks.all] == [(3.5, "PeerLost(dead): rank 1"), None]
    assert not any(rank.is_done for rank in ranks.all)


def test_a_rank_that_ends_well_but_too_early_has_failed(start):
    ranks = start('report(kind="ready")')
    with pytest.raises(RankFailed, match="rank 0 ended with exit status 0"):
        until_ended(ranks)


def test_a_rank_that_fails_after_its_work_has_failed(start):
    ranks = start('sys.stdin.readline(); report(kind="done"); sys.exit("could not close")')
    with pytest.raises(RankFailed, match=r"(?s)rank 0 ended with exit status 1.*could not close"):
        ranks.stop()


def test_telling_a_rank_that_is_gone_is_no_error(start):
    ranks = start("sys.exit(1)")
    ranks.all[0].process.wait()
    demo_stage.tell(ranks.all[0].process, "stop\n")
    with pytest.raises(RankFailed, match="exit status 1"):
        ranks.stop()


def test_closing_ends_the_ranks(start):
    ranks = start("sys.stdin.read()", "sys.stdin.read()")
    ranks.close()
    assert [rank.process.returncode for rank in ranks.all] == [-9, -9]
    ranks.all.clear()
