"""What was asked of ``r2ccl faults``, what work that makes, and about how long each piece takes.

The work is a list of parts, each with a name that says all about it, so that a run that was interrupted goes on where
it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from r2ccl.cli.faults_kinds import FAULTS, Fault
from r2ccl.cli.faults_random import CUT_S, ROUND_CUTS, ROUND_S
from r2ccl.cli.faults_trial import BEFORE_S, DEATH_SLACK_S
from r2ccl.errors import UsageError

#: float32, for each Mbit/s of a rank's NICs: an operation takes some 25 ms.
ELEMENTS_PER_MBIT_S: Final = 1 << 9
ELEMENTS_MIN: Final = 1 << 14
#: Random cuts for each trial of the table, unless said otherwise: 10,000 for 20.
RANDOM_CUTS_PER_TRIAL: Final = 500
#: Of plain streams, of MPTCP and of gloo, which differ little or take long.
FEW_TRIALS: Final = 3
#: Starting ranks on a machine with two cores; importing torch.
START_S: Final = 2.5
GLOO_START_S: Final = 8.0
HOSTS_MIN, HOSTS_MAX, NICS_MAX = 3, 16, 8

R2CCL, PLAIN, MPTCP, GLOO = "r2ccl", "plain", "mptcp", "gloo"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    cuts: int
    random_cuts: int
    hosts: int
    nics: int
    rate_mbit_s: float
    keys: tuple[str, ...]
    peers: tuple[str, ...]
    torch_python: str | None
    gloo_timeout_s: float
    seed: int

    @property
    def elements(self) -> int:
        """Of each all-reduce, less the vote."""
        return max(ELEMENTS_MIN, int(self.nics * self.rate_mbit_s) * ELEMENTS_PER_MBIT_S)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those asked for, in the order of the table."""
        return tuple(fault for key, fault in FAULTS.items() if key in self.keys)

    def trials(self, fault: Fault, who: str) -> int:
        """How often a fault is made."""
        trials = max(1, round(self.cuts * fault.trials_share))
        return trials if who == R2CCL else min(trials, FEW_TRIALS)

    def as_json(self) -> dict[str, Any]:
        """What a run that goes on must have in common with the one that began."""
        return {
            "cuts": self.cuts, "hosts": self.hosts, "nics": self.nics, "rate_mbit_s": self.rate_mbit_s,
            "gloo_timeout_s": self.gloo_timeout_s,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One fault on one kind of ranks."""

    fault: Fault
    who: str

    @property
    def name(self) -> str:
        return f"{self.fault.key}/{self.who}"


def parts(options: Options) -> list[Part]:
    """All of the table, fault by fault, so that what is compared is measured together."""
    return [
        Part(fault, who)
        for fault in options.faults
        for who in (R2CCL, PLAIN, MPTCP, GLOO)
        if _is_in(options, fault, who)
    ]


def _is_in(options: Options, fault: Fault, who: str) -> bool:
    if who == R2CCL:
        return True
    if not fault.is_of_the_network or (who != PLAIN and who not in options.peers):
        return False
    return fault.gloo_too if who == GLOO else True


def part_s(options: Options, part: Part) -> float:
    """About how long it takes."""
    fault, trials = part.fault, options.trials(part.fault, part.who)
    once_s = BEFORE_S + fault.lasts_s + fault.recovery_s
    if part.who == R2CCL:
        return trials * (once_s + 0.5 + (START_S if fault.is_alone else 0.0)) + START_S
    if part.who == GLOO:
        return trials * (GLOO_START_S + BEFORE_S + max(fault.lasts_s, options.gloo_timeout_s + DEATH_SLACK_S / 2))
    return trials * (START_S + BEFORE_S + fault.lasts_s)


def random_s(options: Options) -> float:
    """About how long the random cuts take."""
    return options.random_cuts * CUT_S + ROUND_S * -(-options.random_cuts // ROUND_CUTS)


def total_s(options: Options) -> float:
    """About how long all of it takes."""
    return sum(part_s(options, part) for part in parts(options)) + random_s(options)


def checked(options: Options) -> Options:
    """The same. Raises :class:`UsageError` if they cannot be met."""
    if not HOSTS_MIN <= options.hosts <= HOSTS_MAX:
        raise UsageError(f"from {HOSTS_MIN} to {HOSTS_MAX} hosts, not {options.hosts}")
    if not 2 <= options.nics <= NICS_MAX:
        raise UsageError(f"from 2 to {NICS_MAX} NICs per host, not {options.nics}")
    if options.rate_mbit_s < 10:
        raise UsageError("slower than 10 Mbit/s, a NIC at a tenth of it carries less than heartbeats need")
    unknown = sorted(set(options.keys) - set(FAULTS))
    if unknown:
        raise UsageError(f"there is no fault {unknown[0]!r}, but {', '.join(FAULTS)}")
    if options.torch_python is not None and shutil.which(options.torch_python) is None:
        raise UsageError(f"there is no interpreter {options.torch_python}")
    return options


def split_keys(text: Sequence[str]) -> tuple[str, ...]:
    """Names with commas between, or repeated; none: all."""
    keys = tuple(key.strip() for part in text for key in part.split(",") if key.strip())
    return keys or tuple(FAULTS)
