"""How algorithms for powers of two serve any number of ranks: the excess is folded in first and out last.

With p the largest power of two within n ranks, the first 2 (n - p) ranks form neighbouring pairs. The even one of a
pair gives its elements to the odd one, waits, and gets the result. The odd ones and all ranks behind the pairs take
part under new numbers 0 ... p - 1 that keep the order of ranks, so that ranks 2 i and 2 i + 1 count as one block and
"the block of lower rank" is always also the lower number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fold:
    """A rank's part in the folding."""

    #: The largest power of two within the number of ranks, and its logarithm: so many take part, in so many rounds.
    participants: int
    rounds: int
    #: This rank's number among those who take part; None: it only gives and gets.
    number: int | None
    #: The other rank of this rank's pair; None: it has none.
    partner: int | None
    excess: int

    def rank_of(self, number: int) -> int:
        """The rank that takes part under ``number``."""
        return 2 * number + 1 if number < self.excess else number + self.excess


def fold(ranks: int, rank: int) -> Fold:
    """What ``rank`` does while ``ranks`` ranks are folded to a power of two."""
    rounds = ranks.bit_length() - 1
    excess = ranks - (1 << rounds)
    if rank >= 2 * excess:
        return Fold(1 << rounds, rounds, rank - excess, None, excess)
    return Fold(1 << rounds, rounds, rank // 2 if rank % 2 else None, rank ^ 1, excess)
