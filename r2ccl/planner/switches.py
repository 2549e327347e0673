"""At which sizes the planner changes its mind: what a person wants to see of a tuning."""

from __future__ import annotations

from dataclasses import dataclass

from r2ccl.planner.choose import choose
from r2ccl.planner.picture import Picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.schedule.algorithms import IN_PARTS

ITEM_BYTES = 4
LARGEST_BYTES = 1 << 30
#: A switch is looked for between neighbouring powers of two, and then to within a sixteenth.
PRECISION = 16


@dataclass(frozen=True, slots=True)
class Reach:
    """An algorithm, and the largest size that it is chosen for; None: it has no end."""

    algorithm: str
    largest_bytes: int | None


def switches(kind: CollectiveKind, picture: Picture) -> list[Reach]:
    """Which algorithm from the smallest size on, and up to which. All parts are equal."""
    ranks = len(picture.nics)
    sizes = [ITEM_BYTES << power for power in range((LARGEST_BYTES // ITEM_BYTES).bit_length())]
    chosen = [_chosen(kind, size, ranks, picture) for size in sizes]
    reaches = []
    for size, name, larger, other in zip(sizes, chosen, sizes[1:], chosen[1:], strict=False):
        if name != other:
            low, high = size, larger
            while high - low > max(ITEM_BYTES, low // PRECISION):
                middle = (low + high) // 2
                low, high = (middle, high) if _chosen(kind, middle, ranks, picture) == name else (low, middle)
            reaches.append(Reach(name, low))
    return [*reaches, Reach(chosen[-1], None)]


def _chosen(kind: CollectiveKind, size_bytes: int, ranks: int, picture: Picture) -> str:
    count = max(1, size_bytes // ITEM_BYTES)
    parts: tuple[int, ...] = ()
    if kind.value in IN_PARTS:
        part = max(1, count // ranks)
        count, parts = part * ranks, (part,) * ranks
    out_parts = parts if kind is CollectiveKind.ALL_TO_ALL else ()
    return choose(Request(kind, count, ITEM_BYTES, 0, parts, out_parts), ranks, picture).algorithm
