"""What the agreement costs a large job, and what numbers it stays within."""

from __future__ import annotations

from r2ccl.protocol.agreement import Agreement, ArmTimer, Tell
from r2ccl.protocol.agreement_messages import NUMBER_MAX, Agreed, Ballot, Propose, State, Yes
from r2ccl.protocol.agreement_proposer import GATHER_S

BALLOT = Ballot(1, 0)


def test_no_operation_is_proposed_beyond_the_last_number_that_can_be_told() -> None:
    zero = Agreement(0, (0, 1))
    timer = next(effect for effect in zero.measured(b"half", 0.0) if isinstance(effect, ArmTimer))
    zero.timer_fired(timer.token, GATHER_S)
    zero.admitted(0)
    effects = zero.heard(1, State(BALLOT, 0, NUMBER_MAX, 0, None), GATHER_S)
    assert Tell(1, Propose(BALLOT, Agreed(1, NUMBER_MAX, (b"half", b"")), fresh=True)) in effects


class Counted(int):
    """A rank that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other


def test_the_work_of_the_proposer_grows_with_the_square_of_the_members_at_most() -> None:
    """That of one answer with the members: of a thousand, all say yes within the patience."""
    members = [Counted(rank) for rank in range(100)]
    zero = Agreement(members[0], members)
    now = GATHER_S
    effects = zero.measured(b"half", 0.0)
    timer = next(effect for effect in effects if isinstance(effect, ArmTimer))
    zero.timer_fired(timer.token, now)
    Counted.compared = 0
    for peer in members[1:]:
        zero.heard(peer, State(BALLOT, 0, 0, 0, None), now)
    for peer in members[1:]:
        zero.heard(peer, Yes(BALLOT), now)
    assert zero.committed.epoch == 1
    assert Counted.compared < 10 * len(members) ** 2
