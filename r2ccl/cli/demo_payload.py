"""What the demo's ranks add up, and how each knows what must come out, to the last element.

Rank r gives to operation k a stretch of its own fixed vector A(r) of pseudo-random integers, which begins elsewhere for
each operation, plus one number s(r, k). The sum is then the same stretch of A(0) + A(1) + ..., which each rank works
out once, plus the sum of s: one addition per element to make and one comparison to check. A chunk of another rank,
another place, another operation, one added twice or not at all, changes the result; integers this small add up exactly
in float32 in any order.

The last element is no data: it carries the wish to stop, so that all ranks stop after the same operation.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

#: Below this every integer and every partial sum is exact: 2**24 / (2**16 + 2**12) leaves room for 240 ranks.
VECTOR_LIMIT: Final = 1 << 16
SHIFT_LIMIT: Final = 1 << 12
#: Operations begin at different places of the vectors, up to here.
OFFSETS: Final = 4096
#: Made and checked in pieces of this many elements, so that the event loop is never away for long.
PIECE: Final = 1 << 18


class Payload:
    """One rank's view of the data."""

    def __init__(self, seed: int, rank: int, ranks: int, elements: int) -> None:
        self.elements = elements
        self.ranks = ranks
        self._seed = seed
        self._rank = rank
        vectors = [
            np.random.default_rng((seed, other)).integers(0, VECTOR_LIMIT, elements + OFFSETS).astype(np.float32)
            for other in range(ranks)
        ]
        self._own = vectors[rank]
        self._sum: Vector = np.sum(vectors, axis=0, dtype=np.float32)
        self._scratch: Vector = np.empty(PIECE, np.float32)

    def new_buffer(self) -> Vector:
        """Room for the data and the wish to stop."""
        return np.empty(self.elements + 1, np.float32)

    def size_of(self, operation: int) -> int:
        """Where sizes vary: from one element to all of them, as many small ones as large ones; alike on all ranks."""
        rng = np.random.default_rng((self._seed, self.ranks, operation, 1))
        return max(1, int(self.elements ** rng.random()))

    def pieces(self, elements: int | None = None) -> list[slice]:
        """The data in parts, for :meth:`fill` and :meth:`wrong_elements`."""
        end = self.elements if elements is None else elements
        return [slice(begin, min(begin + PIECE, end)) for begin in range(0, end, PIECE)]

    def fill(self, buffer: Vector, operation: int, piece: slice) -> None:
        """Write this rank's contribution to an operation."""
        offset, shifts = self._draw(operation)
        np.add(self._own[offset + piece.start : offset + piece.stop], shifts[self._rank], out=buffer[piece])

    def wrong_elements(self, buffer: Vector, operation: int, piece: slice) -> int:
        """How many elements of a result are not what they must be."""
        offset, shifts = self._draw(operation)
        difference = self._scratch[: piece.stop - piece.start]
        np.subtract(buffer[piece], self._sum[offset + piece.start : offset + piece.stop], out=difference)
        return int(np.count_nonzero(difference != shifts.sum(dtype=np.float32)))

    def set_stop(self, buffer: Vector, stop: bool) -> None:
        """Say whether this rank wants to stop."""
        buffer[-1] = 1.0 if stop else 0.0

    def stop_votes(self, buffer: Vector) -> int | None:
        """How many ranks want to stop; None if the element that tells is itself wrong."""
        votes = float(buffer[-1])
        return int(votes) if votes in range(self.ranks + 1) else None

    def _draw(self, operation: int) -> tuple[int, Vector]:
        rng = np.random.default_rng((self._seed, self.ranks, operation))
        shifts = rng.integers(0, SHIFT_LIMIT, self.ranks).astype(np.float32)
        return int(rng.integers(0, OFFSETS)), shifts
