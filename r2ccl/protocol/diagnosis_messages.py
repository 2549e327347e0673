"""What ranks say to one another about reaching a third: please knock at these two NICs; this is what came of it.

Also how often a rank lets itself be asked: knocking costs a socket and a packet, and whoever asks is a member of the
job, but not more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from r2ccl.checks import unsigned
from r2ccl.protocol.verdict import Said
from r2ccl.protocol.wire import BadFrame

#: A rank that loses many links examines few (``incidents.EXAMINED_MAX``) and asks two ranks about each. Eight NICs that
#: go one after the other, and come back and go again, still fit.
ASKS_BURST = 64
ASKS_PER_S = 32.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Knock at NIC ``nic`` of rank ``rank``, and at NIC ``asker_nic`` of the rank that sends this."""

    number: int
    rank: int
    nic: int
    asker_nic: int

    def body(self) -> list[int]:
        return [self.number, self.rank, self.nic, self.asker_nic]


@dataclass(frozen=True, slots=True)
class Reached:
    """The answer to the ask of this number."""

    number: int
    theirs: Said
    askers: Said

    def body(self) -> list[int]:
        return [self.number, int(self.theirs), int(self.askers)]


def read_reach(body: Sequence[Any], nics: Sequence[int], asker: int, answerer: int) -> Reach:
    """``nics``: how many each rank has. Raises :class:`BadFrame`, also for NICs that there are not."""
    try:
        number, rank, nic, asker_nic = body
        reach = Reach(unsigned(number), unsigned(rank, 32), unsigned(nic, 32), unsigned(asker_nic, 32))
        there = reach.rank < len(nics) and reach.nic < nics[reach.rank] and reach.asker_nic < nics[asker]
    except (TypeError, ValueError) as bad:
        raise BadFrame(f"no ask to reach somebody: {bad}") from bad
    if not there or reach.rank in (asker, answerer):
        raise BadFrame(f"rank {asker} asks rank {answerer} to reach rank {reach.rank} nic{reach.nic}")
    return reach


def read_reached(body: Sequence[Any]) -> Reached:
    """Raises :class:`BadFrame`."""
    try:
        number, theirs, askers = body
        return Reached(unsigned(number), Said(unsigned(theirs, 8)), Said(unsigned(askers, 8)))
    except (TypeError, ValueError) as bad:
        raise BadFrame(f"no answer to whether somebody is reached: {bad}") from bad


class Allowance:
    """How often one peer may still ask; what it asks beyond is not answered."""

    __slots__ = ("_left", "_since_s")

    def __init__(self) -> None:
        self._left = float(ASKS_BURST)
        self._since_s: float | None = None

    def take(self, now: float) -> bool:
        """One more ask."""
        since_s = now if self._since_s is None else self._since_s
        self._left = min(float(ASKS_BURST), self._left + (now - since_s) * ASKS_PER_S)
        self._since_s = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
