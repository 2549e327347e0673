"""What has arrived, by name: the receiver is the authority on exactly-once.

Think of a goods-in clerk with a list. A chunk's name is looked up before its bytes are looked at. A name that is ticked
off is a *duplicate* and its bytes are thrown away; sending a chunk again, on another NIC, on mere suspicion, is
therefore always safe and costs only bytes. A name that nobody is delivering yet belongs to the *first* connection that
brings it; while that one is still unloading, another that brings the same chunk is a *twin* and unloads elsewhere.
Whoever finishes first ticks the name off, and the other one has become a duplicate (decisions 1 to 3).

The ledger also says what to acknowledge: ``completed``, the number of operations whose every chunk arrived, which
needs no memory, and a bitmap for each transfer of an operation beyond that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from r2ccl.protocol.wire import BITMAP_BYTES_MAX, CONTROL_BYTES_MAX, OpenTransfer

#: The most that a transfer takes in an acknowledgement, beside its bitmap.
_TRANSFER_BYTES = 32

#: (operation, step, source)
IncomingName = tuple[int, int, int]


class Offer(enum.Enum):
    """What to do with a chunk whose header has just been read."""

    FIRST = "first"  #: it owns the destination
    TWIN = "twin"  #: another path is writing the destination: take it elsewhere
    DUPLICATE = "duplicate"  #: throw it away, and acknowledge again


class _Incoming:
    __slots__ = ("arrived", "writers")

    def __init__(self) -> None:
        #: Bit i is set when chunk i arrived.
        self.arrived = 0
        #: Chunk -> the connection that owns its destination, for chunks being received.
        self.writers: dict[int, Any] = {}


class Ledger:
    """All chunks sent to this rank in one communicator."""

    __slots__ = ("_finished", "_open", "_spoiled", "_unacknowledged", "completed", "duplicates")

    def __init__(self) -> None:
        #: All operations below have arrived in full.
        self.completed = 0
        #: Finished operations beyond ``completed``: one before them is not finished.
        self._finished: set[int] = set()
        #: All and only transfers of operations >= completed of which at least one header was seen.
        self._open: dict[IncomingName, _Incoming] = {}
        #: Transfers that changed since they were last acknowledged, by source.
        self._unacknowledged: dict[int, set[IncomingName]] = {}
        #: (operation, step, source, chunk) that came with a wrong checksum and has not come right since.
        self._spoiled: dict[tuple[int, int, int, int], int] = {}
        self.duplicates = 0

    def offer(self, operation: int, step: int, source: int, chunk: int, writer: Any) -> Offer:
        """A header was read on connection ``writer``."""
        name = (operation, step, source)
        incoming = self._open.get(name)
        if operation < self.completed or operation in self._finished:
            return self._duplicate(name)
        if incoming is None:
            incoming = self._open[name] = _Incoming()
        elif incoming.arrived >> chunk & 1:
            return self._duplicate(name)
        if chunk in incoming.writers:
            return Offer.TWIN
        incoming.writers[chunk] = writer
        return Offer.FIRST

    def accept(self, operation: int, step: int, source: int, chunk: int) -> tuple[bool, Any | None]:
        """The chunk's bytes are complete and right, on whatever path.

        Returns whether they count (False: somebody else was faster), and the connection that owned the destination,
        which must be told to discard what it still receives unless it is the one that completed.
        """
        name = (operation, step, source)
        if operation < self.completed or operation in self._finished:
            self._duplicate(name)
            return False, None
        incoming = self._open.get(name)
        if incoming is None:
            incoming = self._open[name] = _Incoming()
        bit = 1 << chunk
        if incoming.arrived & bit:
            self._duplicate(name)
            return False, None
        incoming.arrived |= bit
        if self._spoiled:
            self._spoiled.pop((operation, step, source, chunk), None)
        self._touch(name)
        return True, incoming.writers.pop(chunk, None)

    def has(self, operation: int, step: int, source: int, chunk: int) -> bool:
        """Has the chunk arrived before?"""
        if operation < self.completed or operation in self._finished:
            return True
        incoming = self._open.get((operation, step, source))
        return incoming is not None and bool(incoming.arrived >> chunk & 1)

    def forsake(self, operation: int, step: int, source: int, chunk: int, writer: Any) -> None:
        """The connection ended, or its bytes were spoiled, before the chunk was complete: the name is free again."""
        incoming = self._open.get((operation, step, source))
        if incoming is not None and incoming.writers.get(chunk) == writer:
            del incoming.writers[chunk]

    def spoiled(self, operation: int, step: int, source: int, chunk: int, copy: int) -> None:
        """The chunk came with a wrong checksum and is not here: it is to be asked for until it comes right."""
        self._spoiled[operation, step, source, chunk] = copy

    def missing(self, source: int) -> list[tuple[int, int, int, int]]:
        """(operation, step, chunk, copy that came) to ask ``source`` for again: a request may be lost with a path."""
        return sorted((name[0], name[1], name[3], copy) for name, copy in self._spoiled.items() if name[2] == source)

    def finish(self, operation: int) -> bool:
        """Every chunk of the operation is here. Returns whether ``completed`` grew."""
        if operation < self.completed:
            return False
        if operation > self.completed:
            self._finished.add(operation)
            return False
        self.completed += 1
        while self.completed in self._finished:
            self._finished.discard(self.completed)
            self.completed += 1
        if self._open:
            for name in [name for name in self._open if name[0] < self.completed]:
                del self._open[name]
        if self._spoiled:
            self._spoiled = {name: copy for name, copy in self._spoiled.items() if name[0] >= self.completed}
        return True

    def finish_with(self, operation: int, step: int, source: int) -> bool:
        """The one chunk of an operation came whole, in its turn and by no other path: the operation is finished.

        False: it is not as simple as that, and nothing has changed: ``accept`` and ``finish`` are to say what it is.
        """
        if operation != self.completed or self._finished or self._spoiled or (operation, step, source) in self._open:
            return False
        self.completed += 1
        return True

    def owes(self, source: int) -> bool:
        """Has anything changed for ``source`` since the last acknowledgement?"""
        return bool(self._unacknowledged.get(source))

    def owe_nothing(self, operation: int, step: int, source: int) -> None:
        """Whoever sent this transfer does not wait to hear of it."""
        changed = self._unacknowledged.get(source)
        if changed:
            changed.discard((operation, step, source))

    def acknowledge(self, source: int) -> tuple[OpenTransfer, ...]:
        """What changed since the last call, to be sent with ``completed``."""
        changed = self._unacknowledged.pop(source, None)
        if not changed:
            return ()
        return tuple(self._describe(name) for name in sorted(changed) if name in self._open)

    def acknowledge_all(self, source: int) -> tuple[OpenTransfer, ...]:
        """Everything open from ``source``: for a peer that may have missed acknowledgements when a path was lost."""
        self._unacknowledged.pop(source, None)
        return tuple(self._describe(name) for name in sorted(self._open) if name[2] == source)

    def _describe(self, name: IncomingName) -> OpenTransfer:
        arrived = self._open[name].arrived
        base = (~arrived & (arrived + 1)).bit_length() - 1
        rest = arrived >> base & (1 << 8 * BITMAP_BYTES_MAX) - 1
        return OpenTransfer(name[0], name[1], base, rest.to_bytes((rest.bit_length() + 7) // 8, "little"))

    def _duplicate(self, name: IncomingName) -> Offer:
        self.duplicates += 1
        self._touch(name)
        return Offer.DUPLICATE

    def _touch(self, name: IncomingName) -> None:
        changed = self._unacknowledged.get(name[2])
        if changed is None:
            changed = self._unacknowledged[name[2]] = set()
        changed.add(name)


def frames_of(transfers: tuple[OpenTransfer, ...]) -> Iterator[tuple[OpenTransfer, ...]]:
    """What one acknowledgement each can carry; one without transfers if there are none."""
    first, used = 0, 0
    for index, transfer in enumerate(transfers):
        size = _TRANSFER_BYTES + len(transfer.bits)
        if used + size > CONTROL_BYTES_MAX - _TRANSFER_BYTES:
            yield transfers[first:index]
            first, used = index, 0
        used += size
    yield transfers[first:]
