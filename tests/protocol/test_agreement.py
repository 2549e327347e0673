"""How members come to one picture at one operation: the stories of the rule, told one by one."""

from __future__ import annotations

import pytest

from r2ccl.errors import InvalidTransition
from r2ccl.protocol.agreement import Adopt, Agreement, ArmTimer, Released, Tell, Waiting
from r2ccl.protocol.agreement_messages import (
    MEMBERS_MAX,
    NO_BALLOT,
    REPORT_BYTES_MAX,
    Accepted,
    Agreed,
    AskOutcome,
    Ballot,
    Commit,
    Inquire,
    Message,
    No,
    Propose,
    Report,
    Reported,
    State,
    Withdraw,
    Yes,
)
from r2ccl.protocol.agreement_proposer import FRESH_S, GATHER_S, INQUIRE_S, PATIENCE_MAX_S, PATIENCE_S, SENDS
from r2ccl.protocol.agreement_voter import POLL_S
from r2ccl.protocol.wire import BadFrame
from tests.protocol.agreement_world import DELAY_S, World

FIRST = Agreed(0, 0, (b"", b""))
HALF = Agreed(1, 0, (b"", b"half"))
BALLOT = Ballot(1, 0)


def said(world: World) -> list[tuple[int, int, Message]]:
    """What is under way."""
    return [(source, target, message) for source, target, message, _ in world.wire]


def test_the_whole_conversation_of_two() -> None:
    zero, one = Agreement(0, (0, 1)), Agreement(1, (0, 1))
    assert one.measured(b"half", 0.0) == [Tell(0, Report(1, b"half")), ArmTimer(1, INQUIRE_S)]
    assert zero.heard(1, Report(1, b"half"), 0.0) == [Tell(1, Reported(1)), ArmTimer(1, GATHER_S)]
    assert one.heard(0, Reported(1), 0.0) == []
    assert zero.timer_fired(1, GATHER_S) == [Tell(1, Inquire(BALLOT, 0)), ArmTimer(2, INQUIRE_S)]
    assert one.heard(0, Inquire(BALLOT, 0), 0.1) == [Tell(0, State(BALLOT, 0, 0, 0, None))]
    assert zero.heard(1, State(BALLOT, 0, 0, 0, None), 0.1) == [
        Tell(1, Propose(BALLOT, HALF, fresh=True)),
        ArmTimer(3, PATIENCE_S / SENDS),
        ArmTimer(4, POLL_S),
    ]
    assert not zero.may_admit(0)
    assert one.heard(0, Propose(BALLOT, HALF, fresh=True), 0.1) == [Tell(0, Yes(BALLOT)), ArmTimer(2, POLL_S)]
    assert not one.may_admit(0)
    assert one.waiting == Waiting(1, 0, (), "promised")
    assert zero.heard(1, Yes(BALLOT), 0.1) == [Tell(1, Commit(HALF)), Adopt(HALF), Released()]
    assert one.heard(0, Commit(HALF), 0.1) == [Adopt(HALF), Released()]
    for member in (zero, one):
        assert member.committed == member.agreed_for(0) == HALF
        assert member.may_admit(0)
        assert member.waiting is None
        assert member.timer_fired(4, 1.0) == []


def test_one_member_agrees_with_itself() -> None:
    alone = Agreement(3, (3,))
    assert alone.measured(b"half", 0.0) == [ArmTimer(1, GATHER_S)]
    effects = alone.timer_fired(1, GATHER_S)
    assert Adopt(Agreed(1, 0, (b"half",))) in effects
    assert alone.may_admit(0)


def test_operations_before_the_first_stay_under_the_old_picture() -> None:
    world = World(2)
    for rank in (0, 0, 0, 1):
        world.call(rank)
    world.measure(1, b"half")
    world.heal()
    assert world.members[1].committed == Agreed(1, 3, (b"", b"half"))
    assert [world.members[1].agreed_for(operation).epoch for operation in (1, 2, 3, 4)] == [0, 0, 1, 1]
    world.check_converged()


def test_what_is_admitted_during_the_inquiry_puts_the_first_operation_ahead() -> None:
    world = World(2)
    world.measure(0, b"half")
    while not any(isinstance(message, State) for _, _, message in said(world)):
        world.next_due()
    for rank in (0, 1, 0, 1, 0, 1):
        assert world.call(rank)
    world.heal()
    # Three were admitted in one round trip, so six more may be in the next.
    assert world.members[0].committed.first_operation == 9
    assert world.held == 0


def test_a_member_that_is_beyond_the_first_operation_says_no_and_it_is_raised() -> None:
    world = World(2)
    world.measure(0, b"half")
    while not world.proposing():
        world.next_due()
    for _ in range(5):
        assert world.call(1)
    answers: list[No] = []
    world.heal(lambda: answers.extend(message for _, _, message in said(world) if isinstance(message, No)))
    assert answers[0] == No(BALLOT, BALLOT, 5)
    assert world.members[1].committed.first_operation == 6
    world.check_converged()


def test_several_reports_at_once_make_one_epoch() -> None:
    world = World(4)
    for rank in range(4):
        world.measure(rank, b"half")
    world.heal()
    assert world.members[2].committed == Agreed(1, 0, (b"half",) * 4)


def test_a_report_that_is_taken_back_makes_none() -> None:
    world = World(2)
    world.measure(1, b"half")
    world.run_for(GATHER_S / 2)
    world.measure(1, b"")
    world.heal()
    assert world.members[0].committed == FIRST
    assert world.epochs == {}


def test_a_member_that_is_cut_off_delays_the_replan_and_no_operation() -> None:
    world = World(3)
    world.cut = {2}
    world.measure(0, b"half")
    for _ in range(100):
        world.run_for(0.1)
        assert all(world.call(rank) for rank in (0, 1))
    assert world.members[0].waiting == Waiting(1, None, (2,), "asking")
    world.heal()
    world.check_converged()
    assert world.held == 0


def test_a_member_that_falls_silent_after_its_answer_holds_others_for_the_patience() -> None:
    world = World(3)
    world.measure(0, b"half")
    while not world.proposing():
        world.next_due()
    world.cut = {2}
    world.run_for(2 * DELAY_S)
    assert not world.call(0)
    assert not world.call(1)
    assert world.members[0].waiting == Waiting(1, 0, (2,), "proposing")
    world.run_for(PATIENCE_S + DELAY_S)
    assert world.call(0)
    assert world.call(1)
    # From now on member 2 must answer before anything is proposed.
    for _ in range(100):
        world.run_for(0.1)
        assert world.call(0)
        assert world.call(1)
    world.heal()
    world.check_converged()


def test_a_lost_withdrawal_or_commit_costs_one_period_of_asking() -> None:
    for lost in (Withdraw, Commit):
        world = World(3)
        world.measure(0, b"half")
        while not world.proposing():
            world.next_due()
        world.cut = {2} if lost is Withdraw else set()
        while not any(isinstance(message, lost) for _, _, message in said(world)):
            world.next_due()
        world.wire = [entry for entry in world.wire if not isinstance(entry[2], lost)]
        assert not world.members[1].may_admit(0)
        world.run_for(POLL_S + 2 * DELAY_S)
        assert world.members[1].may_admit(0)


def test_who_cannot_reach_the_proposer_learns_the_outcome_from_another() -> None:
    world = World(3)
    world.measure(0, b"half")
    while world.members[1].committed == world.epochs.get(0, Agreed(0, 0, (b"",) * 3)):
        world.next_due()
    world.cut = {0}
    world.wire.clear()
    assert world.members[2].waiting == Waiting(1, 0, (), "promised")
    world.run_for(2 * POLL_S + 2 * DELAY_S)
    assert world.members[2].committed == world.members[1].committed
    assert world.members[2].may_admit(0)


def test_patience_grows_for_slow_networks_and_has_an_end() -> None:
    member = Agreement(0, (0, 1))
    effects = member.measured(b"half", 0.0)
    now = 0.0
    patience: list[float] = []
    for number in range(1, 7):
        ballot = Ballot(number, 0)
        rounds = [effect.token for effect in effects if isinstance(effect, ArmTimer)]
        asked = member.timer_fired(rounds[0], now)
        assert Tell(1, Inquire(ballot, 0)) in asked
        proposed = member.heard(1, State(ballot, 0, 0, 0, None), now)
        start = now
        while not any(isinstance(effect, Tell) and isinstance(effect.message, Withdraw) for effect in proposed):
            timer = next(effect for effect in proposed if isinstance(effect, ArmTimer))
            now += timer.delay_s
            proposed = member.timer_fired(timer.token, now)
        patience.append(round(now - start, 6))
        effects = proposed
    assert patience == [PATIENCE_S, 2 * PATIENCE_S, 4 * PATIENCE_S, *[PATIENCE_MAX_S] * 3]


def test_an_answer_that_has_become_old_is_asked_for_again() -> None:
    zero = Agreement(0, (0, 1, 2))
    zero.measured(b"half", 0.0)
    zero.timer_fired(1, 0.05)
    assert zero.heard(1, State(BALLOT, 0, 4, 0, None), 0.1) == []
    late = 0.11 + FRESH_S
    assert zero.heard(2, State(BALLOT, 0, 4, 0, None), late) == [Tell(1, Inquire(BALLOT, 0))]
    again = zero.heard(1, State(BALLOT, 0, 5, 0, None), late)
    assert Tell(2, Propose(BALLOT, Agreed(1, 5, (b"half", b"", b"")), fresh=True)) in again


def test_who_missed_the_last_epoch_is_told_before_it_is_asked_for_the_next() -> None:
    zero = Agreement(0, (0, 1))
    one = Agreed(1, 0, (b"half", b""))
    zero.measured(b"half", 0.0)
    zero.timer_fired(1, 0.05)
    zero.heard(1, State(BALLOT, 0, 0, 0, None), 0.1)
    zero.heard(1, Yes(BALLOT), 0.1)
    assert zero.committed == one
    (gather,) = zero.measured(b"down", 0.2)
    assert isinstance(gather, ArmTimer)
    assert Tell(1, Inquire(Ballot(2, 0), 1)) in zero.timer_fired(gather.token, 0.3)
    behind = State(Ballot(2, 0), 0, 0, 0, Accepted(BALLOT, one))
    assert zero.heard(1, behind, 0.3) == [Tell(1, Commit(one))]


def test_a_new_proposer_repeats_what_may_have_been_committed() -> None:
    one = Agreement(1, (0, 1, 2))
    held = Agreed(1, 2, (b"half", b"", b""))
    one.measured(b"down", 0.0)
    one.heard(0, Propose(BALLOT, held, fresh=True), 0.0)
    ballot = Ballot(2, 1)
    assert Tell(2, Inquire(ballot, 0)) in one.gone(0, 2, 0.1)
    proposed = one.heard(2, State(ballot, 0, 2, 0, Accepted(BALLOT, held)), 0.1)
    assert Tell(2, Propose(ballot, held, fresh=False)) in proposed
    for _ in range(20):
        # It cannot be withdrawn, whoever is silent.
        (timer, *_) = (effect for effect in proposed if isinstance(effect, ArmTimer))
        proposed = one.timer_fired(timer.token, 0.2)
        assert proposed[0] == Tell(2, Propose(ballot, held, fresh=False))
    assert Tell(2, Commit(held)) in one.heard(2, Yes(ballot), 9.0)
    assert one.waiting is not None
    assert one.waiting.stage == "gathering"


def test_a_new_proposer_frees_who_holds_what_cannot_have_been_committed() -> None:
    """Member 2 has admitted what it would have had to hold."""
    one = Agreement(1, (0, 1, 2))
    one.heard(0, Propose(BALLOT, Agreed(1, 2, (b"half", b"", b"")), fresh=True), 0.0)
    one.gone(0, 0, 0.1)
    effects = one.heard(2, State(Ballot(2, 1), 0, 3, 0, None), 0.1)
    assert effects == [Tell(2, Withdraw(1, Ballot(2, 2))), Released()]
    assert one.waiting is None


def test_what_a_member_had_admitted_before_it_left_stays_under_the_old_picture() -> None:
    world = World(3)
    for _ in range(4):
        world.call(2)
    world.live.remove(2)
    for rank in (0, 1):
        world.take(rank, world.members[rank].gone(2, 4, world.now))
    world.measure(0, b"half")
    world.heal()
    assert world.members[1].committed.first_operation == 4


def test_who_leaves_before_its_yes_makes_the_attempt_start_over() -> None:
    zero = Agreement(0, (0, 1, 2))
    zero.measured(b"half", 0.0)
    zero.timer_fired(1, 0.05)
    for peer in (1, 2):
        zero.heard(peer, State(BALLOT, 0, 0, 0, None), 0.1)
    zero.heard(1, Yes(BALLOT), 0.1)
    told = [effect for effect in zero.gone(2, 7, 0.1) if isinstance(effect, Tell)]
    assert told == [Tell(1, Withdraw(1, Ballot(1, 1))), Tell(1, Inquire(Ballot(2, 0), 0))]
    proposed = zero.heard(1, State(Ballot(2, 0), 0, 0, 0, None), 0.1)
    assert Tell(1, Propose(Ballot(2, 0), Agreed(1, 7, (b"half", b"", b"")), fresh=True)) in proposed


def test_a_lower_ballot_than_was_promised_is_refused() -> None:
    one = Agreement(1, (0, 1, 2))
    one.heard(0, Inquire(Ballot(5, 0), 0), 0.0)
    old = Ballot(4, 0)
    assert one.heard(0, Inquire(old, 0), 0.0) == [Tell(0, No(old, Ballot(5, 0), 0))]
    late = Propose(old, Agreed(1, 3, (b"",) * 3), fresh=True)
    assert one.heard(0, late, 0.0) == [Tell(0, No(old, Ballot(5, 0), 0))]
    assert one.may_admit(3)


def test_a_proposal_that_comes_after_its_withdrawal_holds_nobody() -> None:
    one = Agreement(1, (0, 1))
    assert one.heard(0, Withdraw(1, BALLOT.successor), 0.0) == []
    assert one.heard(0, Propose(BALLOT, HALF, fresh=True), 0.0) == [Tell(0, No(BALLOT, BALLOT.successor, 0))]
    assert one.may_admit(0)


def test_a_yes_to_a_later_proposal_holds_from_there_on() -> None:
    one = Agreement(1, (0, 1))
    one.heard(0, Propose(BALLOT, HALF, fresh=True), 0.0)
    later = Propose(Ballot(2, 0), Agreed(1, 6, HALF.picture), fresh=True)
    assert Released() in one.heard(0, later, 0.0)
    assert one.may_admit(5)
    assert not one.may_admit(6)
    assert one.heard(0, later, 0.0) == [Tell(0, Yes(Ballot(2, 0)))]


def test_repeats_and_what_belongs_to_another_epoch_change_nothing() -> None:
    one = Agreement(1, (0, 1))
    one.heard(0, Propose(BALLOT, HALF, fresh=True), 0.0)
    one.heard(0, Commit(HALF), 0.0)
    two = Agreed(2, 0, HALF.picture)
    harmless: list[Message] = [Commit(HALF), Commit(Agreed(3, 0, HALF.picture)), Withdraw(1, Ballot(9, 0)), Reported(7)]
    for message in [*harmless, Propose(BALLOT, Agreed(3, 0, HALF.picture), fresh=True), AskOutcome(BALLOT, 2)]:
        assert one.heard(0, message, 0.0) == []
    for outdated in (Propose(BALLOT, HALF, fresh=True), Inquire(Ballot(4, 0), 0), AskOutcome(BALLOT, 1)):
        assert one.heard(0, outdated, 0.0) == [Tell(0, Commit(HALF))]
    assert one.heard(0, Commit(two), 0.0) == [Adopt(two)]
    assert one.agreed_for(0) == two


def test_a_report_is_repeated_until_this_proposer_has_it() -> None:
    two = Agreement(2, (0, 1, 2))
    told = two.measured(b"half", 0.0)
    assert told == [Tell(0, Report(1, b"half")), ArmTimer(1, INQUIRE_S)]
    assert two.timer_fired(1, 0.1) == [Tell(0, Report(1, b"half")), ArmTimer(2, 2 * INQUIRE_S)]
    assert two.gone(0, 0, 0.1) == [Tell(1, Report(1, b"half")), ArmTimer(3, INQUIRE_S)]
    two.heard(0, Reported(1), 0.1)
    assert two.timer_fired(2, 0.2) == []
    assert two.timer_fired(3, 0.2) == [Tell(1, Report(1, b"half")), ArmTimer(4, 2 * INQUIRE_S)]
    two.heard(1, Reported(1), 0.2)
    assert two.timer_fired(4, 0.4) == []
    assert two.waiting == Waiting(1, None, (), "reported")
    assert two.measured(b"half", 0.5) == []


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (1, Inquire(Ballot(1, 1), 0)),
        (7, Inquire(Ballot(1, 7), 0)),
        (0, Inquire(Ballot(1, 2), 0)),
        (0, Inquire(NO_BALLOT, 0)),
        (0, Propose(Ballot(1, 2), Agreed(1, 0, (b"",) * 3), fresh=True)),
        (0, Propose(BALLOT, Agreed(1, 0, (b"",)), fresh=True)),
        (0, Commit(Agreed(1, 0, (b"",) * 4))),
        (0, State(Ballot(1, 1), 0, 0, 0, Accepted(BALLOT, Agreed(1, 0, ())))),
        (0, Yes(BALLOT)),
        (0, No(BALLOT, BALLOT, 0)),
        (0, State(BALLOT, 0, 0, 0, None)),
        (0, Report(1, b"x" * (REPORT_BYTES_MAX + 1))),
    ],
)
def test_what_no_member_of_ours_can_have_said_is_a_bad_frame(peer: int, message: Message) -> None:
    with pytest.raises(BadFrame):
        Agreement(1, (0, 1, 2)).heard(peer, message, 0.0)


def test_what_the_caller_may_not_do_is_refused() -> None:
    one = Agreement(1, (0, 1))
    with pytest.raises(InvalidTransition):
        one.admitted(1)
    one.heard(0, Propose(BALLOT, HALF, fresh=True), 0.0)
    with pytest.raises(InvalidTransition):
        one.admitted(0)
    with pytest.raises(ValueError, match="a report of"):
        one.measured(b"x" * (one.report_bytes_max + 1), 0.0)
    with pytest.raises(ValueError, match="cannot agree"):
        Agreement(2, (0, 1))
    with pytest.raises(ValueError, match="cannot agree"):
        Agreement(0, range(MEMBERS_MAX + 1))


def test_a_commit_that_was_broken_is_a_loud_bug() -> None:
    one = Agreement(1, (0, 1))
    one.admitted(0)
    with pytest.raises(InvalidTransition, match="was committed after"):
        one.heard(0, Commit(HALF), 0.0)
