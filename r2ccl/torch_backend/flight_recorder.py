"""What was called lately on this rank, in the form that torch's own analyser reads (``torchfrtrace``).

torch records the calls of its own backends; ours never pass through there. So each job keeps its latest calls, in
order, and :meth:`FlightRecorder.contents` puts them into the words of torch's files, version 2.10 of them:

    names       the analyser has a list of backends and of calls, and refuses all others. A call is ``gloo:all_reduce``
    numbers     a collective's is its number in its group: calls of one number are compared between ranks
    messages    are compared only within a group, and the analyser expects all of its members in each call. To us a
                message is an operation of a channel of two (decision 28), so each channel is told as a group of two
    state       ``scheduled`` until it has a number, ``started`` then, ``completed`` if it ended well

A call keeps neither tensors nor operations that have ended: shapes, dtypes and the places in the program that it came
from, as code and instruction, which become lines only when they are asked for. That costs some microseconds.
"""

from __future__ import annotations

import itertools
import pickle  # noqa: TID251 - torch's format; only written, and only what is made here
import sys
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any, Final

import torch

from r2ccl.actors.work import Work as CoreWork
from r2ccl.clock import wall_clock_s
from r2ccl.torch_backend.tensors import Loan, Shape
from r2ccl.vocabulary import ANY

VERSION: Final = "2.10"
#: Calls that are kept, unless TORCH_FR_BUFFER_SIZE says otherwise: as many as torch keeps.
KEPT: Final = 2000
FRAMES_MAX: Final = 6
#: Our names of calls that the analyser has other names for. By its ``all_to_all`` blocks may differ.
NAMES: Final = MappingProxyType(
    {
        "all_reduce_coalesced": "allreduce_coalesced",
        "all_gather_coalesced": "ALLGATHER_coalesced",
        "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
        "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
        "all_to_all_single": "all_to_all",
    }
)
#: Some members only read and some only write the same. The analyser expects both of all.
SAME_BOTH_WAYS: Final = ("broadcast", "reduce")
#: Of a list of tensors the analyser takes the first for all of them.
WITH_LISTS: Final = ("all_gather", "reduce_scatter")
#: Frames of these are not the program's.
OURS: Final = str(Path(__file__).parent)
TORCHS: Final = str(Path(torch.__file__).parent / "distributed")


class Line:
    """What is called under one row of numbers: the collectives of a group, or the messages of a channel."""

    def __init__(self, name: str, description: str, ranks: Sequence[int]) -> None:
        self.name = name
        self.description = description
        #: Of each member, its rank in the default group.
        self.ranks = tuple(ranks)
        self.numbers = itertools.count(1)


class Entry:
    """One call."""

    __slots__ = ("created_s", "failed", "finished_s", "frames", "inputs", "line", "name", "number", "outputs",
                 "pending", "record", "timeout_s")  # fmt: skip

    def __init__(
        self,
        record: int,
        line: Line | None,
        name: str,
        inputs: Sequence[Shape],
        outputs: Sequence[Shape],
        parts: Sequence[CoreWork],
        timeout_s: float,
    ) -> None:
        self.record = record
        #: None: a message from whoever comes first, until it has come.
        self.line = line
        self.number = 0 if line is None else next(line.numbers)
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        #: Its operations, until all have ended.
        self.pending: Sequence[CoreWork] = parts
        self.timeout_s = timeout_s
        self.created_s = wall_clock_s()
        self.finished_s: float | None = None
        self.failed = False
        self.frames = _frames()

    def look(self) -> None:
        """An operation of it has ended: all of them?"""
        for part in reversed(self.pending):  # the last one mostly ends last
            if not part.done():
                return
        # Whether somebody has asked for a failure is no business of ours.
        self.failed = any(part.error is not None for part in self.pending)
        self.finished_s = wall_clock_s()
        self.pending = ()

    @property
    def state(self) -> str:
        if self.finished_s is not None and not self.failed:
            return "completed"
        return "started" if self.failed or any(part.operation >= 0 for part in self.pending) else "scheduled"


class FlightRecorder:
    """The latest calls of a job's groups on this rank."""

    def __init__(self, kept: int = KEPT) -> None:
        self._entries: deque[Entry] = deque(maxlen=max(kept, 1))
        self._is_on = kept > 0
        self._records = itertools.count()
        self._lock = threading.Lock()
        #: By channel: (the group's name, rank that sends, rank that receives, tag).
        self._channels: dict[tuple[str, int, int, int], Line] = {}

    def collective(self, line: Line, loan: Loan, parts: Sequence[CoreWork], timeout_s: float) -> None:
        """All members of a group call it."""
        if not self._is_on:
            return
        inputs, outputs = loan.inputs, loan.outputs
        if loan.call in SAME_BOTH_WAYS:
            inputs = outputs = inputs or outputs
        elif loan.call in WITH_LISTS:
            inputs, outputs = _as_one(inputs), _as_one(outputs)
        name = NAMES.get(loan.call, loan.call)
        self._keep(Entry(next(self._records), line, name, inputs, outputs, parts, timeout_s))

    def message(
        self, group: Line, loan: Loan, parts: Sequence[CoreWork], timeout_s: float, me: int, peer: int, tag: int
    ) -> None:
        """``me`` and ``peer`` by their ranks in the group; of a receive from whoever comes first ``peer`` is ANY."""
        if not self._is_on or peer == me:
            return
        channel, name = (None, loan.call)
        if peer != ANY:
            channel, name = self._channel(group, me, peer, tag, loan.call == "send")
        entry = Entry(next(self._records), channel, name, loan.inputs, loan.outputs, parts, timeout_s)
        if channel is None:
            parts[0].when_done(partial(self._source_known, entry, group, me, tag, parts[0]))
        self._keep(entry)

    def contents(self) -> dict[str, Any]:
        """The file that torch's analyser reads, as data."""
        entries = [entry for entry in self._kept() if entry.line is not None]
        lines = {entry.line.name: entry.line for entry in entries if entry.line is not None}
        config = {
            line.name: {"name": line.name, "desc": line.description, "ranks": str(list(line.ranks))}
            for line in lines.values()
        }
        return {
            "version": VERSION,
            "pg_config": config,
            "entries": [_told(entry) for entry in sorted(entries, key=lambda entry: entry.record)],
        }

    def _kept(self) -> list[Entry]:
        while True:
            try:
                return list(self._entries)
            except RuntimeError:  # another thread has called something meanwhile
                continue

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        for part in entry.pending:
            part.when_done(entry.look)

    def _channel(self, group: Line, me: int, peer: int, tag: int, sends: bool) -> tuple[Line, str]:
        source, target = (me, peer) if sends else (peer, me)
        key = (group.name, source, target, tag)
        with self._lock:
            line = self._channels.get(key)
            if line is None:
                members = sorted((group.ranks[source], group.ranks[target]))
                name = f"{group.name} messages {source}->{target} tag {tag}"
                line = self._channels[key] = Line(name, "messages", members)
        # The analyser has ranks by their place in the group of two.
        first, second = (line.ranks.index(group.ranks[rank]) for rank in (source, target))
        return line, f"send {first}->{second}" if sends else f"recv {second}<-{first}"

    def _source_known(self, entry: Entry, group: Line, me: int, tag: int, part: CoreWork) -> None:
        if part.source is not None:
            entry.line, entry.name = self._channel(group, me, part.source, tag, sends=False)
            entry.number = next(entry.line.numbers)


def _as_one(shapes: Sequence[Shape]) -> list[Shape]:
    if len(shapes) == 1:
        return list(shapes)
    return [(torch.Size([sum(sizes.numel() for sizes, _ in shapes)]), shapes[0][1])]


def write(contents: dict[str, Any], path: Path) -> None:
    """The file itself."""
    with path.open("wb") as file:
        pickle.dump(contents, file)


def _told(entry: Entry) -> dict[str, Any]:
    assert entry.line is not None
    is_message = entry.name.startswith(("send ", "recv "))
    finished_ns = None if entry.finished_s is None or entry.failed else int(entry.finished_s * 1e9)
    return {
        "record_id": entry.record,
        "pg_id": 0,
        "process_group": (entry.line.name, entry.line.description),
        "collective_seq_id": entry.number,
        "p2p_seq_id": entry.number if is_message else 0,
        "op_id": entry.number,
        "profiling_name": f"gloo:{entry.name}",
        "time_created_ns": int(entry.created_s * 1e9),
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": finished_ns,
        "input_sizes": [list(sizes) for sizes, _ in entry.inputs],
        "input_dtypes": [str(dtype).removeprefix("torch.") for _, dtype in entry.inputs],
        "output_sizes": [list(sizes) for sizes, _ in entry.outputs],
        "output_dtypes": [str(dtype).removeprefix("torch.") for _, dtype in entry.outputs],
        "state": entry.state,
        "timeout_ms": int(entry.timeout_s * 1000),
        "is_p2p": is_message,
        "retired": finished_ns is not None,
        "frames": [_frame(code, instruction) for code, instruction in entry.frames if not _is_foreign(code)],
    }


def _frames() -> tuple[tuple[CodeType, int], ...]:
    """Where the program is, innermost first."""
    found: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(6)
    while frame is not None and len(found) < FRAMES_MAX:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _is_foreign(code: CodeType) -> bool:
    return code.co_filename.startswith((OURS, TORCHS))


def _frame(code: CodeType, instruction: int) -> dict[str, Any]:
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end and line), 0)
    return {"name": code.co_name, "filename": code.co_filename, "line": line}
