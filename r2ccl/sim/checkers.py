"""Observers outside the subject: they know what must be true of any world, and nothing of how it is brought about.

    Answers       every element on every rank is right; ranks agree to the bit; so do a repaired and an unharmed run,
                  unless rounding differs because another epoch's plan reduces in another order;
                  messages of a channel are received in the order in which they are sent
    Deliveries    no chunk reaches an operation twice, and one that ended well has had every chunk
    Epochs        an operation was planned from one picture on all ranks
    Memory        what waits for a call stays within the credit of all peers; when all is done, nothing is kept
    Openness      after the end no connection, task or timer is left
    Composure     no actor failed, nothing was logged as an error

They complain into one list rather than raise, because whoever raises inside an actor only gets it restarted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from r2ccl.actors.actor import Actor
from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.operation import Operation, Scratch
from r2ccl.actors.runtime import Runtime
from r2ccl.protocol.wire import Header
from r2ccl.sim.calls import Call, Kind, Message
from r2ccl.sim.history import History
from r2ccl.sim.truth import Array, expected, far_off, message_payload, payload
from r2ccl.transport.memory import MemoryDevice

#: More than this many complaints about one world say nothing new.
COMPLAINTS_MAX = 20
#: How often it is asked whether something is over.
LOOK_EVERY_S = 0.05


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

    async def until_nothing(self, left: Callable[[], list[str]], within_s: float) -> None:
        """Wait until nothing is left, and complain of what is left in the end."""
        for _ in range(int(within_s / LOOK_EVERY_S)):
            if not left():
                return
            await asyncio.sleep(LOOK_EVERY_S)
        for text in left():
            self.add(text)


class Answers:
    """Compares what ranks ended with. Ranks here are those of the communicator."""

    def __init__(
        self, seed: int, sizes: tuple[int, ...], calls: tuple[tuple[Call, ...], ...], complaints: Complaints
    ) -> None:
        self._seed = seed
        #: By communicator.
        self._sizes = sizes
        self._calls = calls
        self._complaints = complaints
        #: (communicator, call, part) -> payloads, and what each rank must have: its bytes; None until known.
        self._right: dict[tuple[int, int, int], tuple[list[Array], list[Array | None]]] = {}
        #: Of calls that are not exact: what the first rank ended with.
        self._first: dict[tuple[int, int, int], Array] = {}
        #: (communicator, source, target, tag) -> (call, index) of messages, in the order in which they are sent.
        self._sent: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        #: How many of them were received.
        self._received: Counter[tuple[int, int, int, int]] = Counter()
        #: (communicator, call, part, rank) -> the epoch that its rounding hangs on, and its digest.
        self.digests: dict[tuple[int, ...], tuple[int, str]] = {}
        for communicator, its_calls in enumerate(calls):
            for number, call in enumerate(its_calls):
                for index, m in enumerate(call.messages):
                    channel = (communicator, m.source, m.target, m.tag)
                    self._sent.setdefault(channel, []).append((number, index))

    def given(self, communicator: int, number: int, rank: int, call: Call, index: int) -> Array:
        """The rank's payload, for a call or a part of one."""
        where = (self._seed, communicator, number)
        if call.kind is Kind.MESSAGES:
            return message_payload(call.messages[index], where, index)
        return payload(call, (*where, index), rank, self._sizes[communicator])

    def ended(
        self, communicator: int, number: int, rank: int, call: Call, index: int, result: Array | None, epoch: int = 0
    ) -> str:
        """A rank's operation, planned in this epoch, ended well. Returns the digest of its result."""
        wanted = self._wanted(communicator, number, call, index, rank, result)
        if (result is None) is not (wanted is None):
            self._complain(communicator, number, rank, call, f"has {result} where {wanted} is due")
        if result is None or wanted is None:
            return "-"
        if result.tobytes() != wanted.tobytes():
            self._complain(communicator, number, rank, call, _where(result, wanted))
        digest = hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest()
        # Another plan may reduce in another order, which is another rounding.
        rounded_in = 0 if call.exact or call.op is None else epoch
        self.digests.setdefault((communicator, number, index, rank), (rounded_in, digest))
        return digest

    def received(
        self, communicator: int, number: int, rank: int, message: Message, source: int | None, x: Array
    ) -> str:
        """A receive ended well: it must have the next message that its source sent with this tag."""
        if source is None or not (message.from_any or source == message.source):
            self._complaints.add(f"rank {rank} communicator {communicator} call {number} {message}: source is {source}")
            return "-"
        channel = (communicator, source, rank, message.tag)
        nth = self._received[channel]
        self._received[channel] += 1
        if nth >= len(self._sent.get(channel, ())):
            self._complaints.add(f"rank {rank} communicator {communicator}: {message} beyond all that was sent")
            return "-"
        sent_in, index = self._sent[channel][nth]
        call = self._calls[communicator][sent_in]
        right = self.given(communicator, sent_in, source, call, index)
        if x.tobytes() != right.tobytes():
            self._complain(communicator, number, rank, call, f"message {message}: {_where(x, right)}")
        return hashlib.blake2b(x.tobytes(), digest_size=8).hexdigest()

    def missed(self, communicator: int, rank: int, message: Message, source: int) -> None:
        """A receive that had its source failed: what it would have got is nobody else's."""
        self._received[communicator, source, rank, message.tag] += 1

    def _wanted(
        self, communicator: int, number: int, call: Call, index: int, rank: int, got: Array | None
    ) -> Array | None:
        key = (communicator, number, index)
        known = self._right.get(key)
        if known is None:
            ranks = range(self._sizes[communicator])
            payloads = [self.given(communicator, number, one, call, index) for one in ranks]
            known = self._right[key] = (payloads, expected(call, payloads))
            self._forget(communicator, number)
        payloads, right = known
        if call.exact or call.op is None or right[rank] is None or got is None:
            return right[rank]
        if wrong := far_off(call, payloads, rank, got):
            self._complain(communicator, number, rank, call, f"{wrong} elements are wrong, by more than rounding")
        if call.kind is not Kind.ALL_REDUCE:
            return got
        # The first to end says what all must have, to the bit.
        return self._first.setdefault(key, got.copy())

    def _forget(self, communicator: int, number: int) -> None:
        """All ranks are done with calls this far behind, or nearly: they are worked out anew."""
        old = [key for key in self._right if key[0] == communicator and key[1] < number - 10]
        for key in old:
            del self._right[key]

    def _complain(self, communicator: int, number: int, rank: int, call: Call, text: str) -> None:
        self._complaints.add(f"rank {rank} communicator {communicator} call {number} {call}: {text}")


def _where(one: Array, other: Array) -> str:
    if len(one) != len(other) or one.dtype != other.dtype:
        return f"{len(one)} elements of {one.dtype} instead of {len(other)} of {other.dtype}"
    different = [index for index in range(len(one)) if one[index].tobytes() != other[index].tobytes()]
    first = different[0]
    return f"{len(different)} of {len(one)} elements are wrong; the first, {first}, is {one[first]}, not {other[first]}"


class Deliveries:
    """Stands between a communicator's inbox and its coordinator, and counts what passes."""

    def __init__(self, coordinator: Coordinator, history: History, complaints: Complaints) -> None:
        self._coordinator = coordinator
        self.rank = coordinator.shared.rank
        self.communicator = coordinator.communicator
        self._name = f"{coordinator.communicator:016x}"
        self._history = history
        self._complaints = complaints
        self._memory = Memory(coordinator, complaints)
        #: (operation, receive) -> bit i is set when chunk i passed.
        self._passed: dict[tuple[int, int], int] = {}
        #: Operation -> chunks that passed.
        self._chunks: Counter[int] = Counter()
        #: Operation that ended well -> the epoch that it was planned in.
        self.epochs: dict[int, int] = {}
        self.total = 0
        coordinator.inbox.coordinator = self
        self._ended = coordinator.failing.ended
        coordinator.failing.ended = self.ended  # type: ignore[method-assign]

    def piece_arrived(self, operation: Operation, receive: int, chunk: int, scratch: Scratch | None) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._count(operation, receive, chunk)
        self._coordinator.piece_arrived(operation, receive, chunk, scratch)

    def whole_arrived(self, operation: Operation, receive: int, chunk: int, payload: memoryview) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._count(operation, receive, chunk)
        self._coordinator.whole_arrived(operation, receive, chunk, payload)

    def exchange_arrived(self, operation: Operation, payload: memoryview) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._count(operation, 0, 0)
        self._coordinator.exchange_arrived(operation, payload)

    def take(self, operation: Operation, receive: int, payload: memoryview) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`."""
        self._count(operation, receive, 0)
        self._coordinator.take(operation, receive, payload)

    def calls_differ(self, header: Header) -> None:
        """See :class:`~r2ccl.actors.inbox.Coordinator`. All ranks call alike here, so nothing may differ."""
        self._complaints.add(f"rank {self.rank} thinks that calls differ: {header}")
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

    def ended(self, operation: Operation) -> None:
        """The operation ended well on this rank."""
        came, due = self._chunks.pop(operation.number, 0), sum(operation.planned.waits.receive_chunks)
        if came != due:
            self._complaints.add(f"rank {self.rank} operation {operation.number} ended with {came} of {due} chunks")
        self.epochs[operation.number] = operation.planned.epoch
        self._ended(operation)

    def _count(self, operation: Operation, receive: int, chunk: int) -> None:
        number = operation.number
        self._history.note(self.rank, f"{self._name} {number} {receive} {chunk}")
        self.total += 1
        passed = self._passed.get((number, receive), 0)
        if passed >> chunk & 1:
            self._complaints.add(f"rank {self.rank} operation {number} receive {receive}: chunk {chunk} came twice")
        self._passed[number, receive] = passed | 1 << chunk
        self._chunks[number] += 1


def watch(runtime: Runtime, deliveries: list[Deliveries], history: History, complaints: Complaints) -> None:
    """Stand between all inboxes and coordinators of a rank, also of those that are made later."""
    build = runtime.communicators._coordinator

    def watched(communicator: int, members: tuple[int, ...], predecessor: Actor | None) -> Coordinator:
        coordinator = build(communicator, members, predecessor)
        deliveries.append(Deliveries(coordinator, history, complaints))
        return coordinator

    runtime.communicators._coordinator = watched  # type: ignore[method-assign]
    deliveries += [Deliveries(coordinator, history, complaints) for coordinator in runtime.coordinators.values()]


def unlike_epochs(deliveries: Iterable[Deliveries]) -> list[str]:
    """Operations that were not planned in one epoch on all ranks."""
    seen: dict[tuple[int, int], set[int]] = {}
    for one in deliveries:
        for operation, epoch in one.epochs.items():
            seen.setdefault((one.communicator, operation), set()).add(epoch)
    return [
        f"communicator {communicator:x} operation {operation} ran in epochs {sorted(epochs)}"
        for (communicator, operation), epochs in seen.items()
        if len(epochs) > 1
    ]


class Memory:
    """Looks at what a rank keeps for operations that it has not called yet."""

    def __init__(self, coordinator: Coordinator, complaints: Complaints) -> None:
        shared = coordinator.shared
        self._shared = shared
        self._complaints = complaints
        self._bytes_max = sum(map(shared.credit_bytes, shared.peers))

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
        ("bytes for unknown communicators", runtime.desk.stranded_bytes()),
    ]
    for peer, outbox in courier.outboxes.items():
        found.append((f"chunks owed to rank {peer}", outbox.unsettled()))
        found.append((f"chunks waiting for rank {peer}", sum(not parcel.is_settled for parcel in outbox.waiting)))
        found.append((f"chunks held back from rank {peer}", sum(not parcel.is_settled for parcel in outbox._held)))
        found.append((f"chunks without a landing at rank {peer}", sum(map(len, outbox._homeless.values()))))
        found.append((f"landings at rank {peer}", len(outbox._landings)))
        found.append((f"chunks that rank {peer} acknowledged early", len(outbox._early)))
        found.append((f"unsolicited bytes at rank {peer}", outbox.unsolicited_bytes))
        for lane in courier.lanes[peer]:
            found.append((f"chunks on lane {lane.index} to rank {peer}", len(lane.outstanding)))
            found.append((f"bytes on lane {lane.index} to rank {peer}", lane.outstanding_bytes))
    for coordinator in runtime.coordinators.values():
        found.append(("scratch pieces", coordinator.inbox.pool.taken))
        found.append(("operations running", len(coordinator.running)))
        found.append(("operations waiting", len(coordinator.waiting)))
        found.append(("parked operations", len(coordinator.inbox.parked)))
    for channels in runtime.communicators._channels:
        found.append(("receives that wait for a source", sum(map(len, channels._pending.values()))))
    unconcluded = sum(incident["verdict"] is None for incident in runtime.diagnosing.incidents())
    found.append(("incidents without a verdict", unconcluded))
    found.append(("frames being received for others", len(runtime.relays._incoming)))
    for port in runtime.ports:
        if isinstance(port.device, MemoryDevice):
            found.append(("registered regions", len(port.device._regions)))
    return [f"rank {rank} keeps {amount} {what}" for what, amount in found if amount]


def missing_links(runtime: Runtime) -> list[str]:
    """Links of the plan that a rank does not have; lanes without one, or on another that they need no more; and links
    that others carry all the same."""
    rank, missing = runtime.shared.rank, list[str]()
    for peer in runtime.shared.peers:
        up = {(link.id.local_nic, link.id.remote_nic) for link in runtime.courier.links_up(peer)}
        missing += [
            f"rank {rank}: link nic{rail[0]}->rank{peer}.nic{rail[1]} did not come back"
            for rail in runtime.first_dials.rails(peer)
            if rail not in up
        ]
        missing += [
            f"rank {rank}: lane {lane.index} to rank {peer} found no link"
            for lane in runtime.courier.lanes[peer]
            if lane.link is None
        ]
        if runtime.sharing.is_wanted(peer) and not any(
            lane.link is not None and lane.link.id.is_shared for lane in runtime.courier.lanes[peer]
        ):
            missing.append(f"rank {rank}: shares no memory with rank {peer}")
        idle = [link for link in runtime.courier.links_up(peer) if link.is_rail and link.lane is None]
        missing += [
            f"rank {rank}: lane {lane.index} to rank {peer} stays on {lane.link.id}, though a rail is idle"
            for lane in runtime.courier.lanes[peer]
            if idle and lane.link is not None and not lane.link.is_rail
        ]
        missing += [
            f"rank {rank}: still relayed to rank {peer}"
            for link in runtime.courier.links_up(peer)
            if link.id.is_relayed
        ]
    return missing


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
