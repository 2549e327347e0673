"""What speaks against a link that is not silent, and when new chunks take another path for it: the shadow route.

Silence is health's business. Here are the four things that a link can say while it lives: it takes longer than it used
to, it carries less than its fair share, more of what it sends is sent again, or the interface counts errors. Each is
compared with the link's own history (:mod:`r2ccl.protocol.baseline`): 14 % sent again is healthy on one path, 1 % is a
fault on another. Evidence begins and ends; both are told, for the incident log. It accuses, and decides nothing else.

Latency alone moves traffic, because the other three show in the bandwidth by which chunks are shared out anyway. While
a link's latency stands above its limit *new* chunks go by other paths, what is under way stays, and so does the link:
its control connection is still watched, and when it was clean for the hold-down it carries again.

    route       what happens                                        -> route    effects
    HOME        latency raised, backup better, budget left          SHADOW      Began, Divert
                latency raised, otherwise                           HOME        Began; tried again at each sample
                latency still raised, backup better now             SHADOW      Divert
    SHADOW      latency clean for the hold-down                     HOME        Ended, Restore
                no backup, or the backup confirmed worse            HOME        Restore

A switch must be worth it: the backup's own probe answers clearly faster than this link does at this moment. And there
is a budget of switches for the whole rank: were all links to look bad at once, then it is us, or everything, and
moving from one to another helps nobody. Coming home costs nothing.

A sample that was limited (by the peer's window, by our buffer, by us) says nothing about the path, and neither does
anything that was gathered around a stall of our own. Where the NIC carried much for others, a late answer may have met
their queue: it accuses nobody, and is not learned; a prompt one speaks for the link as ever. The interface's error
counters are not the connection's, so they count in any case. While a link is in the shadow it carries nothing, so its
throughput accuses nobody.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from r2ccl.protocol.baseline import Baseline, Change, Strictness, Watch

#: Levels of load, each with its own usual latency: carries nothing, some, more than half of its window.
LOADS = 3
#: A backup must answer in this share of the link's own latency to be worth a switch.
BACKUP_BETTER = 0.8
#: Latencies are told apart by 1 %, shares by 1 %, ratios by 0.1 %, errors by less than one.
_LATENCY_RESOLUTION = _THROUGHPUT_RESOLUTION = 0.01
_RESENT_RESOLUTION = 0.001
_ERRORS_RESOLUTION = 0.1
#: One error is one more than none.
_ERRORS_FLOOR = 0.5
#: Below this a latency or a share is taken for this: a logarithm needs something.
_LEAST = 1e-6


class Kind(enum.Enum):
    """What was measured."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    RESENT = "resent"
    ERRORS = "errors"


class Suspicion(enum.Enum):
    """Clear: no evidence stands. Suspect: some does."""

    CLEAR = "clear"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that speaks against a link. Seconds for latency, a share of the fair share for throughput, resent /
    sent for resent, errors in a sample for errors."""

    kind: Kind
    value: float
    baseline: float
    limit: float
    since_s: float

    def __str__(self) -> str:
        match self.kind:
            case Kind.LATENCY:
                told = [f"{1000 * number:.3g} ms" for number in (self.value, self.baseline, self.limit)]
                return f"latency {told[0]}, usually {told[1]}, limit {told[2]}"
            case Kind.THROUGHPUT:
                told = [f"{number:.0%}" for number in (self.value, self.baseline, self.limit)]
                return f"throughput {told[0]} of the fair share, usually {told[1]}, limit {told[2]}"
            case Kind.RESENT:
                told = [f"{number:.2%}" for number in (self.value, self.baseline, self.limit)]
                return f"resent {told[0]} of what was sent, usually {told[1]}, limit {told[2]}"
            case Kind.ERRORS:
                return f"{self.value:.0f} interface errors in a sample, usually {self.baseline:.0f}"


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a link since the last look. None: not measured."""

    #: How long the far end's kernel took to answer: the shortest of this look's answers, which has the least of other
    #: people's queues in it; not smoothed beyond the look, or a change would show late and samples would not be apart.
    rtt_s: float | None = None
    #: The same of the best other link to the peer; None: there is no other.
    backup_rtt_s: float | None = None
    #: See :func:`load_level`.
    load: int = 0
    #: Bytes per second that it carried, and those that it should have: its share by the agreed picture of what all
    #: links to the peer carried together. None where too little was sent to tell.
    throughput: float | None = None
    fair_share: float | None = None
    #: Segments sent again / segments sent; None where too few were sent to tell.
    resent_ratio: float | None = None
    #: Errors that the interface has counted since.
    errors: int | None = None
    #: The sample accuses nobody: rwnd-, sndbuf- or app-limited.
    limited: bool = False
    #: The NIC carried much that is not ours (``protocol.others``).
    among_others: bool = False


def load_level(outstanding_bytes: int, window_bytes: int) -> int:
    """How full a link is: nothing, something, more than half."""
    if not outstanding_bytes:
        return 0
    return 1 if 2 * outstanding_bytes <= window_bytes else 2


# Effects.


@dataclass(frozen=True, slots=True)
class Began:
    """This speaks against the link from now on."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Ended:
    """And this no more. The evidence is as it was when it began."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Divert:
    """New chunks take other paths. What is under way stays, and the link stays connected and watched."""


@dataclass(frozen=True, slots=True)
class Restore:
    """The link carries again."""

    cause: str


Effect = Began | Ended | Divert | Restore


@dataclass(frozen=True, slots=True)
class EvidenceLimits:
    """Where each kind of evidence begins (see config for the reasons)."""

    strictness: Strictness
    #: A latency above the usual by less than this share, or less than this many seconds, accuses nobody.
    latency_excess: float
    latency_excess_s: float
    #: A link that carries more than this part of its usual share of the fair share is not accused.
    share_least: float
    #: A resent ratio above the usual by less than this accuses nobody.
    resent_excess: float


class SwitchBudget:
    """How many switches a rank may make: ``burst`` at once, and one more each ``refill_s``."""

    __slots__ = ("_burst", "_filled_at_s", "_refill_s", "_tokens")

    def __init__(self, refill_s: float, burst: int) -> None:
        self._refill_s = refill_s
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at_s = 0.0

    def take(self, now: float) -> bool:
        """One switch, if there is one left."""
        elapsed_s = max(0.0, now - self._filled_at_s)
        self._filled_at_s = max(now, self._filled_at_s)
        self._tokens = min(self._burst, self._tokens + elapsed_s / self._refill_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(frozen=True, slots=True)
class _Scale:
    """How a quantity is written down so that more is worse, and back."""

    write: Callable[[float], float]
    read: Callable[[float], float]


_LATENCY_SCALE = _Scale(lambda value: math.log(max(value, _LEAST)), math.exp)
_THROUGHPUT_SCALE = _Scale(lambda value: -math.log(max(value, _LEAST)), lambda written: math.exp(-written))
_PLAIN_SCALE = _Scale(float, float)


class LinkEvidence:
    """The machine for one link. ``budget`` is the rank's, shared by all of them."""

    __slots__ = ("_backup_worse", "_budget", "_scales", "_strictness", "_watches", "is_diverted", "standing")

    def __init__(self, limits: EvidenceLimits, budget: SwitchBudget) -> None:
        self._budget = budget
        self._strictness = limits.strictness

        def latency_floor(centre: float) -> float:
            return math.log1p(max(limits.latency_excess, limits.latency_excess_s / math.exp(centre)))

        share_floor = -math.log(limits.share_least)
        self._watches = {
            Kind.LATENCY: Watch(limits.strictness, latency_floor, _LATENCY_RESOLUTION, LOADS),
            # Before it has a history a link should carry its fair share, which is written as nought.
            Kind.THROUGHPUT: Watch(
                limits.strictness, lambda _centre: share_floor, _THROUGHPUT_RESOLUTION, presumed=0.0
            ),
            Kind.RESENT: Watch(limits.strictness, lambda _centre: limits.resent_excess, _RESENT_RESOLUTION),
            Kind.ERRORS: Watch(limits.strictness, lambda _centre: _ERRORS_FLOOR, _ERRORS_RESOLUTION),
        }
        self._scales = {
            Kind.LATENCY: _LATENCY_SCALE,
            Kind.THROUGHPUT: _THROUGHPUT_SCALE,
            Kind.RESENT: _PLAIN_SCALE,
            Kind.ERRORS: _PLAIN_SCALE,
        }
        #: All and only what speaks against the link now, as it was when it began.
        self.standing: dict[Kind, Evidence] = {}
        #: New chunks take other paths.
        self.is_diverted = False
        #: Samples in a row at which the backup was the worse of the two.
        self._backup_worse = 0

    @property
    def since_s(self) -> float | None:
        """When the first of what speaks against the link now was confirmed; None: nothing does."""
        return min((evidence.since_s for evidence in self.standing.values()), default=None)

    @property
    def suspicion(self) -> Suspicion:
        return Suspicion.SUSPECT if self.standing else Suspicion.CLEAR

    def void(self) -> None:
        """We were away ourselves: what was gathered so far accuses nobody and clears nobody."""
        self._backup_worse = 0
        for watch in self._watches.values():
            watch.void()

    def link_lost(self) -> list[Effect]:
        """The link is out of service. What comes back may be another path: its history begins anew."""
        effects: list[Effect] = [Ended(evidence) for evidence in self.standing.values()]
        self.standing.clear()
        self._backup_worse = 0
        for watch in self._watches.values():
            watch.forget()
        if self.is_diverted:
            self.is_diverted = False
            effects.append(Restore("link lost"))
        return effects

    def sample(self, look: Look, now: float) -> list[Effect]:
        """A look at the link."""
        effects: list[Effect] = []
        if not look.limited:
            if not look.among_others or self._exonerates(look):
                effects += self._judge(Kind.LATENCY, look.rtt_s, now, look.load)
            effects += self._judge(Kind.THROUGHPUT, self._share(look), now)
            effects += self._judge(Kind.RESENT, look.resent_ratio, now)
        effects += self._judge(Kind.ERRORS, look.errors, now)
        return effects + self._route(look, now)

    def _share(self, look: Look) -> float | None:
        if look.throughput is None or not look.fair_share or self.is_diverted:
            return None
        return look.throughput / look.fair_share

    def _exonerates(self, look: Look) -> bool:
        """Others make answers late and never early."""
        watch, scale = self._watches[Kind.LATENCY], self._scales[Kind.LATENCY]
        return look.rtt_s is not None and watch.exonerates(scale.write(look.rtt_s), look.load)

    def _judge(self, kind: Kind, value: float | None, now: float, level: int = 0) -> list[Effect]:
        if value is None:
            return []
        watch, scale = self._watches[kind], self._scales[kind]
        reference = watch.reference(level)
        match watch.look(scale.write(value), now, level):
            case Change.RAISED:
                assert reference is not None
                self.standing[kind] = evidence = _evidence(kind, value, watch, reference, scale, now)
                return [Began(evidence)]
            case Change.CLEARED:
                return [Ended(self.standing.pop(kind))]
            case None:
                return []

    def _route(self, look: Look, now: float) -> list[Effect]:
        if not self.is_diverted:
            return self._leave(look, now)
        if Kind.LATENCY not in self.standing:
            return self._come_home("latency as usual")
        if look.backup_rtt_s is None:
            return self._come_home("no other link")
        if look.rtt_s is None or look.limited:
            return []
        self._backup_worse = self._backup_worse + 1 if look.rtt_s < BACKUP_BETTER * look.backup_rtt_s else 0
        if self._backup_worse >= self._strictness.window:
            return self._come_home("the other link is slower")
        return []

    def _leave(self, look: Look, now: float) -> list[Effect]:
        if Kind.LATENCY not in self.standing or look.rtt_s is None or look.backup_rtt_s is None:
            return []
        if look.limited or look.among_others:
            return []
        if look.backup_rtt_s >= BACKUP_BETTER * look.rtt_s or not self._budget.take(now):
            return []
        self.is_diverted = True
        self._backup_worse = 0
        return [Divert()]

    def _come_home(self, cause: str) -> list[Effect]:
        self.is_diverted = False
        return [Restore(cause)]


def _evidence(kind: Kind, value: float, watch: Watch, reference: Baseline, scale: _Scale, now: float) -> Evidence:
    return Evidence(kind, float(value), scale.read(reference.centre), scale.read(watch.limit(reference)), now)
