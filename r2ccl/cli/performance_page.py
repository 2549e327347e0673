"""The page docs/performance-figures.md: prose that stays, with the figures of one run. Pure: results in, Markdown out.

Every figure on it is measured; none is typed. What was not measured is said to be missing. What the figures mean is on
docs/performance.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from r2ccl.cli import performance_parts as parts
from r2ccl.cli.bench_report import Spread
from r2ccl.cli.performance_figures import Measured, Part, Results, interval_of_median, quantile
from r2ccl.cli.performance_goals import goals, price, size_text

NONE: Final = "–"

#: Of the sides, in tables and pictures.
NAMES: Final = MappingProxyType(
    {
        parts.OURS: "r2ccl", parts.THREAD: "r2ccl, progress thread", parts.SHARED: "r2ccl, shared memory",
        parts.SHARED_THREAD: "r2ccl, shared memory, progress thread", parts.UNCHECKED: "r2ccl without checksums",
        parts.DOUBLED: "r2ccl with a doubled ledger", parts.GLOO: "gloo", parts.OPENMPI: "Open MPI",
        parts.EXCHANGE: "plain sockets", parts.MEMCPY: "memcpy", parts.STREAMS: "plain TCP streams",
        parts.MPTCP: "kernel MPTCP",
    }
)  # fmt: skip

_HEAD: Final = """# Performance: figures

Written by `make bench`; do not edit, run it again (as root, on Linux):

    {command}

{where} What the tables mean, and what was tried, is on [performance](performance.md).

"""

_READING: Final = """
All sides of a table were started once and took turns at each size, in {rounds} rounds, each begun by another side.
Times are medians over the rounds of each turn's median operation; a ratio is that of the turns of one round, its median
and, in parentheses, its least and most. Below 1, r2ccl took less time.
"""

_TITLES: Final = MappingProxyType(
    {
        parts.TCP_2: "Loopback TCP, 2 ranks", parts.TCP_4: "Loopback TCP, 4 ranks",
        parts.MEMORY_2: "Shared memory, 2 ranks", parts.MEMORY_4: "Shared memory, 4 ranks",
        parts.LAB: "2 hosts with 2 NICs each", parts.SERVER: "A server's loop", parts.SMALL: "Many small operations",
        parts.PRICE: "The price of resilience",
    }
)  # fmt: skip
_ABOUT: Final = MappingProxyType(
    {
        parts.TCP_2: """Plain sockets: the bytes that an all-reduce must move at the least, to the next rank and from
            the previous, one operation after the other, and nothing reduced: the floor for who sleeps while waiting.
            Open MPI spins.""",
        parts.TCP_4: "As above, with four ranks.",
        parts.MEMORY_2: """Open MPI by its shared memory (`btl self,sm`); gloo has none and goes over loopback TCP.
            memcpy: the same bytes copied by numpy in all ranks at once, once each: a transport that copies in and out
            needs two.""",
        parts.MEMORY_4: "As above, with four ranks.",
        parts.LAB: """Emulated hosts, NICs of 2 Gbit/s. Plain TCP streams: one for each NIC without a stop between
            operations, what the wires carry. Kernel MPTCP: the same over one connection. Open MPI and gloo were given
            both NICs.""",
        parts.SERVER: """While one all-reduce after the other runs, a ticker asks the application's own loop for its
            turn every {tick_ms:g} ms. Figures are of the gaps between two ticks. Plain sockets: a thread moves the
            bytes and nothing more, and the loop has nothing to do but to tick: how late the system lets it, where the
            cores are taken.""",
        parts.SMALL: """{window} all-reduces are started, then waited for. gloo by `async_op=True`, Open MPI by
            `Iallreduce`.""",
        parts.PRICE: """The same wires; r2ccl beside itself, in pairs of turns. Without checksums:
            `R2CCL_CHECKSUM=off`. Ledger and acknowledgements cannot be left out, as they also open windows and share
            chunks out; they can be paid twice, by a second ledger and by saying each acknowledgement twice, and what
            that adds is their price. Intervals are of 95 %.""",
    }
)
#: What each part is compared with, and by whom.
_COMPARED: Final = MappingProxyType(
    {
        parts.TCP_2: (parts.OURS, parts.THREAD), parts.TCP_4: (parts.OURS, parts.THREAD),
        parts.MEMORY_2: (parts.SHARED, parts.SHARED_THREAD), parts.MEMORY_4: (parts.SHARED, parts.SHARED_THREAD),
        parts.LAB: (parts.OURS,),
    }
)  # fmt: skip
#: From here up, bandwidth and processor time for a byte mean something.
_BANDWIDTH_FROM: Final = 64 * parts.KIB


def page(results: Results, command: str, pictures: Mapping[str, str]) -> str:
    """All of it; pictures by the part that they are of."""
    text = _HEAD.format(command=command, where=_where(results))
    text += _goals(results)
    compared = [results.parts[key] for key in _COMPARED if key in results.parts]
    rounds = max((len(one.times_s) for part in compared for one in part.measured), default=0)
    if rounds:
        text += _wrapped(_READING.format(rounds=rounds))
    for key, part in ((key, results.parts[key]) for key in parts.PARTS if key in results.parts):
        text += f"\n\n## {_TITLES[key]}\n\n"
        text += _wrapped(_ABOUT[key].format(tick_ms=part.tick_s * 1e3, window=part.window)) + "\n\n"
        text += _body(part)
        if key in pictures:
            text += f"\n![Time and bus bandwidth over size]({pictures[key]})\n"
    return text.rstrip("\n") + "\n" + _left_out(results)


def _where(results: Results) -> str:
    facts = results.facts
    others = results.others_s / results.seconds if results.seconds else 0.0
    sizes = "all-reduces of float32 on one machine"
    versions = [about for name in (parts.GLOO, parts.OPENMPI) if (about := _version(results, name))]
    return _wrapped(
        f"{sizes}: {facts['processor']}, {facts['cores']} cores, {facts['system']} {facts['release']}, TCP with "
        f"{facts['congestion_control']}; Python {facts['python']}, numpy {facts['numpy']}, uvloop {facts['uvloop']}, "
        f"r2ccl {facts['r2ccl']}{''.join(f', {version}' for version in versions)}. It took "
        f"{results.seconds / 60:.0f} minutes; other processes used {others:.2f} cores meanwhile."
    ).replace("all-reduces", "All-reduces", 1)


def _version(results: Results, side: str) -> str:
    return next((part.about[side] for part in results.parts.values() if side in part.about), "")


def _goals(results: Results) -> str:
    rows = [(goal.where, goal.wanted, goal.found, "yes" if goal.reached else "**no**") for goal in goals(results)]
    if not rows:
        return ""
    return "## What was to be reached\n\n" + _table(("where", "wanted", "found", "reached"), rows) + "\n"


def _body(part: Part) -> str:
    match part.key:
        case parts.SERVER:
            return _gaps(part)
        case parts.SMALL:
            return _rates(part)
        case parts.PRICE:
            return _prices(part)
        case _:
            return _times(part) + "\n" + _bandwidths(part)


def _times(part: Part) -> str:
    ours = [side for side in _COMPARED[part.key] if side in part.sides]
    others = [side for side in part.sides if side not in ours]
    pairs = [(ours[0], other) for other in others] + [(one, parts.GLOO) for one in ours[1:] if parts.GLOO in others]
    heads = ["size", *(f"{NAMES[side]}, us" for side in part.sides)]
    heads += [f"{_short(one)} / {NAMES[other]}" for one, other in pairs]
    rows = []
    for size in part.sizes:
        row = [size_text(size), *(_time_us(part.at(side, size)) for side in part.sides)]
        rows.append([*row, *(_ratio(part.ratio(one, other, size)) for one, other in pairs)])
    return _table(heads, rows)


def _short(side: str) -> str:
    return "thread" if side in (parts.THREAD, parts.SHARED_THREAD) else "r2ccl"


def _bandwidths(part: Part) -> str:
    heads = ["size", *(f"{NAMES[side]}, GB/s" for side in part.sides)]
    heads += [f"{NAMES[side]}, processor s/GB" for side in part.sides]
    rows = []
    for size in (size for size in part.sizes if size >= _BANDWIDTH_FROM):
        there = [part.at(side, size) for side in part.sides]
        row = [size_text(size), *(NONE if one is None else f"{part.busbw_gb_s(one):.2f}" for one in there)]
        rows.append([*row, *(NONE if one is None else f"{part.cpu_s_per_gb(one):.2f}" for one in there)])
    if not rows:
        return ""
    said = "Bus bandwidth, and seconds of processor time, all ranks together, for each GB that all ranks sent."
    return f"{said}\n\n{_table(heads, rows)}"


def _gaps(part: Part) -> str:
    rows = []
    for one in part.measured:
        gaps = [f"{quantile(one.gaps_s, share) * 1e3:.1f}" for share in (0.5, 0.99, 1.0)] if one.gaps_s else [NONE] * 3
        rows.append([NAMES[one.side], size_text(one.size_bytes), f"{one.time_s.median * 1e3:.0f}", *gaps])
    return _table(("side", "size", "an all-reduce, ms", "gaps, ms: median", "p99", "longest"), rows)


def _rates(part: Part) -> str:
    rows = []
    for one in part.measured:
        gloo = part.at(parts.GLOO, one.size_bytes)
        times = NONE if gloo is None else f"{part.rate(one) / part.rate(gloo):.2f}"
        rows.append([NAMES[one.side], size_text(one.size_bytes), f"{part.rate(one):,.0f}", times])
    return _table(("side", "size", "operations a second", "of gloo's"), rows)


def _prices(part: Part) -> str:
    rows = []
    for size in part.sizes:
        for what, dearer, cheaper in (
            ("ledger and acknowledgements", parts.DOUBLED, parts.OURS), ("checksums", parts.OURS, parts.UNCHECKED)
        ):  # fmt: skip
            found = price(part, dearer, cheaper, size)
            if found is None:
                continue
            cpu = part.cpu_ratios(dearer, cheaper, size)
            spread = interval_of_median(cpu) if cpu else None
            used = NONE if spread is None else _percent(spread.median - 1, spread.smallest - 1, spread.largest - 1)
            rows.append([what, size_text(size), _percent(*found), used, str(len(part.ratios(dearer, cheaper, size)))])
    return _table(("what", "size", "of the time", "of the processor time", "pairs"), rows)


def _percent(median: float, least: float, most: float) -> str:
    return f"{100 * median:+.1f} % ({100 * least:+.1f} to {100 * most:+.1f})"


def _time_us(one: Measured | None) -> str:
    if one is None:
        return NONE
    us = one.time_s.median * 1e6
    return f"{us:.1f}" if us < 1000 else f"{us:,.0f}"


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return NONE
    median, least, most = (
        f"{value:.2f}" if value < 100 else f"{value:,.0f}" for value in (spread.median, spread.smallest, spread.largest)
    )
    return f"{median} ({least} to {most})"


def _left_out(results: Results) -> str:
    said = "".join(f"\nLeft out: {what}: {why}.\n" for what, why in sorted(results.left_out.items()))
    wrong = results.wrong
    if wrong:
        said += f"\n**{wrong:,} elements were wrong.**\n"
    return said


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def as_json(results: Results) -> dict[str, Any]:
    """For programs: everything, and the goals."""
    reached = [
        {"where": goal.where, "wanted": goal.wanted, "found": goal.found, "reached": goal.reached}
        for goal in goals(results)
    ]
    return {**results.as_json(), "goals": reached, "wrong": results.wrong}
