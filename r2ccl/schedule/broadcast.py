"""Broadcast, by a binomial tree for small messages and along a chain for large ones.

Places are counted from the root: place = (rank - root) mod n; where ranks share nodes, node by node from the root's on,
so that the chain enters each node once. All forward what they receive chunk by chunk.

**Binomial tree**: in each step everybody who has the message gives it to one who doesn't, first half-way around the
circle, then a quarter, and so on. Few steps, but the root sends the message once a step.

binomial  steps          sends          elements           received
tree      ceil(log2(n))  ceil(log2(n))  ceil(log2(n)) * c  min(1, n - 1) * c

**Chain**: place 0 to 1 to 2 and so on. Many hops, but nobody sends the message more than once, and all wires are busy
once the first chunk has come through.

chain     steps          sends          elements
chain     n - 1          min(1, n - 1)  min(1, n - 1) * c

The most by any rank, for n ranks and c elements. Nothing ever comes back, so every send needs acknowledgement.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Send, Shape


def binomial(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank`` in a tree from the root."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), ())
    order = shape.from_root(ranks)
    place = order.index(rank)
    rounds = (ranks - 1).bit_length()
    # The distance over which the message came: the lowest bit of the place. The root has it before all distances.
    came_over = place & -place if place else 1 << rounds
    receives = [] if place == 0 else [_received(rounds, came_over, order[place - came_over], count)]
    after = (0,) if receives else ()
    sends = []
    for step in range(rounds):
        distance = 1 << rounds - 1 - step
        if distance < came_over and place + distance < ranks:
            sends.append(Send(step, order[place + distance], 0, count, after, needs_ack=True))
    return Program(rank, count, tuple(sends), tuple(receives))


def _received(rounds: int, distance: int, source: int, count: int) -> Receive:
    return Receive(rounds - distance.bit_length(), source, 0, count)


def chain(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank`` in a chain from the root."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), ())
    order = shape.from_root(ranks)
    place = order.index(rank)
    receives = (Receive(place - 1, order[place - 1], 0, count),) if place else ()
    after = (0,) if place else ()
    sends = (Send(place, order[place + 1], 0, count, after, needs_ack=True),) if place < ranks - 1 else ()
    return Program(rank, count, sends, receives)
