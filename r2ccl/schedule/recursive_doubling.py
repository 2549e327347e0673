"""Recursive doubling all-reduce: whole buffers change hands, so it has the fewest steps and the most bytes.

In round i a rank exchanges its whole buffer with the partner whose number differs in bit i; both then hold the
reduction of twice as many ranks.

phase     steps          sends          elements
fold in   min(1, n - p)  min(1, n - p)  min(1, n - p) * c
exchange  log2(p)        log2(p)        log2(p) * c
fold out  min(1, n - p)  min(1, n - p)  min(1, n - p) * c

The most by any rank, for n ranks and p the largest power of two within n; ``folding`` says how n becomes p.

Everybody reduces everything, so all must do it alike: of the two blocks of consecutive ranks that meet, the block of
lower ranks is the left operand on both sides. A rank reduces into the elements that it is sending, so sends go out from
copies, which is why this is for small messages only. Nobody hears again from those it sent to, except for whoever
folded in, so causality covers no other send. They are marked as needing acknowledgement, which says only that: a copy
can be resent after the operation ended.
"""

from __future__ import annotations

from r2ccl.schedule.folding import fold
from r2ccl.schedule.ir import Program, Receive, Send, Shape


def all_reduce(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), (), sends_from_copies=True)
    part = fold(ranks, rank)
    first = 1 if part.excess else 0
    last = first + part.rounds
    if part.number is None:
        assert part.partner is not None
        give, get = Send(0, part.partner, 0, count), Receive(last, part.partner, 0, count)
        return Program(rank, count, (give,), (get,), sends_from_copies=True)
    sends: list[Send] = []
    receives: list[Receive] = []
    previous: tuple[int, ...] = ()
    if part.partner is not None:
        receives.append(Receive(0, part.partner, 0, count, reduce=True, received_first=True))
        previous = (0,)
    for i in range(part.rounds):
        partner = part.number ^ 1 << i
        peer, lower = part.rank_of(partner), partner < part.number
        sends.append(Send(first + i, peer, 0, count, previous, needs_ack=True))
        receives.append(Receive(first + i, peer, 0, count, reduce=True, received_first=lower, after=previous))
        previous = (len(receives) - 1,)
    if part.partner is not None:
        sends.append(Send(last, part.partner, 0, count, previous, needs_ack=True))
    return Program(rank, count, tuple(sends), tuple(receives), sends_from_copies=True)
