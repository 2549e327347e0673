"""What every member of a communicator promises, holds and knows: the half of the agreement that answers.

The other half, which asks, is :mod:`r2ccl.protocol.agreement_proposer`; the theory of both is in
:mod:`r2ccl.protocol.agreement`. State and message, and what comes of it:

    message          when                                    -> state            answer
    Inquire b        asker's epoch is behind                                     Commit of ours
                     b below the promise                                         No
                     else                                    promised = b        State
    Propose b, S     its epoch is committed                                      Commit of ours
                     it is beyond the next                                       none: its inquiry was not to us
                     b below the promise, or void                                No
                     b already accepted                                          Yes
                     an operation >= S was admitted          promised = b        No
                     else                                    accepted = b        Yes, poll timer
    Commit e         e is the next epoch                     committed, free     Adopt, Released
                     else                                                        none: known, or not ours
    Withdraw below   accepted is below it                    free                Released
                     else                                    void below it       none
    AskOutcome b     b's epoch is committed here                                 Commit
                     b is void here                                              Withdraw
                     else                                                        none
    poll timer       accepted                                                    AskOutcome, poll timer
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from r2ccl.errors import InvalidTransition
from r2ccl.protocol.agreement_messages import (
    NO_BALLOT,
    Accepted,
    Agreed,
    AskOutcome,
    Ballot,
    Commit,
    Inquire,
    Message,
    No,
    Propose,
    State,
    Withdraw,
    Yes,
)

#: How often a member that said yes asks what became of it. The outcome is told unasked, a round trip after the yes;
#: this is for when that was lost or its teller is gone. Two small frames each time, so it need not grow.
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Tell:
    """Send the message to this member, on any path, once: what matters is repeated from here."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Adopt:
    """Operations from ``agreed.first_operation`` on are planned from ``agreed.picture``."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Released:
    """More operations may be admitted than before: look at those that wait."""


class Purpose(enum.Enum):
    """What a timer is for. There is one of each; arming it again replaces it."""

    POLL = "poll"
    ROUND = "round"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Wake:
    """A timer, before it gets its token."""

    purpose: Purpose
    delay_s: float


Step = Tell | Adopt | Released | Wake


class Voter:
    """One member's promises."""

    __slots__ = ("_agreed", "_polls", "accepted", "admitted", "gone_admitted", "promised", "rank", "void_below")

    def __init__(self, rank: int, first: Agreed) -> None:
        self.rank = rank
        #: All operations below it have been admitted: their epoch is fixed.
        self.admitted = 0
        #: Members that are gone had admitted all operations below it.
        self.gone_admitted = 0
        #: No lower ballot gets a yes. Never falls.
        self.promised = NO_BALLOT
        #: In the epoch after the committed one, nothing with a lower ballot was or will be committed.
        self.void_below = NO_BALLOT
        #: While it stands, no operation from its first on is admitted.
        self.accepted: Accepted | None = None
        #: Committed, in order; the last is the newest, and earlier ones stay while operations are left for them.
        self._agreed = [first]
        self._polls = 0

    @property
    def committed(self) -> Agreed:
        return self._agreed[-1]

    @property
    def epochs(self) -> list[int]:
        """Those that operations not admitted yet may run under, as far as is known."""
        return [agreed.epoch for agreed in self._agreed]

    def may_admit(self, operation: int) -> bool:
        return self.accepted is None or operation < self.accepted.agreed.first_operation

    def agreed_for(self, operation: int) -> Agreed:
        """What an operation that was not admitted yet would run under, as far as is known."""
        return next(agreed for agreed in reversed(self._agreed) if agreed.first_operation <= operation)

    def admit(self, operation: int) -> None:
        if operation != self.admitted or not self.may_admit(operation):
            raise InvalidTransition(f"operation {operation} was admitted after {self.admitted}, held: {self.accepted}")
        self.admitted += 1
        if len(self._agreed) > 1 and self._agreed[1].first_operation <= self.admitted:
            del self._agreed[0]

    def inquire(self, peer: int, message: Inquire) -> list[Step]:
        if message.epoch < self.committed.epoch:
            return [Tell(peer, Commit(self.committed))]
        if message.ballot < self.promised:
            return [self._no(peer, message.ballot)]
        self.promised = message.ballot
        known = self.committed.epoch, self.admitted, self.gone_admitted
        return [Tell(peer, State(message.ballot, *known, self.accepted))]

    def propose(self, peer: int, message: Propose) -> list[Step]:
        agreed = message.agreed
        if agreed.epoch <= self.committed.epoch:
            return [Tell(peer, Commit(self.committed))]
        if agreed.epoch > self.committed.epoch + 1:
            return []
        if message.ballot < max(self.promised, self.void_below):
            return [self._no(peer, message.ballot)]
        if self.accepted is not None and self.accepted.ballot == message.ballot:
            return [Tell(peer, Yes(message.ballot))]
        self.promised = message.ballot
        if self.admitted > agreed.first_operation:
            return [self._no(peer, message.ballot)]
        held = self.accepted
        self.accepted = Accepted(message.ballot, agreed)
        if message.fresh:
            self.void_below = message.ballot
        freed = held is not None and held.agreed.first_operation < agreed.first_operation
        return [Tell(peer, Yes(message.ballot)), Wake(Purpose.POLL, POLL_S), *([Released()] if freed else [])]

    def _no(self, peer: int, ballot: Ballot) -> Step:
        return Tell(peer, No(ballot, max(self.promised, self.void_below), self.admitted))

    def commit(self, agreed: Agreed) -> list[Step]:
        if agreed.epoch != self.committed.epoch + 1:
            return []
        if self.admitted > agreed.first_operation or agreed.first_operation < self.committed.first_operation:
            raise InvalidTransition(f"{agreed} was committed after {self.committed} and {self.admitted} operations")
        # Those that no operation is left for are forgotten. In one step: others look at the newest from their threads.
        begun = agreed.first_operation <= self.admitted
        earlier = () if begun else (one for one in self._agreed if one.first_operation < agreed.first_operation)
        self._agreed = [*earlier, agreed]
        self.void_below = NO_BALLOT
        return [Adopt(agreed), *self._free()]

    def withdraw(self, message: Withdraw) -> list[Step]:
        if message.epoch != self.committed.epoch + 1:
            return []
        self.void_below = max(self.void_below, message.below)
        if self.accepted is None or self.accepted.ballot >= message.below:
            return []
        return self._free()

    def _free(self) -> list[Step]:
        if self.accepted is None:
            return []
        self.accepted = None
        return [Released()]

    def outcome(self, peer: int, message: AskOutcome) -> list[Step]:
        """Tell what became of a proposal, if we know."""
        if message.epoch <= self.committed.epoch:
            return [Tell(peer, Commit(self.committed))]
        if message.epoch == self.committed.epoch + 1 and message.ballot < self.void_below:
            return [Tell(peer, Withdraw(message.epoch, self.void_below))]
        return []

    def poll(self, alive: Sequence[int]) -> list[Step]:
        """Ask the proposer, which is the lowest alive, and in turn one of the others: the proposer may be out of our
        reach."""
        if self.accepted is None:
            return []
        question = AskOutcome(self.accepted.ballot, self.accepted.agreed.epoch)
        others = [peer for peer in alive[1:] if peer != self.rank]
        asked = [alive[0]]
        if others:
            self._polls = (self._polls + 1) % len(others)
            asked.append(others[self._polls])
        return [*(Tell(peer, question) for peer in asked), Wake(Purpose.POLL, POLL_S)]
