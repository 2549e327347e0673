"""Draws what the ranks of a communicator call. Programs are such that no correct library may hang in them: all members
make the same calls in one order, and each issues all its sends and receives of a round before it waits for any."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Final

import numpy as np

from r2ccl.reduction import Op, supported
from r2ccl.sim.calls import DTYPES, Call, Kind, Message, item_bytes, moved_elements

#: How often each kind is drawn.
KINDS: Final = {
    Kind.ALL_REDUCE: 24, Kind.BROADCAST: 9, Kind.REDUCE: 8, Kind.ALL_GATHER: 5, Kind.ALL_GATHER_INTO: 7,
    Kind.REDUCE_SCATTER: 8, Kind.GATHER: 5, Kind.SCATTER: 6, Kind.ALL_TO_ALL: 10, Kind.BARRIER: 5,
    Kind.BROADCAST_OBJECT: 4, Kind.BATCH: 6, Kind.MESSAGES: 16,
}  # fmt: skip
TAGS = (0, 1, 7, 2**31 - 1)
#: Each round's messages to any have a tag of their own, or a later round's could be taken for them.
ANY_TAGS_FROM = 1000
#: Rarely a message is this long.
LONG_MESSAGE_BYTES = 2 << 20


@dataclasses.dataclass(slots=True)
class Programs:
    """Draws calls for communicators in which ``ranks`` take part."""

    rng: random.Random
    ranks: int
    chunk_bytes: int
    #: What the calls of one communicator may cost, in chunks times ranks; and no call moves more bytes than this.
    work: int
    bytes_max: int

    def program(self) -> tuple[Call, ...]:
        """The calls of one communicator."""
        wanted = self.rng.randint(4, 14)
        calls: list[Call] = []
        while len(calls) < wanted and self.work > 0:
            call = self._call(len(calls))
            calls.append(call)
            self.work -= self.ranks * (2 * self.ranks + moved_elements(call, self.ranks) // self._chunk(call.dtype))
        return tuple(calls)

    def _chunk(self, dtype: str) -> int:
        return max(1, self.chunk_bytes // item_bytes(dtype))

    def _call(self, number: int) -> Call:
        rng, ranks = self.rng, self.ranks
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        root = rng.randrange(ranks)
        match kind:
            case Kind.BARRIER:
                return Call(kind)
            case Kind.BROADCAST_OBJECT:
                return Call(kind, count=rng.choice((0, 30, 3 * self.chunk_bytes)), root=root)
            case Kind.MESSAGES if ranks > 1:
                return self._round(number)
            case Kind.BATCH:
                return Call(kind, calls=tuple(self._small() for _ in range(rng.randint(1, 6))))
            case Kind.ALL_REDUCE | Kind.REDUCE | Kind.REDUCE_SCATTER:
                return self._reduction(kind, root)
            case Kind.ALL_TO_ALL:
                return self._all_to_all()
            case Kind.ALL_GATHER_INTO:
                return self._cut(Call(kind, *self._size(), exact=False))
            case Kind.ALL_GATHER | Kind.GATHER | Kind.SCATTER:
                dtype, op, count = self._size()
                return Call(kind, dtype, op, count // ranks if count > 3 else count, root, exact=False)
            case _:
                return Call(Kind.BROADCAST, *self._size(), root, exact=False)

    def _size(self) -> tuple[str, None, int]:
        dtype = self.rng.choice(DTYPES)
        return dtype, None, self._count(dtype)

    def _count(self, dtype: str) -> int:
        rng, ranks, chunk = self.rng, self.ranks, self._chunk(dtype)
        around = rng.choice((1, ranks, 2 * ranks)) * chunk + rng.choice((-1, 0, 1))
        big = chunk * rng.randint(4, 24) + rng.randrange(chunk)
        many = chunk * rng.randint(2, 12) * ranks + rng.randrange(chunk)
        count = rng.choice((0, 1, 2 * rng.randrange(40) + 1, around, around, big, big, many))
        return min(count, self.bytes_max // item_bytes(dtype))

    def _reduction(self, kind: Kind, root: int = 0) -> Call:
        rng = self.rng
        dtype = rng.choice(DTYPES)
        op = rng.choice([op for op in Op if supported(np.dtype(dtype), op)])
        inexact = dtype.startswith(("float", "complex")) and rng.random() < 0.4
        call = Call(kind, dtype, op, self._count(dtype), root, exact=not inexact)
        return self._cut(call) if kind is Kind.REDUCE_SCATTER else call

    def _cut(self, call: Call) -> Call:
        """One array, or a list of parts of any lengths; in place or not."""
        rng = self.rng
        parts: tuple[int, ...] = ()
        if rng.random() < 0.5:
            bounds = sorted(rng.choice((0, call.count, rng.randint(0, call.count))) for _ in range(self.ranks - 1))
            parts = tuple(stop - start for start, stop in itertools.pairwise((0, *bounds, call.count)))
        return dataclasses.replace(call, parts=parts, in_place=rng.random() < 0.4)

    def _all_to_all(self) -> Call:
        rng, ranks = self.rng, self.ranks
        dtype, _, count = self._size()
        block = -(-count // ranks)
        if rng.random() < 0.5:
            return Call(Kind.ALL_TO_ALL, dtype, count=block, exact=False)
        blocks = tuple(
            tuple(rng.choice((0, 1, block, rng.randint(0, block))) for _ in range(ranks)) for _ in range(ranks)
        )
        return Call(Kind.ALL_TO_ALL, dtype, exact=False, blocks=blocks)

    def _small(self) -> Call:
        """Of a batch."""
        if self.rng.random() < 0.6:
            return self._reduction(Kind.ALL_REDUCE)
        return Call(Kind.BROADCAST, *self._size(), self.rng.randrange(self.ranks), exact=False)

    # Messages.

    def _round(self, number: int) -> Call:
        rng = self.rng
        messages = [self._message() for _ in range(rng.choice((1, 2, 3, 6, 12)))]
        if rng.random() < 0.6:
            messages += self._to_any(ANY_TAGS_FROM + number)
        rng.shuffle(messages)
        orders = tuple(tuple(self._order(messages, rank)) for rank in range(self.ranks))
        return Call(Kind.MESSAGES, messages=tuple(messages), orders=orders)

    def _message(self) -> Message:
        rng = self.rng
        source, target = rng.sample(range(self.ranks), 2)
        dtype, _, count = self._size()
        if rng.random() < 0.03:
            count = min(LONG_MESSAGE_BYTES, self.bytes_max, 128 * self.chunk_bytes) // item_bytes(dtype)
        return Message(source, target, rng.choice(TAGS), dtype, count)

    def _to_any(self, tag: int) -> list[Message]:
        """Messages with one tag to one rank, all alike; some of their receives take whoever is first. A receive from a
        certain rank must not be left without a message: either all come from that one, or it is called before."""
        rng = self.rng
        target = rng.randrange(self.ranks)
        others = [rank for rank in range(self.ranks) if rank != target]
        sources = [rng.choice(others)] * rng.randint(1, 4) if rng.random() < 0.3 else rng.choices(others, k=4)
        dtype, _, count = self._size()
        return [Message(source, target, tag, dtype, count, rng.random() < 0.7) for source in sources]

    def _order(self, messages: list[Message], rank: int) -> Iterator[tuple[int, bool]]:
        """What a rank issues, in an order of its own, in which messages of one channel keep theirs."""
        rng = self.rng
        mine = [(index, False) for index, message in enumerate(messages) if message.source == rank]
        mine += [(index, True) for index, message in enumerate(messages) if message.target == rank]
        chance = {(m.source, m.target, m.tag): rng.random() for m in messages}
        # Receives from any follow all those from a certain rank; those of one tag follow one another.
        for tag in {m.tag for m in messages if m.tag >= ANY_TAGS_FROM}:
            to_any = [m for m in messages if m.tag == tag]
            if len({m.source for m in to_any}) == 1:
                continue
            for m in to_any:
                chance[m.source, m.target, tag] = 2.0
        sends_first = rng.choice((-3.0, 0.0, 3.0))

        def key(side: tuple[int, bool]) -> tuple[float, bool]:
            message = messages[side[0]]
            place = chance[message.source, message.target, message.tag]
            return place + sends_first * side[1], message.from_any and place == 2.0 and side[1]

        yield from sorted(mine, key=key)


def healed_calls(ranks: int, chunk_bytes: int) -> tuple[Call, ...]:
    """What is called when everything is whole again: each rank also sends to the next, and takes from whoever comes."""
    reduce = Call(Kind.ALL_REDUCE, "int32", Op.SUM, 7 * chunk_bytes // 4 + 1)
    if ranks == 1:
        return (reduce, Call(Kind.BARRIER))
    ring = tuple(Message(rank, (rank + 1) % ranks, ANY_TAGS_FROM - 1, "int16", 99, True) for rank in range(ranks))
    orders = tuple(((rank, False), ((rank - 1) % ranks, True)) for rank in range(ranks))
    return (reduce, Call(Kind.MESSAGES, messages=ring, orders=orders), Call(Kind.BARRIER))
