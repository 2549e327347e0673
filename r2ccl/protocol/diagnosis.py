"""Whose fault a lost link is: three points knock at one another, and the set of answers names the culprit.

Theory of operation. A link between our NIC and theirs is out of service, and lanes move away from it at once: that is
not decided here and waits for nothing that is. What an operator wants to know is which of three things to look at, our
NIC, their NIC, or what lies between. Two points cannot tell. A third can: whoever of the two still reaches it is whole,
and so we knock at a third rank from the suspected NIC, and ask it to knock at both. A knock is answered by a *kernel*
(``transport.interface.Device.reach``): a process that computes, or that somebody stopped, is no dead NIC.

Some things need no third point, because their owner says so: our own NIC has no carrier; the peer gave notice that its
NIC is down; its kernel refuses, so that the way is whole and the process gone. Such news may be a little slower than
the loss of the link. So repair has a start before the first knock, other ranks are troubled only when our own knocks
had time to be answered, no verdict falls before the settling time, and none later than the deadline: who has not
answered by then says nothing, and the table has a row for that.

    event                         -> effects
    the link is lost                 timer
    timer, knock time                Knock at their NIC, at their others, at the thirds; timer
    timer, ask time                  AskThird each; timer
    timer, settled                   Conclude if nothing is left to be said, else timer
    timer, deadline                  Conclude
    an answer, news of an owner      Conclude if settled and nothing is left to be said
    any, once it is over             none

Nothing is left to be said when all have answered, or when nobody has to be asked any more: an owner spoke, the link is
back, or our own knock was answered. What the answers mean is the table of ``protocol.verdict``. A timer that fires late
says that we were away ourselves (decision 17), and answers that lie unread are given time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

from r2ccl.ids import LinkId
from r2ccl.protocol.verdict import Evidence, Finding, OtherNic, Said, Third, ThirdPoint, judge

#: A timer that fires this much late says that we were away ourselves (decision 17): answers may lie unread.
LATE_S = 0.05
#: So often such a timer is armed anew, for so long, and then the verdict is said on what there is.
EXTENSIONS_MAX = 3
EXTENSION_S = 0.05


# Events.


@dataclass(frozen=True, slots=True)
class Knock:
    """As an effect: knock from this NIC of ours at that of a rank. As part of an event: the knock that was answered."""

    local_nic: int
    rank: int
    remote_nic: int


@dataclass(frozen=True, slots=True)
class KnockAnswered:
    """What came of a knock of ours."""

    knock: Knock
    said: Said


@dataclass(frozen=True, slots=True)
class ThirdAnswered:
    """A third rank has knocked at both."""

    rank: int
    theirs: Said
    ours: Said


@dataclass(frozen=True, slots=True)
class OwnNicChanged:
    """The system says that our NIC lost or found its carrier."""

    up: bool


@dataclass(frozen=True, slots=True)
class TheirNicAnnounced:
    """The peer gave notice of its NIC."""

    up: bool


@dataclass(frozen=True, slots=True)
class LinkReturned:
    """The link is in service again."""


@dataclass(frozen=True, slots=True)
class PeerDied:
    """The peer is known to be dead, by other means."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that this machine armed."""

    token: int


Event = KnockAnswered | ThirdAnswered | OwnNicChanged | TheirNicAnnounced | LinkReturned | PeerDied | TimerFired

# Effects, beside Knock.


@dataclass(frozen=True, slots=True)
class AskThird:
    """Ask a rank to knock at their NIC and at ours."""

    third: Third


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Fire ``TimerFired(token)`` after ``delay_s``."""

    token: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Conclude:
    """The verdict, once."""

    finding: Finding
    evidence: Evidence


Effect = Knock | AskThird | ArmTimer | Conclude


@dataclass(frozen=True, slots=True)
class DiagnosisTimes:
    """When what is done, in seconds since the link was lost; each later than the one before."""

    knock_s: float
    ask_s: float
    settle_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class OtherRail:
    """Another way to the peer."""

    local_nic: int
    remote_nic: int
    #: Who tells whether our NIC there works; None with two ranks.
    third: Third | None


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known when a link is lost, and whom one may turn to."""

    own_nic_up: bool
    their_nic_up: bool
    others: tuple[OtherRail, ...] = ()
    thirds: tuple[Third, ...] = ()


class _Stage(enum.Enum):
    """What the next timer is for."""

    KNOCK = "knock"
    ASK = "ask"
    SETTLE = "settle"
    CONCLUDE = "conclude"


class Diagnosis:
    """The machine for one lost link."""

    def __init__(self, link: LinkId, scene: Scene, times: DiagnosisTimes) -> None:
        self.link = link
        self.is_over = False
        self._times = times
        self._own_nic_up = scene.own_nic_up
        self._their_nic_up = scene.their_nic_up
        self._is_back = self._has_died = False
        self._thirds = scene.thirds
        self._direct = Knock(link.local_nic, link.peer, link.remote_nic)
        self._at_others = [
            (
                Knock(rail.local_nic, link.peer, rail.remote_nic),
                None if rail.third is None else Knock(rail.local_nic, rail.third.rank, rail.third.nic),
            )
            for rail in scene.others
        ]
        self._at_thirds = [Knock(link.local_nic, third.rank, third.nic) for third in scene.thirds]
        #: What knocks and thirds said. All and only answers that came.
        self._knocks: dict[Knock, Said] = {}
        self._told: dict[int, ThirdAnswered] = {}
        self._stage = _Stage.KNOCK
        self._began_s = 0.0
        self._token = 0
        self._due_s = 0.0
        self._extensions = 0

    def begin(self, now: float) -> list[Effect]:
        """The link was lost."""
        self._began_s = now
        return [self._arm(self._times.knock_s, now)]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The only door. Every event is meaningful or harmless at any time; once it is over all are harmless."""
        if self.is_over:
            return []
        match event:
            case KnockAnswered():
                self._knocks[event.knock] = event.said
            case ThirdAnswered():
                if any(third.rank == event.rank for third in self._thirds):
                    self._told.setdefault(event.rank, event)
            case OwnNicChanged():
                # A carrier that came back does not undo that it was gone.
                self._own_nic_up = self._own_nic_up and event.up
            case TheirNicAnnounced():
                self._their_nic_up = self._their_nic_up and event.up
            case LinkReturned():
                self._is_back = True
            case PeerDied():
                self._has_died = True
            case TimerFired():
                return self._timer_fired(event, now)
            case _:
                assert_never(event)
        return self._conclude_if_ready()

    @property
    def evidence(self) -> Evidence:
        """All that was said so far."""
        return Evidence(
            self._own_nic_up,
            self._their_nic_up,
            self._is_back,
            self._has_died,
            self._said(self._direct),
            tuple(OtherNic(knock.remote_nic, self._said(knock), self._said(by)) for knock, by in self._at_others),
            tuple(self._point(third, knock) for third, knock in zip(self._thirds, self._at_thirds, strict=True)),
        )

    def _point(self, third: Third, knock: Knock) -> ThirdPoint:
        told = self._told.get(third.rank, ThirdAnswered(third.rank, Said.UNKNOWN, Said.UNKNOWN))
        return ThirdPoint(third, self._said(knock), told.theirs, told.ours)

    def _said(self, knock: Knock | None) -> Said:
        return Said.UNKNOWN if knock is None else self._knocks.get(knock, Said.UNKNOWN)

    @property
    def _all_knocks(self) -> list[Knock]:
        others = [knock for pair in self._at_others for knock in pair if knock is not None]
        # A NIC of ours that serves two of their others, or both this link and another, knocks at a third once.
        return list(dict.fromkeys([self._direct, *others, *self._at_thirds]))

    @property
    def _is_clear(self) -> bool:
        """Nobody needs to be asked any more: an owner spoke, or the way is whole."""
        owner_spoke = not (self._own_nic_up and self._their_nic_up) or self._is_back or self._has_died
        return owner_spoke or self._said(self._direct).is_sign

    def _conclude_if_ready(self) -> list[Effect]:
        if self._stage is not _Stage.CONCLUDE:
            return []
        all_said = len(self._told) == len(self._thirds) and all(knock in self._knocks for knock in self._all_knocks)
        return self._conclude() if self._is_clear or all_said else []

    def _conclude(self) -> list[Effect]:
        self.is_over = True
        evidence = self.evidence
        return [Conclude(judge(evidence), evidence)]

    def _timer_fired(self, event: TimerFired, now: float) -> list[Effect]:
        if event.token != self._token:
            return []
        if now - self._due_s > LATE_S and self._extensions < EXTENSIONS_MAX:
            self._extensions += 1
            return [self._arm(EXTENSION_S, now)]
        match self._stage:
            case _Stage.KNOCK:
                self._stage = _Stage.ASK
                knocks = [] if self._is_clear else self._all_knocks
                return [*knocks, self._arm_at(self._times.ask_s, now)]
            case _Stage.ASK:
                self._stage = _Stage.SETTLE
                asks = [] if self._is_clear else [AskThird(third) for third in self._thirds]
                return [*asks, self._arm_at(self._times.settle_s, now)]
            case _Stage.SETTLE:
                self._stage = _Stage.CONCLUDE
                return self._conclude_if_ready() or [self._arm_at(self._times.deadline_s, now)]
            case _Stage.CONCLUDE:
                return self._conclude()

    def _arm_at(self, since_s: float, now: float) -> ArmTimer:
        """So long after the link was lost; if we were away meanwhile, answers are still given time to be read."""
        return self._arm(max(EXTENSION_S if self._extensions else 0.0, self._began_s + since_s - now), now)

    def _arm(self, delay_s: float, now: float) -> ArmTimer:
        self._token += 1
        self._due_s = now + delay_s
        return ArmTimer(self._token, delay_s)
