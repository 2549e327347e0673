"""What a caller asks for, reduced to what planning may depend on."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CollectiveKind(enum.Enum):
    """The collectives. The values are the names that ``schedule.algorithms`` and the public calls use."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class Request:
    """One collective to plan. All ranks ask for the same (fingerprints find out who doesn't)."""

    kind: CollectiveKind
    count: int
    item_bytes: int
    root: int = 0

    def __post_init__(self) -> None:
        if self.count < 0 or self.item_bytes < 1:
            raise ValueError(f"{self.count} items of {self.item_bytes} bytes")

    @property
    def payload_bytes(self) -> int:
        return self.count * self.item_bytes
