"""Bruck's algorithms: all-gather and all-to-all in a logarithmic number of steps, for small messages.

J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all communications in
multiport message-passing systems", IEEE Transactions on Parallel and Distributed Systems 8, 1997.

**All-gather**: before step k a rank holds the 2^k parts from its own on, around the circle. It sends them, or in the
last step as many as are missing, to the rank 2^k places before, and receives as many from the one 2^k places behind.

all-gather  steps          sends          elements
doubling    ceil(log2(n))  ceil(log2(n))  (n - 1) * m

**All-to-all**, of equal blocks: a block that has d places to go makes a jump of 2^k in step k for each bit k of d. In
step k a rank sends all it holds that jumps then, its own blocks and others' in one message, to the rank 2^k places on.

all-to-all  steps          sends          elements
by bits     ceil(log2(n))  ceil(log2(n))  sum(d.bit_count() for d in range(n)) * m

Per rank, for n ranks and parts or blocks of m elements. In the all-gather nothing is sent that its target has; in the
all-to-all a block is sent once a jump, about log2(n) / 2 times instead of once, for fewer messages.

A message has several segments, so messages go out from copies: this is for small messages only. In the all-gather there
are two where the parts run past the last rank; in the all-to-all there is one a block, in the order of distances, even
where positions touch, because a rank keeps its own, others' and those for itself in different memory. Parts without
elements are left out, and messages that have no others, on both sides.

A send waits for those receives that brought something of what it sends. Whether news of a message's arrival comes back
depends on jumps of later steps that close the circle, all the way joined by such waits: it does exactly if the jump is
the lowest of three or more bits of n. (With two, the last step sends nothing that came by the first.) Where parts are
empty some of these waits are missing, so there all sends are marked; from a copy this costs nothing.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Segment, Send, Shape, run_of_parts


def all_gather(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    sends: list[Send] = []
    receives: list[Receive] = []
    #: For each receive, how far behind this rank the first non-empty part that it brings lies.
    brought: list[int] = []
    for step in range((ranks - 1).bit_length()):
        distance = 1 << step
        parts = min(distance, ranks - distance)
        run = run_of_parts(shape.parts, rank, parts)
        if run:
            after = tuple(index for index, first in enumerate(brought) if first < parts)
            needs_ack = not (all(shape.parts) and _comes_back(ranks, step))
            sends.append(Send(step, (rank - distance) % ranks, *run[0], after, needs_ack, also=run[1:]))
        source = (rank + distance) % ranks
        run = run_of_parts(shape.parts, source, parts)
        if run:
            brought.append(next(d for d in range(distance, ranks) if shape.parts[(rank + d) % ranks]))
            receives.append(Receive(step, source, *run[0], also=run[1:]))
    return Program(rank, shape.count, tuple(sends), tuple(receives), sends_from_copies=True)


def all_to_all(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``. Raises ``ValueError`` for blocks of different sizes."""
    stride, size = shape.block_stride, max(shape.parts, default=0)
    if set(shape.parts + shape.out_parts) != {size}:
        raise ValueError(f"blocks differ: {shape.parts} and {shape.out_parts}")
    count = ranks * ranks * stride
    if size == 0:
        return Program(rank, count, (), (), sends_from_copies=True)
    sends: list[Send] = []
    receives: list[Receive] = []
    for step in range((ranks - 1).bit_length()):
        jump = 1 << step
        goes = _jumping(ranks, rank, jump, stride, size)
        comes = _jumping(ranks, (rank - jump) % ranks, jump, stride, size)
        # What made the jump of step k before this one, and no jump in between, was brought by that step's message.
        after = tuple(earlier for earlier in range(step) if jump + (1 << earlier) < ranks)
        needs_ack = not _comes_back(ranks, step)
        sends.append(Send(step, (rank + jump) % ranks, *goes[0], after, needs_ack, also=goes[1:]))
        receives.append(Receive(step, (rank - jump) % ranks, *comes[0], also=comes[1:]))
    return Program(rank, count, tuple(sends), tuple(receives), sends_from_copies=True)


def _jumping(ranks: int, rank: int, jump: int, stride: int, size: int) -> tuple[Segment, ...]:
    """The blocks that jump from ``rank``, in the order of their whole distance: each has made all smaller jumps."""
    blocks = []
    for distance in range(jump, ranks):
        if distance & jump:
            source = (rank - distance % jump) % ranks
            start = (source * ranks + (source + distance) % ranks) * stride
            blocks.append((start, start + size))
    return tuple(blocks)


def _comes_back(ranks: int, step: int) -> bool:
    """Whether its sender gets to know that this step's message arrived. The module's docstring says why."""
    return ranks & -ranks == 1 << step and ranks.bit_count() >= 3
