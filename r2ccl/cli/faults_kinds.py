"""The faults that ``r2ccl faults`` makes: each is a list of steps in time on the NICs or processes of emulated hosts.

The first step is the fault, the last its end; a process that was killed stays so. What is measured in between is the
same for all.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from r2ccl.clock import MonotonicClock

if TYPE_CHECKING:
    from r2ccl.lab import Lab

FLAPS: Final = 20
FLAPS_S: Final = 10.0
STOPPED_S: Final = 10.0
#: Of the NIC's rate, and of packets.
SLOWED_TO: Final = 0.1
LOST_SHARE: Final = 0.02
#: Longer than any single NIC's fault needs to be found, repaired and measured.
HOLD_S: Final = 2.0


class Field(Protocol):
    """Where a fault is made."""

    @property
    def lab(self) -> Lab:
        """The hosts."""

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a rank's process a signal; returns when."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Whom it hits. The other rank is its next on the ring."""

    rank: int
    nic: int
    other_rank: int
    other_nic: int

    @classmethod
    def of(cls, trial: int, hosts: int, nics: int) -> Victim:
        """All NICs of all hosts in turn."""
        rank, nic = trial % hosts, trial // hosts % nics
        return cls(rank, nic, (rank + 1) % hosts, (nic + 1) % nics)


#: Returns when it happened, on the clock that all processes of a machine share.
Act = Callable[[Field, Victim], float]


@dataclass(frozen=True, slots=True)
class Step:
    """What happens so many seconds after the fault."""

    at_s: float
    act: Act


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    key: str
    title: str
    steps: tuple[Step, ...]
    #: From the fault until the rate that is left is measured.
    settling_s: float = 0.5
    #: After the end until all is as before, besides what the links themselves report.
    recovery_s: float = 0.7
    #: Whether each trial has ranks of its own, with the default settings of how long a returned link must wait.
    is_alone: bool = False
    #: This many for each of the faults that are asked about most, which are the most frequent.
    trials_share: float = 0.5
    #: Whether it can be made under streams of other programs, too.
    is_of_the_network: bool = True
    #: A process dies: the others are to hear of it.
    is_death: bool = False
    #: The other rank's NIC is hit, too.
    hits_other: bool = False
    #: gloo hangs or dies, which takes long; the other faults differ little from these.
    gloo_too: bool = False

    def hit(self, victim: Victim) -> tuple[tuple[int, int | None], ...]:
        """(rank, NIC) of all that is hit; None: all of them."""
        if not self.is_of_the_network:
            return ((victim.rank, None),)
        own, other = (victim.rank, victim.nic), (victim.other_rank, victim.other_nic)
        return (own, other) if self.hits_other else (own,)

    @property
    def lasts_s(self) -> float:
        """From the first step to the last, and at least a moment."""
        return max(self.steps[-1].at_s, 1.0)

    @property
    def gap_window_s(self) -> float:
        """The longest gap is looked for within this long after the fault; that of a stopped process has to end."""
        return self.lasts_s if self.is_of_the_network else self.lasts_s + 1.0

    @property
    def repair_window_s(self) -> float:
        """What is repaired later is so because of a later step."""
        return self.steps[1].at_s if len(self.steps) > 1 else self.lasts_s


def _nic(method: Callable[[Lab, int, int], float]) -> Act:
    return lambda field, victim: method(field.lab, victim.rank, victim.nic)


def _slow(field: Field, victim: Victim) -> float:
    now = MonotonicClock.now()
    field.lab.set_rate(victim.rank, victim.nic, field.lab.rate_mbit_s * SLOWED_TO)
    return now


def _quicken(field: Field, victim: Victim) -> float:
    now = MonotonicClock.now()
    field.lab.set_rate(victim.rank, victim.nic, field.lab.rate_mbit_s)
    return now


def _both_down(field: Field, victim: Victim) -> float:
    now = field.lab.link_down(victim.rank, victim.nic)
    field.lab.link_down(victim.other_rank, victim.other_nic)
    return now


def _both_up(field: Field, victim: Victim) -> float:
    field.lab.link_up(victim.rank, victim.nic)
    return field.lab.link_up(victim.other_rank, victim.other_nic)


def _signal(number: signal.Signals) -> Act:
    return lambda field, victim: field.signal(victim.rank, number)


def _for(seconds: float, begin: Act, end: Act) -> tuple[Step, ...]:
    return (Step(0.0, begin), Step(seconds, end))


def _flaps(down: Act, up: Act) -> tuple[Step, ...]:
    half_s = FLAPS_S / FLAPS / 2
    return tuple(Step(half * half_s, up if half % 2 else down) for half in range(2 * FLAPS))


def _table() -> dict[str, Fault]:
    down, up = _nic(lambda lab, *nic: lab.link_down(*nic)), _nic(lambda lab, *nic: lab.link_up(*nic))
    near_down = _nic(lambda lab, *nic: lab.near_end_down(*nic))
    near_up = _nic(lambda lab, *nic: lab.near_end_up(*nic))
    silence, heard = _nic(lambda lab, *nic: lab.silent_drop(*nic)), _nic(lambda lab, *nic: lab.undrop(*nic))
    deafen, hear = _nic(lambda lab, *nic: lab.deafen(*nic)), _nic(lambda lab, *nic: lab.hear(*nic))
    lose = _nic(lambda lab, *nic: lab.lose(*nic, LOST_SHARE))
    unlose = _nic(lambda lab, *nic: lab.unlose(*nic))
    take, give = _nic(lambda lab, *nic: lab.take_address(*nic)), _nic(lambda lab, *nic: lab.give_address(*nic))
    stop, go_on = _signal(signal.SIGSTOP), _signal(signal.SIGCONT)
    faults = (
        Fault("link-down", "link down at the far end: the carrier goes", _for(HOLD_S, down, up), gloo_too=True,
              trials_share=1.0),
        Fault("near-end-down", "link down at the near end", _for(HOLD_S, near_down, near_up)),
        Fault("silent-drop", "silent drop, both ways", _for(HOLD_S, silence, heard), gloo_too=True, trials_share=1.0),
        Fault("deaf", "silent drop, one way: the NIC sends and hears nothing", _for(HOLD_S, deafen, hear)),
        Fault(
            "slow", "slowed to a tenth", _for(5.0, _slow, _quicken), settling_s=2.0, recovery_s=2.0, gloo_too=True
        ),
        Fault(
            "loss", "2 % of its packets lost", _for(4.0, lose, unlose), settling_s=1.0, recovery_s=2.0, gloo_too=True,
        ),
        Fault(
            "flaps", "20 flaps in 10 s", _flaps(down, up), settling_s=0.0, is_alone=True,
            trials_share=0.25,
        ),
        Fault("address", "address taken, and given back after 2 s", _for(HOLD_S, take, give)),
        Fault("two-nics", "two ranks lose unlike NICs: no rail is left between them", _for(3.0, _both_down, _both_up),
              is_alone=True, hits_other=True),
        Fault("killed", "process killed", (Step(0.0, _signal(signal.SIGKILL)),), is_alone=True,
              is_of_the_network=False, is_death=True),
        Fault(
            "stopped", "process stopped for 10 s: no fault", _for(STOPPED_S, stop, go_on),
            recovery_s=1.5, is_alone=True, trials_share=0.25, is_of_the_network=False,
        ),
    )  # fmt: skip
    return {fault.key: fault for fault in faults}


FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(_table())
