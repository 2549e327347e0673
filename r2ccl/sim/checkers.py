"""Observers outside the subject: they know what must be true of any world, and nothing of how it is brought about.

    Answers       every element on every rank is right; ranks agree to the bit; so do a repaired and an unharmed run
    Deliveries    no chunk reaches an operation twice, and one that ended well has had every chunk
    Memory        what waits for a call stays within peers x credit; when all is done, nothing is kept
    Openness      after the end no connection, task or timer is left
    Composure     no actor failed, nothing was logged as an error

They complain into one list rather than raise, because whoever raises inside an actor only gets it restarted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.operation import Operation, Scratch
from r2ccl.actors.runtime import Runtime
from r2ccl.planner.requests import CollectiveKind
from r2ccl.protocol.wire import Header
from r2ccl.reduction import Op
from r2ccl.sim.history import History
from r2ccl.sim.scenario import Call
from r2ccl.transport.memory import MemoryDevice

Array = npt.NDArray[Any]

#: More than this many complaints about one world say nothing new.
COMPLAINTS_MAX = 20
#: Integers of the exact payloads, such that sums over eight ranks fit int8, and are exact in float16.
SMALLEST, LARGEST = -15, 15


class Complaints:
    """What was found wrong, in order."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """One more."""
        if len(self.texts) < COMPLAINTS_MAX:
            self.texts.append(text)
            self._history.tell(-1, f"COMPLAINT: {text}")


def payload(call: Call, seed: int, communicator: int, number: int, rank: int) -> Array:
    """What a rank hands in: the same in every run of a seed."""
    rng = np.random.default_rng((seed, communicator, number, rank))
    if call.dtype == "bool":
        return rng.integers(0, 2, call.count).astype(np.bool_)
    if not call.exact:
        if call.dtype.startswith("float"):
            return rng.standard_normal(call.count).astype(call.dtype)
        return rng.integers(0, 100, call.count).astype(call.dtype)
    if call.op is Op.PRODUCT:
        return rng.choice([1, 2], call.count).astype(call.dtype)
    lowest = 0 if call.dtype.startswith("uint") else SMALLEST
    return rng.integers(lowest, LARGEST + 1, call.count).astype(call.dtype)


def expected(call: Call, payloads: list[Array]) -> Array:
    """What every rank must end with, by plain numpy. For calls that are exact, or copy."""
    if call.op is None:
        return payloads[call.root]
    function = {Op.SUM: np.add, Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum}[call.op]
    result: Array = payloads[0].copy()
    for other in payloads[1:]:
        result = function(result, other)
    return result


class Answers:
    """Compares what ranks ended with."""

    def __init__(self, seed: int, ranks: int, calls: tuple[tuple[Call, ...], ...], complaints: Complaints) -> None:
        self._seed = seed
        self._ranks = ranks
        self._calls = calls
        self._complaints = complaints
        #: (communicator, number) -> the bytes that all ranks must have; of calls that are not exact, the first rank's.
        self._right: dict[tuple[int, int], bytes] = {}
        #: (communicator, number) -> digest, to compare with an unharmed run.
        self.digests: dict[tuple[int, int], str] = {}

    def given(self, communicator: int, number: int, rank: int) -> Array:
        """The rank's payload."""
        return payload(self._calls[communicator][number], self._seed, communicator, number, rank)

    def ended(self, communicator: int, number: int, rank: int, result: Array) -> str:
        """A rank's operation ended well. Returns the digest of its result."""
        call, key = self._calls[communicator][number], (communicator, number)
        got = result.tobytes()
        right = self._right.get(key)
        if right is None:
            right = self._right[key] = self._wanted(communicator, number, got)
        if got != right:
            self._complaints.add(
                f"rank {rank} communicator {communicator} call {number} {call}: {_where(call, got, right)}"
            )
        digest = hashlib.blake2b(got, digest_size=8).hexdigest()
        self.digests.setdefault(key, digest)
        return digest

    def _wanted(self, communicator: int, number: int, got: bytes) -> bytes:
        call = self._calls[communicator][number]
        if call.kind is CollectiveKind.BARRIER or not (call.exact or call.op is None):
            return got
        return expected(call, [self.given(communicator, number, rank) for rank in range(self._ranks)]).tobytes()


def _where(call: Call, got: bytes, right: bytes) -> str:
    one, other = np.frombuffer(got, call.dtype), np.frombuffer(right, call.dtype)
    if len(one) != len(other):
        return f"{len(one)} elements instead of {len(other)}"
    different = [index for index in range(len(one)) if one[index].tobytes() != other[index].tobytes()]
    first = different[0]
    return f"{len(different)} of {len(one)} elements are wrong; the first, {first}, is {one[first]}, not {other[first]}"


class Deliveries:
    """Stands between a communicator's inbox and its coordinator, and counts what passes."""

    def __init__(self, coordinator: Coordinator, communicator: int, history: History, complaints: Complaints) -> None:
        self._coordinator = coordinator
        self._rank = coordinator.shared.rank
        self._communicator = communicator
        self._history = history
        self._complaints = complaints
        self._memory = Memory(coordinator, complaints)
        #: (operation, receive) -> bit i is set when chunk i passed.
        self._passed: dict[tuple[int, int], int] = {}
        #: Operation -> chunks that passed, and that must pass before it ends.
        self._chunks: Counter[int] = Counter()
        self._due: dict[int, int] = {}
        self.total = 0
        coordinator.inbox.coordinator = self

    def piece_arrived(self, operation: Operation, receive: int, chunk: int, scratch: Scratch | None) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._count(operation, receive, chunk)
        self._coordinator.piece_arrived(operation, receive, chunk, scratch)

    def whole_arrived(self, operation: Operation, receive: int, chunk: int, payload: memoryview) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._count(operation, receive, chunk)
        self._coordinator.whole_arrived(operation, receive, chunk, payload)

    def calls_differ(self, header: Header) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`. All ranks call alike here, so nothing may differ."""
        self._complaints.add(f"rank {self._rank} thinks that calls differ: {header}")
        self._coordinator.calls_differ(header)

    def peer_reached(self, peer: int, operation: int) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._coordinator.peer_reached(peer, operation)

    def flush_acks(self) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._memory.look()
        self._coordinator.flush_acks()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def ended(self, operation: int) -> None:
        """The operation ended well on this rank."""
        came, due = self._chunks.pop(operation, 0), self._due.pop(operation, 0)
        if came != due:
            self._complaints.add(f"rank {self._rank} operation {operation} ended with {came} of {due} chunks")

    def _count(self, operation: Operation, receive: int, chunk: int) -> None:
        number = operation.number
        self._history.note(self._rank, f"{self._communicator} {number} {receive} {chunk}")
        self.total += 1
        passed = self._passed.get((number, receive), 0)
        if passed >> chunk & 1:
            self._complaints.add(f"rank {self._rank} operation {number} receive {receive}: chunk {chunk} came twice")
        self._passed[number, receive] = passed | 1 << chunk
        self._chunks[number] += 1
        self._due[number] = sum(operation.planned.waits.receive_chunks)


class Memory:
    """Looks at what a rank keeps for operations that it has not called yet."""

    def __init__(self, coordinator: Coordinator, complaints: Complaints) -> None:
        shared = coordinator.shared
        self._shared = shared
        self._complaints = complaints
        self._bytes_max = len(shared.peers) * shared.settings.credit_bytes

    def look(self) -> None:
        """Now, in the middle of things."""
        parked = self._shared.counters.parked_bytes
        if parked > self._bytes_max:
            self._complaints.add(f"rank {self._shared.rank} has {parked} bytes parked, of at most {self._bytes_max}")


def kept(runtime: Runtime) -> list[str]:
    """What a rank still keeps though every operation is over and acknowledged. Should be nothing."""
    rank, courier = runtime.shared.rank, runtime.courier
    found: list[tuple[str, int]] = [
        ("unsettled chunks", courier.unsettled),
        ("parked bytes", runtime.shared.counters.parked_bytes),
        ("bytes for unknown communicators", stranded_bytes(runtime)),
    ]
    for peer, outbox in courier.outboxes.items():
        found.append((f"chunks owed to rank {peer}", outbox.unsettled()))
        found.append((f"chunks waiting for rank {peer}", sum(not parcel.is_settled for parcel in outbox.waiting)))
        found.append((f"unsolicited bytes at rank {peer}", outbox.unsolicited_bytes))
        for lane in courier.lanes[peer]:
            found.append((f"chunks on lane {lane.index} to rank {peer}", len(lane.outstanding)))
            found.append((f"bytes on lane {lane.index} to rank {peer}", lane.outstanding_bytes))
    for coordinator in runtime.coordinators.values():
        found.append(("scratch pieces", coordinator.inbox.pool.taken))
        found.append(("operations running", len(coordinator.running)))
        found.append(("operations waiting", len(coordinator.waiting)))
        found.append(("parked operations", len(coordinator.inbox.parked)))
    return [f"rank {rank} keeps {amount} {what}" for what, amount in found if amount]


def stranded_bytes(runtime: Runtime) -> int:
    """Bytes of chunks for communicators that the rank has not made yet."""
    strangers = runtime.desk._strangers.values()
    return sum(len(data) for arrived in strangers for _, _, data in arrived.values())


def open_ends(loop: asyncio.AbstractEventLoop, devices: list[MemoryDevice]) -> list[str]:
    """What is left open after everything was closed, long enough ago for every timer to have run out."""
    found = [f"{connection!r} is open" for device in devices for connection in device.connections]
    found += [
        f"task {task.get_name()} is alive"
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
        if task is not asyncio.current_task()
    ]
    timers: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    found += [f"a timer is set: {timer!r}" for timer in timers if not timer.cancelled()]
    return found


class Composure(logging.Handler):
    """Collects what is logged as an error while it is entered: an actor that failed, or a failure nobody awaited."""

    def __init__(self, complaints: Complaints) -> None:
        super().__init__(logging.ERROR)
        self._complaints = complaints
        self._logger = logging.getLogger("r2ccl")

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._complaints.add(text)

    def __enter__(self) -> Composure:
        self._logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)
