"""What one peer is owed of one communicator, in the order of operations: the tables of an outbox."""

from __future__ import annotations

from typing import Generic, TypeVar

from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.wire import OpenTransfer

V = TypeVar("V")


class Pieces(dict[tuple[int, int], Parcel]):
    """Parcels of one operation by (step, chunk)."""

    #: Step -> base of the last acknowledgement: no need to look below it again. None: it had none, as most that are
    #: small never do.
    _settled_below: dict[int, int] | None = None

    def take(self, transfer: OpenTransfer) -> list[Parcel]:
        """Take out what the acknowledgement names. Its cost is that of what is new in it: with a look at every piece a
        transfer of 100,000 chunks took a minute for acknowledgements alone."""
        step, base, bits = transfer.step, transfer.base, int.from_bytes(transfer.bits, "little")
        if self._settled_below is None:
            self._settled_below = {}
        first = self._settled_below.get(step, 0)
        if base + bits.bit_length() - first > len(self):
            done = [key for key in self if key[0] == step and (key[1] < base or bits >> (key[1] - base) & 1)]
        else:
            done = [(step, chunk) for chunk in range(first, base) if (step, chunk) in self]
            beyond = range(base, base + bits.bit_length())
            done += [(step, chunk) for chunk in beyond if bits >> (chunk - base) & 1 and (step, chunk) in self]
        self._settled_below[step] = max(first, base)
        return [self.pop(key) for key in done]


class ByNumber(dict[int, V], Generic[V]):
    """What is kept of one communicator's operations, by number."""

    #: The highest number that was ever in here.
    _newest = -1
    #: They are in here in the order of their numbers: one that began late, or began again after all its earlier chunks
    #: had been acknowledged, is out of line.
    _is_in_order = True

    def put(self, number: int, value: V) -> V:
        """For a number that is not in here."""
        self[number] = value
        if number > self._newest:
            self._newest = number
        else:
            self._is_in_order = False
        return value

    def take_below(self, number: int) -> list[V]:
        """Take out all below a number. Of a hundred operations that are under way a look at every one, for each chunk
        that comes, would be most of what the chunk costs."""
        if not self._is_in_order:
            taken = [self.pop(below) for below in [below for below in self if below < number]]
            self._is_in_order = not self
            return taken
        taken = []
        while self and (oldest := next(iter(self))) < number:
            taken.append(self.pop(oldest))
        return taken
