"""The page docs/faults.md: prose that stays, with the figures of one run. Pure: results in, Markdown out.

Every figure on it is measured; none is typed. What was not measured is said to be missing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from r2ccl.cli.demo_report import IN_FLIGHT
from r2ccl.cli.faults_figures import Figures, Spread, Trial, trials_of
from r2ccl.cli.faults_kinds import FAULTS, Fault
from r2ccl.cli.faults_options import GLOO, MPTCP, PLAIN, R2CCL, Options
from r2ccl.cli.faults_run import Results

NONE: Final = "–"

_HEAD: Final = """# Faults

How each kind of fault is found, how soon it is found and repaired, and what is left of the throughput. Written by
`r2ccl faults`; do not edit, run it again (as root, on Linux):

    {command}

{where}

## What each fault does to r2ccl

{setting}

"""

_MEANING: Final = """
* **Found by**: what the first event that any rank recorded was caused by. **Found after**: from the fault to that
  event.
* **Repaired after**: from the fault to the last lane, of any rank, that was moved to another link or spread over
  those that are left; of a killed process, until the last survivor was told `PeerLost`.
* **Nothing arrived for**: the longest time without a byte at some rank while the fault lasted, less the usual time
  between two arrivals. **No operation for**: the same of completed operations.
* **Rate**: bytes of payload per time that the slowest rank moved while the fault lasted, from half a second after it,
  or a second or two where r2ccl has to notice that something is slow. **of plain TCP**: as part of what plain TCP
  streams carry, one per NIC to the next host of the ring, under the same fault in the same run. That is what the NICs
  that are left can carry.
* **Faults** are made at the switch, so that hosts find out as they would in life: link down at the far end; for
  silence both ways the far end leaves its bridge; one way its token bucket is too small for any packet. Lost packets
  are drawn by nftables at both ends, a packet being what the emulated wire carries at once, up to 64 KiB.
* **Wrong**: elements, of all elements of all results on all ranks, which are all checked.

Between two faults on the same ranks all links came back. So that they do so soon, those ranks had R2CCL_QUIET=0.1 and
R2CCL_STABLE=0.5, which say how long a link that returned has to wait; no fault is found by these. Flaps, two ranks'
NICs, killed and stopped processes have new ranks each time, with the default settings.

## Beside MPTCP and gloo

The same faults under a ring of plain streams over the kernel's Multipath TCP (every NIC an endpoint, `subflow
signal`), which is no collective but the least that moves the same bytes over both NICs; and under gloo's all-reduces
(timeout {gloo_timeout_s:g} s), which was given all NICs, uses one, and lost that one.

"""

_RANDOM: Final = """
## Random cuts

All-reduces of all sizes, from one element to {elements:,}, ran without pause, {in_flight} at a time, while NICs were
cut at random: link down at either end, silence both ways or one way, for 20 to 400 ms each, several NICs of a rail at
once, a rail often the moment that the other was given back. Every two ranks always kept a path.

"""


def page(options: Options, results: Results, facts: Mapping[str, Any], command: str, picture: str | None) -> str:
    """All of it."""
    figures = {name: Figures.of(trials_of(kept)) for name, kept in results.trials.items()}
    faults = [fault for key, fault in FAULTS.items() if f"{key}/{R2CCL}" in figures]
    text = _HEAD.format(command=command, where=_where(facts), setting=_setting(options))
    text += _table(_HEADINGS, [_row(fault, figures) for fault in faults])
    text += _MEANING.format(gloo_timeout_s=options.gloo_timeout_s)
    text += _table(_PEER_HEADINGS, [_peer_row(fault, figures) for fault in faults if fault.is_of_the_network])
    text += _left_out(results)
    if picture is not None:
        text += f"\n![The longest time without data, by fault]({picture})\n"
    return text + _random(options, results)


def wrong_elements(results: Results) -> int:
    """Of r2ccl, everywhere."""
    return sum(trial.wrong_elements for trial in _ours(results)) + results.random.wrong_elements


def errors(results: Results) -> list[str]:
    """Of r2ccl's ranks, everywhere, where there should be none."""
    return [trial.error for trial in _ours(results) if trial.error] + list(results.random.errors)


def details(results: Results) -> list[str]:
    """What the ranks wrote that failed."""
    return [trial.detail for trial in _ours(results) if trial.detail] + list(results.random.details)


def _ours(results: Results) -> list[Trial]:
    return [trial for name, kept in results.trials.items() if name.endswith(f"/{R2CCL}") for trial in trials_of(kept)]


def _where(facts: Mapping[str, Any]) -> str:
    busy = f" Other processes used {facts['cores_used_by_others']:.2f} cores meanwhile."
    return _wrapped(
        "Emulated hosts on one machine: {system} {release} ({architecture}), {cores} cores, TCP with "
        "{congestion_control}; Python {python}, numpy {numpy}, uvloop {uvloop}, r2ccl {r2ccl}.".format(**facts)
        + busy
    )


def _setting(options: Options) -> str:
    mib = options.elements * 4 / (1 << 20)
    return _wrapped(
        f"{options.hosts} ranks, each on a host of its own with {options.nics} NICs of {options.rate_mbit_s:g} Mbit/s; "
        f"all-reduces of {mib:.3g} MiB without pause. Each fault was made again and again, on every NIC of every host "
        "in turn; figures are medians, with the worst in parentheses."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


_HEADINGS: Final = (
    "fault", "found by", "found after", "repaired after", "nothing arrived for", "no operation for",
    "rate before, of plain TCP", "rate during, of plain TCP", "wrong", "times",
)  # fmt: skip
_PEER_HEADINGS: Final = (
    "fault", "nothing arrived for: r2ccl", "MPTCP", "gloo", "rate during, Gbit/s: plain TCP", "r2ccl", "MPTCP", "gloo",
)  # fmt: skip


def _row(fault: Fault, figures: Mapping[str, Figures]) -> list[str]:
    ours, plain = figures[f"{fault.key}/{R2CCL}"], figures.get(f"{fault.key}/{PLAIN}")
    return [
        fault.title,
        _found_by(fault, ours),
        _ms(ours.detection_ms),
        _ms(ours.repair_ms),
        _ms(ours.gap_ms),
        _ms(ours.operation_gap_ms),
        _share(ours.before_gbit_s, plain.before_gbit_s if plain else None),
        _share(ours.during_gbit_s, plain.during_gbit_s if plain else None),
        str(ours.wrong_elements),
        str(ours.trials) + _errors(ours),
    ]


def _found_by(fault: Fault, ours: Figures) -> str:
    if not ours.detected_by:
        return "nothing, as it should be" if fault.key == "stopped" else "nothing recorded"
    if len(ours.detected_by) == 1:
        return ours.detected_by[0][0]
    return ", ".join(f"{cause} ({count})" for cause, count in ours.detected_by)


def _peer_row(fault: Fault, figures: Mapping[str, Figures]) -> list[str]:
    ours, plain, mptcp, gloo = (figures.get(f"{fault.key}/{who}") for who in (R2CCL, PLAIN, MPTCP, GLOO))
    gaps = [_ms(one.gap_ms) if one is not None else NONE for one in (ours, mptcp)]
    rates = [_gbit_s(one.during_gbit_s) if one is not None else NONE for one in (plain, ours, mptcp, gloo)]
    return [fault.title, *gaps, _gloo_gap(gloo), *rates]


def _gloo_gap(gloo: Figures | None) -> str:
    if gloo is None:
        return NONE
    died = sum(count for error, count in gloo.errors if error == "died")
    if died == 0 or gloo.repair_ms is None:
        return _ms(gloo.gap_ms)
    return f"died after {gloo.repair_ms.median / 1e3:.1f} s" + (
        f" ({died} of {gloo.trials})" if died < gloo.trials else ""
    )


def _errors(ours: Figures) -> str:
    return "".join(f"; {count} × {error}" for error, count in ours.errors)


def _ms(spread: Spread | None) -> str:
    if spread is None:
        return NONE
    if spread.median >= 1000:
        return f"{spread.median / 1e3:.1f} s ({spread.worst / 1e3:.1f})"
    return f"{spread.median:.1f} ms ({spread.worst:.1f})"


def _share(ours: Spread | None, plain: Spread | None) -> str:
    if ours is None or plain is None:
        return NONE
    if plain.median == 0:
        return "plain TCP has no path"
    return f"{100 * ours.median / plain.median:.0f} % ({100 * ours.worst / plain.median:.0f})"


def _gbit_s(spread: Spread | None) -> str:
    return NONE if spread is None else f"{spread.median:.3f}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _left_out(results: Results) -> str:
    lines = [f"* {who} is left out: {why}.\n" for who, why in results.left_out.items() if who != "random"]
    return "\n" + "".join(lines) if lines else ""


def _random(options: Options, results: Results) -> str:
    if not results.rounds:
        return "\n## Random cuts\n\nNone were made in this run.\n"
    total = results.random
    rows = [
        ["cuts", f"{total.cuts:,}"],
        ["of them, that took a link out of service", f"{total.felt:,}"],
        ["operations", f"{total.operations:,}"],
        ["wrong elements", f"{total.wrong_elements:,}"],
        ["errors", f"{len(total.errors)}" + "".join(f"; {error}" for error in sorted(set(total.errors)))],
        ["resent", f"{total.resent_bytes / 1e6:,.0f} MB"],
        ["cuts per second", f"{total.cuts / total.seconds:.1f}"],
        ["rounds, each with new ranks", f"{len(results.rounds)}"],
    ]
    text = _RANDOM.format(elements=options.elements, in_flight=IN_FLIGHT) + _table(["", ""], rows)
    return text + (f"\n{results.left_out['random']}.\n" if "random" in results.left_out else "")
