"""What the demo tells each of its ranks, on their command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """One argument, as JSON."""

    report_descriptor: int
    seed: int
    elements: int
    #: Rate of each NIC that the faulty transport emulates; 0: the NICs are real.
    emulate_mbit_s: float
    #: The cut that it plays: ``link-down`` or ``silent-drop``.
    fault: str
    #: Whether operations are of all sizes up to ``elements``, or all of that size.
    sizes_vary: bool = False

    def as_argument(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> Options:
        """From the command line."""
        return cls(**json.loads(argument))
