"""From what the ranks timed to the benchmark's table and its JSON. Pure: everything is an argument.

An iteration takes as long as its slowest rank; a turn's figure is the median of its iterations, a row's the median of
its turns, with the smallest and the largest beside it. Bandwidths are of the median, in GB/s of 10^9 bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from r2ccl.cli.bench_collectives import IN, OUT, Form
from r2ccl.cli.bench_options import Options
from r2ccl.cli.bench_turns import Answer

NOT_THERE: Final = "N/A"
_BETWEEN: Final = " | "


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several turns, seconds or a ratio."""

    median: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn of one library."""

    time_s: float
    wrong: int


@dataclass(frozen=True, slots=True)
class Timing:
    """All turns of one library at one size, in one form."""

    time_s: Spread
    #: None: nothing was checked.
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size."""

    size_bytes: int
    count: int
    iterations: int
    forms: Mapping[Form, Timing]
    peer: Timing | None = None
    #: r2ccl's time / the peer's, of turns that followed one another: below 1, r2ccl took less time.
    ratio: Spread | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What r2ccl's NICs carried meanwhile, all ranks together."""

    sent_bytes: Mapping[str, int]
    resent_bytes: int
    failovers: int

    @classmethod
    def between(cls, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Traffic:
        """From what each rank told before and after."""
        sent: dict[str, int] = {}
        resent = failovers = 0
        for earlier, later in zip(before, after, strict=True):
            failovers += later["failovers"] - earlier["failovers"]
            for nic, (sent_bytes, resent_bytes) in later["nics"].items():
                sent[nic] = sent.get(nic, 0) + sent_bytes - earlier["nics"][nic][0]
                resent += resent_bytes - earlier["nics"][nic][1]
        return cls(sent, resent, failovers)

    @property
    def total_bytes(self) -> int:
        return sum(self.sent_bytes.values())

    def share(self, nic: str) -> float:
        """From 0 to 1."""
        return self.sent_bytes[nic] / self.total_bytes if self.total_bytes else 0.0


def turn_result(answers: Sequence[Answer], is_barrier: bool = False, checks: int = 0) -> TurnResult:
    """From what all ranks answered."""
    slowest_s = [max(times) for times in zip(*(answer.times_s for answer in answers), strict=True)]
    wrong = sum(answer.wrong for answer in answers)
    if is_barrier and checks:
        wrong += too_early(answers)
    return TurnResult(statistics.median(slowest_s), wrong)


def too_early(answers: Sequence[Answer]) -> int:
    """How often a rank left a barrier before the last had entered it, which is what is wrong with a barrier."""
    entered_s = [max(starts) for starts in zip(*(answer.starts_s for answer in answers), strict=True)]
    return sum(
        start_s + time_s < last_s
        for answer in answers
        for start_s, time_s, last_s in zip(answer.starts_s, answer.times_s, entered_s, strict=True)
    )


def timing(turns: Sequence[TurnResult], checks: int) -> Timing:
    """Of all rounds."""
    return Timing(Spread.of([turn.time_s for turn in turns]), sum(turn.wrong for turn in turns) if checks else None)


def ratio(ours: Sequence[TurnResult], theirs: Sequence[TurnResult]) -> Spread:
    """Round by round."""
    return Spread.of([our.time_s / their.time_s for our, their in zip(ours, theirs, strict=True)])


def algbw_gb_s(size_bytes: int, time_s: float) -> float:
    return size_bytes / time_s / 1e9


def busbw_gb_s(options: Options, size_bytes: int, time_s: float) -> float:
    return algbw_gb_s(size_bytes, time_s) * options.collective.bus_factor(options.ranks)


def average_busbw_gb_s(options: Options, rows: Sequence[Row]) -> float:
    """Over all rows and forms, as nccl-tests has it."""
    return statistics.fmean(
        busbw_gb_s(options, row.size_bytes, timed.time_s.median) for row in rows for timed in row.forms.values()
    )


def wrong_total(rows: Sequence[Row]) -> int:
    """The peer's not included."""
    return sum(timed.wrong or 0 for row in rows for timed in row.forms.values())


def peer_wrong_total(rows: Sequence[Row]) -> int:
    return sum(row.peer.wrong or 0 for row in rows if row.peer is not None)


# The table.


def heading(options: Options) -> list[str]:
    """The titles of the columns."""
    first = f"#{'size':>11} {'count':>12} {'type':>10} {'redop':>11} {'root':>6}"
    second = f"#{'(B)':>11} {'(elements)':>12} {'':>10} {'':>11} {'':>6}"
    above = " " * len(first) + f" {'out-of-place':^33}" + f" {'in-place':^33}"
    for _ in range(2):
        first += f"  {'time':>10} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
        second += f"  {'(us)':>10} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6}"
    if options.rounds > 1:
        first += _BETWEEN + f"{'r2ccl: of rounds':>25}"
        second += _BETWEEN + f"{'(us: least .. most)':>25}"
    if options.peer is not None:
        first += _BETWEEN + f"{options.peer + ' time':>13} {'of rounds':>25} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
        second += _BETWEEN + f"{'(us)':>13} {'(us: least .. most)':>25} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6}"
        first += _BETWEEN + f"{'r2ccl / ' + options.peer:>24}"
        second += _BETWEEN + f"{'time (least .. most)':>24}"
    return [("#" + above[1:]).rstrip(), first, second.rstrip()]


def line(options: Options, row: Row) -> str:
    """One size."""
    text = f"{row.size_bytes:>12} {row.count:>12} {options.dtype if row.count else 'none':>10}"
    text += f" {options.op or 'none':>11} {options.root:>6}"
    for form in (OUT, IN):
        text += "  " + _cells(options, row.size_bytes, row.forms.get(form))
    if options.rounds > 1:
        text += _BETWEEN + f"{_range_us(primary(row).time_s):>25}"
    if row.peer is not None and row.ratio is not None:
        time_us, *rest = _cells(options, row.size_bytes, row.peer).split(maxsplit=1)
        text += _BETWEEN + f"{time_us:>13} {_range_us(row.peer.time_s):>25} " + f"{''.join(rest).strip():>22}"
        text += _BETWEEN + f"{f'{row.ratio.median:.2f} ({row.ratio.smallest:.2f} .. {row.ratio.largest:.2f})':>24}"
    return text


def primary(row: Row) -> Timing:
    """Out of place where there is such a form, as a peer is compared."""
    return row.forms[OUT] if OUT in row.forms else row.forms[IN]


def _cells(options: Options, size_bytes: int, timed: Timing | None) -> str:
    if timed is None:
        return f"{NOT_THERE:>10} {NOT_THERE:>7} {NOT_THERE:>7} {NOT_THERE:>6}"
    time_s = timed.time_s.median
    wrong = NOT_THERE if timed.wrong is None else str(timed.wrong)
    algbw, busbw = algbw_gb_s(size_bytes, time_s), busbw_gb_s(options, size_bytes, time_s)
    return f"{_us(time_s):>10} {algbw:>7.3f} {busbw:>7.3f} {wrong:>6}"


def _us(time_s: float) -> str:
    us = time_s * 1e6
    return f"{us:.1f}" if us < 100_000 else f"{us:.0f}"


def _range_us(spread: Spread) -> str:
    return f"{_us(spread.smallest)} .. {_us(spread.largest)}"


def closing(options: Options, rows: Sequence[Row], traffic: Traffic) -> list[str]:
    """What comes below the table."""
    shares = ", ".join(
        f"{nic} {sent:,} bytes ({100 * traffic.share(nic):.1f}%)" for nic, sent in traffic.sent_bytes.items()
    )
    said = [
        f"# Sent per NIC, all ranks : {shares}",
        f"# Resent bytes : {traffic.resent_bytes:,} ({traffic.failovers} failovers)",
    ]
    if options.checks:
        wrong, theirs = wrong_total(rows), peer_wrong_total(rows)
        said.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        if options.peer is not None:
            said.append(f"# Out of bounds values of {options.peer} : {theirs} {'FAILED' if theirs else 'OK'}")
    else:
        said.append("# Out of bounds values : not checked")
    said.append(f"# Avg bus bandwidth : {average_busbw_gb_s(options, rows):.4f}")
    return said


# The same for programs.


def as_json(options: Options, rows: Sequence[Row], traffic: Traffic, machine: Mapping[str, Any]) -> dict[str, Any]:
    """One object."""
    return {
        "rows": [_row_as_json(options, row) for row in rows],
        "machine": dict(machine),
        "options": {
            "collective": options.collective.name,
            "ranks": options.ranks,
            "nics_per_rank": options.nics_per_rank,
            "warmup": options.warmup,
            "rounds": options.rounds,
            "checks": options.checks,
        },
        "nics": {
            nic: {"sent_bytes": sent, "share": round(traffic.share(nic), 6)} for nic, sent in traffic.sent_bytes.items()
        },
        "resent_bytes": traffic.resent_bytes,
        "failovers": traffic.failovers,
        "wrong": wrong_total(rows) if options.checks else None,
        "avg_busbw_gb_s": average_busbw_gb_s(options, rows),
    }


def _row_as_json(options: Options, row: Row) -> dict[str, Any]:
    wrongs = [timed.wrong for timed in row.forms.values() if timed.wrong is not None]
    size = row.size_bytes
    return {
        "size": size,
        "count": row.count,
        "type": options.dtype if row.count else "none",
        "redop": options.op or "none",
        "root": options.root,
        "iters": row.iterations,
        **_timing_as_json(options, size, primary(row)),
        "wrong": sum(wrongs) if wrongs else None,
        OUT: _timing_as_json(options, size, row.forms[OUT]) if OUT in row.forms else None,
        IN: _timing_as_json(options, size, row.forms[IN]) if IN in row.forms else None,
        "peer": None if row.peer is None else {"name": options.peer, **_timing_as_json(options, size, row.peer)},
        "ratio": None if row.ratio is None else row.ratio.median,
        "ratio_range": None if row.ratio is None else [row.ratio.smallest, row.ratio.largest],
    }


def _timing_as_json(options: Options, size_bytes: int, timed: Timing) -> dict[str, Any]:
    spread = timed.time_s
    return {
        "time_us": spread.median * 1e6,
        "time_us_range": [spread.smallest * 1e6, spread.largest * 1e6],
        "algbw_gb_s": algbw_gb_s(size_bytes, spread.median),
        "busbw_gb_s": busbw_gb_s(options, size_bytes, spread.median),
        "wrong": timed.wrong,
    }
