"""What the members of a communicator say to each other to agree on the next picture of the network, and its lists.

Every message can be lost, doubled and overtaken: each carries its ballot or its epoch, and whoever does not need it any
more ignores it. What they mean and why they suffice is told in :mod:`r2ccl.protocol.agreement`. A picture is opaque
here: one report per member, in the order of the members; an empty one says "as announced when we met"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from r2ccl.checks import exactly, unsigned
from r2ccl.protocol.wire import BadFrame

#: By member, in their order: what it says of its own NICs.
Picture = tuple[bytes, ...]

#: The longest report: a NIC takes a few bytes in it, and a host has at most some dozens.
REPORT_BYTES_MAX = 1024
#: All reports of a picture: a frame's control body holds 64 KiB, and an answer may carry a picture and little else.
PICTURE_BYTES_MAX = 48 << 10
#: An empty report still takes two bytes of a body.
MEMBERS_MAX = 4096
_RANK_BITS = 32
#: The highest number of a ballot, an epoch or an operation. No job counts that far; what is made from one by adding a
#: little still fits a frame, and what would be higher is not said.
NUMBER_MAX = (1 << 62) - 1
_NUMBER_BITS = 62


class _Tag:
    """The first number of a body."""

    REPORT: Final = 1
    REPORTED: Final = 2
    INQUIRE: Final = 3
    STATE: Final = 4
    PROPOSE: Final = 5
    YES: Final = 6
    NO: Final = 7
    COMMIT: Final = 8
    WITHDRAW: Final = 9
    ASK_OUTCOME: Final = 10


class Ballot(NamedTuple):
    """The name of one attempt. Each is used once, by the rank in it; the higher one wins."""

    number: int
    rank: int

    @property
    def successor(self) -> Ballot:
        """The lowest that is higher."""
        return Ballot(self.number, self.rank + 1)


#: Lower than any that is used.
NO_BALLOT = Ballot(0, 0)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What is agreed on: from this operation on, until the next epoch's first, plans follow this picture."""

    epoch: int
    first_operation: int
    picture: Picture

    def body(self) -> list[Any]:
        return [self.epoch, self.first_operation, list(self.picture)]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A proposal that a member said yes to and whose outcome it does not know."""

    ballot: Ballot
    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Report:
    """The sender's newest steady view of its own NICs. Repeated until :class:`Reported` names its version."""

    version: int
    report: bytes

    def body(self) -> list[Any]:
        return [_Tag.REPORT, self.version, self.report]


@dataclass(frozen=True, slots=True)
class Reported:
    """The answer to :class:`Report`."""

    version: int

    def body(self) -> list[Any]:
        return [_Tag.REPORTED, self.version]


@dataclass(frozen=True, slots=True)
class Inquire:
    """Who can answer, and what do you know? A promise to say yes to no lower ballot is asked, but no operation waits.
    ``epoch``: the sender's, so that whoever is ahead or behind is noticed."""

    ballot: Ballot
    epoch: int

    def body(self) -> list[Any]:
        return [_Tag.INQUIRE, *self.ballot, self.epoch]


@dataclass(frozen=True, slots=True)
class State:
    """The answer to :class:`Inquire`."""

    ballot: Ballot
    epoch: int
    #: The sender has admitted all operations below it.
    admitted: int
    #: Members that are gone had admitted those below it, as far as the sender knows.
    gone_admitted: int
    accepted: Accepted | None

    def body(self) -> list[Any]:
        held = None if self.accepted is None else [*self.accepted.ballot, *self.accepted.agreed.body()]
        return [_Tag.STATE, *self.ballot, self.epoch, self.admitted, self.gone_admitted, held]


@dataclass(frozen=True, slots=True)
class Propose:
    """Shall this be? ``fresh``: the sender has made sure that nothing with a lower ballot was or will be committed in
    this epoch; else it repeats what may have been."""

    ballot: Ballot
    agreed: Agreed
    fresh: bool

    def body(self) -> list[Any]:
        return [_Tag.PROPOSE, *self.ballot, *self.agreed.body(), self.fresh]


@dataclass(frozen=True, slots=True)
class Yes:
    """The sender admits nothing from the proposal's first operation on until it knows the outcome."""

    ballot: Ballot

    def body(self) -> list[Any]:
        return [_Tag.YES, *self.ballot]


@dataclass(frozen=True, slots=True)
class No:
    """To :class:`Inquire` or :class:`Propose`: a higher ballot was promised, or the operation has been admitted."""

    ballot: Ballot
    promised: Ballot
    admitted: int

    def body(self) -> list[Any]:
        return [_Tag.NO, *self.ballot, *self.promised, self.admitted]


@dataclass(frozen=True, slots=True)
class Commit:
    """Every member said yes, so this holds. Anyone who knows it may say it."""

    agreed: Agreed

    def body(self) -> list[Any]:
        return [_Tag.COMMIT, *self.agreed.body()]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """No proposal for ``epoch`` with a ballot below this was or will be committed. Anyone who knows it may say it."""

    epoch: int
    below: Ballot

    def body(self) -> list[Any]:
        return [_Tag.WITHDRAW, self.epoch, *self.below]


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """What became of this proposal for ``epoch``? Whoever knows answers with Commit or Withdraw, the others not."""

    ballot: Ballot
    epoch: int

    def body(self) -> list[Any]:
        return [_Tag.ASK_OUTCOME, *self.ballot, self.epoch]


Message = Report | Reported | Inquire | State | Propose | Yes | No | Commit | Withdraw | AskOutcome


def read_message(body: list[Any]) -> Message:
    """Raises :class:`~r2ccl.protocol.wire.BadFrame`. Values are checked, never converted."""
    try:
        kind, *fields = body
        return _read(unsigned(kind, 8), fields)
    except (TypeError, ValueError) as bad:
        raise BadFrame(f"a message of the agreement does not fit its kind: {bad}") from bad


def _read(kind: int, fields: list[Any]) -> Message:
    if kind in (_Tag.REPORT, _Tag.REPORTED, _Tag.COMMIT):
        return _read_unnumbered(kind, fields)
    if kind == _Tag.WITHDRAW:
        epoch, *below = fields
        return Withdraw(_number(epoch), _ballot(*below))
    number, rank, *rest = fields
    ballot = _ballot(number, rank)
    match kind:
        case _Tag.INQUIRE:
            return Inquire(ballot, *_numbers(1, rest))
        case _Tag.STATE:
            *counts, held = rest
            epoch, admitted, gone_admitted = _numbers(3, counts)
            return State(ballot, epoch, admitted, gone_admitted, _accepted(held))
        case _Tag.PROPOSE:
            *agreed, fresh = rest
            return Propose(ballot, _agreed(*agreed), exactly(bool, fresh))
        case _Tag.YES:
            _numbers(0, rest)
            return Yes(ballot)
        case _Tag.NO:
            number, rank, admitted = rest
            return No(ballot, _ballot(number, rank), _number(admitted))
        case _Tag.ASK_OUTCOME:
            return AskOutcome(ballot, *_numbers(1, rest))
    raise ValueError(f"no kind has the number {kind}")


def _read_unnumbered(kind: int, fields: list[Any]) -> Message:
    if kind == _Tag.REPORT:
        version, report = fields
        return Report(_number(version), _report(report))
    if kind == _Tag.REPORTED:
        return Reported(*_numbers(1, fields))
    return Commit(_agreed(*fields))


def _accepted(held: Any) -> Accepted | None:
    if held is None:
        return None
    number, rank, *agreed = exactly(list, held)
    return Accepted(_ballot(number, rank), _agreed(*agreed))


def _agreed(epoch: Any, first_operation: Any, picture: Any) -> Agreed:
    if len(exactly(list, picture)) > MEMBERS_MAX:
        raise ValueError(f"a picture of {len(picture)} members")
    reports = tuple(_report(report) for report in picture)
    if sum(len(report) for report in reports) > PICTURE_BYTES_MAX:
        raise ValueError("a picture over the limit")
    return Agreed(_number(epoch), _number(first_operation), reports)


def _number(value: Any) -> int:
    return unsigned(value, _NUMBER_BITS)


def _ballot(number: Any, rank: Any) -> Ballot:
    return Ballot(_number(number), unsigned(rank, _RANK_BITS))


def _report(value: Any) -> bytes:
    report = exactly(bytes, value)
    if len(report) > REPORT_BYTES_MAX:
        raise ValueError(f"a report of {len(report)} bytes")
    return report


def _numbers(count: int, values: list[Any]) -> list[int]:
    if len(values) != count:
        raise ValueError(f"{len(values)} fields where {count} belong")
    return [_number(value) for value in values]
