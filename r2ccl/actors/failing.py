"""How operations of one communicator fail, and how everybody learns of it.

The first rank to fail an operation tells all others until each has acknowledged it; everyone fails what it has not
completed from that operation on, with the same cause (decision 8). Several may be first, and not with the same
operation: who had completed more fails a later one. So failures go on downwards: that of an earlier operation is not
covered by one of a later, and is told anew. Calls that a rank has not made yet count as failed by it, as it makes no
more: nobody is left waiting for it.

Before an error reaches the caller, every byte of its buffers is back: unsent chunks are withdrawn, connections in the
middle of one are ended (decision 7).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from r2ccl.actors.arrivals import ArrivalsDesk
from r2ccl.actors.causes import error_of, fitting, naming_all_lost
from r2ccl.actors.courier import Courier
from r2ccl.actors.deadlines import Deadlines
from r2ccl.actors.differences import Differences
from r2ccl.actors.inbox import Inbox
from r2ccl.actors.messages import GoodbyeHeard, PeerGone
from r2ccl.actors.operation import Operation
from r2ccl.actors.registration import Registrar
from r2ccl.actors.shared import Shared
from r2ccl.errors import CommunicatorClosed, PeerLost, R2cclError
from r2ccl.protocol.roll_call import Presence, RollCall
from r2ccl.protocol.wire import Abort, Kind

#: An abort is said again this often, until it is acknowledged by all.
ABORT_REPEAT_S = 0.1
#: After the first announcement of an unfinished operation it is repeated this often.
ROLL_CALL_REPEAT_S = 1.0


class Host(Protocol):
    """What failing needs of the coordinator that it is a part of."""

    communicator: int
    peers: tuple[int, ...]
    shared: Shared
    courier: Courier
    inbox: Inbox
    running: dict[int, Operation]
    waiting: deque[Operation]
    next_operation: int
    is_running: bool

    def announce(self, operation: Operation, peer: int, finished: bool = False, asks: bool = False) -> None: ...
    def tell_if_idle(self) -> None: ...


class Failing:
    """The part of a coordinator that deals with operations that do not end well."""

    def __init__(
        self,
        coordinator: Host,
        desk: ArrivalsDesk,
        registrar: Registrar,
        own_stall_s: Callable[[], float],
        surrender: Callable[[int, int], None],
    ) -> None:
        self._coordinator = coordinator
        self._desk = desk
        self._registrar = registrar
        self._own_stall_s = own_stall_s
        self._surrender = surrender
        self._shared = coordinator.shared
        self._timers = coordinator.shared.timers
        self.roll_call = RollCall(coordinator.peers)
        #: Why the communicator refuses work; None while it works.
        self.error: R2cclError | None = None
        self._abort: Abort | None = None
        #: The first operation that was called here and failed, if any did.
        self._first_failed: list[int] = []
        #: Peers that have not acknowledged our abort.
        self._untold: set[int] = set()
        self._repeating = False
        self._watching = False
        self._deadlines = Deadlines(coordinator, own_stall_s, self._time_out)
        #: Called with what the communicator failed with, or ended with; and when a member closed.
        self.on_failed: list[Callable[[R2cclError, Abort | None], None]] = []
        self.on_left: list[Callable[[], None]] = []
        #: Called with a member that closed or is dead, and below which number all operations are known to be started.
        self.on_over: Callable[[int, int], None] = lambda _peer, _started: None
        #: Peers that closed: they start nothing new.
        self.left: dict[int, int] = {}
        #: Of those, peers from whom nothing more can come.
        self.parted: set[int] = set()
        #: Peers that are dead or unreachable.
        self._gone: set[int] = set()
        #: Recently finished calls, for peers that ask: operation -> (fingerprint, call, under what). Bounded.
        self._finished: dict[int, tuple[int, str, str]] = {}
        self.differences = Differences(coordinator, self.roll_call, self._finished, self.fail)

    def refuse_if_failed(self) -> None:
        """Raises what the communicator failed with."""
        if self.error is not None:
            # Each time anew: else its traceback would grow with every call, and keep what callers passed.
            raise self.error.with_traceback(None)

    # Watching.

    def watch(self, operation: Operation) -> None:
        """The operation was called: its limit counts from now on, whether it runs or waits for its turn."""
        if operation.timeout_s:
            self._deadlines.watch(operation)
        if not self._watching:
            self._watching = True
            self._timers.after(self._shared.settings.roll_call_s, self._look_round)

    def ended(self, operation: Operation) -> None:
        """The operation ended well."""
        planned = operation.planned
        self._finished[operation.number] = (planned.fingerprint, planned.call, planned.under)
        if len(self._finished) > self._shared.settings.running_max:
            del self._finished[next(iter(self._finished))]

    def _look_round(self) -> None:
        """Announce what takes long; log who is missing."""
        self._watching = False
        running = self._coordinator.running
        if not self._coordinator.is_running or not (running or self._coordinator.waiting):
            return
        if running:
            self._look_at(running[min(running)])
        self._watching = True
        self._timers.after(self._shared.settings.roll_call_s, self._look_round)

    def _look_at(self, oldest: Operation) -> None:
        now = self._shared.clock.now()
        age_s = now - oldest.called_at_s - (self._own_stall_s() - oldest.stalled_s)
        if age_s >= self._shared.settings.roll_call_s and now - oldest.announced_at_s >= ROLL_CALL_REPEAT_S:
            oldest.announced_at_s = now
            for peer in self._coordinator.peers:
                self._coordinator.announce(oldest, peer)
        if age_s >= self._shared.settings.laggard_log_s and not oldest.laggards_logged:
            oldest.laggards_logged = True
            self._log_laggards(oldest, age_s)

    def _log_laggards(self, operation: Operation, age_s: float) -> None:
        presence = self._presence(operation)
        self._shared.events.record(
            "waiting", level=logging.WARNING, op=operation.number, call=operation.planned.call, for_s=round(age_s, 1),
            not_entered=list(presence.not_entered), entered_without_finishing=list(presence.entered),
        )  # fmt: skip

    def _presence(self, operation: Operation) -> Presence:
        """Who is where, with what chunks and acknowledgements told besides."""
        coordinator = self._coordinator
        for peer in coordinator.peers:
            outbox = coordinator.courier.outboxes[peer]
            self.roll_call.reached(peer, outbox.entered_by_peer(coordinator.communicator) - 1)
        return self.roll_call.presence(operation.number)

    def _time_out(self, operation: Operation) -> None:
        where = self._presence(operation)
        # This rank, too, has entered and not finished.
        entered = tuple(sorted((*where.entered, self._shared.rank)))
        details = (operation.planned.call, operation.timeout_s, where.not_entered, entered, where.finished)
        self.fail(operation.number, "timeout", f"no end within {operation.timeout_s:g} s", details)

    # Failing.

    def share_fate(self, other: Failing) -> None:
        """What fails one of the two fails both."""
        self.on_failed.append(lambda error, abort: None if abort is None else other.fail_with(abort))
        other.on_failed.append(lambda error, abort: None if abort is None else self.fail_with(abort))

    def fail_with(self, abort: Abort) -> None:
        """What belongs to this communicator failed: so does this."""
        if self.error is None:
            self.fail(self.first_unfinished(), abort.cause, abort.text, abort.details)

    def give_up(self) -> int:
        """The caller goes on without this communicator: what is unfinished fails, here alone. Returns below which
        number all operations ended well."""
        # Not from where others failed: what ended well here did so though it ended badly elsewhere.
        unfinished = min([self.first_unfinished(), *self._first_failed])
        self.close(CommunicatorClosed("the communicator was shrunk to the ranks that are left"), goes_on=True)
        return unfinished

    def peer_gone(self, gone: PeerGone) -> None:
        """A rank is dead or unreachable."""
        if gone.peer not in self._coordinator.peers:
            return
        self._gone.add(gone.peer)
        if gone.cause == "dead":
            outbox = self._coordinator.courier.outboxes[gone.peer]
            self.on_over(gone.peer, outbox.entered_by_peer(self._coordinator.communicator))
        self.fail(self.first_unfinished(), gone.cause, gone.verdict, (gone.peer,))
        if isinstance(self.error, PeerLost):
            # It may have failed with another's loss. Who calls something from now on hears of this one, too.
            known = Abort(self._coordinator.communicator, 0, self.error.cause, self.error.verdict, self.error.ranks)
            self.error = error_of(self._naming_all_lost(known), self._shared.rank)
        self._told([gone.peer])
        self._heard_leaving()

    def goodbye_heard(self, goodbye: GoodbyeHeard) -> None:
        """A member closes: it has everything below ``completed`` and starts nothing new."""
        if goodbye.peer not in self._coordinator.peers:
            return
        self.left[goodbye.peer] = goodbye.completed
        self.on_over(goodbye.peer, goodbye.completed)
        self._told([goodbye.peer])
        self._coordinator.courier.left(self._coordinator.communicator, goodbye.peer)
        beyond = [number for number in self._coordinator.running if number >= goodbye.completed]
        if beyond:
            self.fail(min(beyond), "dead", "it closed its communicator", (goodbye.peer,))
        self._heard_leaving()

    def all_left(self) -> bool:
        """Does nobody else call anything here any more?"""
        return not self.staying()

    def staying(self) -> list[int]:
        """Members that may call something here, as far as we heard."""
        return [peer for peer in self._coordinator.peers if peer not in self.left and peer not in self._gone]

    def _heard_leaving(self) -> None:
        for heard in list(self.on_left):
            heard()

    def peer_parted(self, peer: int) -> None:
        """Nothing more comes from a member that said goodbye: what still lacks chunks of it will not end."""
        if peer not in self._coordinator.peers:
            return
        self.parted.add(peer)
        # It never made this communicator, or would have said goodbye of it.
        self.on_over(peer, self.left.setdefault(peer, 0))
        running = self._coordinator.running
        for number in sorted(running):
            if number in running:
                self.fail_without(running[number])
        self._heard_leaving()

    def fail_without(self, operation: Operation) -> None:
        """An operation began that needs members who have closed: they will never call it."""
        inbox = self._coordinator.inbox
        if not self.left:
            return
        missing = tuple(
            peer
            for peer, completed in sorted(self.left.items())
            if completed <= operation.number or (peer in self.parted and inbox.lacks(operation, peer))
        )
        if missing and operation.number in self._coordinator.running:
            self.fail(operation.number, "dead", "it closed its communicator", missing)

    def first_unfinished(self) -> int:
        """The operation that a failure without a number of its own concerns."""
        coordinator = self._coordinator
        # Those that wait do so behind one that runs, or for the outcome of a proposal, which may never come.
        waiting = [operation.number for operation in itertools.islice(coordinator.waiting, 1)]
        return min([*coordinator.running, *waiting, coordinator.next_operation])

    def abort_heard(self, peer: int, abort: Abort) -> None:
        """A member failed an operation: so do we, from there on."""
        self._coordinator.courier.tell(peer, Kind.ABORT_ACK, [self._coordinator.communicator, abort.operation])
        if not self._is_covered(abort.operation):
            self._fail_here(abort, peer)

    def abort_acknowledged(self, peer: int, operation: int) -> None:
        """A member knows that all from this operation on failed."""
        if self._abort is not None and operation <= self._abort.operation:
            self._told([peer])

    def _told(self, peers: Iterable[int]) -> None:
        """These know of our abort, or will not call what has failed."""
        self._untold.difference_update(peers)
        self._coordinator.courier.failure_is_known(self._coordinator.communicator, peers)

    def _is_covered(self, operation: int) -> bool:
        """Has everything from this operation on failed already?"""
        return self.error is not None and (self._abort is None or operation >= self._abort.operation)

    def fail(self, operation: int, cause: str, text: str, details: tuple[Any, ...]) -> None:
        """We are the first to fail this operation, as far as we know."""
        if self._is_covered(operation):
            return
        self._fail_here(Abort(self._coordinator.communicator, operation, cause, text, details), self._shared.rank)

    def _fail_here(self, abort: Abort, origin: int) -> None:
        abort = self._naming_all_lost(abort)
        error = error_of(abort, origin)
        coordinator = self._coordinator
        # From now on we call nothing: who waits for us in an operation that we have not reached must not wait for ever.
        abort = dataclasses.replace(abort, operation=min(abort.operation, coordinator.next_operation))
        self.error = self.error or error
        self._abort = abort
        doomed = [running for running in coordinator.running.values() if running.number >= abort.operation]
        doomed += [waiting for waiting in coordinator.waiting if waiting.number >= abort.operation]
        coordinator.waiting = type(coordinator.waiting)(w for w in coordinator.waiting if w.number < abort.operation)
        for operation in doomed:
            coordinator.running.pop(operation.number, None)
            self._registrar.close(operation)
        self._first_failed = sorted([*self._first_failed, *(operation.number for operation in doomed)])[:1]
        self._take_back(abort.operation)
        self._shared.events.record(
            "failed", level=logging.WARNING, op=abort.operation, cause=abort.cause, origin=origin, text=abort.text
        )
        # Who is lost to another may not be lost to us: it must hear how far we got.
        self._untold = set(coordinator.peers)
        self._told(self._gone.union(self.left))
        self._end(doomed, error, abort)

    def _naming_all_lost(self, abort: Abort) -> Abort:
        return fitting(naming_all_lost(abort, self._coordinator.peers, self._shared.lost))

    def _take_back(self, operation: int) -> None:
        """Operations from this one on are over: no path reads or writes their memory any more (decision 7)."""
        coordinator = self._coordinator
        coordinator.courier.forget(coordinator.communicator, operation)
        self._desk.withdraw(coordinator.communicator, operation)
        coordinator.inbox.forget(operation)
        self._surrender(coordinator.communicator, operation)

    def close(self, error: R2cclError, goes_on: bool = False) -> None:
        """The communicator ended: what is unfinished fails here, and nobody is told. ``goes_on``: the rank does, and
        with it the connections, which may be in the middle of a chunk."""
        if self.error is None:
            self.error = error
        self._deadlines.end()
        coordinator = self._coordinator
        doomed = [*coordinator.running.values(), *coordinator.waiting]
        coordinator.running.clear()
        coordinator.waiting.clear()
        for operation in doomed:
            self._registrar.close(operation)
        if goes_on:
            self._take_back(min((operation.number for operation in doomed), default=coordinator.next_operation))
            # Nobody is told, so nobody will say that it knows.
            coordinator.courier.failure_is_known(coordinator.communicator, coordinator.peers)
        self._end(doomed, error, None)

    def _end(self, doomed: Iterable[Operation], error: R2cclError, abort: Abort | None) -> None:
        """These ended with it, whose callbacks may raise: the others end all the same, and everybody is told."""
        with contextlib.ExitStack() as rest:
            rest.callback(self._tell, error, abort)
            for operation in reversed([*doomed]):
                self._coordinator.inbox.let_go(operation)
                rest.callback(operation.work.finish, error)

    def _tell(self, error: R2cclError, abort: Abort | None) -> None:
        self._coordinator.tell_if_idle()
        if abort is not None:
            self._tell_untold()
        for heard in list(self.on_failed):
            heard(error, abort)

    def _tell_untold(self) -> None:
        if not self._untold or self._abort is None:
            return
        for peer in sorted(self._untold):
            self._coordinator.courier.tell(peer, Kind.ABORT, self._abort.body())
        if not self._repeating:
            self._repeating = True
            self._timers.after(ABORT_REPEAT_S, self._tell_again)

    def _tell_again(self) -> None:
        self._repeating = False
        self._tell_untold()

    def resync(self, peer: int) -> None:
        """A path changed: the peer may have missed our abort."""
        if self._abort is not None and peer in self._untold:
            self._coordinator.courier.tell(peer, Kind.ABORT, self._abort.body())
