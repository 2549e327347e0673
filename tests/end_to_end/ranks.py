"""Starts ranks as processes, on this machine's loopback or on a lab's hosts, and talks to them; see worker.py.

    with loopback(4, tmp_path) as ranks:
        ranks.connect()
        answers = [ranks.tell(rank, "all_reduce", elements=1000) for rank in range(4)]
        assert [answer.value() for answer in answers] == [0] * 4

Whatever is waited for has a deadline, generous because the machine may be busy. When a test fails, all that the ranks
said is printed.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from r2ccl.cli.launcher import loopback_nics
from r2ccl.lab import Lab
from r2ccl.rendezvous.free_port import free_port

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).with_name("worker.py"))
PATIENCE_S = 40.0
TAIL_LINES = 80
#: How a test process is started: (rank, argv, environment, options of Popen) -> process.
Start = Callable[..., "subprocess.Popen[str]"]


class RankError(Exception):
    """A rank answered with an error, which is ``about``."""

    def __init__(self, rank: int, about: dict[str, Any]) -> None:
        self.about = about
        super().__init__(f"rank {rank}: {about['kind']}: {about['text']}")


class Answer:
    """What a command will come to."""

    def __init__(self, rank: Rank, command: str) -> None:
        self._rank = rank
        self._command = command
        self._arrived: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def put(self, message: dict[str, Any] | None) -> None:
        """The answer; None: the rank is gone."""
        self._arrived.put(message)

    def is_here(self) -> bool:
        return not self._arrived.empty()

    def _wait(self, patience_s: float) -> dict[str, Any]:
        try:
            message = self._arrived.get(timeout=patience_s)
        except queue.Empty:
            raise AssertionError(f"rank {self._rank.number} did not {self._command} in {patience_s:g} s") from None
        if message is None:
            raise AssertionError(f"rank {self._rank.number} ended before it answered {self._command}")
        self._arrived.put(message)
        return message

    def value(self, patience_s: float = PATIENCE_S) -> Any:
        """Raises :class:`RankError`."""
        message = self._wait(patience_s)
        if "error" in message:
            raise RankError(self._rank.number, message["error"])
        return message["value"]

    def error(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The error, which there must be."""
        message = self._wait(patience_s)
        assert "error" in message, f"rank {self._rank.number}: {self._command} ended well: {message['value']}"
        about: dict[str, Any] = message["error"]
        assert about["kind"] != "bug", about["text"]
        return about


class Rank:
    """One process."""

    def __init__(self, number: int, process: subprocess.Popen[str], errors: Path) -> None:
        self.number = number
        self.process = process
        self._errors = errors
        self._answers: dict[int, Answer] = {}
        self._commands = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"answers of rank {number}")
        self._reader.start()

    def tell(self, command: str, **arguments: Any) -> Answer:
        """Give a command."""
        answer = Answer(self, command)
        with self._lock:
            self._commands += 1
            number = self._commands
            self._answers[number] = answer
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"id": number, "do": command, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            answer.put(None)
        return answer

    def ask(self, command: str, **arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        return self.tell(command, **arguments).value()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            with self._lock:
                answer = self._answers.pop(message["id"])
            answer.put(message)
        with self._lock:
            left = list(self._answers.values())
        for answer in left:
            answer.put(None)

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; returns when, just before."""
        now = time.monotonic()
        self.process.send_signal(number)
        return now

    def end(self) -> None:
        """Kill, if it still runs."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            self.process.stdin = None
        self._reader.join(5.0)
        self.process.stdout.close()

    def said(self) -> str:
        """What it logged."""
        return self._errors.read_text(errors="replace")


class Ranks:
    """All ranks of a job."""

    def __init__(self) -> None:
        self.all: list[Rank] = []
        #: Processes that ranks forked; ended with the test.
        self.forked: list[int] = []

    def __getitem__(self, rank: int) -> Rank:
        return self.all[rank]

    def __len__(self) -> int:
        return len(self.all)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self.forked:
            os.kill(pid, signal.SIGKILL)
        for rank in self.all:
            rank.end()
        if kind is not None:
            for rank in self.all:
                tail = "\n".join(line[:400] for line in rank.said().splitlines()[-TAIL_LINES:])
                print(f"---- rank {rank.number}, exit status {rank.process.returncode}\n{tail}")

    def tell(self, command: str, **arguments: Any) -> list[Answer]:
        """Tell all the same."""
        return [rank.tell(command, **arguments) for rank in self.all]

    def ask(self, command: str, patience_s: float = PATIENCE_S, **arguments: Any) -> list[Any]:
        """Tell all the same, and wait for all."""
        return [answer.value(patience_s) for answer in self.tell(command, **arguments)]

    def connect(self, **arguments: Any) -> None:
        """All."""
        self.ask("connect", **arguments)

    def end_well(self) -> None:
        """Close on all ranks, and see every process end with 0."""
        self.ask("close")
        self.ask("leave")
        assert [rank.process.wait(PATIENCE_S) for rank in self.all] == [0] * len(self)

    def failovers(self) -> int:
        """On all ranks together."""
        return sum(stats["counters"]["failovers"] for stats in self.ask("stats"))


class RunningStream:
    """A stream of verified all-reduces on all ranks."""

    def __init__(self, ranks: Ranks, elements: int, in_flight: int = 2) -> None:
        self._ranks = ranks
        self.answers = ranks.tell("stream", elements=elements, in_flight=in_flight)

    def fail_early(self) -> None:
        """A rank whose stream ended is nothing to wait for any longer."""
        for answer in self.answers:
            if answer.is_here():
                raise AssertionError(f"the stream ended: {answer.value()}")

    @property
    def operations(self) -> int:
        """Completed on all ranks."""
        self.fail_early()
        return min(int(progress["operations"]) for progress in self._ranks.ask("progress"))

    def go_on(self, operations: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until so many more operations are complete on all ranks."""
        until = self.operations + operations
        wait_until(lambda: self.operations >= until, f"{operations} more operations", patience_s)

    def stop(self) -> int:
        """Let it end; returns the number of operations, all of which were right."""
        self._ranks[0].ask("stop")
        reports = [answer.value() for answer in self.answers]
        assert [report["wrong_elements"] for report in reports] == [0] * len(reports)
        counts = {report["operations"] for report in reports}
        assert len(counts) == 1, f"ranks completed different numbers of operations: {counts}"
        return int(counts.pop())


def wait_until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
    """Wait; returns how long it took."""
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > patience_s:
            raise AssertionError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(0.05)
    return time.monotonic() - started


@contextmanager
def loopback(
    count: int,
    directory: Path,
    *,
    loop: str = "uvloop",
    nics: int = 1,
    env: Mapping[str, str] | None = None,
    env_of: Mapping[int, Mapping[str, str]] | None = None,
    python: str = sys.executable,
) -> Iterator[Ranks]:
    """Ranks on this machine. ``env`` is for all, ``env_of`` for single ranks on top."""
    shared = job_environment(count)

    def start(rank: int, argv: list[str], environ: dict[str, str], **options: Any) -> subprocess.Popen[str]:
        own = {"RANK": str(rank), "R2CCL_NICS": ",".join(loopback_nics(rank, nics))}
        return subprocess.Popen([python, *argv[1:]], env={**os.environ, **shared, **own, **environ}, **options)

    with Ranks() as ranks:
        for rank in range(count):
            start_rank(ranks, start, rank, directory, loop, {**(env or {}), **(env_of or {}).get(rank, {})})
        yield ranks


@contextmanager
def on_hosts(
    lab: Lab,
    directory: Path,
    *,
    spare_nics: int = 0,
    env: Mapping[str, str] | None = None,
    places: Sequence[int] | None = None,
) -> Iterator[Ranks]:
    """One rank on each host of a lab; or each on the host that ``places`` has for it."""
    hosts = range(lab.hosts) if places is None else places

    def start(rank: int, argv: list[str], environ: dict[str, str], **options: Any) -> subprocess.Popen[str]:
        own = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": str(hosts[:rank].count(hosts[rank]))}
        return lab.popen(
            hosts[rank], argv, env={**lab.environment(hosts[rank], spare_nics), **own, **environ}, **options
        )

    with Ranks() as ranks:
        for rank in range(len(hosts)):
            start_rank(ranks, start, rank, directory, "uvloop", dict(env or {}))
        yield ranks


def job_environment(size: int) -> dict[str, str]:
    """What all ranks of a job on loopback share."""
    return {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "R2CCL_JOB": f"test-{secrets.token_hex(8)}",
        "R2CCL_SECRET": secrets.token_hex(16),
        "PYTHONPATH": str(ROOT),
    }


def start_rank(ranks: Ranks, start: Start, rank: int, directory: Path, loop: str, env: dict[str, str]) -> None:
    """Start one more."""
    errors = directory / f"rank{rank}.log"
    with errors.open("w") as log:
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        process = start(rank, [sys.executable, WORKER, loop], {"PYTHONPATH": str(ROOT), **env}, **options)
    ranks.all.append(Rank(rank, process, errors))
