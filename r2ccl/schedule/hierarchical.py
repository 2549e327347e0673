"""Hierarchical: reduce within each node first and across nodes then, so that each byte crosses a node's NICs once.

The ranks of a node share memory and, mostly, NICs. A flat ring sends nearly the whole buffer across each border between
two nodes, twice; but what a node's ranks have added up among themselves need cross only once. So the buffer is cut into
*pieces*, each with a *home* node and a *column*. A piece's *keeper* in a node is the member whose place there is the
column (modulo the node's size, where nodes are uneven): all ranks of a node take part in what crosses its NICs.

**Reduce-scatter**: in each node a piece walks around the members in a circle, from the one behind the keeper on, and is
complete for the node at the keeper. It goes around the nodes from keeper to keeper, begins one node behind its home,
and is complete at home. Each keeper reduces what comes from the node before into what its own node made: the received
operand is the left one, so operands stand node by node in the circle of nodes, and in each node around its circle.

**All-gather**: backwards. A piece goes from keeper to keeper around the nodes; each keeper sends it on first, and then
around the members of its own node.

All transfers of a piece have its range, so pieces flow chunk by chunk, and the slow wires are busy while the fast ones
still work.

phase           steps                    sends  elements
reduce-scatter  max(h * (k - 1), h - 1)  n - 1  (n - 1) * c // n
all-gather      max(h * (k - 1), h - 1)  n - 1  (n - 1) * c // n

Per rank, for h nodes of k ranks each, n = h * k, and c elements that n divides. Of these elements (h - 1) * c // n go
across nodes, so (h - 1) * c // h from each node in each phase; of a flat ring it is (n - 1) * c // n. The number of a
step only names transfers: in time a phase is k - 1 hops within a node and h - 1 across.

All-reduce has h * k pieces, k the size of the largest node, and each node is home of as many elements as any, so that
uneven nodes send and receive alike. A node's only member does all that its node has to do.

reduce-scatter  steps                    sends  elements
in parts        max(h * (k - 1), h - 1)  n - 1  (n - 1) * c // n

all-gather      steps                    sends  elements
in parts        max(h * (k - 1), h - 1)  n - 1  (n - 1) * c // n

Alone, both have a piece for each part: its home is the owner's node, its column the owner's place, its keeper there the
owner. Nothing comes back of a phase alone, nor of the all-gather at the end, so these sends need acknowledgement. In an
all-reduce the result comes back to everybody who sent something that went into it.

**Broadcast**: the whole goes along a chain of nodes, from one *leader* to the next, and in each node around its
members. The root leads its node, the first member each other one.

broadcast   steps      sends                              elements                               received
by leaders  h + k - 2  min(1, h - 1) + min(1, k - 1)      (min(1, h - 1) + min(1, k - 1)) * c    min(1, n - 1) * c

The most by any rank. Across nodes it is c elements, from each leader but the last.

Without nodes each rank is a node of its own, and all of this is the flat ring and chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from r2ccl.schedule.ir import Program, Receive, Send, Shape, segments, spans

#: The ranks of each node.
Nodes = tuple[tuple[int, ...], ...]


class _Piece(NamedTuple):
    home: int
    column: int
    start: int
    stop: int


def all_reduce(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    nodes = shape.nodes_of(ranks)
    columns = max(map(len, nodes))
    pieces = [
        _Piece(home, column, start + first, start + last)
        for home, (start, stop) in enumerate(segments(shape.count, len(nodes)))
        for column, (first, last) in enumerate(segments(stop - start, columns))
    ]
    weaver = _Weaver(nodes, rank)
    complete = weaver.reduce_all(pieces, needs_ack=False)
    weaver.gather_all(pieces, complete, first_step=weaver.steps)
    return weaver.program(shape.count)


def reduce_scatter(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    weaver = _Weaver(shape.nodes_of(ranks), rank)
    weaver.reduce_all(_parts(shape, weaver.nodes), needs_ack=True)
    return weaver.program(shape.count)


def all_gather(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    weaver = _Weaver(shape.nodes_of(ranks), rank)
    weaver.gather_all(_parts(shape, weaver.nodes), {}, first_step=0)
    return weaver.program(shape.count)


def _parts(shape: Shape, nodes: Nodes) -> list[_Piece]:
    cut = spans(shape.parts)
    return [_Piece(home, column, *cut[rank]) for home, node in enumerate(nodes) for column, rank in enumerate(node)]


def broadcast(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``."""
    count = shape.count
    if count == 0:
        return Program(rank, 0, (), ())
    chain = shape.nodes_from_root(ranks)
    distance = next(number for number, node in enumerate(chain) if rank in node)
    node = chain[distance]
    place = node.index(rank)
    receives: list[Receive] = []
    if place:
        receives.append(Receive(distance + place - 1, node[place - 1], 0, count))
    elif distance:
        receives.append(Receive(distance - 1, chain[distance - 1][0], 0, count))
    after = (0,) if receives else ()
    sends: list[Send] = []
    if place == 0 and distance < len(chain) - 1:
        sends.append(Send(distance, chain[distance + 1][0], 0, count, after, needs_ack=True))
    if place < len(node) - 1:
        sends.append(Send(distance + place, node[place + 1], 0, count, after, needs_ack=True))
    return Program(rank, count, tuple(sends), tuple(receives))


class _Weaver:
    """Puts one rank's program together, piece by piece.

    Numbers of steps make names unique: ``distance`` (how many nodes the piece has been through) counts most, then the
    hop around the node; last, which of the columns of one keeper it is: there are several where nodes are uneven.
    """

    def __init__(self, nodes: Nodes, rank: int) -> None:
        self.nodes = nodes
        self._rank = rank
        self._here = next(node for node, members in enumerate(nodes) if rank in members)
        self._node = nodes[self._here]
        self._place = self._node.index(rank)
        columns = max(map(len, nodes))
        self._stride = max(columns - 1, 1)
        self._layers = -(-columns // min(map(len, nodes)))
        #: Of a phase. (With one member a node, nothing is left to do at the last node.)
        self.steps = (len(nodes) * (columns - 1) if columns > 1 else len(nodes) - 1) * self._layers
        self._sends: list[Send] = []
        self._receives: list[Receive] = []

    def program(self, count: int) -> Program:
        """What was put together. Sends are in the order of steps: what is wanted first goes first."""
        return Program(self._rank, count, tuple(sorted(self._sends, key=lambda s: s.step)), tuple(self._receives))

    def reduce_all(self, pieces: Iterable[_Piece], needs_ack: bool) -> dict[_Piece, tuple[int, ...]]:
        """Returns the receive that completes each piece that is complete here."""
        complete = {}
        for piece in pieces:
            if piece.start < piece.stop:
                last = self._reduce(piece, needs_ack)
                if self._here == piece.home and self._rank == self._keeper(piece, 0):
                    complete[piece] = last
        return complete

    def _reduce(self, piece: _Piece, needs_ack: bool) -> tuple[int, ...]:
        """Returns the last receive."""
        size, last_node = len(self._node), len(self.nodes) - 1
        distance = (self._here - piece.home - 1) % len(self.nodes)
        hop = (self._place - piece.column % size - 1) % size
        after: tuple[int, ...] = ()
        if hop > 0:
            step = self._step(distance, hop - 1, self._here, piece)
            after = self._receive(piece, step, self._node[self._place - 1], reduce=True)
        if hop < size - 1:
            step = self._step(distance, hop, self._here, piece)
            self._send(piece, step, self._node[(self._place + 1) % size], after, needs_ack)
            return after
        if distance > 0:
            step = self._step(distance - 1, self._stride - 1, self._here - 1, piece)
            after = self._receive(piece, step, self._keeper(piece, -1), reduce=True, after=after)
        if distance < last_node:
            step = self._step(distance, self._stride - 1, self._here, piece)
            self._send(piece, step, self._keeper(piece, 1), after, needs_ack)
        return after

    def gather_all(self, pieces: Iterable[_Piece], complete: dict[_Piece, tuple[int, ...]], first_step: int) -> None:
        """``complete``: what a piece's first send waits for."""
        for piece in pieces:
            if piece.start < piece.stop:
                self._gather(piece, complete.get(piece, ()), first_step)

    def _gather(self, piece: _Piece, after: tuple[int, ...], first_step: int) -> None:
        size = len(self._node)
        distance = (self._here - piece.home) % len(self.nodes)
        hop = (self._place - piece.column) % size
        if hop > 0:
            step = first_step + self._step(distance, hop - 1, self._here, piece)
            after = self._receive(piece, step, self._node[self._place - 1])
        elif distance > 0:
            step = first_step + self._step(distance - 1, 0, self._here - 1, piece)
            after = self._receive(piece, step, self._keeper(piece, -1))
        if hop == 0 and distance < len(self.nodes) - 1:
            step = first_step + self._step(distance, 0, self._here, piece)
            self._send(piece, step, self._keeper(piece, 1), after, needs_ack=True)
        if hop < size - 1:
            step = first_step + self._step(distance, hop, self._here, piece)
            self._send(piece, step, self._node[(self._place + 1) % size], after, needs_ack=True)

    def _step(self, distance: int, hop: int, source_node: int, piece: _Piece) -> int:
        return (distance * self._stride + hop) * self._layers + piece.column // len(self.nodes[source_node])

    def _keeper(self, piece: _Piece, nodes_on: int) -> int:
        """The piece's keeper in the node that is so many behind ours in the circle."""
        node = self.nodes[(self._here + nodes_on) % len(self.nodes)]
        return node[piece.column % len(node)]

    def _send(self, piece: _Piece, step: int, target: int, after: tuple[int, ...], needs_ack: bool) -> None:
        self._sends.append(Send(step, target, piece.start, piece.stop, after, needs_ack))

    def _receive(
        self, piece: _Piece, step: int, source: int, reduce: bool = False, after: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """Returns what waits for this."""
        self._receives.append(Receive(step, source, piece.start, piece.stop, reduce, reduce, after))
        return (len(self._receives) - 1,)
