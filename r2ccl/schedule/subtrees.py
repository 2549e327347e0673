"""Gather and scatter by a binomial tree: few steps for small parts, which travel in company.

Places are counted from the root: place = (rank - root) mod n. The tree is that of ``broadcast`` and ``reduce``: a rank
whose place has the lowest bit 2^k stands for the 2^k places from its own on, as far as there are so many.

**Gather**: in step k a rank of such a place sends the parts of all that it stands for to the rank 2^k places before.

gather   steps          sends          elements                received
tree     ceil(log2(n))  min(1, n - 1)  max(p // 2, n - p) * m  (n - 1) * m

**Scatter**: the same backwards. A rank sends the farther half of what it holds on, and half of the rest, and so on.

scatter  steps          sends          elements                received
tree     ceil(log2(n))  ceil(log2(n))  (n - 1) * m             max(p // 2, n - p) * m

The most by any rank, for n ranks and parts of m elements, p the largest power of two within n. Places that follow one
another are ranks that do, up to the last rank, which rank 0 follows. There a message has two segments, so messages go
out from copies: this is for small parts only. Parts without elements are left out, and messages that have no others,
on both sides. Nothing comes back, so every send needs acknowledgement, which says only that: a copy can be resent after
the operation ended.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Send, Shape, run_of_parts


def gather(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    place = (rank - shape.root) % ranks
    rounds = (ranks - 1).bit_length()
    own = _lowest_bit(place, rounds)
    receives: list[Receive] = []
    for step in range(rounds):
        distance = 1 << step
        if distance < own and place + distance < ranks:
            source = (rank + distance) % ranks
            run = run_of_parts(shape.parts, source, min(distance, ranks - place - distance))
            if run:
                receives.append(Receive(step, source, *run[0], also=run[1:]))
    sends: tuple[Send, ...] = ()
    run = run_of_parts(shape.parts, rank, min(own, ranks - place))
    if place and run:
        step, target, after = own.bit_length() - 1, (rank - own) % ranks, tuple(range(len(receives)))
        sends = (Send(step, target, *run[0], after, needs_ack=True, also=run[1:]),)
    return Program(rank, shape.count, sends, tuple(receives), sends_from_copies=True)


def scatter(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    place = (rank - shape.root) % ranks
    rounds = (ranks - 1).bit_length()
    own = _lowest_bit(place, rounds)
    receives: tuple[Receive, ...] = ()
    run = run_of_parts(shape.parts, rank, min(own, ranks - place))
    if place and run:
        receives = (Receive(rounds - own.bit_length(), (rank - own) % ranks, *run[0], also=run[1:]),)
    after = (0,) if receives else ()
    sends: list[Send] = []
    for step in range(rounds):
        distance = 1 << rounds - 1 - step
        if distance < own and place + distance < ranks:
            target = (rank + distance) % ranks
            run = run_of_parts(shape.parts, target, min(distance, ranks - place - distance))
            if run:
                sends.append(Send(step, target, *run[0], after, needs_ack=True, also=run[1:]))
    return Program(rank, shape.count, tuple(sends), receives, sends_from_copies=True)


def _lowest_bit(place: int, rounds: int) -> int:
    """How many places a rank stands for. The root stands for all."""
    return place & -place if place else 1 << rounds
