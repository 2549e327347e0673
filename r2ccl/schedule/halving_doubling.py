"""Halving-doubling all-reduce (Rabenseifner): as few bytes as the ring, in a logarithmic number of steps.

Reduce-scatter by recursive halving: in round i a rank and its partner, whose number differs in bit i, cut the range
that both still work on in half; each gives the other half away and reduces what it gets into the half it keeps. After
the last round each holds one segment of the result. All-gather by recursive doubling walks the same rounds backwards:
each gives its partner all it has.

phase           steps          sends          elements
fold in         min(1, n - p)  min(1, n - p)  min(1, n - p) * c
reduce-scatter  log2(p)        log2(p)        (p - 1) * c // p
all-gather      log2(p)        log2(p)        (p - 1) * c // p
fold out        min(1, n - p)  min(1, n - p)  min(1, n - p) * c

The most by any rank, for n ranks, p the largest power of two within n, and c elements that p divides. ``folding`` says
how n becomes p. The first round, which moves the most, is between neighbours, and whoever keeps a half has reduced a
block of consecutive ranks: the partner's block of lower ranks is the left operand. Each element is reduced in one
place only, so all ranks get the same bits.

Why little has to wait: an element comes back in the all-gather only from whoever finished it, who did so after all
that it was given away to. The same proves that the sends of the reduce-scatter and of folding in arrived. Nothing comes
back of the all-gather and of folding out. Ranges differ from round to round, so these waits are for whole receives:
here the ring, which forwards chunk by chunk, is better with large buffers.

With fewer elements than p, empty ranges are left out on both sides. What is in a range that isn't empty has still made
all its steps, so each wait that is needed has a receive to name.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2ccl.schedule.folding import Fold, fold
from r2ccl.schedule.ir import Program, Receive, Send, Shape, segments


def all_reduce(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), ())
    part = fold(ranks, rank)
    first = 1 if part.excess else 0
    last = first + 2 * part.rounds
    if part.number is None:
        assert part.partner is not None
        give = Send(0, part.partner, 0, count)
        get = Receive(last, part.partner, 0, count)
        return Program(rank, count, (give,), (get,))
    sends: list[Send] = []
    receives: list[Receive] = []
    if part.partner is not None:
        receives.append(Receive(0, part.partner, 0, count, reduce=True, received_first=True))
    ranges = _halves(part.number, part.rounds, count)
    _reduce_scatter(part, part.number, ranges, first, sends, receives)
    held = _all_gather(part, part.number, ranges, first + part.rounds, sends, receives)
    if part.partner is not None:
        sends.append(Send(last, part.partner, 0, count, held, needs_ack=True))
    return Program(rank, count, tuple(sends), tuple(receives))


#: For each round: the range that a rank keeps and the one that it gives away.
_Ranges = Sequence[tuple[tuple[int, int], tuple[int, int]]]


def _halves(number: int, rounds: int, count: int) -> _Ranges:
    cut = segments(count, 1 << rounds)
    ranges = []
    low, high = 0, 1 << rounds
    for i in range(rounds):
        middle = (low + high) // 2
        lower, upper = (cut[low][0], cut[middle - 1][1]), (cut[middle][0], cut[high - 1][1])
        if number >> i & 1:
            low = middle
            ranges.append((upper, lower))
        else:
            high = middle
            ranges.append((lower, upper))
    return ranges


def _reduce_scatter(
    part: Fold, number: int, ranges: _Ranges, first: int, sends: list[Send], receives: list[Receive]
) -> None:
    """Each round works on what the round before kept, so it waits for that."""
    for i, (kept, given) in enumerate(ranges):
        partner = number ^ 1 << i
        previous = (len(receives) - 1,) if receives else ()
        if given[0] < given[1]:
            sends.append(Send(first + i, part.rank_of(partner), *given, previous))
        if kept[0] < kept[1]:
            receives.append(
                Receive(
                    first + i,
                    part.rank_of(partner),
                    *kept,
                    reduce=True,
                    received_first=partner < number,
                    after=previous,
                )
            )


def _all_gather(
    part: Fold, number: int, ranges: _Ranges, first: int, sends: list[Send], receives: list[Receive]
) -> tuple[int, ...]:
    """Returns the receives which together make the result: this rank's own segment, and all that it was given."""
    own = bool(ranges) and ranges[-1][0][0] < ranges[-1][0][1]
    held = (len(receives) - 1,) if own or not ranges else ()
    for step, i in enumerate(reversed(range(part.rounds)), first):
        partner = part.rank_of(number ^ 1 << i)
        kept, given = ranges[i]
        if kept[0] < kept[1]:
            sends.append(Send(step, partner, *kept, held, needs_ack=True))
        if given[0] < given[1]:
            held = (*held, len(receives))
            receives.append(Receive(step, partner, *given))
    return held
