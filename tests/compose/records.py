"""What the ranks tell, read from their containers' logs as it comes, and what can be said of it. No engine in here."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from r2ccl.cli.demo_report import stall_s

#: Operations that a rank has in flight: while a NIC is away more than these must end.
IN_FLIGHT = 2
#: Latest lines kept of what is no report, such as a traceback.
OTHER_LINES_KEPT = 60


class RankFailed(Exception):
    """A rank said or did what it must not."""


@dataclass(slots=True)
class Record:
    """What one rank has told so far."""

    rank: int
    operations: int = 0
    wrong_elements: int = 0
    #: When each operation ended, on the machine's monotonic clock, which containers share.
    completions: list[float] = field(default_factory=list)
    nics: dict[str, dict[str, int]] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)
    other_lines: deque[str] = field(default_factory=lambda: deque(maxlen=OTHER_LINES_KEPT))
    is_ready: bool = False
    is_done: bool = False
    has_ended: bool = False

    def hear(self, line: str) -> None:
        """A line of the log."""
        try:
            report: dict[str, Any] = json.loads(line)
        except ValueError:
            self.other_lines.append(line.rstrip())
            return
        self.operations = report["operations"]
        self.wrong_elements = report["wrong_elements"]
        self.completions += report["completions"]
        self.nics = report["nics"]
        self.events += [(time_s, text) for time_s, text in report["events"]]
        self.is_ready = True
        self.is_done = self.is_done or report["kind"] == "done"

    def moved(self, nic: int) -> tuple[int, int]:
        """Bytes sent and received on a NIC."""
        row = self.nics.get(f"nic{nic}", {})
        return row.get("sent_bytes", 0), row.get("received_bytes", 0)

    def complaint(self) -> str | None:
        """What is wrong with this rank, if anything."""
        if self.wrong_elements:
            return f"rank {self.rank}: {self.wrong_elements} wrong elements in {self.operations} operations"
        if self.has_ended and not self.is_done:
            return f"rank {self.rank} ended in the middle of it"
        return None


class Ranks:
    """All ranks' records, written by the threads that read the logs."""

    def __init__(self, count: int) -> None:
        self.all = [Record(rank) for rank in range(count)]
        self._changed = threading.Condition()

    def follow(self, rank: int, lines: Iterable[str]) -> None:
        """Hear a log to its end."""
        for line in lines:
            with self._changed:
                self.all[rank].hear(line)
                self._changed.notify_all()
        with self._changed:
            self.all[rank].has_ended = True
            self._changed.notify_all()

    def wait_until(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for something to become true of the records. Raises :class:`RankFailed` at a complaint or too late."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                complaints = [text for record in self.all if (text := record.complaint())]
                if complaints:
                    raise RankFailed("; ".join(complaints))
                if true():
                    return
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise RankFailed(f"not within {timeout_s:g} s: {what}")
                self._changed.wait(left_s)

    def wait(self, seconds: float) -> None:
        """Let time go by, and mind what the ranks say."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait(left_s)
            self.wait_until(lambda: True, 1.0, "")

    def account(self) -> str:
        """The end of what each rank told, for a failure."""
        parts = []
        for record in self.all:
            parts.append(f"rank {record.rank}: {record.operations} operations, nics {record.nics}")
            parts += [f"    {time_s:.3f} {text}" for time_s, text in record.events[-25:]]
            parts += [f"    {line}" for line in record.other_lines]
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class CutResult:
    """One cut; times on the monotonic clock."""

    way: str
    rank: int
    nic: int
    cut_s: float
    restored_s: float
    #: When the NIC was seen to carry again.
    back_s: float


def gap_ms(records: Sequence[Record], at_s: float, until_s: float) -> float:
    """The longest pause between two operations in the second after a moment, on any rank, less the usual one before."""
    return 1e3 * max(stall_s(record.completions, at_s, until_s) for record in records)


def went_on(record: Record, cut_s: float, restored_s: float) -> bool:
    """Whether a rank finished what was in flight when the NIC went, and more, while it was away."""
    return sum(cut_s < time_s < restored_s for time_s in record.completions) > IN_FLIGHT
