"""How all members of a communicator come to plan from the same new picture of the network, at the same operation.

What is agreed. Every member reports its own NICs to the lowest live rank, the proposer; a picture is one report per
member. Epoch 0 is what all announced when they met. Each further epoch is a pair (first operation S, picture), the same
on all members: operations from S on are planned from it. An operation's epoch is fixed when it is *admitted*: numbered
and planned. What must never happen is that one member runs operation n under epoch e and another under another.

How. The proposer goes through two rounds with a ballot (number, its rank) that nobody uses twice.

1. *Inquiry*. It asks everybody, and goes on asking, until all have answered within a tenth of a second: how many
   operations are admitted, and is there a proposal whose outcome is unknown? Whoever answers promises to say yes to no
   lower ballot. No operation waits for this promise, so a member that is cut off, stopped or busy computing delays the
   replan here and nothing else.
2. *Proposal*. S lies beyond what anyone has admitted, by what will be admitted during the round. A member that has
   admitted S says no, and the next attempt looks further ahead; else it says yes, and admits nothing from S on until it
   knows the outcome. When all have said yes, the proposer decides, in one instant and for itself alone, and tells. If
   one doesn't answer within its patience, the proposer withdraws, everybody is free, and it rests before it asks again.

Whoever said yes and hears nothing asks, the proposer and in turn all others: a commit or a withdrawal that anyone knows
of is passed on. So nothing needs to be acknowledged, and a loss costs one period of asking.

Why it is safe. Four facts.

* *No one is left behind by more than one epoch.* A commit needs everybody's yes, and a member says yes to epoch e + 1
  only when it has e. So the newest commit is all that anyone must be able to tell.
* *Before a commit nobody passes S, after it nobody passes S without it.* Each member said yes before the commit, with
  nothing from S on admitted, and only three things free it: the commit, a withdrawal, or a yes to a higher ballot,
  which holds it at that S.
* *What was committed stands.* Say that proposal l was. Every later inquiry is answered by all that are not gone, each
  of which had said yes to l before it promised a higher ballot, for afterwards it would have refused; by induction all
  they hold since is that same value. So an inquiry finds it, and a proposer that finds anything, and no one that has
  admitted S (which proves that there was no commit), must propose the latest it found again, unchanged. Only when it
  is free to choose may it, and only such a *fresh* proposal may be withdrawn: to withdraw a repeated one would free
  members from what an earlier proposer may have committed and begun to run.
* *One decides.* A ballot is committed or withdrawn by the one rank that owns it. A proposal that is fresh says by that
  alone that nothing below its ballot was or will be committed; a withdrawal says the same of its own ballot, too.

Members that are gone are left out of "all". Gone means proven dead, or that it said goodbye, which is for ever: so of
two ranks that take themselves for the proposer, the lower is gone, only its words are still under way, and they are one
more set of ballots to the argument above. What a gone member was seen to admit keeps S behind it; one that goes before
its yes makes the attempt start over. A member that is merely unreachable must answer. One that is declared gone and
is not may run what the others don't: the fingerprint that each chunk carries (decision 11) then stops it.

Who waits, and for how long. An operation waits only if it is called, numbered S or more, on a member that said yes and
has not heard the outcome.

    everybody answers                     one round trip from the yes, and nothing where S was far enough ahead
    the news of the outcome is lost       a period of asking more (50 ms), on any path, from any member that knows
    a member falls silent between its     the proposer's patience (50 ms, doubling to 400 while attempts fail), at most
      answer and its yes                  a fifth of the time; nothing is proposed before that member answers again
    the proposer stalls or is cut off     until it is back, or declared gone. It takes part in the operations that wait,
      in between                          so nearly all of them would have waited for it without us, too
    the proposer dies in between          until the next has heard from everybody not gone

Considered and declined: that all tell all their yes, so that each sees the commit for itself and a stalled proposer
holds nobody. Then none could withdraw, and the silence of any one member, which is the common fault here, would hold
all others until it heals. Also declined: promises that end by the clock; a commit may be on its way to their owner.

The parts: :mod:`r2ccl.protocol.agreement_voter` answers, :mod:`r2ccl.protocol.agreement_proposer` asks, and here they
are joined, with the reports, the timers, and what a member says to itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from r2ccl.protocol.agreement_messages import (
    MEMBERS_MAX,
    NUMBER_MAX,
    PICTURE_BYTES_MAX,
    REPORT_BYTES_MAX,
    Accepted,
    Agreed,
    AskOutcome,
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
from r2ccl.protocol.agreement_proposer import INQUIRE_MAX_S, INQUIRE_S, Proposer, Stage
from r2ccl.protocol.agreement_voter import Adopt, Purpose, Released, Step, Tell, Voter, Wake
from r2ccl.protocol.wire import BadFrame

__all__ = ["Adopt", "Agreement", "ArmTimer", "Effect", "Released", "Tell", "Waiting"]


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Call ``timer_fired(token)`` after ``delay_s``."""

    token: int
    delay_s: float


Effect = Tell | Adopt | Released | ArmTimer


@dataclass(frozen=True, slots=True)
class Waiting:
    """What has not been agreed yet, for those who look."""

    epoch: int
    #: From where on operations wait here; None: none does.
    held_from: int | None
    #: The proposer's: for whose answer it waits. Empty elsewhere.
    missing: tuple[int, ...]
    #: ``gathering``, ``asking``, ``proposing``, ``resting``; elsewhere ``promised`` or ``reported``.
    stage: str


class Agreement:
    """One member's side of it. ``members``: their ranks in the job."""

    __slots__ = (
        "_members",
        "_proposer",
        "_report",
        "_report_is_known",
        "_report_repeats",
        "_report_version",
        "_serial",
        "_tokens",
        "_voter",
        "rank",
    )

    def __init__(self, rank: int, members: Iterable[int]) -> None:
        self.rank = rank
        self._members = tuple(sorted(members))
        if rank not in self._members or len(self._members) > MEMBERS_MAX:
            raise ValueError(f"rank {rank} cannot agree among {len(self._members)} members")
        self._voter = Voter(rank, Agreed(0, 0, (b"",) * len(self._members)))
        self._proposer = Proposer(rank, self._members, self._voter)
        self._report = b""
        self._report_version = 0
        #: The proposer has our newest report.
        self._report_is_known = True
        self._report_repeats = 0
        #: The timer that counts, by what it is for.
        self._tokens: dict[Purpose, int] = {}
        self._serial = 0

    @property
    def report_bytes_max(self) -> int:
        """The longest report that a member of this communicator can make."""
        return min(REPORT_BYTES_MAX, PICTURE_BYTES_MAX // len(self._members))

    @property
    def committed(self) -> Agreed:
        """The newest epoch, which may begin at an operation still to come."""
        return self._voter.committed

    def agreed_for(self, operation: int) -> Agreed:
        """What an operation that is not admitted yet is to be planned from."""
        return self._voter.agreed_for(operation)

    def may_admit(self, operation: int) -> bool:
        """May it be planned now? If not, ``Released`` will say when to ask again."""
        return self._voter.may_admit(operation)

    @property
    def epochs(self) -> list[int]:
        """Those that operations not admitted yet may be planned in, as far as is known."""
        return self._voter.epochs

    def admitted(self, operation: int) -> None:
        """It was numbered and planned, from what ``agreed_for`` said in the same instant."""
        self._voter.admit(operation)

    @property
    def waiting(self) -> Waiting | None:
        """The proposal, or the wish for one, that has no outcome yet; None: everything is agreed."""
        epoch = self.committed.epoch + 1
        held = self._voter.accepted
        held_from = None if held is None else held.agreed.first_operation
        if self._proposer.stage is not Stage.IDLE:
            return Waiting(epoch, held_from, tuple(self._proposer.missing), self._proposer.stage.value)
        if held is not None:
            return Waiting(epoch, held_from, (), "promised")
        own = self._members.index(self.rank)
        if self._report_version and self._report != self.committed.picture[own]:
            return Waiting(epoch, None, (), "reported")
        return None

    def measured(self, report: bytes, now: float) -> list[Effect]:
        """Our NICs are steadily thus (see :mod:`r2ccl.protocol.steadiness`)."""
        if len(report) > self.report_bytes_max:
            raise ValueError(f"a report of {len(report)} bytes, over {self.report_bytes_max}")
        if report == self._report and self._report_version:
            return []
        self._report = report
        self._report_version += 1
        return self._settled(self._send_report(), now)

    def gone(self, peer: int, admitted: int, now: float) -> list[Effect]:
        """Proven dead, or it said goodbye. ``admitted``: it has admitted all operations below, as far as known."""
        if peer not in self._proposer.alive or peer == self.rank:
            return []
        proposer = self._proposer.alive[0]
        self._voter.gone_admitted = max(self._voter.gone_admitted, min(admitted, NUMBER_MAX))
        steps = self._proposer.gone(peer, now)
        if peer == proposer and self._report_version:
            steps += self._send_report()
        return self._settled(steps, now)

    def heard(self, peer: int, message: Message, now: float) -> list[Effect]:
        """A member said this. Raises :class:`~r2ccl.protocol.wire.BadFrame` if none of ours can have."""
        self._check(peer, message)
        return self._settled(self._handle(peer, message, now), now)

    def outcome(self, message: AskOutcome, peer: int) -> list[Effect]:
        """What is known here of a proposal, for a member that asks after this one's part has ended."""
        steps = self._voter.outcome(peer, message) if peer in self._members else []
        return [step for step in steps if isinstance(step, Tell)]

    def timer_fired(self, token: int, now: float) -> list[Effect]:
        """A timer that this machine armed."""
        for purpose, current in self._tokens.items():
            if current == token:
                del self._tokens[purpose]
                return self._settled(self._woke(purpose, now), now)
        return []

    def _woke(self, purpose: Purpose, now: float) -> list[Step]:
        match purpose:
            case Purpose.POLL:
                return self._voter.poll(self._proposer.alive)
            case Purpose.ROUND:
                return self._proposer.woke(now)
            case Purpose.REPORT:
                self._report_repeats += 1
                return [] if self._report_is_known else self._repeat_report()

    def _handle(self, peer: int, message: Message, now: float) -> list[Step]:
        match message:
            case Inquire():
                return self._voter.inquire(peer, message)
            case Propose():
                return self._voter.propose(peer, message)
            case Commit():
                steps = self._voter.commit(message.agreed)
                return [*steps, *self._proposer.adopted()] if steps else []
            case Withdraw():
                return self._voter.withdraw(message)
            case AskOutcome():
                return self._voter.outcome(peer, message) or self._doubt(message)
            case State() | Yes() | No():
                return self._answered(peer, message, now)
            case Report():
                return [
                    Tell(peer, Reported(message.version)),
                    *self._proposer.report(peer, message.version, message.report),
                ]
            case Reported():
                # A late answer of one that is gone says nothing about its successor.
                to_this_one = peer == self._proposer.alive[0] and message.version == self._report_version
                self._report_is_known = self._report_is_known or to_this_one
                return []
            case _:
                assert_never(message)

    def _answered(self, peer: int, message: State | Yes | No, now: float) -> list[Step]:
        match message:
            case State():
                return self._proposer.state(peer, message, now)
            case Yes():
                return self._proposer.yes(peer, message)
            case No():
                return self._proposer.no(message)

    def _doubt(self, message: AskOutcome) -> list[Step]:
        return self._proposer.doubt(message.ballot) if message.epoch == self.committed.epoch + 1 else []

    def _send_report(self) -> list[Step]:
        self._report_is_known = self._proposer.leads
        if self._report_is_known:
            return self._proposer.report(self.rank, self._report_version, self._report)
        self._report_repeats = 0
        return self._repeat_report()

    def _repeat_report(self) -> list[Step]:
        delay_s = min(INQUIRE_S * 2.0 ** min(self._report_repeats, 30), INQUIRE_MAX_S)
        told = Tell(self._proposer.alive[0], Report(self._report_version, self._report))
        return [told, Wake(Purpose.REPORT, delay_s)]

    def _settled(self, steps: Sequence[Step], now: float) -> list[Effect]:
        """What is said to oneself is heard at once; timers get their tokens. It ends: an attempt is a few messages, and
        no member refuses its own, for S is beyond what it has admitted and its promise is to itself."""
        effects: list[Effect] = []
        todo = deque(steps)
        while todo:
            step = todo.popleft()
            match step:
                case Tell(peer, message) if peer == self.rank:
                    todo.extend(self._handle(peer, message, now))
                case Wake(purpose, delay_s):
                    self._serial += 1
                    self._tokens[purpose] = self._serial
                    effects.append(ArmTimer(self._serial, delay_s))
                case _:
                    effects.append(step)
        return effects

    def _check(self, peer: int, message: Message) -> None:
        if peer not in self._members or peer == self.rank:
            raise BadFrame(f"rank {peer} is no other member of this communicator")
        match message:
            case Inquire(ballot=ballot) | Propose(ballot=ballot) if ballot.rank != peer or not ballot.number:
                raise BadFrame(f"rank {peer} used a ballot that is not its own: {ballot}")
            case State(ballot=ballot) | Yes(ballot=ballot) | No(ballot=ballot) if ballot.rank != self.rank:
                raise BadFrame(f"rank {peer} answered what we never asked: {ballot}")
            case Report(report=report) if len(report) > self.report_bytes_max:
                raise BadFrame(f"rank {peer} sent a report of {len(report)} bytes")
            case Propose(agreed=agreed) | Commit(agreed=agreed) | State(accepted=Accepted(agreed=agreed)):
                if len(agreed.picture) != len(self._members):
                    raise BadFrame(f"rank {peer} sent a picture of {len(agreed.picture)} members")
            case _:
                pass
