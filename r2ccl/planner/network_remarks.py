"""The words in which findings about a network are told: what kinds there are, and how much they matter."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What it is about; for scripts, so these do not change."""

    DUPLICATE_ADDRESS = "duplicate-address"
    DUPLICATE_MAC = "duplicate-hardware-address"
    STRANGER = "stranger"
    NIC_DOWN = "nic-down"
    NIC_ALONE = "nic-alone"
    BROKEN_PAIR = "broken-pair"
    ONE_WAY = "one-way"
    NO_PATH = "no-path"
    MTU_BLACK_HOLE = "mtu-black-hole"
    MTU_REDUCED = "mtu-reduced"
    MTU_UNKNOWN = "mtu-unknown"
    UNLIKE_MTUS = "unlike-mtus"
    SHARED_SUBNET = "shared-subnet"
    UNLIKE_NICS = "unlike-nics"
    UNLIKE_SPEEDS = "unlike-speeds"
    SLOW = "slow"
    CLOCK = "clock"
    NOT_SURVIVED = "not-survived"
    SINGLE_NIC = "single-nic"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    kind: Kind
    is_problem: bool
    text: str


def problem(kind: Kind, text: str) -> Finding:
    """It will harm a job."""
    return Finding(kind, True, text)


def note(kind: Kind, text: str) -> Finding:
    """It is worth knowing."""
    return Finding(kind, False, text)
