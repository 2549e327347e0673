"""Everything that this rank owes one peer: what waits, what is held back, what is sent and not yet acknowledged.

A peer that has not entered an operation has no place for its chunks. It keeps up to a fixed credit of them; what is
beyond waits here until the peer says ``Entered`` (or is heard to be that far in any other way). So a bulk connection
is never paused for want of a destination, and a peer's memory is bounded by peers x credit (decision 13).

Where hardware writes into the peer's memory, a chunk beyond the eager limit has no place before the peer told its
landings, so it waits for those, whatever the credit (decision 26).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.owed import ByNumber, Pieces
from r2ccl.protocol.wire import Ack, Landing

#: A peer is sent nothing of operations this far beyond those that it has entered: small chunks would fit its credit by
#: the hundred thousand, and empty ones without end.
OPERATIONS_AHEAD_MAX = 1 << 14
#: So much more may be sent to a rank of the same machine: memory brings large chunks at once, and in a ring of four
#: ranks three of them before it is known who is late.
CREDIT_ON_ONE_MACHINE = 4
#: Chunks, and their bytes, that may go out from copies and outlive their operations before operations wait for
#: acknowledgements after all: a root that never waits would run ahead without end.
COPIES_MAX = 1024
COPIED_BYTES_MAX = 16 << 20


_TURN = attrgetter("turn")


class Outbox:
    """Towards one peer, over all communicators."""

    __slots__ = (
        "_completed",
        "_early",
        "_entered",
        "_held",
        "_homeless",
        "_landings",
        "_sent",
        "_unsolicited",
        "_unwanted",
        "copied_bytes",
        "copies",
        "credit_bytes",
        "peer",
        "unsolicited_bytes",
        "waiting",
        "written_above_bytes",
    )

    def __init__(self, peer: int, credit_bytes: int, written_above_bytes: int | None = None) -> None:
        self.peer = peer
        #: Larger chunks are written one-sided, into a landing; None: the transport has no one-sided writes.
        self.written_above_bytes = written_above_bytes
        #: (communicator, operation) -> step -> where it may be written.
        self._landings: dict[tuple[int, int], dict[int, Landing]] = {}
        #: Chunks that wait for a landing, by (communicator, operation).
        self._homeless: dict[tuple[int, int], list[Parcel]] = {}
        self.credit_bytes = credit_bytes
        #: May be sent, but no lane has room: by turn, resent chunks first of theirs.
        self.waiting: deque[Parcel] = deque()
        #: Beyond the credit, in order: nothing overtakes, or an operation could starve.
        self._held: deque[Parcel] = deque()
        #: communicator -> number of operations that the peer is known to have entered.
        self._entered: dict[int, int] = {}
        #: communicator -> number of operations of which the peer is known to have all that was sent to it.
        self._completed: dict[int, int] = {}
        #: Acknowledged by a peer that has not entered their operation: it has the bytes, and may yet call something
        #: else, so their operation must not end on that.
        self._early: list[Parcel] = []
        #: Bytes accounted against the credit, by communicator and operation.
        self._unsolicited: dict[int, ByNumber[int]] = {}
        #: Of those bytes, what was for operations that failed, by communicator: the peer may still keep them.
        self._unwanted: dict[int, int] = {}
        self.unsolicited_bytes = 0
        #: Of what is not settled, chunks that go out from copies of their own.
        self.copies = 0
        self.copied_bytes = 0
        #: All and only parcels that were submitted and are not settled, by communicator and operation, oldest first.
        self._sent: dict[int, ByNumber[Pieces]] = {}

    def submit(self, parcel: Parcel) -> bool:
        """Take note of a new parcel. True: send it now; False: it is held until the peer has entered."""
        operations = self._sent.get(parcel.communicator)
        if operations is None:
            operations = self._sent[parcel.communicator] = ByNumber()
        pieces = operations.get(parcel.operation)
        if pieces is None:
            pieces = operations.put(parcel.operation, Pieces())
        pieces[parcel.step, parcel.chunk] = parcel
        if parcel.owner is None:
            self.copies += 1
            self.copied_bytes += len(parcel.payload)
        if self.written_above_bytes is not None and len(parcel.payload) > self.written_above_bytes:
            key = (parcel.communicator, parcel.operation)
            if self._fits_landing(parcel):
                return True
            self._homeless.setdefault(key, []).append(parcel)
            return False
        if self.may_post(parcel.communicator, parcel.operation, len(parcel.payload)):
            return True
        self._held.append(parcel)
        return False

    def may_post(self, communicator: int, operation: int, size: int) -> bool:
        """May so many bytes of the operation go to the peer beside everything here? They are charged, if it has not
        entered it."""
        if operation < self._entered.get(communicator, 0):
            return True
        if self._held or not self._fits_credit(communicator, operation, size):
            return False
        self._charge(communicator, operation, size)
        return True

    @property
    def may_copy(self) -> bool:
        """May one more chunk outlive its operation?"""
        return self.copies < COPIES_MAX and self.copied_bytes < COPIED_BYTES_MAX

    def line_up(self, parcel: Parcel) -> None:
        """No lane has room for it. The operation that started first goes first: its next chunks are what other ranks
        wait for, and behind the whole first step of the operations after it they would make all of them wait."""
        waiting = self.waiting
        if not waiting or waiting[-1].turn <= parcel.turn:
            waiting.append(parcel)
        else:
            waiting.insert(bisect_right(waiting, parcel.turn, key=_TURN), parcel)

    def entered(self, communicator: int, operation: int) -> list[Parcel]:
        """The peer is in ``operation``. Returns the parcels that this releases, in order."""
        if operation < self._entered.get(communicator, 0):
            return []
        self._entered[communicator] = operation + 1
        unsolicited = self._unsolicited.get(communicator)
        if unsolicited:
            self.unsolicited_bytes -= sum(unsolicited.take_below(operation + 1))
        return self.release() if self._held else []

    @property
    def has_early(self) -> bool:
        """Does anything wait to be counted until the peer has entered its operation?"""
        return bool(self._early)

    def count(self, settled: Iterable[Parcel]) -> list[Parcel]:
        """Which of these and of earlier parcels bring their operation nearer its end: those whose operation the peer
        has entered. The others come back from a later call."""
        known = [*self._early, *settled]
        self._early = [p for p in known if p.operation >= self._entered.get(p.communicator, 0)]
        return [p for p in known if p.operation < self._entered.get(p.communicator, 0)] if self._early else known

    def may_land(self, communicator: int, operation: int, landings: Iterable[Landing]) -> list[Parcel]:
        """The peer told where transfers of an operation may be written. Returns the parcels that this releases.

        Not to be called for operations that have ended here: nobody would forget their landings.
        """
        key = (communicator, operation)
        self._landings[key] = {landing.step: landing for landing in landings}
        homeless = self._homeless.pop(key, [])
        fitting = [parcel for parcel in homeless if self._fits_landing(parcel)]
        if len(fitting) < len(homeless):
            # The peer called something else, and both will hear of it.
            self._homeless[key] = [parcel for parcel in homeless if not self._fits_landing(parcel)]
        return fitting

    def has_misfits(self, communicator: int, operation: int) -> bool:
        """Do chunks of an operation wait though the peer told where all that it expects may be written?"""
        key = (communicator, operation)
        return key in self._landings and key in self._homeless

    def landing(self, parcel: Parcel) -> Landing:
        """Where a parcel that was released may be written."""
        return self._landings[parcel.communicator, parcel.operation][parcel.step]

    def acknowledged(self, ack: Ack) -> list[Parcel]:
        """Which parcels the acknowledgement settles. Told twice, it settles nothing more."""
        self._note_completed(ack.communicator, ack.completed)
        operations = self._sent.get(ack.communicator)
        if not operations:
            return []
        settled = self._take_below(operations, ack.completed)
        for transfer in ack.transfers:
            pieces = operations.get(transfer.operation)
            if pieces is None:
                continue
            settled.extend(pieces.take(transfer))
            if not pieces:
                del operations[transfer.operation]
        self._uncount(settled)
        return settled

    def completed(self, communicator: int, completed: int) -> list[Parcel]:
        """As :meth:`acknowledged`, for the number that rides in a header."""
        self._note_completed(communicator, completed)
        operations = self._sent.get(communicator)
        if not operations:
            return []
        settled = self._take_below(operations, completed)
        self._uncount(settled)
        return settled

    def _note_completed(self, communicator: int, completed: int) -> None:
        # Not of a communicator that is not known, or no more: a goodbye may be said again after all have left.
        if communicator in self._entered and completed > self._completed.get(communicator, 0):
            self._completed[communicator] = completed

    def completed_by_peer(self, communicator: int) -> int:
        """Of all operations below it the peer has what was sent to it."""
        return self._completed.get(communicator, 0)

    def is_level(self, communicator: int, operation: int) -> bool:
        """Take note that the peer has entered an operation, and has all of those before it. False: that changes more,
        so :meth:`completed` and :meth:`entered` are to be told, and nothing was noted here."""
        if (
            self._held
            or self._early
            or self._sent.get(communicator)
            or self._unsolicited.get(communicator)
            or self._homeless
            or self._entered.get(communicator, 0) > operation
        ):
            return False
        self._entered[communicator] = operation + 1
        self._completed[communicator] = operation
        return True

    def _take_below(self, operations: ByNumber[Pieces], completed: int) -> list[Parcel]:
        taken = operations.take_below(completed)
        if len(taken) == 1:
            return [*taken[0].values()]
        return [parcel for pieces in taken for parcel in pieces.values()]

    def give_back(self, parcels: Iterable[Parcel]) -> None:
        """Chunks of a lost lane: to the head of the queue, in their old order, each before others of its turn."""
        for parcel in reversed(list(parcels)):
            self.waiting.insert(bisect_left(self.waiting, parcel.turn, key=_TURN), parcel)

    def find(self, communicator: int, operation: int, step: int, chunk: int) -> Parcel | None:
        """The parcel of that name, unless it is settled."""
        operations = self._sent.get(communicator)
        pieces = operations.get(operation) if operations else None
        return None if pieces is None else pieces.get((step, chunk))

    def settle_operation(self, communicator: int, operation: int) -> list[Parcel]:
        """The operation ended well: its sends are known to have arrived. Returns what no acknowledgement settled yet,
        except what went out from a copy (``owner`` is None), which goes on until the peer has it."""
        self._landings.pop((communicator, operation), None)
        operations = self._sent.get(communicator)
        pieces = operations.get(operation) if operations else None
        if not pieces:
            return []
        done = [key for key, parcel in pieces.items() if parcel.owner is not None]
        return [pieces.pop(key) for key in done]

    def forget(self, communicator: int, operation: int) -> list[Parcel]:
        """Operations from ``operation`` on failed: nothing of theirs is wanted any more, here or by the peer. What it
        keeps for them counts against its credit until it knows, see :meth:`failure_is_known`."""
        operations = self._sent.get(communicator, ByNumber())
        gone = [parcel for number in operations if number >= operation for parcel in operations[number].values()]
        for number in [number for number in operations if number >= operation]:
            del operations[number]
        unsolicited = self._unsolicited.get(communicator, ByNumber())
        for number in [number for number in unsolicited if number >= operation]:
            self._unwanted[communicator] = self._unwanted.get(communicator, 0) + unsolicited.pop(number)
        self._uncount(gone)
        self._early = [p for p in self._early if p.communicator != communicator or p.operation < operation]
        unwanted = set(gone)
        for table in (self._landings, self._homeless):
            for key in [key for key in table if key[0] == communicator and key[1] >= operation]:
                del table[key]
        for queue in (self.waiting, self._held):
            kept = [parcel for parcel in queue if parcel not in unwanted]
            queue.clear()
            queue.extend(kept)
        return gone

    def failure_is_known(self, communicator: int) -> None:
        """The peer keeps nothing of operations that failed here: its credit is free again, see :meth:`release`."""
        self.unsolicited_bytes -= self._unwanted.pop(communicator, 0)

    def left(self, communicator: int) -> None:
        """The peer has left the communicator and keeps nothing of it, called for or not; see :meth:`release`."""
        self.unsolicited_bytes -= sum(self._unsolicited.pop(communicator, {}).values())
        self.failure_is_known(communicator)

    def dismiss(self, communicator: int) -> list[Parcel]:
        """Nobody calls anything in a communicator any more. Returns what was still owed."""
        gone = self.forget(communicator, 0)
        self.failure_is_known(communicator)
        self._entered.pop(communicator, None)
        self._completed.pop(communicator, None)
        self._sent.pop(communicator, None)
        self._unsolicited.pop(communicator, None)
        return gone

    def abandon(self) -> list[Parcel]:
        """The peer is gone: nothing is owed to it any more, of whatever operation. Returns what was."""
        gone = [parcel for ops in self._sent.values() for pieces in ops.values() for parcel in pieces.values()]
        for table in (self._sent, self._unsolicited, self._unwanted, self._landings, self._homeless):
            table.clear()
        self.unsolicited_bytes = self.copies = self.copied_bytes = 0
        for queue in (self.waiting, self._held, self._early):
            queue.clear()
        return gone

    def unsettled(self) -> int:
        """How many parcels the peer has not acknowledged."""
        return sum(len(pieces) for operations in self._sent.values() for pieces in operations.values())

    def is_under_way(self, communicator: int) -> bool:
        """Has anything of a communicator gone out that the peer has not acknowledged? What is held back has not."""
        sent = sum(len(pieces) for pieces in self._sent.get(communicator, {}).values())
        held = sum(parcel.communicator == communicator and not parcel.is_settled for parcel in self._held)
        homeless = sum(len(parcels) for key, parcels in self._homeless.items() if key[0] == communicator)
        return sent > held + homeless

    def entered_by_peer(self, communicator: int) -> int:
        """How many operations the peer is known to have entered."""
        return self._entered.get(communicator, 0)

    def _uncount(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            if parcel.owner is None:
                self.copies -= 1
                self.copied_bytes -= len(parcel.payload)

    def _fits_landing(self, parcel: Parcel) -> bool:
        landing = self._landings.get((parcel.communicator, parcel.operation), {}).get(parcel.step)
        end = parcel.chunk * parcel.chunk_bytes + len(parcel.payload)
        return landing is not None and end <= landing.length

    def _fits_credit(self, communicator: int, operation: int, size: int) -> bool:
        if operation >= self._entered.get(communicator, 0) + OPERATIONS_AHEAD_MAX:
            return False
        return self.unsolicited_bytes + size <= self.credit_bytes

    def _charge(self, communicator: int, operation: int, size: int) -> None:
        unsolicited = self._unsolicited.get(communicator)
        if unsolicited is None:
            unsolicited = self._unsolicited[communicator] = ByNumber()
        if operation in unsolicited:
            unsolicited[operation] += size
        else:
            unsolicited.put(operation, size)
        self.unsolicited_bytes += size

    def release(self) -> list[Parcel]:
        """What is held back and now may go, in order."""
        released: list[Parcel] = []
        still: deque[Parcel] = deque()
        while self._held:
            parcel = self._held.popleft()
            if parcel.is_settled:
                continue
            if parcel.operation < self._entered.get(parcel.communicator, 0):
                released.append(parcel)
            elif not still and self._fits_credit(parcel.communicator, parcel.operation, len(parcel.payload)):
                self._charge(parcel.communicator, parcel.operation, len(parcel.payload))
                released.append(parcel)
            else:
                still.append(parcel)
        self._held = still
        return released
