"""Cuts of random NICs at random moments while all-reduces of all sizes run, every element of every one checked.

Any number of NICs of one rail may be away at once, so that every two ranks keep a path; the next rail may be cut the
moment that the last NIC of this one was given back, before anything carries on it again. Most outages are shorter than
it takes to notice a silent one. Cuts come in rounds, each with ranks of its own, so that one failure is not the end.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from r2ccl.cli.demo_ranks import RankFailed
from r2ccl.cli.faults_figures import Happening
from r2ccl.cli.faults_stage import Hosts, r2ccl_program
from r2ccl.cli.faults_trial import Watch, running, why
from r2ccl.clock import MonotonicClock

if TYPE_CHECKING:
    from r2ccl.lab import Lab

#: From one cut to the next, and from a cut to its end.
PAUSE_S: Final = (0.02, 0.18)
OUTAGE_S: Final = (0.02, 0.4)
ROUND_CUTS: Final = 500
#: About, with the time that ranks need to start.
CUT_S: Final = 0.13
ROUND_S: Final = 6.0
SETTLE_S: Final = 1.0
#: Of the cuts; the others hit a NIC that waits for its return, or is just about to.
CARRYING_SHARE: Final = 0.9
#: Links carry again soon, or most cuts would hit one that waits.
QUICKEST_RETURN: Final = MappingProxyType({"R2CCL_QUIET": "0.02", "R2CCL_STABLE": "0.1"})
KINDS: Final = ("link-down", "near-end-down", "silent-drop", "deaf")
#: Rounds in a row in which hardly anything could be cut: something else is wrong.
HOPELESS_ROUNDS: Final = 3
HOPELESS_CUTS: Final = 10
#: A silent one is noticed after it ended, now and then.
_LATE_S: Final = 0.2
_LINK: Final = re.compile(r"\blink=nic(\d+)->rank(\d+)\.nic(\d+)")

Nic = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RandomCut:
    """One that was made; times on the monotonic clock."""

    nic: Nic
    kind: str
    cut_s: float
    #: When it is to end.
    due_s: float


@dataclass(slots=True)
class Cutter:
    """Draws which NIC goes next, when, how and for how long. Pure: it cuts nothing itself."""

    rng: random.Random
    hosts: int
    nics: int
    away: dict[Nic, RandomCut] = field(default_factory=dict)
    made: list[RandomCut] = field(default_factory=list)

    def draw(self, out_of_service: Collection[Nic]) -> tuple[Nic, str]:
        """A NIC that may go, mostly one that carries, and how. All may on the rail where some are away."""
        rails = {nic for _, nic in self.away} or set(range(self.nics))
        there = [(host, nic) for host in range(self.hosts) for nic in sorted(rails) if (host, nic) not in self.away]
        carrying = [nic for nic in there if nic not in out_of_service]
        wants_one_that_carries = self.rng.random() < CARRYING_SHARE
        return self.rng.choice(carrying if carrying and wants_one_that_carries else there), self.rng.choice(KINDS)

    @property
    def may_cut(self) -> bool:
        """Whether a NIC is left that may go."""
        return len(self.away) < self.hosts

    def cut(self, nic: Nic, kind: str, cut_s: float) -> None:
        """It was made."""
        cut = RandomCut(nic, kind, cut_s, cut_s + self.rng.uniform(*OUTAGE_S))
        self.away[nic] = cut
        self.made.append(cut)

    def due(self, now: float) -> list[RandomCut]:
        """Whose end has come; they are taken to be undone."""
        due = [cut for cut in self.away.values() if cut.due_s <= now]
        for cut in due:
            del self.away[cut.nic]
        return due

    def pause_s(self) -> float:
        """Until the next cut."""
        return self.rng.uniform(*PAUSE_S)

    def next_end_s(self) -> float | None:
        """When the next NIC comes back."""
        return min((cut.due_s for cut in self.away.values()), default=None)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round, or all of them together, came to."""

    cuts: int = 0
    #: Of them, after which a rank recorded that a link of that NIC was lost.
    felt: int = 0
    operations: int = 0
    wrong_elements: int = 0
    resent_bytes: int = 0
    seconds: float = 0.0
    errors: tuple[str, ...] = ()
    #: All that the failed ranks wrote.
    details: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The inverse of :meth:`parse`."""
        return asdict(self)

    @classmethod
    def parse(cls, kept: dict[str, Any]) -> Round:
        """From what was kept as JSON."""
        return cls(**{**kept, "errors": tuple(kept["errors"]), "details": tuple(kept["details"])})

    @classmethod
    def sum(cls, rounds: Iterable[Round]) -> Round:
        """Of all."""
        total = cls()
        for one in rounds:
            total = cls(
                total.cuts + one.cuts, total.felt + one.felt, total.operations + one.operations,
                total.wrong_elements + one.wrong_elements, total.resent_bytes + one.resent_bytes,
                total.seconds + one.seconds, (*total.errors, *one.errors), (*total.details, *one.details),
            )  # fmt: skip
        return total


def is_hopeless(rounds: Sequence[Round]) -> bool:
    """Whether there is no use in going on."""
    last = rounds[-HOPELESS_ROUNDS:]
    return len(last) == HOPELESS_ROUNDS and all(one.errors and one.cuts < HOPELESS_CUTS for one in last)


def out_of_service(down: Iterable[tuple[int, str]], hosts: int) -> set[Nic]:
    """NICs that have no link left, as their own ranks see it."""
    lost = Counter((rank, int(found[1])) for rank, link in down if (found := _LINK.search(f" link={link}")) is not None)
    return {nic for nic, links in lost.items() if links >= hosts - 1}


def felt(cuts: Sequence[RandomCut], happenings: Sequence[Happening]) -> int:
    """How many of the cuts took a link of their NIC out of service on some rank."""
    losses = [
        (happening.time_s, happening.rank, *(int(number) for number in found.groups()))
        for happening in happenings
        if happening.name == "link" and "UP->DOWN" in happening.text and (found := _LINK.search(happening.text))
    ]
    return sum(
        any(
            cut.cut_s <= time_s <= cut.due_s + _LATE_S and cut.nic in ((rank, own), (peer, remote))
            for time_s, rank, own, peer, remote in losses
        )
        for cut in cuts
    )


def play(hosts: Hosts, seed: int, cuts: int, elements: int) -> Round:
    """One round."""
    hosts.environment = QUICKEST_RETURN
    rng = random.Random(seed)
    cutter = Cutter(rng, hosts.lab.hosts, hosts.lab.nics)
    begin_s = MonotonicClock.now()
    errors: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    with running(hosts, r2ccl_program(rng.randrange(1 << 32), elements, sizes_vary=True)) as watch:
        try:
            _cut_at_random(hosts.lab, watch, cutter, cuts)
            watch.until(MonotonicClock.now() + SETTLE_S)
            watch.ranks.stop()
        except RankFailed as failed:
            errors, details = (why(watch, failed),), (str(failed),)
            for cut in cutter.due(float("inf")):
                _end(hosts.lab, cut)
        return Round(
            len(cutter.made),
            felt(cutter.made, watch.happenings),
            watch.ranks.operations,
            watch.wrong_elements(),
            sum(record.resent_bytes for record in watch.ranks.records),
            MonotonicClock.now() - begin_s,
            errors,
            details,
        )


def _cut_at_random(lab: Lab, watch: Watch, cutter: Cutter, cuts: int) -> None:
    next_cut_s = MonotonicClock.now()
    while len(cutter.made) < cuts or cutter.away:
        for cut in cutter.due(MonotonicClock.now()):
            _end(lab, cut)
        if len(cutter.made) < cuts and cutter.may_cut and MonotonicClock.now() >= next_cut_s:
            nic, kind = cutter.draw(out_of_service(watch.down, lab.hosts))
            cut_s = _begin(lab, nic, kind)
            cutter.cut(nic, kind, cut_s)
            next_cut_s = cut_s + cutter.pause_s()
        ends_s = cutter.next_end_s()
        wake_s = next_cut_s if len(cutter.made) < cuts and cutter.may_cut else None
        watch.until(min(time_s for time_s in (ends_s, wake_s) if time_s is not None) if ends_s or wake_s else 0.0)


def _begin(lab: Lab, nic: Nic, kind: str) -> float:
    acts = {
        "link-down": lab.link_down, "near-end-down": lab.near_end_down, "silent-drop": lab.silent_drop,
        "deaf": lab.deafen,
    }  # fmt: skip
    return acts[kind](*nic)


def _end(lab: Lab, cut: RandomCut) -> None:
    acts = {"link-down": lab.link_up, "near-end-down": lab.near_end_up, "silent-drop": lab.undrop, "deaf": lab.hear}
    acts[cut.kind](*cut.nic)
