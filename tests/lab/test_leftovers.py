"""What is killed as left behind by a lab, and what is left alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from r2ccl.lab.leftovers import MARK_VARIABLE, Mark, kill_marked, sweep

GONE = Mark(os.getpid(), "0", "cafe")  # nobody of that number started then


@contextmanager
def marked(mark: str, *way: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says when it runs, and then waits."""
    command = [*way, "env", f"{MARK_VARIABLE}={mark}", "sh", "-c", "echo runs; exec sleep 600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"runs\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_what_a_dead_lab_left_is_swept_away():
    with marked(str(GONE)) as process:
        assert process.pid in sweep()
        assert process.wait() == -9


def test_what_a_living_lab_runs_is_swept_by_nobody_and_killed_by_its_mark():
    mark = Mark.new()
    with marked(str(mark)) as process:
        assert process.pid not in sweep()
        assert kill_marked(mark) == [process.pid]


@pytest.mark.parametrize("text", ["", "1", "1-2-3-4", "x-2-3", "-1-2-3", "\udcff-1-2"])
def test_a_mark_that_makes_no_sense_is_nobodys(text: str):
    with marked(text) as process, marked(str(GONE)) as swept:
        killed = sweep()
        assert process.pid not in killed
        assert swept.pid in killed


@pytest.mark.namespaces
def test_the_programs_of_a_lab_in_a_container_are_not_swept_from_outside():
    with marked(str(GONE), "unshare", "--pid", "--fork", "--kill-child") as process:
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        (child,) = map(int, children.stdout.split())
        assert child not in sweep()
