"""The page docs/training.md: prose that stays, with the figures of one run. Pure: results in, Markdown out.

Every figure on it is measured; none is typed. What was not measured is said to be missing.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from r2ccl.cli.training_figures import PARTS, Hit, Interval, Pair, Training, beside_peer, pair, step_time

_HEAD: Final = """# Training through a cut

A small GPT in data parallel on emulated hosts, through the loss of a NIC. Written by
`examples/train_gpt_through_a_cut.py`; do not edit, run it again (as root, on Linux):

    {command}

{where}

{setting}

## The loss

"""

_STEPS: Final = """
## How long steps take

"""

_MEANING: Final = """
* **Hit step**: the step in which the NIC went, or the one after, whichever took longer, less the median of the {usual}
  steps before. *Beside it*: the same steps of the training that nothing happened to, which is what chance does here.
* **Difference**: of the medians over the same steps of two trainings, one of which lost a NIC, the two in turn being
  the first; the mean over all pairs, with its interval of 95 % by Student's t.
"""

_GLOO: Final = """
## Beside gloo

The same script with `--backend gloo`, on the same wires, in turn with the others. gloo uses one NIC.

"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What was trained, where."""

    hosts: int
    rate_mbit_s: float
    steps: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Results:
    """All trainings, in order; those of one index ran one after the other."""

    unharmed: tuple[Training, ...]
    harmed: tuple[Training, ...]
    #: gloo on the NIC that is not cut; empty: was not asked for.
    gloo: tuple[Training, ...] = ()
    #: gloo on the NIC that is.
    gloo_cut: Training | None = None

    @property
    def pairs(self) -> list[Pair]:
        return [pair(one, other) for one, other in zip(self.unharmed, self.harmed, strict=True)]


def figures(results: Results) -> dict[str, Any]:
    """All that is on the page, for programs."""
    pairs = results.pairs
    found: dict[str, Any] = {
        "pairs": [asdict(one) | {"is_true": one.is_true} for one in pairs],
        "step_time": {part: asdict(step_time(pairs, part)) for part in PARTS if _is_in_all(part, pairs)},
    }
    if results.gloo:
        parts = {part: beside_peer(results.harmed, results.gloo, part) for part in PARTS[:2]}
        found["beside_gloo"] = {
            part: {"r2ccl_ms": ours, "gloo_ms": theirs, "r2ccl_by_gloo": asdict(ratio)}
            for part, (ours, theirs, ratio) in parts.items()
        }
    if results.gloo_cut is not None:
        died = results.gloo_cut
        found["gloo_cut"] = {"steps": len(died.steps), "trouble": died.trouble, "died_after_s": died.died_after_s}
    return found


def _is_in_all(part: str, pairs: Sequence[Pair]) -> bool:
    return all(part in one.medians_ms for one in pairs)


def page(setting: Setting, results: Results, facts: Mapping[str, Any], command: str, picture: str | None) -> str:
    """All of it."""
    pairs = results.pairs
    text = _HEAD.format(command=command, where=_where(facts), setting=_setting(setting, len(pairs)))
    text += _loss(pairs)
    if picture is not None:
        text += f"\n![Loss and step time, with and without the cut]({picture})\n"
    text += _STEPS + _hits(pairs) + "\n" + _step_times(pairs)
    text += _MEANING.format(usual=50)
    return text + (_GLOO + gloo_table(results) + _gloo_death(results) if results.gloo or results.gloo_cut else "")


def _where(facts: Mapping[str, Any]) -> str:
    where = (
        "Emulated hosts on one machine: {system} {release} ({architecture}), {cores} cores; Python {python}, torch "
        "{torch}, numpy {numpy}, r2ccl {r2ccl}. Other processes used {cores_used_by_others:.2f} cores meanwhile."
    )
    return _wrapped(where.format(**facts))


def _setting(setting: Setting, pairs: int) -> str:
    steps = setting.steps
    return _wrapped(
        f"{setting.hosts} ranks, each on a host of its own with two NICs of {setting.rate_mbit_s:g} Mbit/s, train "
        f"{setting.parameters:,} parameters by DDP for {steps} steps. In every second training a NIC of host 1 loses "
        f"its carrier when step {steps // 2} has ended, and gets it back after step {steps * 3 // 4}: {pairs} "
        f"pair{'s' if pairs != 1 else ''} of trainings. Steps are rank 0's."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _loss(pairs: Sequence[Pair]) -> str:
    rows = [
        [
            str(number),
            _step(one.first_different_step),
            _step(one.replanned_step),
            f"{one.largest_difference:.1e}",
            f"{one.loss[0]:.5f}",
            f"{one.loss[1]:.5f}",
            f"{one.resent_bytes / 1e3:,.0f} kB",
        ]
        for number, one in enumerate(pairs, 1)
    ]
    headings = (
        "pair", "first step whose loss differs in a bit", "first step that was planned anew", "largest difference",
        "last loss, unharmed", "with the cut", "resent by rank 0",
    )  # fmt: skip
    verdict = "In no pair does a bit differ before the ranks have planned anew."
    if broken := [number for number, one in enumerate(pairs, 1) if not one.is_true]:
        verdict = f"**In pair {', '.join(map(str, broken))} a bit differs before the ranks have planned anew.**"
    return table(headings, rows) + f"\n{verdict}\n"


def _step(number: int | None) -> str:
    return "none" if number is None else str(number)


def _hits(pairs: Sequence[Pair]) -> str:
    rows = [
        _hit_row("the NIC goes", [one.cut for one in pairs]),
        _hit_row("it comes back", [one.restored for one in pairs]),
    ]
    return table(("hit step", "longer by, median", "worst", "beside it, median", "worst"), rows)


def _hit_row(what: str, hits: Sequence[Hit]) -> list[str]:
    longer, beside = [hit.longer_ms for hit in hits], [hit.beside_ms for hit in hits]
    return [what, *(f"{value:.1f} ms" for values in (longer, beside) for value in (_median(values), max(values)))]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _step_times(pairs: Sequence[Pair]) -> str:
    rows = []
    for part in PARTS:
        if not _is_in_all(part, pairs):
            continue
        unharmed = _median([one.medians_ms[part][0] for one in pairs])
        harmed = _median([one.medians_ms[part][1] for one in pairs])
        rows.append([part, f"{unharmed:.1f} ms", f"{harmed:.1f} ms", difference(step_time(pairs, part))])
    return table(("steps", "unharmed", "with the cut", "difference"), rows)


def difference(interval: Interval) -> str:
    """In words."""
    if interval.count < 2:
        return f"{_percent(interval.mean)}; one pair has no interval"
    noise = ": inside the noise" if interval.has_zero else ""
    return f"{_percent(interval.mean)} ({_percent(interval.low)} to {_percent(interval.high)}){noise}"


def _percent(part: float) -> str:
    return f"{100 * part:+.1f} %"


def gloo_table(results: Results) -> str:
    if not results.gloo:
        return "It was not measured in this run.\n"
    rows = []
    for part, title in ((PARTS[0], "both NICs"), (PARTS[1], "one of two cut; gloo on the other")):
        ours, theirs, ratio = beside_peer(results.harmed, results.gloo, part)
        rows.append([title, f"{ours:.1f} ms", f"{theirs:.1f} ms", difference(ratio)])
    return table(("a step of DDP", "r2ccl", "gloo", "r2ccl by gloo"), rows)


def _gloo_death(results: Results) -> str:
    died = results.gloo_cut
    if died is None:
        return ""
    if not died.trouble:
        return "\ngloo on the NIC that was cut went on to the end.\n"
    after_s = died.died_after_s or 0.0
    where = f"gloo on the NIC that is cut made no step after {died.last}"
    return f"\n{where}; {after_s:.1f} s after the cut {died.trouble}.\n"
