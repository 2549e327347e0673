"""Reduce to a root, by a binomial tree for small messages and along a chain for large ones.

Places are counted from the root: place = (rank - root) mod n; where ranks share nodes, node by node from the root's on.
All forward chunk by chunk what they have reduced.

**Binomial tree**: in each step half of those who still hold something give it to the other half: first neighbours, then
ranks two places apart, and so on. Few steps, but the root takes in a message in each of them.

binomial  steps          sends          elements           received
tree      ceil(log2(n))  min(1, n - 1)  min(1, n - 1) * c  ceil(log2(n)) * c

**Chain**: from the last place to the one before, and so on to the root. Many hops, but nobody sends or receives the
message more than once, and all wires are busy once the first chunk has come through.

chain     steps          sends          elements
chain     n - 1          min(1, n - 1)  min(1, n - 1) * c

The most by any rank, for n ranks and c elements. In both a rank holds the reduction of a block of consecutive places
that begins with its own, and what it receives is the block behind: its own operand is the left one, and operands stand
in the order of places, so root, root + 1, ... around the circle. In the tree a rank's receives wait for each other, so
that they are reduced in that order. Nothing ever comes back, so every send needs acknowledgement.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Send, Shape


def binomial(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank`` in a tree to the root."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), ())
    order = shape.from_root(ranks)
    place = order.index(rank)
    rounds = (ranks - 1).bit_length()
    # The round in which the block is complete and leaves: the number of zeros behind the place's last one.
    leaves_in = (place & -place).bit_length() - 1 if place else rounds
    receives: list[Receive] = []
    for step in range(leaves_in):
        distance = 1 << step
        if place + distance < ranks:
            after = (len(receives) - 1,) if receives else ()
            receives.append(Receive(step, order[place + distance], 0, count, reduce=True, after=after))
    after = (len(receives) - 1,) if receives else ()
    sends = (Send(leaves_in, order[place - (1 << leaves_in)], 0, count, after, needs_ack=True),) if place else ()
    return Program(rank, count, sends, tuple(receives))


def chain(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank`` in a chain to the root."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), ())
    order = shape.from_root(ranks)
    place = order.index(rank)
    step = ranks - 1 - place
    receives = (Receive(step - 1, order[place + 1], 0, count, reduce=True),) if place < ranks - 1 else ()
    after = (0,) if receives else ()
    sends = (Send(step, order[place - 1], 0, count, after, needs_ack=True),) if place else ()
    return Program(rank, count, sends, receives)
