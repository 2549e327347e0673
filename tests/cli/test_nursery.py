"""Ranks that are forked, as where there are more of them than cores, cannot tell, and neither can who started them."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from r2ccl.cli.launcher import launch
from tests.cli.test_launcher import PATIENCE_S, WAITING, Running, assert_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")


class Cores:
    """How many cores the launcher believes to have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def are(self, many: bool) -> None:
        cores = set(range(1000 if many else 0))
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Cores:
    made = Cores(monkeypatch)
    made.are(many=False)
    return made


class Outcome:
    """What two ranks of a script printed, and the exit code."""

    def __init__(self, directory: Path, text: str, *arguments: str, ranks: int = 2) -> None:
        script = directory / "script.py"
        script.write_text(text)
        out, err = io.BytesIO(), io.BytesIO()
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        self.code = launch([str(script), *arguments], ranks, environ={**inherited, "OWN": "1"}, out=out, err=err)
        self.out = sorted(out.getvalue().decode().splitlines())
        self.err = err.getvalue().decode().splitlines()


LOOK_AROUND = """
import json, os, signal, sys, threading
if os.environ["RANK"] == "0":
    main = sys.modules["__main__"]
    own = ("R2CCL_SECRET", "R2CCL_JOB", "MASTER_PORT")
    told = {name: value for name, value in os.environ.items() if name not in own}
    print(json.dumps([
        sys.argv, __name__, __file__, main.__spec__, main.__dict__ is globals(), sys.path, sorted(told.items()),
        os.getpid() == os.getpgid(0) == os.getsid(0), sys.stdin.read(), sys.stdout.write_through, sys.stdout.encoding,
        signal.getsignal(signal.SIGINT) is signal.default_int_handler, str(signal.getsignal(signal.SIGTERM)),
        threading.active_count(), os.getcwd(), sorted(os.listdir("/proc/self/fd")),
        sorted(signal.pthread_sigmask(0, [])),
    ]))
"""


def test_a_forked_rank_finds_what_it_would_find_otherwise(tmp_path: Path, cores: Cores) -> None:
    forked = Outcome(tmp_path, LOOK_AROUND, "--lr", "3")
    cores.are(many=True)
    started = Outcome(tmp_path, LOOK_AROUND, "--lr", "3")
    assert forked.code == started.code == 0, forked.err
    assert json.loads(forked.out[0][4:]) == json.loads(started.out[0][4:])


def test_what_lies_in_the_directory_is_not_taken_for_a_library(
    tmp_path: Path, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a script Python looks beside the script, not where it was started."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "msgpack.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(elsewhere)
    outcome = Outcome(tmp_path, "import msgpack; print(msgpack.packb(1))")
    assert (outcome.code, outcome.out) == (0, ["[0] b'\\x01'", "[1] b'\\x01'"]), outcome.err


@pytest.mark.parametrize(
    "ends",
    [
        "sys.exit(7)",
        "sys.exit('no more')",
        "sys.exit()",
        "os._exit(3)",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "import atexit; atexit.register(print, 'at exit')",
        "import threading; threading.Timer(0.05, lambda: print('late')).start()",
        "def fails(): raise ValueError('wrong')\nfails()",
        "1 +",
    ],
)
def test_it_ends_as_it_would_end_otherwise(tmp_path: Path, cores: Cores, ends: str) -> None:
    text = f"import os, signal, sys\nprint('hello')\n{ends}\n"
    forked = Outcome(tmp_path, text, ranks=1)
    cores.are(many=True)
    started = Outcome(tmp_path, text, ranks=1)
    assert (forked.code, forked.out, forked.err) == (started.code, started.out, started.err)


def test_a_script_that_is_not_there_is_named(tmp_path: Path, cores: Cores) -> None:
    err = io.BytesIO()
    assert launch([str(tmp_path / "none.py")], 2, out=io.BytesIO(), err=err) == 2
    assert f"can't open file '{tmp_path}/none.py'" in err.getvalue().decode()


def test_a_script_may_start_processes_that_import_it(tmp_path: Path, cores: Cores) -> None:
    text = """
import multiprocessing

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, [1, 2, 3]))
"""
    outcome = Outcome(tmp_path, text)
    assert outcome.out == ["[0] [1, 4, 9]", "[1] [1, 4, 9]"], outcome.err


def test_ranks_meet(tmp_path: Path, cores: Cores) -> None:
    text = """
import asyncio, numpy as np, r2ccl

async def main():
    async with r2ccl.connect() as comm:
        print((await comm.all_reduce(np.ones(3)))[0])

asyncio.run(main())
"""
    outcome = Outcome(tmp_path, text, ranks=3)
    assert outcome.out == ["[0] 3.0", "[1] 3.0", "[2] 3.0"], outcome.err


ON_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Forking(Running):
    """``r2ccl run`` of two ranks on one core."""

    def __init__(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(WAITING)
        super().__init__(script, 2, ("-c", ON_ONE_CORE))
        parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in self.pids}
        (self.nursery,) = parents
        assert self.nursery != self.process.pid

    def __enter__(self) -> Forking:
        return self


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_once_to_every_rank(tmp_path: Path, sent: signal.Signals) -> None:
    with Forking(tmp_path) as running:
        running.process.send_signal(sent)
        output, _ = running.process.communicate(timeout=PATIENCE_S)
        assert sorted(output.splitlines()) == [f"[0] got {sent.name}", f"[1] got {sent.name}"]
        assert running.process.returncode == 0
        assert_gone(running.nursery)


def test_ranks_of_a_killed_launcher_are_killed(tmp_path: Path) -> None:
    with Forking(tmp_path) as running:
        running.process.kill()
        running.process.communicate(timeout=PATIENCE_S)
        for pid in (*running.pids, running.nursery):
            assert_gone(pid)


def test_if_who_forks_is_killed_the_job_ends_and_says_so(tmp_path: Path) -> None:
    with Forking(tmp_path) as running:
        os.kill(running.nursery, signal.SIGKILL)
        output, _ = running.process.communicate(timeout=PATIENCE_S)
        assert "ended by SIGKILL; ending the others" in output
        assert running.process.returncode == 128 + signal.SIGKILL
        for pid in running.pids:
            assert_gone(pid)
