"""Results of ``r2ccl performance`` made up for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r2ccl.cli import performance_parts as parts
from r2ccl.cli.performance_figures import Measured, Part, Results

FACTS: dict[str, Any] = {
    "processor": "A processor", "cores": 2, "system": "Linux", "release": "6.1", "congestion_control": "cubic",
    "python": "3.11", "numpy": "2.0", "uvloop": "0.2", "r2ccl": "0.1", "scale": "quick",
}  # fmt: skip


def measured(side: str, size: int, times_us: Sequence[float], **changes: Any) -> Measured:
    """Its processor time is the time, unless something else is said."""
    times_s = tuple(time_us * 1e-6 for time_us in times_us)
    return Measured(**{
        "side": side, "size_bytes": size, "times_s": times_s, "means_s": times_s, "cpu_s": times_s, "wrong": 0,
        **changes,
    })  # fmt: skip


def part(key: str, *everything: Measured, ranks: int = 2, **changes: Any) -> Part:
    return Part(key, ranks, everything, **changes)


def everything() -> Results:
    """Every part, small."""
    sizes = (4, 64 * parts.KIB, 16 * parts.MIB)

    def compared(key: str, sides: Sequence[str]) -> Part:
        # The later a side comes, the slower it is.
        found = [
            measured(side, size, [(1 + place) * (10 + size / 1000) * (1 + round_ / 100) for round_ in range(3)])
            for place, side in enumerate(sides)
            for size in sizes
        ]
        about = {parts.GLOO: "torch 2.13.0", parts.OPENMPI: "Open MPI v5"}
        return part(key, *found, ranks=4 if key.endswith("4") else 2, about=about)

    tcp = (parts.EXCHANGE, parts.OURS, parts.THREAD, parts.GLOO, parts.OPENMPI)
    memory = (parts.MEMCPY, parts.SHARED, parts.SHARED_THREAD, parts.GLOO, parts.OPENMPI)
    gaps = tuple([0.0051] * 98 + [0.009, 0.030])
    server = [
        measured(side, parts.GIB, [9e5, 9e5], gaps_s=gaps)
        for side in (parts.OURS, parts.THREAD, parts.SHARED, parts.SHARED_THREAD, parts.EXCHANGE)
    ]
    small = [measured(side, parts.KIB, [time] * 3) for side, time in ((parts.OURS, 1000.0), (parts.GLOO, 6000.0))]
    price = [
        measured(side, parts.MIB, [time + number for number in range(20)])
        for side, time in ((parts.OURS, 1010.0), (parts.UNCHECKED, 1000.0), (parts.DOUBLED, 1100.0))
    ]
    every = (
        compared(parts.TCP_2, tcp), compared(parts.TCP_4, tcp), compared(parts.MEMORY_2, memory),
        compared(parts.MEMORY_4, memory), part(parts.SERVER, *server, tick_s=0.005),
        part(parts.SMALL, *small, window=64),
        compared(parts.LAB, (parts.STREAMS, parts.OURS, parts.MPTCP, parts.GLOO, parts.OPENMPI)),
        part(parts.PRICE, *price),
    )  # fmt: skip
    return Results({one.key: one for one in every}, {}, dict(FACTS), 600.0, 60.0)
