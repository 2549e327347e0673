"""The demo's rank processes as the parent sees them: their pipes, what they have told so far, how they ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r2ccl.cli.demo_report import RankRecord
from r2ccl.cli.demo_stage import Process, Stage, Starter, close_pipes, new_report_pipe, rank_program, tell
from r2ccl.cli.demo_worker_options import Options
from r2ccl.clock import MonotonicClock

#: Lines of a failed rank's standard error that are shown.
TAIL_LINES = 20
TAIL_BYTES = 8192
READ_BYTES = 1 << 20
#: A rank ends by itself once its stream is over; this is for one that hangs.
END_TIMEOUT_S = 20.0

#: Of a rank's number and the descriptor for its reports: its command line.
RankProgram = Callable[[int, int], list[str]]


class RankFailed(Exception):
    """A rank ended before its work was done, or stood still. What it wrote to standard error is in the message."""


@dataclass(frozen=True, slots=True)
class NicSample:
    """Bytes of payload since the start."""

    time_s: float
    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class Rank:
    """One rank's process and what it told."""

    number: int
    process: Process
    reports: int
    record: RankRecord
    is_ready: bool = False
    is_done: bool = False
    #: When it was told that a peer is lost, and how.
    lost: tuple[float, str] | None = None
    #: It was killed on purpose, or a peer was: its end is no surprise.
    may_end: bool = False
    #: NIC -> samples in order of time.
    samples: dict[int, list[NicSample]] = field(default_factory=dict)
    #: (time, name, text) not yet taken by the screen.
    events: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=256))
    #: What ranks of a soak say besides, in order of time.
    more: list[Mapping[str, Any]] = field(default_factory=list)
    #: The end of its standard error.
    errors: bytes = b""
    unread: bytes = b""

    def take(self, report: Mapping[str, Any]) -> None:
        """One report."""
        match report["kind"]:
            case "ready":
                self.is_ready = True
            case "done":
                self.is_done = True
            case "sample":
                self._take_sample(report)
            case "lost":
                self.lost = (report["time_s"], report["error"])
            case unknown:
                raise RankFailed(f"rank {self.number} sent a report of unknown kind {unknown!r}")

    def _take_sample(self, report: Mapping[str, Any]) -> None:
        self.record.arrivals += [(time_s, nic, size) for time_s, nic, size in report["arrivals"]]
        self.record.completions += report["completions"]
        self.record.wrong_elements = report["wrong_elements"]
        self.record.resent_bytes = report["counters"]["total"]["resent_bytes"]
        for name, counters in report["counters"]["nics"].items():
            if name == "relay":
                continue
            sample = NicSample(report["time_s"], counters["sent_bytes"], counters["received_bytes"])
            self.samples.setdefault(int(name.removeprefix("nic")), []).append(sample)
        self.events += [(time_s, name, text) for time_s, name, text in report["events"]]
        if "soak" in report:
            self.more.append(report["soak"])


def demo_program(stage: Stage, seed: int, elements: int, fault: str) -> RankProgram:
    """The demo's worker."""

    def program(rank: int, report_descriptor: int) -> list[str]:
        options = Options(report_descriptor, seed, elements, stage.emulate_mbit_s, fault)
        return rank_program("r2ccl.cli.demo_worker", options.as_argument())

    return program


class Ranks:
    """All of them."""

    def __init__(self, stage: Starter, ranks: int, program: RankProgram) -> None:
        self.all: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        try:
            for number in range(ranks):
                self._start(stage, number, program)
        except BaseException:
            self.close()
            raise

    def _start(self, stage: Starter, number: int, program: RankProgram) -> None:
        read_end, write_end = new_report_pipe()
        try:
            process = stage.start(number, program(number, write_end), [write_end])
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        rank = Rank(number, process, read_end, RankRecord(number))
        self.all.append(rank)
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        self._selector.register(read_end, selectors.EVENT_READ, (rank, self._read_reports))
        self._selector.register(process.stderr, selectors.EVENT_READ, (rank, self._read_errors))

    @property
    def records(self) -> list[RankRecord]:
        """What was told, by rank."""
        return [rank.record for rank in self.all]

    @property
    def operations(self) -> int:
        """Completed on every rank."""
        return min(len(rank.record.completions) for rank in self.all)

    def wait(self, timeout_s: float) -> None:
        """Take in what comes within the time. Raises :class:`RankFailed`."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            rank, read = key.data
            read(rank)
        for rank in self.all:
            if not rank.is_done and not rank.may_end and rank.process.poll() is not None:
                self._drain(rank)
                if not rank.is_done:
                    raise RankFailed(f"rank {rank.number} {_how_it_ended(rank.process.returncode)}{tail(rank)}")

    def stop(self) -> None:
        """Let all ranks end after the operation that they agree on, and wait for it. Raises :class:`RankFailed`."""
        for rank in self.all:
            tell(rank.process, "stop\n")
        deadline = MonotonicClock.now() + END_TIMEOUT_S
        while not all(rank.is_done for rank in self.all):
            self.wait(0.1)
            if MonotonicClock.now() > deadline:
                waiting = [rank for rank in self.all if not rank.is_done]
                raise RankFailed(f"rank {waiting[0].number} does not end{tails(self.all)}")
        for rank in self.all:
            self._expect_good_end(rank, deadline)

    def _expect_good_end(self, rank: Rank, deadline: float) -> None:
        try:
            code = rank.process.wait(max(0.1, deadline - MonotonicClock.now()))
        except subprocess.TimeoutExpired as hangs:
            raise RankFailed(f"rank {rank.number} does not end{tails(self.all)}") from hangs
        self._drain(rank)
        if code != 0:
            raise RankFailed(f"rank {rank.number} {_how_it_ended(code)}{tail(rank)}")

    def close(self) -> None:
        """Kill what still runs and close all pipes."""
        for rank in self.all:
            rank.process.kill()
        for rank in self.all:
            rank.process.wait()
            close_pipes(rank.process)
            os.close(rank.reports)
        self._selector.close()

    def _drain(self, rank: Rank) -> None:
        while self._read_reports(rank):
            pass
        while self._read_errors(rank):
            pass

    def _read_reports(self, rank: Rank) -> bool:
        read = _read_available(rank.reports)
        if read is None:
            return False
        if read == b"":
            self._forget(rank.reports)
            return False
        *lines, rank.unread = (rank.unread + read).split(b"\n")
        for line in lines:
            rank.take(json.loads(line))
        return True

    def _read_errors(self, rank: Rank) -> bool:
        assert rank.process.stderr is not None
        read = _read_available(rank.process.stderr.fileno())
        if read is None:
            return False
        if read == b"":
            self._forget(rank.process.stderr.fileno())
            return False
        rank.errors = (rank.errors + read)[-TAIL_BYTES:]
        return True

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)


def tail(rank: Rank) -> str:
    """The end of a rank's standard error, to be put behind a message."""
    lines = rank.errors.decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "".join(f"\n    {line}" for line in lines) or " and wrote no error"


def tails(ranks: Sequence[Rank]) -> str:
    """As :func:`tail`, of all ranks: where one waits for ever, another may be to blame."""
    return "".join(f"\n  rank {rank.number}{tail(rank)}" for rank in ranks)


def _read_available(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return None


def _how_it_ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
