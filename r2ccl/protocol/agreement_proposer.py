"""Who asks the others, and decides: the half of the agreement that only the lowest live rank plays.

The theory is in :mod:`r2ccl.protocol.agreement`.

    stage       event                                   -> stage       effects
    IDLE        a picture that differs, or a doubt      GATHERING      timer
    GATHERING   timer                                   ASKING         Inquire to all, timer
    ASKING      State of all, fresh enough              PROPOSING      Propose to all, timer
                  (nobody holds anything, no wish)      IDLE
                  (somebody holds, no wish)             IDLE           Withdraw to all
                State of all, some of them old          ASKING         Inquire to those
                State of one that is behind             ASKING         Commit to it
                timer                                   ASKING         Inquire to the missing, timer
                No: a higher ballot                     RESTING        timer
    PROPOSING   Yes of all                              IDLE           Commit to all
                timer                                   PROPOSING      Propose to the missing, timer
                timer, patience used up, fresh          RESTING        Withdraw to all, timer
                No: admitted beyond S                   ASKING         Withdraw to all if fresh, Inquire to all, timer
                No: a higher ballot                     RESTING        Withdraw to all if fresh, timer
    RESTING     timer                                   as GATHERING
    any         a member without a yes is gone          as if it had not been asked; PROPOSING: as No: admitted
                the next epoch is committed             IDLE, and on if the picture still differs
"""

from __future__ import annotations

import enum
from collections.abc import Container, Sequence
from dataclasses import dataclass

from r2ccl.protocol.agreement_messages import (
    NUMBER_MAX,
    Accepted,
    Agreed,
    Ballot,
    Commit,
    Inquire,
    Message,
    No,
    Picture,
    Propose,
    State,
    Withdraw,
    Yes,
)
from r2ccl.protocol.agreement_voter import Purpose, Step, Tell, Voter, Wake

#: What harms one NIC often harms its neighbours: their reports shall make one picture, not several.
GATHER_S = 0.05
#: An inquiry is repeated to those who have not answered, this soon at first and then ever more slowly. Nobody waits.
INQUIRE_S = 0.05
INQUIRE_MAX_S = 0.5
#: An answer that is older when the last one comes is asked for again: we propose only when all can be expected to
#: answer at once, because members that reach the proposed operation wait for the slowest.
FRESH_S = 0.1
#: How long a fresh proposal waits for every yes before it is withdrawn: the longest that one member which fell silent
#: just then can hold others. It doubles with each withdrawal, for networks with a longer round trip, up to the limit.
PATIENCE_S = 0.05
PATIENCE_MAX_S = 0.4
#: In that time a proposal goes out this often: the loss of a frame shall not look like a silent member.
SENDS = 4
#: After a withdrawal the next attempt waits so many patiences: waiting members lose a fifth of their time at most.
REST_PATIENCES = 4
#: The most that S is put ahead of what anyone has admitted. More than run and wait on a rank by the default settings.
LEAD_MAX = 4096


class Stage(enum.Enum):
    """See the table above."""

    IDLE = "idle"
    GATHERING = "gathering"
    ASKING = "asking"
    PROPOSING = "proposing"
    RESTING = "resting"


@dataclass(frozen=True, slots=True)
class _Answer:
    state: State
    heard_s: float


class Proposer:
    """The asking half of one member. Idle unless this is the lowest live rank."""

    __slots__ = (
        "_admitted_when_asked",
        "_answers",
        "_ballot",
        "_in_doubt",
        "_lead",
        "_members",
        "_number",
        "_patience_s",
        "_reports",
        "_repeats",
        "_voter",
        "_yes",
        "alive",
        "proposal",
        "rank",
        "stage",
    )

    def __init__(self, rank: int, members: Sequence[int], voter: Voter) -> None:
        self.rank = rank
        self._members = tuple(members)
        self._voter = voter
        #: Members that are not gone, lowest first. Only shrinks.
        self.alive = list(self._members)
        self.stage = Stage.IDLE
        #: By member, the newest report and its version.
        self._reports: dict[int, tuple[int, bytes]] = {}
        #: Somebody may hold a proposal of an earlier proposer: ask, even if there is nothing to propose.
        self._in_doubt = False
        #: The highest number of a ballot that was seen.
        self._number = 0
        #: The current attempt's, while ASKING or PROPOSING.
        self._ballot = Ballot(0, rank)
        #: Of members that are not gone, as the yes are: it is told from their number when nobody is missing.
        self._answers: dict[int, _Answer] = {}
        #: Who said yes; their order means nothing.
        self._yes: dict[int, None] = {}
        #: Set while PROPOSING.
        self.proposal: Propose | None = None
        #: How far S was put ahead in an attempt that came too late; 0 if none did.
        self._lead = 0
        self._admitted_when_asked = 0
        self._repeats = 0
        self._patience_s = PATIENCE_S

    @property
    def leads(self) -> bool:
        return self.alive[0] == self.rank

    @property
    def wish(self) -> Picture:
        """The picture from the newest reports. Who has not reported to us is where the agreed picture has it."""
        agreed = self._voter.committed.picture
        return tuple(
            self._reports[member][1] if member in self._reports else agreed[index]
            for index, member in enumerate(self._members)
        )

    @property
    def missing(self) -> list[int]:
        """For whose answer this attempt waits."""
        answered: Container[int] = self._answers if self.stage is Stage.ASKING else self._yes
        waits = self.stage in (Stage.ASKING, Stage.PROPOSING)
        return [member for member in self.alive if member not in answered] if waits else []

    def report(self, peer: int, version: int, report: bytes) -> list[Step]:
        if peer not in self._reports or version > self._reports[peer][0]:
            self._reports[peer] = version, report
        return self._consider()

    def doubt(self, ballot: Ballot) -> list[Step]:
        """Somebody holds a proposal whose outcome we don't know: an earlier proposer's, for we know that of our own."""
        if not self.leads or ballot.rank == self.rank:
            return []
        self._in_doubt = True
        return self._consider()

    def adopted(self) -> list[Step]:
        """The next epoch is committed, by us or another: an attempt at it is over."""
        self._end()
        return self._consider()

    def woke(self, now: float) -> list[Step]:
        match self.stage:
            case Stage.IDLE:
                return []
            case Stage.GATHERING | Stage.RESTING:
                return self._ask() if self._has_cause() else self._end()
            case Stage.ASKING:
                self._repeats += 1
                return [*self._inquire(self.missing), self._wake_to_inquire()]
            case Stage.PROPOSING:
                return self._remind()

    def gone(self, peer: int, now: float) -> list[Step]:
        led = self.leads
        self.alive.remove(peer)
        if not self.leads:
            return []
        if not led:
            self._in_doubt = True
            return self._ask()
        if self.stage is Stage.ASKING:
            self._answers.pop(peer, None)
            return self._if_all_answered(now)
        if self.stage is Stage.PROPOSING:
            if peer not in self._yes:
                # It may have admitted S before it went.
                return [*self._withdraw(), *self._ask()]
            del self._yes[peer]
            return self._if_all_said_yes()
        return []

    def state(self, peer: int, message: State, now: float) -> list[Step]:
        if self.stage is not Stage.ASKING or message.ballot != self._ballot or peer not in self.alive:
            return []
        if message.epoch < self._voter.committed.epoch:
            return [Tell(peer, Commit(self._voter.committed))]
        self._answers[peer] = _Answer(message, now)
        return self._if_all_answered(now)

    def yes(self, peer: int, message: Yes) -> list[Step]:
        if self.stage is not Stage.PROPOSING or message.ballot != self._ballot or peer not in self.alive:
            return []
        self._yes[peer] = None
        return self._if_all_said_yes()

    def no(self, message: No) -> list[Step]:
        self._number = max(self._number, message.promised.number)
        if message.ballot != self._ballot or self.stage not in (Stage.ASKING, Stage.PROPOSING):
            return []
        effects = self._withdraw()
        if self.proposal is not None and message.promised <= self._ballot:
            # A member is beyond S. The round trip was longer than we thought.
            self._lead = min(max(1, 2 * self._lead), LEAD_MAX)
            return [*effects, *self._ask()]
        return [*effects, *self._rest()]

    # The steps of an attempt.

    def _has_cause(self) -> bool:
        return self._in_doubt or self.wish != self._voter.committed.picture

    def _consider(self) -> list[Step]:
        if self.stage is not Stage.IDLE or not self.leads or not self._has_cause():
            return []
        self.stage = Stage.GATHERING
        return [Wake(Purpose.ROUND, GATHER_S)]

    def _ask(self) -> list[Step]:
        self._number = max(self._number, self._voter.promised.number) + 1
        if self._number > NUMBER_MAX:
            return self._end()  # a member lied: there is no name left for another attempt
        self._ballot = Ballot(self._number, self.rank)
        self.stage = Stage.ASKING
        self.proposal = None
        self._answers = {}
        self._admitted_when_asked = self._voter.admitted
        self._repeats = 0
        return [*self._inquire(self.alive), self._wake_to_inquire()]

    def _inquire(self, peers: Sequence[int]) -> list[Step]:
        return self._tell(peers, Inquire(self._ballot, self._voter.committed.epoch))

    def _wake_to_inquire(self) -> Step:
        return Wake(Purpose.ROUND, min(INQUIRE_S * 2.0 ** min(self._repeats, 30), INQUIRE_MAX_S))

    def _if_all_answered(self, now: float) -> list[Step]:
        if len(self._answers) < len(self.alive):
            return []
        old = [peer for peer, answer in self._answers.items() if now - answer.heard_s > FRESH_S and peer != self.rank]
        for peer in old:
            del self._answers[peer]
        return self._inquire(old) if old else self._decide()

    def _decide(self) -> list[Step]:
        """All have answered: what may have been committed is proposed again; else nothing was and we are free."""
        states = [self._answers[peer].state for peer in sorted(self._answers)]
        held = [s.accepted for s in states if s.accepted is not None and s.accepted.ballot >= self._voter.void_below]
        if held:
            latest = max(held, key=_ballot_of)
            if all(state.admitted <= latest.agreed.first_operation for state in states):
                return self._propose(Propose(self._ballot, latest.agreed, fresh=False))
        committed = self._voter.committed
        self._in_doubt = False
        if self._has_cause():
            beyond = min(self._beyond_all(states) + self._choose_lead(), NUMBER_MAX)
            first = max(beyond, committed.first_operation)
            return self._propose(Propose(self._ballot, Agreed(committed.epoch + 1, first, self.wish), fresh=True))
        effects = self._tell(self.alive, Withdraw(committed.epoch + 1, self._ballot.successor)) if held else []
        return [*effects, *self._end()]

    def _beyond_all(self, states: Sequence[State]) -> int:
        admitted = [max(state.admitted, state.gone_admitted) for state in states]
        return max(*admitted, self._voter.admitted, self._voter.gone_admitted)

    def _choose_lead(self) -> int:
        """Twice what was admitted during the inquiry: the yes takes another round trip, and nobody shall wait for it.
        An idle communicator needs none."""
        during = 2 * (self._voter.admitted - self._admitted_when_asked)
        self._lead = min(max(self._lead, during), LEAD_MAX)
        return self._lead

    def _propose(self, proposal: Propose) -> list[Step]:
        self.stage = Stage.PROPOSING
        self.proposal = proposal
        self._yes = {}
        self._repeats = 0
        return [*self._tell(self.alive, proposal), Wake(Purpose.ROUND, self._patience_s / SENDS)]

    def _remind(self) -> list[Step]:
        assert self.proposal is not None
        self._repeats += 1
        if self.proposal.fresh and self._repeats >= SENDS:
            effects = [*self._withdraw(), *self._rest()]
            self._patience_s = min(2 * self._patience_s, PATIENCE_MAX_S)
            return effects
        delay_s = self._patience_s / SENDS if self.proposal.fresh else INQUIRE_S
        return [*self._tell(self.missing, self.proposal), Wake(Purpose.ROUND, delay_s)]

    def _if_all_said_yes(self) -> list[Step]:
        if len(self._yes) < len(self.alive):
            return []
        assert self.proposal is not None
        commit = Commit(self.proposal.agreed)
        self._patience_s = PATIENCE_S
        return [*self._tell(self.alive, commit), *self._end()]

    def _withdraw(self) -> list[Step]:
        """Free those who said yes. Never what may have been committed by another."""
        if self.proposal is None or not self.proposal.fresh:
            return []
        return self._tell(self.alive, Withdraw(self.proposal.agreed.epoch, self._ballot.successor))

    def _rest(self) -> list[Step]:
        if self.proposal is not None and not self.proposal.fresh:
            self._in_doubt = True
        self.stage = Stage.RESTING
        self.proposal = None
        return [Wake(Purpose.ROUND, REST_PATIENCES * self._patience_s)]

    def _end(self) -> list[Step]:
        self.stage = Stage.IDLE
        self.proposal = None
        self._in_doubt = False
        self._lead = 0
        return []

    def _tell(self, peers: Sequence[int], message: Message) -> list[Step]:
        return [Tell(peer, message) for peer in peers]


def _ballot_of(accepted: Accepted) -> Ballot:
    return accepted.ballot
