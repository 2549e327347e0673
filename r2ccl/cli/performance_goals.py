"""What was to be reached, and whether it was. Pure: results in, one line for each goal out.

A goal is missed when its worst size misses it. Where a side is missing, nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from r2ccl.cli import performance_parts as parts
from r2ccl.cli.performance_figures import Measured, Part, Results, interval_of_median, quantile
from r2ccl.cli.performance_parts import KIB, MIB

#: From here up the limit is the wires', not how long an operation takes to begin.
WIRES_BYTES: Final = 16 * MIB
SERVER_GAP_S, THREAD_LATE_S = 0.010, 0.002
LEDGER_PRICE, CHECKSUM_PRICE = 0.03, 0.02
SMALL_RATE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Goal:
    """One row."""

    where: str
    wanted: str
    found: str
    reached: bool


def size_text(size: int) -> str:
    """``64 KiB``."""
    for unit, name in ((parts.GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def goals(results: Results) -> list[Goal]:
    """All of what was measured."""
    found: list[Goal] = []
    for key, judge in _JUDGES:
        if key in results.parts:
            found.extend(judge(results.parts[key]))
    return found


def _time_at_most(part: Part, where: str, side: str, size: int, limit_s: float) -> Iterator[Goal]:
    one = part.at(side, size)
    if one is not None:
        spread = one.time_s
        found = f"{spread.median * 1e6:.1f} us ({spread.smallest * 1e6:.1f} to {spread.largest * 1e6:.1f})"
        yield Goal(where, f"at most {limit_s * 1e6:g} us at {size_text(size)}", found, spread.median <= limit_s)


def _ratio_at_most(
    part: Part, where: str, sides: tuple[str, str], sizes: Iterable[int], limit: float, wanted: str
) -> Iterator[Goal]:
    """The worst size counts."""
    found = [(ratio, size) for size in sizes if (ratio := part.ratio(*sides, size)) is not None]
    if found:
        worst, size = max(found, key=lambda one: one[0].median)
        text = f"{worst.median:.2f} ({worst.smallest:.2f} to {worst.largest:.2f}) at {size_text(size)}"
        yield Goal(where, wanted, text, worst.median <= limit)


def _cpu_at_most(part: Part, where: str, side: str, other: str, sizes: Iterable[int]) -> Iterator[Goal]:
    found = []
    for size in sizes:
        one, two = part.at(side, size), part.at(other, size)
        if one is not None and two is not None:
            found.append((part.cpu_s_per_gb(one), part.cpu_s_per_gb(two), size))
    if found:
        mine, its, size = max(found, key=lambda one: one[0] / one[1])
        text = f"{mine:.2f} and {its:.2f} s at {size_text(size)}"
        yield Goal(where, f"processor time for a GB at most {other}'s", text, mine <= its)


def _tcp_2(part: Part) -> Iterator[Goal]:
    where = "loopback TCP, 2 ranks"
    small, large = [size for size in part.sizes if size <= 64 * KIB], [size for size in part.sizes if size >= MIB]
    yield from _time_at_most(part, where, parts.OURS, 4, 50e-6)
    yield from _ratio_at_most(
        part, where, (parts.OURS, parts.GLOO), small, 0.5, "time / gloo's at most 0.5 up to 64 KiB"
    )
    thread = (parts.THREAD, parts.GLOO)
    yield from _ratio_at_most(
        part, f"{where}, progress thread", thread, [size for size in small if size <= 4 * KIB], 1.2,
        "time / gloo's at most 1.2 up to 4 KiB",
    )  # fmt: skip
    yield from _ratio_at_most(
        part, f"{where}, progress thread", thread, [size for size in part.sizes if size > 4 * KIB], 1.0,
        "no slower than gloo above 4 KiB",
    )  # fmt: skip
    yield from _ratio_at_most(
        part, where, (parts.OURS, parts.GLOO), large, 1 / 1.3, "time / gloo's at most 0.77 from 1 MiB"
    )
    yield from _ratio_at_most(
        part, where, (parts.OURS, parts.OPENMPI), large, 1.0, "time / Open MPI's at most 1 from 1 MiB"
    )
    yield from _cpu_at_most(part, where, parts.OURS, parts.GLOO, large)


def _tcp_4(part: Part) -> Iterator[Goal]:
    where, large = "loopback TCP, 4 ranks", [size for size in part.sizes if size >= MIB]
    yield from _ratio_at_most(
        part, where, (parts.OURS, parts.GLOO), large, 1 / 1.1, "time / gloo's at most 0.91 from 1 MiB"
    )
    yield from _cpu_at_most(part, where, parts.OURS, parts.GLOO, large)


def _memory_2(part: Part) -> Iterator[Goal]:
    where = "shared memory, 2 ranks"
    yield from _time_at_most(part, where, parts.SHARED, 4, 8e-6)
    yield from _ratio_at_most(
        part, where, (parts.SHARED, parts.OPENMPI), [size for size in part.sizes if size >= 64 * KIB], 1.0,
        "time / Open MPI's at most 1 from 64 KiB",
    )  # fmt: skip


def _memory_4(part: Part) -> Iterator[Goal]:
    yield from _ratio_at_most(
        part, "shared memory, 4 ranks", (parts.SHARED, parts.GLOO), part.sizes, 0.5,
        "time / gloo's at most 0.5 at every size",
    )  # fmt: skip


def _lab(part: Part) -> Iterator[Goal]:
    where, large = "2 hosts with 2 NICs", [size for size in part.sizes if size >= WIRES_BYTES]
    yield from _ratio_at_most(
        part, where, (parts.OURS, parts.STREAMS), large, 1 / 0.98,
        "time / plain streams' at most 1.02 from 16 MiB (98 % of what they carry)",
    )  # fmt: skip


def _with_gaps(part: Part, side: str) -> Iterator[Measured]:
    """Operations that were over before the ticker's first turn say nothing."""
    return (one for one in part.of(side) if one.gaps_s)


def _server(part: Part) -> Iterator[Goal]:
    floors = {one.size_bytes: quantile(one.gaps_s, 0.99) - part.tick_s for one in _with_gaps(part, parts.EXCHANGE)}
    for side, name in ((parts.OURS, "TCP"), (parts.SHARED, "shared memory")):
        for one in _with_gaps(part, side):
            gap_s = quantile(one.gaps_s, 0.99)
            yield Goal(
                f"ticker beside an all-reduce of {size_text(one.size_bytes)}, {name}",
                f"p99 of the gaps below {SERVER_GAP_S * 1e3:g} ms", f"{gap_s * 1e3:.1f} ms", gap_s < SERVER_GAP_S,
            )  # fmt: skip
    for side, name in ((parts.THREAD, "TCP"), (parts.SHARED_THREAD, "shared memory")):
        for one in _with_gaps(part, side):
            late_s, floor_s = quantile(one.gaps_s, 0.99) - part.tick_s, floors.get(one.size_bytes)
            beside = "" if floor_s is None else f" (a thread of plain sockets: {floor_s * 1e3:.1f} ms)"
            yield Goal(
                f"the same from the progress thread, {name}", f"p99 at most {THREAD_LATE_S * 1e3:g} ms late",
                f"{late_s * 1e3:.1f} ms{beside}", late_s <= THREAD_LATE_S,
            )  # fmt: skip


def _small(part: Part) -> Iterator[Goal]:
    for size in part.sizes:
        ours, gloo = part.at(parts.OURS, size), part.at(parts.GLOO, size)
        if ours is not None and gloo is not None:
            times = part.rate(ours) / part.rate(gloo)
            yield Goal(
                f"{size_text(size)} in windows of {part.window}", f"{SMALL_RATE:g} times gloo's rate",
                f"{times:.1f} times ({part.rate(ours):,.0f} a second)", times >= SMALL_RATE,
            )  # fmt: skip


def price(part: Part, dearer: str, cheaper: str, size: int) -> tuple[float, float, float] | None:
    """What one side takes longer than the other, as a share: the median of pairs, and its interval."""
    ratios = part.ratios(dearer, cheaper, size)
    if not ratios:
        return None
    spread = interval_of_median(ratios)
    return spread.median - 1, spread.smallest - 1, spread.largest - 1


def _price(part: Part) -> Iterator[Goal]:
    for what, dearer, cheaper, limit in (
        ("ledger and acknowledgements", parts.DOUBLED, parts.OURS, LEDGER_PRICE),
        ("checksums", parts.OURS, parts.UNCHECKED, CHECKSUM_PRICE),
    ):
        found = [(one, size) for size in part.sizes if (one := price(part, dearer, cheaper, size)) is not None]
        if found:
            (median, least, most), size = max(found)
            text = f"{100 * median:+.1f} % ({100 * least:+.1f} to {100 * most:+.1f}) at {size_text(size)}"
            yield Goal(f"price of {what}", f"at most {100 * limit:g} %", text, median <= limit)


_JUDGES: Final[tuple[tuple[str, Callable[[Part], Iterator[Goal]]], ...]] = (
    (parts.TCP_2, _tcp_2), (parts.TCP_4, _tcp_4), (parts.MEMORY_2, _memory_2), (parts.MEMORY_4, _memory_4),
    (parts.LAB, _lab), (parts.SERVER, _server), (parts.SMALL, _small), (parts.PRICE, _price),
)  # fmt: skip
