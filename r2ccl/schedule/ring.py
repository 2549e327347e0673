"""Ring: all-reduce, and its two halves alone. Each segment travels around to be reduced, and around to be told to all.

**All-reduce**: the ranks stand in a circle and the buffer is cut into as many segments. Segment k starts at position k;
each position reduces its own elements into what arrives and passes it on, so that the whole is complete one position
before k (n - 1 hops, the reduce-scatter), and the result goes on around from there (n - 1 hops, the all-gather). At any
time every position has one segment on its way out and one on its way in, so every wire is busy in both directions.

phase           steps  sends  elements
reduce-scatter  n - 1  n - 1  (n - 1) * c // n
all-gather      n - 1  n - 1  (n - 1) * c // n

Per rank, for n ranks and c elements that n divides. With fewer elements than ranks some segments are empty; their
transfers are left out on both sides, which breaks no proof because no segment's journey waits for another's.

A forwarded segment has the range of the receive it waits for, so it flows chunk by chunk and the elements are still in
the cache when they leave. The received operand is the left one: segment k is reduced in the order k, k + 1, ... around
the circle, at one place only, so all ranks get the same bits.

No receive has to wait: a segment comes back to a rank only after it went through everybody that the rank sent it to.
The same journey proves to a rank that its sends of the reduce-scatter arrived. Nothing comes back of the all-gather,
whose sends all need acknowledgement; all but the last have normally been acknowledged long before the end.

**Reduce-scatter** alone, of parts that may be uneven: part k starts one position behind k, so that it is complete at
k. Its operands stand in the order k + 1, k + 2, ..., k, the received one on the left. **All-gather** alone: part k
starts at k. In both nothing comes back, and every send needs acknowledgement. Empty parts are left out on both sides.

reduce-scatter  steps  sends  elements
around          n - 1  n - 1  (n - 1) * c // n

all-gather      steps  sends  elements
around          n - 1  n - 1  (n - 1) * c // n

Per rank, for n equal parts of c elements together.

Where ranks share nodes the circle goes from node to node, so that only one wire leads into each node and one out of it.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Send, Shape, segments, spans


def all_reduce(ranks: int, rank: int, shape: Shape, order: tuple[int, ...] | None = None) -> Program:
    """The program of ``rank``. ``order`` lists the ranks as they stand in the circle; without it, node by node."""
    here, before, behind = _place(ranks, rank, _node_by_node(shape) if order is None else order)
    cut = segments(shape.count, ranks)
    sends: list[Send] = []
    receives: list[Receive] = []
    #: Index of the receive of the step before. Only read where the segment it names is not empty.
    forwarded: tuple[int, ...] = ()
    for step in range(2 * (ranks - 1)):
        gathering = step >= ranks - 1
        start, stop = cut[(here - step) % ranks]
        if stop > start:
            sends.append(Send(step, behind, start, stop, forwarded, needs_ack=gathering))
        start, stop = cut[(here - step - 1) % ranks]
        if stop > start:
            forwarded = (len(receives),)
            reduce = not gathering
            receives.append(Receive(step, before, start, stop, reduce=reduce, received_first=reduce))
    return Program(rank, shape.count, tuple(sends), tuple(receives))


def reduce_scatter(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    return _around(ranks, rank, shape, behind=1, reduce=True)


def all_gather(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    return _around(ranks, rank, shape, behind=0, reduce=False)


def _around(ranks: int, rank: int, shape: Shape, behind: int, reduce: bool) -> Program:
    """Each rank sends the part of the rank so many places before it, and then what it received in the step before."""
    order = _node_by_node(shape)
    here, before, following = _place(ranks, rank, order)
    cut = spans(shape.parts)
    if order:
        cut = [cut[owner] for owner in order]
    first = here - behind
    sends: list[Send] = []
    receives: list[Receive] = []
    forwarded: tuple[int, ...] = ()
    for step in range(ranks - 1):
        start, stop = cut[(first - step) % ranks]
        if stop > start:
            sends.append(Send(step, following, start, stop, forwarded, needs_ack=True))
        start, stop = cut[(first - step - 1) % ranks]
        if stop > start:
            forwarded = (len(receives),)
            receives.append(Receive(step, before, start, stop, reduce=reduce, received_first=reduce))
    return Program(rank, shape.count, tuple(sends), tuple(receives))


def _place(ranks: int, rank: int, order: tuple[int, ...]) -> tuple[int, int, int]:
    """Where the rank stands, and the ranks before and behind it."""
    if not order:
        return rank, (rank - 1) % ranks, (rank + 1) % ranks
    if sorted(order) != list(range(ranks)):
        raise ValueError(f"{order} is no order of {ranks} ranks")
    here = order.index(rank)
    return here, order[here - 1], order[(here + 1) % ranks]


def _node_by_node(shape: Shape) -> tuple[int, ...]:
    """The circle in which the ranks of a node stand together; empty: by number."""
    return tuple(rank for node in shape.nodes for rank in node)
