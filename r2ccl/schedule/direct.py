"""Direct: everything goes straight from where it is to where it belongs. As few bytes as can be, any sizes.

**Gather**, **scatter**: each rank and the root, one message. The root handles n - 1 of them, which bounds the time.

gather          steps  sends          elements           received
to the root     n - 1  min(1, n - 1)  min(1, n - 1) * m  (n - 1) * m

scatter         steps  sends          elements           received
from the root   n - 1  n - 1          (n - 1) * m        min(1, n - 1) * m

**Reduce-scatter**: each rank sends every other its part, and reduces what it gets of its own.

reduce-scatter  steps  sends          elements
to each         n - 1  n - 1          (n - 1) * m

**All-to-all**: each rank sends every other its block.

all-to-all      steps  sends          elements
to each         n - 1  n - 1          (n - 1) * m

The most by any rank, for n ranks and parts or blocks of m elements. No send waits for anything: a step only says in
which order a rank sends. In step s that is to the rank s + 1 places on, so that nobody is everybody's target at once.

A rank that reduces part k does so in the order of steps, the received operand on the left: its operands stand in the
order k + 1, k + 2, ..., k around the circle, as in the ring, but grouped from the right. The receives wait for each
other chunk by chunk. Parts without elements are left out on both sides. In all_to_all an empty block is a message all
the same: only the two ranks know its size, and if they differ, both sides must have something to notice it by.

No rank hears again of what it sent, so every send needs acknowledgement.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Segment, Send, Shape, spans


def gather(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    cut, root = spans(shape.parts), shape.root
    if rank != root:
        step = (rank - root) % ranks - 1
        sends = (Send(step, root, *cut[rank], needs_ack=True),) if shape.parts[rank] else ()
        return Program(rank, shape.count, sends, ())
    others = [(step, (root + step + 1) % ranks) for step in range(ranks - 1)]
    receives = tuple(Receive(step, other, *cut[other]) for step, other in others if shape.parts[other])
    return Program(rank, shape.count, (), receives)


def scatter(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    cut, root = spans(shape.parts), shape.root
    if rank != root:
        step = (rank - root) % ranks - 1
        receives = (Receive(step, root, *cut[rank]),) if shape.parts[rank] else ()
        return Program(rank, shape.count, (), receives)
    others = [(step, (root + step + 1) % ranks) for step in range(ranks - 1)]
    sends = tuple(Send(step, other, *cut[other], needs_ack=True) for step, other in others if shape.parts[other])
    return Program(rank, shape.count, sends, ())


def reduce_scatter(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    cut = spans(shape.parts)
    sends: list[Send] = []
    receives: list[Receive] = []
    for step in range(ranks - 1):
        target, source = (rank + step + 1) % ranks, (rank - step - 1) % ranks
        if shape.parts[target]:
            sends.append(Send(step, target, *cut[target], needs_ack=True))
        if shape.parts[rank]:
            after = (step - 1,) if step else ()
            receives.append(Receive(step, source, *cut[rank], reduce=True, received_first=True, after=after))
    return Program(rank, shape.count, tuple(sends), tuple(receives))


def all_to_all(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    stride = shape.block_stride
    sends: list[Send] = []
    receives: list[Receive] = []
    for step in range(ranks - 1):
        target, source = (rank + step + 1) % ranks, (rank - step - 1) % ranks
        sends.append(Send(step, target, *_block((rank * ranks + target) * stride, shape.parts[target]), needs_ack=True))
        receives.append(Receive(step, source, *_block((source * ranks + rank) * stride, shape.out_parts[source])))
    return Program(rank, ranks * ranks * stride, tuple(sends), tuple(receives))


def _block(start: int, size: int) -> Segment:
    return (start, start + size) if size else (0, 0)
