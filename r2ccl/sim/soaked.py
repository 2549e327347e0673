"""What came of a soak, of real processes or in virtual time: what was done, what went wrong, and what grew."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from r2ccl.sim.flatness import Verdict
from r2ccl.sim.gauges import ALLOWED, Track

#: In less time caches and pools are still filling: what a process keeps is shown then, and not judged.
JUDGED_FROM_S: Final = 500.0
#: These are flat from the first second on, or should be.
ALWAYS_JUDGED: Final = ("descriptors", "tasks", "timers")


@dataclass(slots=True)
class Soaked:
    """One soak."""

    #: Of its own time.
    seconds: float = 0.0
    real_s: float = 0.0
    rounds: int = 0
    #: Completed; where ranks are processes, by every one of them.
    operations: int = 0
    #: By kind.
    faults: Counter[str] = field(default_factory=Counter)
    #: How often a lane lost its link, on all ranks, and what went out again.
    failovers: int = 0
    resent_bytes: int = 0
    #: All that was wrong, in words.
    complaints: list[str] = field(default_factory=list)
    #: What happened before it did.
    story: str = ""
    #: One for each process.
    tracks: list[Track] = field(default_factory=list)

    @property
    def is_judged(self) -> bool:
        """Did it last long enough to say what leaks?"""
        return self.seconds >= JUDGED_FROM_S

    def verdicts(self) -> dict[str, dict[str, Verdict]]:
        """By process and measure; of entries, the kinds that grow."""
        found: dict[str, dict[str, Verdict]] = {}
        for track in self.tracks:
            every = track.verdicts()
            found[track.name] = {
                name: verdict for name, verdict in every.items() if name in ALLOWED or not verdict.is_flat
            }
        return found

    def growing(self) -> list[str]:
        """What is not flat and should be, in words."""
        return [
            f"{track}: {name} grew by {verdict.growth:,.0f} in the second half, from {verdict.middle:,.0f}; "
            f"{verdict.bound:,.0f} would mean nothing"
            for track, verdicts in self.verdicts().items()
            for name, verdict in verdicts.items()
            if not verdict.is_flat and (self.is_judged or name in ALWAYS_JUDGED)
        ]

    @property
    def is_good(self) -> bool:
        return not self.complaints and not self.growing()

    def as_json(self) -> dict[str, Any]:
        """Figures and complaints."""
        return {
            "seconds": round(self.seconds, 3),
            "real_s": round(self.real_s, 3),
            "rounds": self.rounds,
            "operations": self.operations,
            "faults": dict(self.faults),
            "failovers": self.failovers,
            "resent_bytes": self.resent_bytes,
            "complaints": self.complaints,
            "growing": self.growing(),
            "judged": self.is_judged,
            "processes": {
                track: {name: _as_json(verdict) for name, verdict in verdicts.items()}
                for track, verdicts in self.verdicts().items()
            },
        }


def _as_json(verdict: Verdict) -> dict[str, float | bool]:
    return {
        "start": verdict.start, "middle": verdict.middle, "end": verdict.end, "growth": verdict.growth,
        "bound": verdict.bound, "flat": verdict.is_flat,
    }  # fmt: skip
