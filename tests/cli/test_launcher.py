"""``r2ccl run`` with real processes."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.cli import launcher
from r2ccl.cli.launcher import Job, known_to_the_shell, launch, loopback_nics
from r2ccl.errors import UsageError

PATIENCE_S = 60.0


class Outcome:
    """What a launch printed and returned."""

    def __init__(self, script: str, *arguments: str, ranks: int = 2, nics_per_rank: int = 1, **environ: str) -> None:
        out, err = io.BytesIO(), io.BytesIO()
        inherited = {"PATH": os.environ["PATH"], **environ}
        command = ["-c", script, *arguments]
        self.code = launch(command, ranks, nics_per_rank, environ=inherited, out=out, err=err)
        self.out = sorted(out.getvalue().decode().splitlines())
        self.err = sorted(err.getvalue().decode().splitlines())


def test_ranks_are_told_who_they_are_and_lines_say_whose_they_are():
    script = """
import json, os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "R2CCL_NICS"]
print(json.dumps([os.environ[name] for name in names] + sys.argv[1:]))
print("careful", file=sys.stderr)
"""
    outcome = Outcome(script, "--lr", "3", ranks=3, nics_per_rank=2)
    assert outcome.code == 0
    assert outcome.err == ["[0] careful", "[1] careful", "[2] careful"]
    ports = set()
    for rank, line in enumerate(outcome.out):
        prefix, rest = line.split(" ", 1)
        told = json.loads(rest)
        assert prefix == f"[{rank}]"
        assert told[:5] == [str(rank), "3", str(rank), "3", "127.0.0.1"]
        assert told[6:] == [",".join(loopback_nics(rank, 2)), "--lr", "3"]
        ports.add(int(told[5]))
    assert len(outcome.out) == 3
    assert len(ports) == 1


def test_every_launch_has_a_secret_and_a_name_of_its_own_and_drops_what_means_other_nics():
    script = (
        "import os; print(*(os.environ.get(n) for n in ('R2CCL_SECRET', 'R2CCL_JOB', 'R2CCL_SPARE_NICS', 'OTHER')))"
    )
    outcomes = [Outcome(script, R2CCL_SPARE_NICS="eth1", R2CCL_SECRET="old", OTHER="kept") for _ in range(2)]
    told = [[line.split(" ")[1:] for line in outcome.out] for outcome in outcomes]
    for ranks in told:
        assert ranks[0] == ranks[1]
        assert re.fullmatch("[0-9a-f]{64}", ranks[0][0])
        assert ranks[0][2:] == ["None", "kept"]
    assert told[0][0][0] != told[1][0][0]
    assert told[0][0][1] != told[1][0][1]


def test_the_secret_is_on_no_command_line():
    script = """
import os, pathlib
parent = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_bytes() if os.path.exists("/proc/self/cmdline") else b""
own = pathlib.Path("/proc/self/cmdline").read_bytes() if parent else b""
print(os.environ["R2CCL_SECRET"].encode() in parent + own)
"""
    assert Outcome(script).out == ["[0] False", "[1] False"]


def test_the_first_failure_ends_all_and_gives_the_exit_code():
    script = """
import os, signal, sys
if os.environ["RANK"] == "1":
    sys.exit(7)
signal.pause()
"""
    outcome = Outcome(script, ranks=3)
    assert outcome.code == 7
    assert "r2ccl run: rank 1 ended with exit code 7; ending the others" in outcome.err


def test_a_rank_that_was_killed_counts_as_in_a_shell():
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '0' else signal.pause()"
    outcome = Outcome(script)
    assert outcome.code == 128 + signal.SIGKILL
    assert "r2ccl run: rank 0 ended by SIGKILL; ending the others" in outcome.err


def test_a_rank_that_does_not_listen_is_killed_after_a_moment(monkeypatch):
    monkeypatch.setattr(launcher, "END_GRACE_S", 0.1)
    script = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    sys.stdin.read()
    os.write(1, b"ready")
    sys.exit(3)
while True:
    signal.pause()
"""
    assert Outcome(script).code == 3


def test_what_a_failed_rank_leaves_behind_is_killed_too(tmp_path):
    """Such as the workers of a data loader."""
    note = tmp_path / "child"
    script = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open({str(note)!r}, "w").write(str(child.pid))
sys.exit(1)
"""
    outcome = Outcome(script, ranks=1)
    assert outcome.code == 1
    assert_gone(int(note.read_text()))


def assert_gone(pid: int) -> None:
    """Killed, if perhaps not yet buried by whoever inherited it."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(100_000):
        try:
            state = stat.read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":
            return
    raise AssertionError(f"process {pid} is still there")


def test_long_lines_and_lines_without_an_end_come_through():
    script = "import sys; sys.stdout.write('x' * 200_000 + '\\n' + 'no end')"
    outcome = Outcome(script, ranks=1)
    assert outcome.out[0] == "[0] no end"
    assert sum(line.count("x") for line in outcome.out) == 200_000
    assert all(line.startswith("[0] ") for line in outcome.out)


class FullDisk(io.BytesIO):
    def write(self, data) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_output_that_cannot_be_written_ends_the_job_instead_of_hanging():
    out = FullDisk()
    command = ["-c", "import signal; print('hi', flush=True); signal.pause()"]
    code = launch(command, 2, environ={"PATH": os.environ["PATH"]}, out=out, err=FullDisk())
    assert code == 128 + signal.SIGPIPE


def test_a_program_that_does_not_exist_is_named():
    err = io.BytesIO()
    assert launch(["no-such-program"], 1, out=io.BytesIO(), err=err) == 127
    assert b"[0] r2ccl run: cannot run 'no-such-program': No such file or directory" in err.getvalue()


@pytest.mark.parametrize(
    ("command", "ranks", "nics"), [([], 1, 1), (["x.py"], 0, 1), (["x.py"], 1, 0), (["x"], 9999, 1)]
)
def test_an_impossible_launch_is_refused(command, ranks, nics):
    with pytest.raises(UsageError):
        launch(command, ranks, nics)


def test_loopback_nics_differ_by_rank_and_nic_and_are_many():
    assert loopback_nics(2, 2, "linux") == ["127.0.1.3", "127.0.2.3"]
    assert loopback_nics(2, 2, "darwin") == ["127.0.0.1", "127.0.0.1"]
    everything = [host for rank in range(1000) for host in loopback_nics(rank, 4, "linux")]
    assert len(set(everything)) == 4000
    assert "127.0.0.1" not in everything


def test_a_job_does_not_show_its_secret():
    assert "hush" not in repr(Job(("x",), 1, 1, 5, "name", "hush"))


def test_a_job_that_takes_faults_keeps_the_name_and_secret_that_the_shell_has_for_it():
    job = Job(("x",), 1, 1, 5, "name", "hush")
    told = {"R2CCL_JOB": "train", "R2CCL_SECRET": "known"}
    assert known_to_the_shell(job, told) == job
    assert known_to_the_shell(job, {"R2CCL_FAULT_INJECTION": "1"}) == job
    kept = known_to_the_shell(job, {**told, "R2CCL_FAULT_INJECTION": "1"})
    assert (kept.name, kept.secret, kept.port) == ("train", "known", 5)


# The launcher as a process of its own.

WAITING = """
import os, signal, sys
def say(number, frame):
    print("got", signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGINT, say)
signal.signal(signal.SIGTERM, say)
print("pid", os.getpid())
signal.pause()
"""


class Running:
    """``r2ccl run`` in the background, once all ranks have said their process ids. ``first``: for the interpreter."""

    def __init__(self, script: Path, ranks: int, first: tuple[str, ...] = ()) -> None:
        command = [sys.executable, *first, "-m", "r2ccl.cli.main", "run", "-n", str(ranks), str(script)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(ranks)]
        self.pids = [int(line.split()[-1]) for line in lines]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_once_to_every_rank(tmp_path, sent):
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    with Running(script, ranks=2) as running:
        running.process.send_signal(sent)
        output, _ = running.process.communicate(timeout=PATIENCE_S)
        assert sorted(output.splitlines()) == [f"[0] got {sent.name}", f"[1] got {sent.name}"]
        assert running.process.returncode == 0


def test_a_second_ctrl_c_kills(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        WAITING.replace("sys.exit(0)", "print('no', flush=True)").replace("signal.pause()", "while 1: signal.pause()")
    )
    with Running(script, ranks=1) as running:
        running.process.send_signal(signal.SIGINT)
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == "[0] got SIGINT\n"
        running.process.send_signal(signal.SIGINT)
        running.process.communicate(timeout=PATIENCE_S)
        assert running.process.returncode == 128 + signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process's life to its parent's")
def test_ranks_of_a_killed_launcher_are_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    with Running(script, ranks=2) as running:
        running.process.kill()
        # The ranks hold the pipe's other end only through the launcher; its end of file says that it is gone.
        running.process.communicate(timeout=PATIENCE_S)
        for pid in running.pids:
            assert_gone(pid)


def r2ccl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "r2ccl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_what_follows_the_script_belongs_to_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    done = r2ccl("run", "-n", "1", str(script), "-n", "3", "--help")
    assert done.stdout == "[0] ['-n', '3', '--help']\n"
    assert done.returncode == 0


def test_the_help_has_examples():
    assert "r2ccl run -n 4 train.py" in r2ccl("run", "--help").stdout


def test_a_mistake_is_one_line_without_a_trace():
    done = r2ccl("run", "-n", "9999", "x.py")
    assert done.returncode == 2
    assert done.stderr == "r2ccl: 9999 ranks: there may be 1 to 4096\n"
