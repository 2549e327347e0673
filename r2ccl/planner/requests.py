"""What a caller asks for, reduced to what planning may depend on."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from r2ccl.schedule.ir import Shape


class CollectiveKind(enum.Enum):
    """The collectives. The values are the names that ``schedule.algorithms`` and the public calls use."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"

    @property
    def has_root(self) -> bool:
        """Does one rank alone send, or alone receive?"""
        return self in _ROOTED


_ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER)


@dataclass(frozen=True, slots=True)
class Request:
    """One collective to plan. All ranks ask for the same (fingerprints find out who doesn't)."""

    kind: CollectiveKind
    #: All elements of the buffer; all_to_all: all that this rank sends.
    count: int
    item_bytes: int
    root: int = 0
    #: As in :class:`~r2ccl.schedule.ir.Shape`.
    parts: tuple[int, ...] = ()
    out_parts: tuple[int, ...] = ()
    #: all_to_all: blocks may be of any size, which only their two ranks know. Nothing may then depend on sizes.
    uneven: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.item_bytes < 1:
            raise ValueError(f"{self.count} items of {self.item_bytes} bytes")

    @property
    def payload_bytes(self) -> int:
        return self.count * self.item_bytes

    @property
    def shape(self) -> Shape:
        """What the schedule is built from."""
        if self.kind is CollectiveKind.ALL_TO_ALL:
            return Shape.in_blocks(self.parts, self.out_parts)
        return Shape(self.count, self.root, self.parts)
