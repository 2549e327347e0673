"""Where a benchmark ran and who else used the machine meanwhile, because that decides what its figures are worth."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2ccl._version import __version__
from r2ccl.clock import MonotonicClock
from r2ccl.reduction import kernel_name

_STAT = Path("/proc/stat")


def machine() -> dict[str, Any]:
    """Facts that do not change, and no name of a host or user."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "r2ccl": __version__,
        "numpy": importlib.metadata.version("numpy"),
        "uvloop": importlib.metadata.version("uvloop"),
        "reduction_kernel": kernel_name(),
    }


@dataclass(frozen=True, slots=True)
class Load:
    """CPU seconds that were used up to a moment."""

    now_s: float
    #: Of the whole machine, stolen time included; None where the system doesn't say.
    busy_s: float | None
    #: Of this process and of its children that have ended.
    own_s: float

    @classmethod
    def now(cls) -> Load:
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return cls(MonotonicClock.now(), busy_s(_STAT.read_text()) if _STAT.exists() else None, own_s)


def busy_s(stat: str) -> float:
    """From the text of /proc/stat."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.split(maxsplit=9)[1:9])
    return float(user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def cores_used_by_others(before: Load, after: Load) -> float | None:
    """On average over the time between, once all children have ended."""
    if before.busy_s is None or after.busy_s is None:
        return None
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    return max(0.0, others_s) / (after.now_s - before.now_s)
