"""The agreement with one of its rules left out, each a way in which it could have been written. All must be caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from r2ccl.protocol.agreement_messages import NO_BALLOT, Agreed, Ballot, Commit, Propose, State, Withdraw
from r2ccl.protocol.agreement_proposer import Proposer, Stage
from r2ccl.protocol.agreement_voter import Step, Tell, Voter

Mutation = Callable[[pytest.MonkeyPatch], None]


def a_yes_promises_nothing(patch: pytest.MonkeyPatch) -> None:
    """It only reports, so operations go on."""
    patch.setattr(Voter, "may_admit", lambda self, operation: True)


def yes_although_it_was_admitted(patch: pytest.MonkeyPatch) -> None:
    """A member that is beyond S agrees."""
    honest = Voter.propose

    def propose(self: Voter, peer: int, message: Propose) -> list[Step]:
        admitted, self.admitted = self.admitted, 0
        steps = honest(self, peer, message)
        self.admitted = admitted
        return steps

    patch.setattr(Voter, "propose", propose)


def a_yes_to_any_ballot(patch: pytest.MonkeyPatch) -> None:
    """Neither the promise of the inquiry is kept, nor what is void remembered."""
    honest = Voter.propose

    def propose(self: Voter, peer: int, message: Propose) -> list[Step]:
        self.promised = self.void_below = NO_BALLOT
        return honest(self, peer, message)

    patch.setattr(Voter, "propose", propose)


def a_new_proposer_does_not_ask(patch: pytest.MonkeyPatch) -> None:
    """It proposes at once, from what it knows itself."""

    def ask(self: Proposer) -> list[Step]:
        self._number = max(self._number, self._voter.promised.number) + 1
        self._ballot = Ballot(self._number, self.rank)
        committed = self._voter.committed
        first = max(self._voter.admitted + self._lead, committed.first_operation)
        self._in_doubt = False
        return self._propose(Propose(self._ballot, Agreed(committed.epoch + 1, first, self.wish), fresh=True))

    patch.setattr(Proposer, "_ask", ask)


def a_new_proposer_asks_but_does_not_repeat(patch: pytest.MonkeyPatch) -> None:
    """What somebody holds is overruled."""
    honest = Proposer.state

    def state(self: Proposer, peer: int, message: State, now: float) -> list[Step]:
        nothing = State(message.ballot, message.epoch, message.admitted, message.gone_admitted, None)
        return honest(self, peer, nothing, now)

    patch.setattr(Proposer, "state", state)


def what_was_repeated_is_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """As if it were the new proposer's own to withdraw."""

    def remind(self: Proposer) -> list[Step]:
        assert self.proposal is not None
        below = self._ballot.successor
        return [*self._tell(self.alive, Withdraw(self.proposal.agreed.epoch, below)), *self._rest()]

    patch.setattr(Proposer, "_remind", remind)


def one_yes_too_few(patch: pytest.MonkeyPatch) -> None:
    """All but one suffice."""

    def if_all_said_yes(self: Proposer) -> list[Step]:
        if self.proposal is None or len(self.missing) > 1:
            return []
        return [*self._tell(self.alive, Commit(self.proposal.agreed)), *self._end()]

    patch.setattr(Proposer, "_if_all_said_yes", if_all_said_yes)


def committed_after_it_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """The proposer frees the others and still counts their yes."""
    honest = Proposer._remind

    def remind(self: Proposer) -> list[Step]:
        proposal = self.proposal
        steps = honest(self)
        if self.stage is Stage.RESTING and proposal is not None:
            self.stage, self.proposal = Stage.PROPOSING, proposal
            return [step for step in steps if isinstance(step, Tell)]
        return steps

    patch.setattr(Proposer, "_remind", remind)


def a_promise_ends_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Whoever hears nothing helps itself."""

    def poll(self: Voter, alive: Any) -> list[Step]:
        return self._free()

    patch.setattr(Voter, "poll", poll)


def nobody_asks_for_the_outcome(patch: pytest.MonkeyPatch) -> None:
    """A commit or withdrawal that was lost stays lost."""

    def poll(self: Voter, alive: Any) -> list[Step]:
        return []

    patch.setattr(Voter, "poll", poll)


def a_retry_does_not_raise_s(patch: pytest.MonkeyPatch) -> None:
    """It looks at its own operations only."""
    patch.setattr(Proposer, "_beyond_all", lambda self, states: self._voter.admitted)
    patch.setattr(Proposer, "_choose_lead", lambda self: 0)


UNSAFE: tuple[Mutation, ...] = (
    a_yes_promises_nothing,
    yes_although_it_was_admitted,
    a_yes_to_any_ballot,
    a_new_proposer_does_not_ask,
    a_new_proposer_asks_but_does_not_repeat,
    what_was_repeated_is_withdrawn,
    one_yes_too_few,
    committed_after_it_was_withdrawn,
    a_promise_ends_by_the_clock,
)
ENDLESS: tuple[Mutation, ...] = (nobody_asks_for_the_outcome, a_retry_does_not_raise_s)
