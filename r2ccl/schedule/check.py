"""A symbolic proof that a schedule does what its collective means, in every order of execution that it allows.

All orders are proved by looking at one: if no two accesses to the same elements of a rank, one of them a write, can
happen in either order, then every order gives every access the same values, so it is enough to compute them along one.
The rules, for all ranks' programs together:

* every send has exactly one receive and the reverse; names are unique; nothing waits in a circle (``causality``);
* two receives that write the same elements of a rank are ordered, one surely over before the other begins;
* a receive that writes what a send of the same rank reads is over before the send begins, or begins when the send has
  surely *arrived*. "The send has begun" would not do: until it arrived it may have to be resent, from the same memory.
  Where sends go out from copies, it is enough that the copy was made, which happens in the same instant in which the
  last receive that the send waited for completes, before anything else is applied;
* where a read comes after a write of the same rank, the rank's own waits say so, not only what other ranks do: who
  executes the program sees nothing else, and has to know whether it reads initial or received values;
* in the end every rank holds the expected contributors, each exactly once, and ranks that expect the same contributors
  hold the same expression, operand by operand, so the same bits;
* a rank that has completed all its receives knows that all its sends have arrived, except those marked ``needs_ack``.

A message of several segments reads and writes all of them at once. Happens-before relations are taken between whole
receives; ``causality`` says why that is sound for chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from r2ccl.schedule.causality import Causality, ScheduleError, Transfer, establish
from r2ccl.schedule.ir import Program, Segment
from r2ccl.schedule.semantics import Collective, Expectation, Holding


def check(programs: Sequence[Program], collective: Collective) -> Causality:
    """Prove the programs of all ranks, in rank order. Raises :class:`ScheduleError`, which says what is wrong where."""
    if len(programs) != collective.ranks:
        raise ScheduleError(f"{collective.name} of {collective.ranks} ranks has {len(programs)} programs")
    causality = establish(programs)
    if programs[0].count != collective.count:
        raise ScheduleError(f"has {programs[0].count} elements, {collective.name} has {collective.count}", 0)
    pieces = _Pieces.of(causality, collective)
    writes = _ordered_writes(causality, pieces)
    _require_stable_reads(causality, pieces, writes)
    _require_known_reads(causality, pieces, writes)
    _require_postcondition(_evaluate(causality, pieces, writes, collective), pieces, collective)
    _require_hearings(causality, collective)
    _require_acks(causality)
    return causality


def wasted_acks(causality: Causality) -> list[Transfer]:
    """The transfers whose send is marked ``needs_ack`` although causality covers it: correct, but waits for nothing."""
    arrived = _arrived_in_the_end(causality)
    return [
        transfer
        for i, transfer in enumerate(causality.transfers)
        if causality.send_of(i).needs_ack and arrived[transfer.source] >> i & 1
    ]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The buffer cut at every place where anything begins or ends: no transfer treats parts of a piece differently."""

    bounds: tuple[int, ...]
    position: dict[int, int]

    @classmethod
    def of(cls, causality: Causality, collective: Collective) -> _Pieces:
        spans: list[Holding | Expectation] = [*collective.holdings, *collective.expectations]
        segments = [segment for transfer in causality.transfers for segment in transfer.segments]
        segments += [(span.start, span.stop) for span in spans]
        bounds = sorted({0, collective.count}.union(*segments))
        return cls(tuple(bounds), {bound: i for i, bound in enumerate(bounds)})

    def within(self, start: int, stop: int) -> range:
        return range(self.position[start], self.position[stop])

    def of_transfer(self, transfer: Transfer) -> Iterator[int]:
        return chain.from_iterable(self.within(start, stop) for start, stop in transfer.segments)

    def segment(self, piece: int) -> tuple[int, int]:
        return self.bounds[piece], self.bounds[piece + 1]

    @property
    def number(self) -> int:
        return len(self.bounds) - 1


#: For each (rank, piece) the transfers that write it there, in the only order they can have.
_Writes = dict[tuple[int, int], list[int]]


def _ordered_writes(causality: Causality, pieces: _Pieces) -> _Writes:
    writes: _Writes = {}
    for i in causality.order:
        transfer = causality.transfers[i]
        for piece in pieces.of_transfer(transfer):
            writes.setdefault((transfer.target, piece), []).append(i)
    for (rank, piece), receives in writes.items():
        for earlier, later in pairwise(receives):
            if not causality.before_write[later] >> earlier & 1:
                raise ScheduleError(
                    f"unordered writes: nothing orders {causality.transfers[earlier]} and {causality.transfers[later]}",
                    rank,
                    causality.transfers[later].step,
                    pieces.segment(piece),
                )
    return writes


def _writes_before(causality: Causality, i: int, writes: Sequence[int]) -> int:
    """How many of these writes transfer i's read comes after. They are the first ones: happens-before is transitive."""
    return sum(causality.before_read[i] >> write & 1 for write in writes)


def _require_stable_reads(causality: Causality, pieces: _Pieces, writes: _Writes) -> None:
    """A write that a read doesn't come after begins when the read is over for good. The first stands for the others."""
    for i, transfer in enumerate(causality.transfers):
        for piece in pieces.of_transfer(transfer):
            written = writes.get((transfer.source, piece), [])
            later = written[_writes_before(causality, i, written) :]
            if later and not _read_is_over(causality, i, later[0]):
                copies = causality.programs[transfer.source].sends_from_copies
                missing = "copied" if copies else "arrived"
                raise ScheduleError(
                    f"unsafe overwrite: {causality.transfers[later[0]]} writes what {transfer} reads, "
                    f"and nothing proves that the send has {missing} by then",
                    transfer.source,
                    transfer.step,
                    pieces.segment(piece),
                )


def _require_known_reads(causality: Causality, pieces: _Pieces, writes: _Writes) -> None:
    """The last write before a read, if any, is among what the reader waits for by its own rank's waits."""
    for i, transfer in enumerate(causality.transfers):
        for piece in pieces.of_transfer(transfer):
            written = writes.get((transfer.source, piece), [])
            earlier = written[: _writes_before(causality, i, written)]
            _require_known(causality, i, transfer.source, causality.waits_of_send[i], earlier, pieces.segment(piece))
            if causality.receive_of(i).reduce:
                written = writes[transfer.target, piece]
                earlier = written[: written.index(i)]
                waits = causality.waits_of_receive[i]
                _require_known(causality, i, transfer.target, waits, earlier, pieces.segment(piece))


def _require_known(
    causality: Causality, read: int, rank: int, waits: int, earlier: Sequence[int], segment: Segment
) -> None:
    if earlier and not waits >> causality.transfers[earlier[-1]].receive_index & 1:
        raise ScheduleError(
            f"{causality.transfers[read]} reads what {causality.transfers[earlier[-1]]} left, "
            "and waits for that only through other ranks",
            rank,
            causality.transfers[read].step,
            segment,
        )


def _read_is_over(causality: Causality, read: int, write: int) -> bool:
    if causality.before_write[write] >> read & 1:
        return True
    source = causality.transfers[read].source
    if not causality.programs[source].sends_from_copies:
        return False
    # The copy is made when the send is ready. Each receive it waited for must be over before the write begins; that is
    # so if it is in the write's past. (The write is none of them, or the read would come after it.)
    awaited = (causality.of_receive[source, receive] for receive in causality.send_of(read).after)
    return all(causality.before_write[write] >> i & 1 for i in awaited)


#: What a piece holds that nobody's holding names.
_GARBAGE = 0


@dataclass(slots=True)
class _Expressions:
    """Expressions as small numbers: equal numbers, equal expressions, so equal bits whatever the operator."""

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    #: By number: the mask of ranks whose initial value went into it.
    contributors: list[int] = field(default_factory=lambda: [0])

    def initial(self, rank: int) -> int:
        return self._number((rank, -1), 1 << rank)

    def reduction(self, left: int, right: int) -> int:
        return self._number((left, right), self.contributors[left] | self.contributors[right])

    def _number(self, key: tuple[int, int], contributors: int) -> int:
        number = self.numbers.setdefault(key, len(self.contributors))
        if number == len(self.contributors):
            self.contributors.append(contributors)
        return number


@dataclass(frozen=True, slots=True)
class _Outcome:
    expressions: _Expressions
    #: For each (rank, piece) its initial value and what each write left there.
    histories: dict[tuple[int, int], list[int]]


def _evaluate(causality: Causality, pieces: _Pieces, writes: _Writes, collective: Collective) -> _Outcome:
    expressions = _Expressions()
    histories = {(rank, piece): [_GARBAGE] for rank in range(collective.ranks) for piece in range(pieces.number)}
    for holding in collective.holdings:
        for piece in pieces.within(holding.start, holding.stop):
            histories[holding.rank, piece] = [expressions.initial(holding.rank)]
    for i in causality.order:
        transfer = causality.transfers[i]
        for piece in pieces.of_transfer(transfer):
            read = _writes_before(causality, i, writes.get((transfer.source, piece), []))
            received = histories[transfer.source, piece][read]
            history = histories[transfer.target, piece]
            history.append(_applied(causality, i, expressions, received, history[-1], pieces.segment(piece)))
    return _Outcome(expressions, histories)


def _applied(
    causality: Causality, i: int, expressions: _Expressions, received: int, own: int, segment: tuple[int, int]
) -> int:
    """What transfer i leaves at its target."""
    receive, transfer = causality.receive_of(i), causality.transfers[i]
    if not receive.reduce:
        return received
    if _GARBAGE in (received, own):
        raise ScheduleError("reduces what was never written", transfer.target, transfer.step, segment)
    twice = expressions.contributors[received] & expressions.contributors[own]
    if twice:
        raise ScheduleError(f"contributes twice: {_ranks(twice)}", transfer.target, transfer.step, segment)
    return expressions.reduction(received, own) if receive.received_first else expressions.reduction(own, received)


def _require_postcondition(outcome: _Outcome, pieces: _Pieces, collective: Collective) -> None:
    agreed: dict[tuple[int, int], tuple[int, int]] = {}
    for expected in collective.expectations:
        for piece in pieces.within(expected.start, expected.stop):
            final = outcome.histories[expected.rank, piece][-1]
            found = outcome.expressions.contributors[final]
            if found != expected.contributors:
                differences = [
                    f"{word} {_ranks(mask)}"
                    for word, mask in (
                        ("lacks", expected.contributors & ~found),
                        ("wrongly has", found & ~expected.contributors),
                    )
                    if mask
                ]
                raise ScheduleError(
                    f"the result {' and '.join(differences)}", expected.rank, segment=pieces.segment(piece)
                )
            rank, number = agreed.setdefault((piece, expected.contributors), (expected.rank, final))
            if number != final:
                raise ScheduleError(
                    f"reduces in another order than rank {rank}: the bits may differ",
                    expected.rank,
                    segment=pieces.segment(piece),
                )


def _require_hearings(causality: Causality, collective: Collective) -> None:
    heard = [1 << rank for rank in range(collective.ranks)]
    for i, transfer in enumerate(causality.transfers):
        heard[transfer.target] |= causality.entered[i]
    for hearing in collective.hearings:
        missing = hearing.entered & ~heard[hearing.rank]
        if missing:
            raise ScheduleError(f"may leave before these have entered: {_ranks(missing)}", hearing.rank)


def _arrived_in_the_end(causality: Causality) -> list[int]:
    """By rank: the transfers that have surely arrived, anywhere, when the rank has completed all its receives."""
    arrived = [0] * len(causality.programs)
    for i, transfer in enumerate(causality.transfers):
        arrived[transfer.target] |= causality.before_write[i] | 1 << i
    return arrived


def _require_acks(causality: Causality) -> None:
    arrived = _arrived_in_the_end(causality)
    for i, transfer in enumerate(causality.transfers):
        if not causality.send_of(i).needs_ack and not arrived[transfer.source] >> i & 1:
            raise ScheduleError(
                f"needs an acknowledgement: nothing that it receives proves that rank {transfer.target} has this",
                transfer.source,
                transfer.step,
                transfer.segment,
            )


def _ranks(mask: int) -> str:
    return "rank(s) " + ", ".join(str(rank) for rank in _bits(mask))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
