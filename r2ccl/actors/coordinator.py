"""Runs one communicator's operations: numbers them, starts them, moves their chunks, ends them.

A call takes its number at once. Up to a bound operations run, more wait as references. The machine of each operation
says what may move; this actor moves it. How an operation fails is in :mod:`r2ccl.actors.failing`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import assert_never

import numpy as np

from r2ccl.actors.acknowledging import Acknowledging
from r2ccl.actors.actor import Actor, Mailbox
from r2ccl.actors.arrivals import ArrivalsDesk
from r2ccl.actors.asks import Asks
from r2ccl.actors.courier import Courier
from r2ccl.actors.epochs import Epochs
from r2ccl.actors.express import Express
from r2ccl.actors.failing import Failing
from r2ccl.actors.inbox import Inbox
from r2ccl.actors.lockstep import Lockstep
from r2ccl.actors.messages import (
    AbortAcknowledged,
    AbortHeard,
    CoordinatorMessage,
    EnteredHeard,
    GoodbyeHeard,
    PeerGone,
    PeerParted,
)
from r2ccl.actors.operation import Operation, Planned, Scratch, ScratchPool
from r2ccl.actors.registration import Registrar
from r2ccl.actors.sending import Sending
from r2ccl.actors.shared import Shared
from r2ccl.actors.starting import Starting
from r2ccl.actors.work import Work
from r2ccl.buffers import Buffer
from r2ccl.errors import UsageError
from r2ccl.protocol.collective import begin
from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.wire import BadFrame, Entered, Header, Kind


class Coordinator(Actor):
    """One per communicator and rank."""

    def __init__(
        self,
        communicator: int,
        members: tuple[int, ...],
        shared: Shared,
        mailbox: Mailbox,
        courier: Courier,
        desk: ArrivalsDesk,
        pool: ScratchPool,
        registrar: Registrar,
        own_stall_s: Callable[[], float],
        surrender: Callable[[int, int], None],
    ) -> None:
        super().__init__(f"coordinator-{communicator:x}", shared.loop, mailbox)
        self.communicator = communicator
        #: Its other members' ranks in the job.
        self.peers = tuple(member for member in members if member != shared.rank)
        self.shared = shared
        self.courier = courier
        self.inbox = Inbox(communicator, shared, courier, self, pool, desk.ledger(communicator))
        self.ledger = self.inbox.ledger
        self.running = self.inbox.running
        #: Called and numbered, not started: references only.
        self.waiting: deque[Operation] = deque()
        self.next_operation = 0
        #: Which picture its operations are planned from; None: of messages, which depend on none.
        self.epochs: Epochs | None = None
        self.failing = Failing(self, desk, registrar, own_stall_s, surrender)
        self._registrar = registrar
        self.own_stall_s = own_stall_s
        self._pool = pool
        self._acknowledging = Acknowledging(self)
        self._is_starting = False
        self.has_left = False
        self._sending = Sending(self)
        self._starting = Starting(self, self._sending.send)
        self.asks = Asks(self)
        self._express = self.inbox.express = Express(self, self.inbox)
        self._lockstep = Lockstep(self, self.inbox, self._sending)
        self._idle: asyncio.Future[None] | None = None
        courier.ledgers[communicator] = self.ledger
        courier.peers[communicator] = self.peers
        courier.resyncs.append(self.resync)
        desk.add(self.inbox)

    @property
    def epoch(self) -> int:
        """Of the newest picture that its operations are planned from."""
        return 0 if self.epochs is None else self.epochs.newest.epoch

    # Calls.

    def refuse(self, called: int = 0) -> None:
        """Raise what stands against another call, if ``called`` more are on their way here."""
        self.failing.refuse_if_failed()
        if len(self.waiting) + called >= self.shared.settings.waiting_max:
            raise UsageError(
                f"{len(self.running)} operations run and {len(self.waiting) + called} wait: "
                "await some of them before calling more"
            )

    def submit(
        self, planned: Planned, arrays: tuple[Buffer, ...], work: Work, timeout_s: float, waited_s: float = 0.0
    ) -> bool:
        """Number the call, and start it if there is room. Raises before anything is numbered.

        Returns whether it is over, and all that was to be said of it has been said.
        """
        self.refuse()
        number = work.operation = self.next_operation
        operation = Operation(number, planned, arrays, work, timeout_s, self)
        self.next_operation += 1
        may_start = not self.waiting and self._may_start(number)
        if may_start:
            self._admit(operation)
            if self._lockstep.start(operation) and operation.machine is None:
                return True
        operation.called_at_s, operation.waited_s = self.shared.clock.now(), waited_s
        operation.stalled_s = self.own_stall_s()
        if not may_start:
            self.waiting.append(operation)
        elif operation.machine is None:
            self._start(operation)
        if not work.done():
            self.failing.watch(operation)
        return False

    def _may_start(self, number: int) -> bool:
        if len(self.running) >= self.shared.settings.running_max:
            return False
        return self.epochs is None or self.epochs.may_admit(number)

    def _admit(self, operation: Operation) -> None:
        if self.epochs is not None:
            operation.planned = self.epochs.admit(operation.number, operation.planned)

    def _start(self, operation: Operation) -> None:
        if self._express.start(operation):
            return
        machine = operation.machine = begin(operation.planned.waits)
        operation.turn = self.courier.take_turn()
        self.running[operation.number] = operation
        operation.prepare()
        hearers = operation.hearers(self.shared.one_sided)
        if self.shared.one_sided and hearers and operation.planned.waits.program.receives:
            self._registrar.open(operation)
        for peer in hearers:
            self.announce(operation, peer)
        self._starting.begin(operation, machine.start())
        if operation.number in self.inbox.parked:
            self.inbox.unpark(operation)
        self.failing.differences.began(operation)
        self.end_if_complete(operation)
        self.failing.fail_without(operation)

    def announce(self, operation: Operation, peer: int, finished: bool = False, asks: bool = False) -> None:
        """Tell a peer that we have entered."""
        planned = operation.planned
        under = planned.under if self.failing.differences.concern(operation.number) else ""
        landings = () if operation.landings is None else operation.landings.from_source(peer)
        entered = Entered(
            self.communicator, operation.number, planned.fingerprint, planned.call, finished, landings, planned.step,
            asks, under,
        )  # fmt: skip
        self.courier.tell(peer, Kind.ENTERED, entered.body())

    async def idle(self, timeout_s: float) -> None:
        """Wait until nothing runs or waits, at most ``timeout_s``."""
        if self.running or self.waiting:
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=timeout_s)

    # Chunks.

    def piece_arrived(self, operation: Operation, receive: int, chunk: int, scratch: Scratch | None) -> None:
        """A chunk is there: in a scratch piece, or (None) in place, in the buffer or where it was written."""
        machine = operation.machine
        assert machine is not None
        if not machine.arrived(receive, chunk):
            operation.hold(receive, chunk, scratch)
            return
        self._take_in(operation, receive, chunk, scratch)
        self._applied(operation, receive, chunk)

    def _take_in(self, operation: Operation, receive: int, chunk: int, scratch: Scratch | None) -> None:
        if scratch is not None:
            operation.apply(receive, chunk, scratch.array)
            self._pool.give(scratch)
        elif operation.landings is not None:
            written = operation.landings.to_reduce[receive]
            if written is not None:
                begin = chunk * operation.planned.chunk_bytes
                operation.apply(receive, chunk, written[begin:])

    def whole_arrived(self, operation: Operation, receive: int, chunk: int, payload: memoryview) -> None:
        """A chunk is there, in memory that is not ours."""
        machine = operation.machine
        assert machine is not None
        if not machine.arrived(receive, chunk):
            scratch = self._pool.take(len(payload))
            scratch.view[: len(payload)] = payload
            operation.hold(receive, chunk, scratch)
            return
        if len(payload):
            operation.apply(receive, chunk, np.frombuffer(payload, np.uint8))
        self._applied(operation, receive, chunk)

    def take(self, operation: Operation, receive: int, payload: memoryview) -> None:
        """A transfer's only chunk, in its turn, in memory that is not ours."""
        operation.take(receive, payload)

    def exchange_arrived(self, operation: Operation, payload: memoryview) -> None:
        """As :meth:`whole_arrived`, the short way: it is all that was to come, and the ledger knows."""
        machine = operation.machine
        assert machine is not None
        operation.take(0, payload)
        machine.applied(0, 0)
        if machine.acks_left == 0:
            del self.running[operation.number]
            self.end(operation)

    def _applied(self, operation: Operation, receive: int, chunk: int) -> None:
        machine = operation.machine
        assert machine is not None
        # A list instead of recursion: each rank's piece may wait for that of the rank before.
        todo = [(receive, chunk)]
        while todo:
            receive, chunk = todo.pop()
            sends, held = machine.applied(receive, chunk)
            for piece in sends:
                self._sending.send(operation, piece)
            for released in held:
                assert operation.held is not None
                self._take_in(operation, *released, operation.held.pop(released))
            todo += reversed(held)
            if machine.is_received(receive) and (source := operation.received_all(receive)) >= 0:
                self.inbox.acks_wanted.add(source)
        if machine.chunks_left == 0:
            self.ledger.finish(operation.number)
            self.end_if_complete(operation)

    def parcel_settled(self, operation: Operation, parcel: Parcel) -> None:
        """The target has a chunk of ours."""
        machine = operation.machine
        assert machine is not None
        machine.settled(parcel.send)
        self.end_if_complete(operation)

    def end_if_complete(self, operation: Operation) -> None:
        machine = operation.machine
        if machine is None or not machine.is_complete or operation.number not in self.running:
            return
        if self.failing.differences.concern(operation.number):
            return
        del self.running[operation.number]
        self._registrar.close(operation)
        self.ledger.finish(operation.number)
        self.courier.settle_operation(self.communicator, operation.number, operation.planned.targets)
        self.end(operation)

    def end(self, operation: Operation) -> None:
        """It is over, and nobody counts on it any more."""
        self.failing.ended(operation)
        operation.finish()
        try:
            operation.work.finish(None)
        finally:  # also when a callback raised: others wait for the room
            self.start_waiting()
            self.tell_if_idle()

    def start_waiting(self) -> None:
        """There may be room for operations that wait, or a promise that held them is over."""
        # What is started may end at once and bring us here again: thousands may wait, so only the first call goes on.
        if self._is_starting or not self.waiting:
            return
        self._is_starting = True
        try:
            while self.waiting and self._may_start(self.waiting[0].number):
                operation = self.waiting.popleft()
                self._admit(operation)
                if not self._lockstep.start(operation):
                    self._start(operation)
        finally:
            self._is_starting = False

    def tell_if_idle(self) -> None:
        """Wake who waits for the end of all operations."""
        if self._idle is not None and not self.running and not self.waiting and not self._idle.done():
            self._idle.set_result(None)

    # What is said.

    def flush_acks(self) -> None:
        """A batch of chunks was dealt with."""
        self._acknowledging.flush()

    def resync(self, peer: int) -> None:
        """A path to the peer changed: say again what it may have missed. Who is no member has missed nothing."""
        if peer not in self.peers:
            return
        self._acknowledging.resync(peer)
        self._lockstep.resync(peer)
        for operation in self.running.values():
            if peer in operation.hearers(self.shared.one_sided) or peer in operation.asked:
                self.announce(operation, peer, asks=peer in operation.asked)
        self.asks.again(peer)
        self.failing.resync(peer)

    def leave(self) -> None:
        """This rank calls nothing more here, though the job goes on."""
        self.has_left = True
        self.say_goodbye(self.peers)

    def say_goodbye(self, peers: Iterable[int]) -> None:
        """To these: it may have been lost with its path."""
        for peer in peers:
            self.courier.tell(peer, Kind.GOODBYE, [self.communicator, self.ledger.completed, 0])

    # What is heard.

    def handle(self, message: CoordinatorMessage) -> None:
        """See the messages."""
        match message:
            case EnteredHeard():
                # Differences first: to hear that a peer has entered may end the operation.
                self.failing.differences.entered_heard(message.peer, message.entered)
                self._entered_heard(message.peer, message.entered)
                self.inbox.on_unclaimed()
            case AbortHeard():
                self.failing.abort_heard(message.peer, message.abort)
            case AbortAcknowledged():
                self.failing.abort_acknowledged(message.peer, message.operation)
            case PeerGone():
                self.failing.peer_gone(message)
            case GoodbyeHeard():
                self.failing.goodbye_heard(message)
            case PeerParted():
                self.failing.peer_parted(message.peer)
            case _:
                assert_never(message)

    def _entered_heard(self, peer: int, entered: Entered) -> None:
        number = entered.operation
        self.asks.answered(peer, number)
        self.courier.peer_entered(peer, self.communicator, number)
        if (
            self.shared.one_sided
            and entered.landings
            and (number in self.running or (self.failing.error is None and number >= self._first_not_started()))
        ):
            self.courier.may_land(peer, entered)
            self.notice_misfits(peer, number)

    def notice_misfits(self, peer: int, operation: int) -> None:
        """A target told where what it expects may be written, and that is not what we send."""
        if self.courier.outboxes[peer].has_misfits(self.communicator, operation):
            self.failing.differences.noticed(operation)

    def entered(self) -> int:
        """All operations below it have been entered here, and were called as those who sent chunks of them did."""
        started, differing = self._first_not_started(), self.failing.differences.since
        return started if differing is None else min(started, differing)

    def has_unclaimed(self) -> bool:
        """Has a peer begun an operation that was not called here yet?"""
        reached = self.failing.roll_call.most_reached()
        return reached > self.next_operation or self.next_operation in self.inbox.parked

    def _first_not_started(self) -> int:
        return self.waiting[0].number if self.waiting else self.next_operation

    def peer_reached(self, peer: int, operation: int) -> None:
        """A chunk shows how far its sender is."""
        self.courier.peer_entered(peer, self.communicator, operation)

    def calls_differ(self, header: Header) -> None:
        """A chunk's fingerprint is not that of our call under the same number."""
        self.failing.differences.noticed(header.operation)

    def misfit(self, header: Header, why: BadFrame) -> None:
        """A chunk was kept for an operation that has no place for it, though the calls are alike."""
        self.failing.fail(header.operation, "aborted", f"rank {header.source} sent what does not fit: {why}", ())
