"""Which fault comes next in a soak in the lab, whom it hits, and how long it lasts. Pure: a seed in, faults out.

Every kind that ``r2ccl faults`` has and that nobody dies of, and one more: a host that loses all its NICs, for less
than the grace time. Several last at once. What makes a path unusable keeps to one rail at a time, so that every two
ranks keep another; the two kinds that leave a pair or a rank without a path come when nothing else is broken. A NIC or
process has one fault at a time, or the end of one would be the end of the other.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from r2ccl.cli.faults_kinds import FAULTS, Act, Field, Step, Victim

Nic = tuple[int, int]

#: One begins every so many seconds.
EVERY_S: Final = 1.0
#: From the shortest to the longest, as many short ones as long ones. Most outages are over before they are noticed.
LASTS_S: Final = (0.03, 3.0)
#: Without any path: with the time that links need to come back this is far from the grace time of 5 s.
OUTAGE_S: Final = (0.1, 2.0)
FLAPS: Final = (3, 8)
FLAP_S: Final = (0.02, 0.15)
#: After that many draws that do not fit what is already broken, none begins.
DRAWS_MAX: Final = 30

OUTAGE: Final = "outage"
#: How often each kind is drawn; the kinds that leave no path are seldom allowed, so they are drawn more often.
WEIGHTS: Final = MappingProxyType(
    {
        "link-down": 10, "near-end-down": 10, "silent-drop": 10, "deaf": 10, "slow": 8, "loss": 8, "flaps": 8,
        "address": 8, "two-nics": 16, "stopped": 8, OUTAGE: 8,
    }
)  # fmt: skip
#: In words, for the report.
TITLES: Final = MappingProxyType(
    {key: fault.title for key, fault in FAULTS.items() if key in WEIGHTS}
    | {
        "flaps": "3 to 8 flaps", "address": "address taken", "stopped": "process stopped for a moment",
        OUTAGE: "a host loses all its NICs for a moment",
    }
)  # fmt: skip
#: They slow a path down, or a process; no link is lost by them, or need not be.
_SOFT: Final = frozenset(("slow", "loss"))


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault of a soak. Times are on the caller's clock."""

    key: str
    victim: Victim
    begin_s: float
    #: Counted from its begin; the last undoes it.
    steps: tuple[Step, ...]
    #: That nothing else may touch meanwhile.
    nics: frozenset[Nic]

    @property
    def end_s(self) -> float:
        return self.begin_s + self.steps[-1].at_s

    def __str__(self) -> str:
        victim = self.victim
        other = f" and rank{victim.other_rank}.nic{victim.other_nic}" if self.key == "two-nics" else ""
        nic = "" if self.key in ("stopped", OUTAGE) else f".nic{victim.nic}"
        return f"{self.key} rank{victim.rank}{nic}{other} for {self.steps[-1].at_s:.2f} s"


@dataclass(slots=True)
class Storm:
    """Draws them one after the other."""

    rng: random.Random
    hosts: int
    nics: int
    active: list[Trouble] = field(default_factory=list)

    def draw(self, now: float) -> Trouble | None:
        """The next one; None: nothing fits what is already broken."""
        self.active = [trouble for trouble in self.active if trouble.end_s > now]
        for _ in range(DRAWS_MAX):
            trouble = self._candidate(now)
            if self._fits(trouble):
                self.active.append(trouble)
                return trouble
        return None

    def _candidate(self, now: float) -> Trouble:
        rng = self.rng
        key = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        rank, nic = rng.randrange(self.hosts), rng.randrange(self.nics)
        other_rank = (rank + rng.randrange(1, self.hosts)) % self.hosts
        victim = Victim(rank, nic, other_rank, (nic + rng.randrange(1, self.nics)) % self.nics)
        nics: frozenset[Nic] = frozenset({(rank, nic)})
        if key == "stopped":
            nics = frozenset()
        elif key == "two-nics":
            nics = frozenset({(rank, nic), (victim.other_rank, victim.other_nic)})
        elif key == OUTAGE:
            nics = frozenset((rank, each) for each in range(self.nics))
        return Trouble(key, victim, now, self._steps(key), nics)

    def _steps(self, key: str) -> tuple[Step, ...]:
        rng = self.rng
        if key == "flaps":
            steps, at_s = [], 0.0
            for _ in range(rng.randint(*FLAPS)):
                for step in (FAULTS[key].steps[0], FAULTS[key].steps[1]):
                    steps.append(Step(at_s, step.act))
                    at_s += rng.uniform(*FLAP_S)
            return tuple(steps)
        has_no_relay = key == "two-nics" and self.hosts == 2
        shortest, longest = OUTAGE_S if key == OUTAGE or has_no_relay else LASTS_S
        lasts_s = math.exp(rng.uniform(math.log(shortest), math.log(longest)))
        begin, end = _outage() if key == OUTAGE else (FAULTS[key].steps[0].act, FAULTS[key].steps[-1].act)
        return (Step(0.0, begin), Step(lasts_s, end))

    def _fits(self, new: Trouble) -> bool:
        if any(new.nics & trouble.nics for trouble in self.active):
            return False
        if new.key == "stopped":
            return not any(trouble.key in ("stopped", OUTAGE) for trouble in self.active)
        if new.key in _SOFT:
            return True
        broken = [trouble for trouble in self.active if trouble.key not in _SOFT and trouble.key != "stopped"]
        if new.key in ("two-nics", OUTAGE):
            return not broken and not (new.key == OUTAGE and any(trouble.key == "stopped" for trouble in self.active))
        rails = {nic for trouble in broken for _, nic in trouble.nics}
        return rails <= {nic for _, nic in new.nics}


def _outage() -> tuple[Act, Act]:
    return _every_nic(FAULTS["silent-drop"].steps[0].act), _every_nic(FAULTS["silent-drop"].steps[-1].act)


def _every_nic(act: Act) -> Act:
    def acts(field: Field, victim: Victim) -> float:
        return max(act(field, replace(victim, nic=nic)) for nic in range(field.lab.nics))

    return acts
