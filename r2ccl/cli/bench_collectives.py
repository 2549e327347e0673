"""What the benchmark knows of each collective: its forms, how its size is counted, its bus bandwidth.

The conventions are those of nccl-tests, whose tables people can read: ``size`` is the larger of what a rank hands in
and gets out, ``count`` the number of elements of one rank's part, and the bus bandwidth is the algorithm's, size by
time, times a factor that makes it comparable with what a wire can do whatever the number of ranks (their
doc/PERFORMANCE.md; for gather and scatter their source).

Imported by peers too, in interpreters that have no r2ccl: standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Form = Literal["out_of_place", "in_place"]
OUT: Final[Form] = "out_of_place"
IN: Final[Form] = "in_place"


@dataclass(frozen=True, slots=True)
class Collective:
    """One line of the table below."""

    name: str
    #: In the order of the columns. Where r2ccl has no such form, the table says N/A.
    forms: tuple[Form, ...]
    #: Bus bandwidth / algorithm bandwidth, by the number of ranks.
    bus_factor: Callable[[int], float]
    #: The size is that of all ranks' parts together, the count that of one.
    is_in_parts: bool = False
    reduces: bool = False
    has_root: bool = False

    @property
    def has_data(self) -> bool:
        """A barrier has none."""
        return self.name != "barrier"

    def count_of(self, size_bytes: int, item_bytes: int, ranks: int) -> int:
        """Elements of one rank's part for a size: rounded down, but one at least."""
        if not self.has_data:
            return 0
        return max(1, size_bytes // item_bytes // (ranks if self.is_in_parts else 1))

    def size_of(self, count: int, item_bytes: int, ranks: int) -> int:
        """Bytes, for the table and the bandwidth."""
        return count * item_bytes * (ranks if self.is_in_parts else 1)


def _once(ranks: int) -> float:
    return 1.0


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _there_and_back(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


COLLECTIVES: Final = MappingProxyType(
    {
        each.name: each
        for each in (
            Collective("all_reduce", (IN,), _there_and_back, reduces=True),
            Collective("broadcast", (IN,), _once, has_root=True),
            Collective("reduce", (IN,), _once, reduces=True, has_root=True),
            Collective("all_gather", (OUT, IN), _all_but_own, is_in_parts=True),
            Collective("reduce_scatter", (OUT, IN), _all_but_own, is_in_parts=True, reduces=True),
            Collective("gather", (OUT,), _all_but_own, is_in_parts=True, has_root=True),
            Collective("scatter", (OUT, IN), _all_but_own, is_in_parts=True, has_root=True),
            Collective("all_to_all", (OUT,), _all_but_own, is_in_parts=True),
            Collective("sendrecv", (OUT,), _once),
            Collective("barrier", (OUT,), _once),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One call, as one rank sees it."""

    collective: str
    form: Form
    #: Elements of one rank's part.
    count: int
    dtype: str
    op: str
    root: int
    rank: int
    ranks: int

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def next_rank(self) -> int:
        """Whom a rank sends to in sendrecv."""
        return (self.rank + 1) % self.ranks

    @property
    def previous_rank(self) -> int:
        """Whom it receives from."""
        return (self.rank - 1) % self.ranks
