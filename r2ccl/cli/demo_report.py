"""What a demo's records mean: how long each failover stalled the ranks, what bandwidth was left, what to print as JSON.

Pure: lists of times in, numbers out. All times are of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import random
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

#: The gap is looked for within this long after a cut, and compared with as long before.
GAP_WINDOW_S = 1.0
#: Operations in flight: while one is checked the next are on the wires.
IN_FLIGHT = 4
#: A NIC stays away for at least the window in which the gap is measured.
OUTAGE_S_MIN = 1.05
#: One cut, its outage and a second of health before the next do not fit into less.
SLOT_S_MIN = 2.5
#: After a cut, until what is left is used to the full; after a return, until the NIC has been admitted again.
SETTLING_AFTER_CUT_S = 0.25
SETTLING_AFTER_RETURN_S = 1.25
#: After the last cut's slot, so that there is time to see how fast it is when all NICs are back.
LAST_LOOK_S = 1.5

#: (begin, end)
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlannedCut:
    """Which NIC goes when, and when it comes back, in seconds since the measured stream began."""

    rank: int
    nic: int
    cut_s: float
    restore_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that was made; times on the monotonic clock."""

    rank: int
    nic: int
    cut_s: float
    restored_s: float


@dataclass(slots=True)
class RankRecord:
    """What one rank told."""

    rank: int
    #: When each chunk was complete, on which NIC, how big; in order of time.
    arrivals: list[tuple[float, int, int]] = field(default_factory=list)
    #: When each operation was complete.
    completions: list[float] = field(default_factory=list)
    wrong_elements: int = 0
    resent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a demo; field names are those of the JSON object."""

    ranks: int
    nics_per_rank: int
    operations: int
    wrong_elements: int
    #: Cuts after which every rank went on completing operations while the NIC was still away.
    failovers: int
    #: The median; None if nothing was cut.
    failover_gap_ms: float | None
    failover_gaps_ms: tuple[float, ...]
    resent_bytes: int
    busbw_gbit_s_before: float
    busbw_gbit_s_degraded: float
    busbw_gbit_s_after: float
    emulation: str

    def as_json(self) -> dict[str, object]:
        """Ready for ``json.dumps``."""
        return {**asdict(self), "failover_gaps_ms": list(self.failover_gaps_ms)}


def plan_cuts(rng: random.Random, count: int, seconds: float, ranks: int, nics: int) -> list[PlannedCut]:
    """Spread cuts of random NICs over the time: each has a slot, is made after two fifths of it, give or take.

    No NIC is cut twice before all were cut: one that flaps is made to wait longer each time before it carries again.
    """
    if count == 0:
        return []
    slot_s = (seconds - LAST_LOOK_S) / count
    outage_s = max(OUTAGE_S_MIN, 0.35 * slot_s)
    order = [(rank, nic) for rank in range(ranks) for nic in range(nics)]
    rng.shuffle(order)
    planned = []
    for index in range(count):
        cut_s = slot_s * (index + 0.4 + rng.uniform(-0.05, 0.05))
        planned.append(PlannedCut(*order[index % len(order)], cut_s, cut_s + outage_s))
    return planned


def ranks_next_to(rank: int, ranks: int) -> list[int]:
    """The rank whose NIC was cut, and its neighbours on the ring."""
    return sorted({(rank - 1) % ranks, rank, (rank + 1) % ranks})


def stall_s(times: Sequence[float], cut_s: float, until_s: float, window_s: float = GAP_WINDOW_S) -> float:
    """The longest time between two completions that overlaps the window after the cut, less the usual one before it.

    ``times`` in order. The stall that is still going on when the window ends counts with its whole length, to the next
    completion or, if there is none, to ``until_s``: a rank that never went on must not look like one without a gap.
    """
    end_s = cut_s + window_s
    first, last = bisect_right(times, cut_s), bisect_left(times, end_s)
    begin_mark = times[first - 1] if first > 0 else cut_s
    end_mark = times[last] if last < len(times) else until_s
    marks = [begin_mark, *times[first:last], end_mark]
    longest_s = max(later - earlier for earlier, later in zip(marks, marks[1:], strict=False))
    before = times[bisect_left(times, cut_s - GAP_WINDOW_S) : first]
    usual = [later - earlier for earlier, later in zip(before, before[1:], strict=False)]
    return max(0.0, longest_s - (statistics.median(usual) if usual else 0.0))


def failover_gaps_ms(records: Sequence[RankRecord], cuts: Sequence[Cut], until_s: float) -> list[float]:
    """For each cut the longest stall on the ranks next to it."""
    times = {record.rank: [time_s for time_s, _, _ in record.arrivals] for record in records}
    return [
        1e3 * max(stall_s(times[rank], cut.cut_s, until_s) for rank in ranks_next_to(cut.rank, len(records)))
        for cut in cuts
    ]


def survived(records: Sequence[RankRecord], cut: Cut) -> bool:
    """Whether every rank finished what was in flight when the NIC went, and at least one more, while it was away."""
    return all(_count(record.completions, (cut.cut_s, cut.restored_s)) > IN_FLIGHT for record in records)


def phases(cuts: Sequence[Cut], begin_s: float, end_s: float) -> tuple[list[Window], list[Window], list[Window]]:
    """When all NICs were there before the first cut, when one was away, and when it was back; transitions left out."""
    before = [(begin_s, cuts[0].cut_s if cuts else end_s)]
    degraded = [(cut.cut_s + SETTLING_AFTER_CUT_S, cut.restored_s) for cut in cuts]
    ends = [*[cut.cut_s for cut in cuts[1:]], end_s]
    after = [(cut.restored_s + SETTLING_AFTER_RETURN_S, end) for cut, end in zip(cuts, ends, strict=False)]
    return before, degraded, after


def bus_bandwidth_gbit_s(records: Sequence[RankRecord], windows: Sequence[Window], operation_bytes: int) -> float:
    """Bytes that each rank must move per operation, 2 (n - 1) / n of its size, by the time between completions."""
    operations, seconds = 0, 0.0
    for record in records:
        for begin_s, end_s in windows:
            times = record.completions
            first, last = bisect_left(times, begin_s), bisect_right(times, end_s) - 1
            if last > first:
                operations += last - first
                seconds += times[last] - times[first]
    moved_bytes = operation_bytes * 2 * (len(records) - 1) / len(records)
    return operations * moved_bytes * 8 / 1e9 / seconds if seconds else 0.0


def summarise(
    records: Sequence[RankRecord],
    cuts: Sequence[Cut],
    run: Window,
    *,
    nics_per_rank: int,
    operation_bytes: int,
    emulation: str,
) -> Summary:
    """Everything together."""
    gaps = failover_gaps_ms(records, cuts, run[1])
    before, degraded, after = (
        round(bus_bandwidth_gbit_s(records, windows, operation_bytes), 3) for windows in phases(cuts, *run)
    )
    return Summary(
        ranks=len(records),
        nics_per_rank=nics_per_rank,
        operations=min(len(record.completions) for record in records),
        wrong_elements=sum(record.wrong_elements for record in records),
        failovers=sum(survived(records, cut) for cut in cuts),
        failover_gap_ms=round(statistics.median(gaps), 3) if gaps else None,
        failover_gaps_ms=tuple(round(gap, 3) for gap in gaps),
        resent_bytes=sum(record.resent_bytes for record in records),
        busbw_gbit_s_before=before,
        busbw_gbit_s_degraded=degraded,
        busbw_gbit_s_after=after,
        emulation=emulation,
    )


def closing_line(summary: Summary, cuts: int) -> str:
    """The last word."""
    if summary.wrong_elements:
        return f"[R2CCL] {summary.wrong_elements} elements were wrong"
    if summary.failovers < cuts:
        return f"[R2CCL] Recovered from {summary.failovers} of {cuts} cuts only"
    if summary.failover_gap_ms is None:
        return "[R2CCL] Nothing was cut, nothing to recover from"
    return f"[R2CCL] Successfully recovered in {summary.failover_gap_ms / 1e3:.3f}s"


def is_success(summary: Summary, cuts: int) -> bool:
    """No wrong element, and every cut was recovered from."""
    return summary.wrong_elements == 0 and summary.failovers == cuts


def _count(times: Sequence[float], window: Window) -> int:
    return bisect_right(times, window[1]) - bisect_left(times, window[0])
