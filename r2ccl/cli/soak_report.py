"""The page docs/soak.md: prose that stays, with the figures of one run. Pure: results in, Markdown out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from r2ccl.cli.soak_storm import TITLES
from r2ccl.sim.flatness import Allowance, Verdict
from r2ccl.sim.gauges import ALLOWED, ENTRIES, MIB
from r2ccl.sim.soaked import JUDGED_FROM_S, Soaked

_HEAD: Final = """# Soak

Faults without end, and what is lost and what is kept meanwhile: nothing, and no more than at the start. Written by
`r2ccl soak`; do not edit, run it again (as root, on Linux):

    {command}

"""

_WORK: Final = """
Ranks work in rounds without end: mixed collectives, batches, objects and messages with tags and from any, of no element
up to megabytes, up to four at a time; in some rounds in groups besides, made by `split` or `new_group` and closed
after it. Every element of every result is compared on every rank with what must come out, and memory that was given
back is watched. At the end all links must have come back, and nothing may be owed, parked or registered.
"""

_FLAT: Final = """
## What flat means

"""
_FLAT_TEXT: Final = """
Each measure is read once a second. A process rises while its caches fill, so only the second half counts. Its growth
there is the median of the slopes between every two points, times the time, and must stay below what means nothing, and
what the measure's own swings may add up to by chance. Entries of every collection that the runtime's objects hold are
counted, too, by class and attribute; tables that keep the latest of something up to a limit are held to that limit
instead. In less than {judged_s:.0f} s only descriptors, tasks and timers are judged. What means nothing:
"""

_HEADINGS: Final = ("process", "measure", "start", "middle", "end", "growth in the second half", "allowed", "flat")


def page(parts: Mapping[str, Soaked], facts: Mapping[str, Any], command: str, picture: str | None) -> str:
    """All of it. ``parts``: by their titles."""
    text = _HEAD.format(command=command) + _where(facts) + _WORK
    for title, soaked in parts.items():
        text += f"\n## {title}\n\n{summary(soaked)}{_problems(soaked)}{_faults(soaked)}{_measures(soaked)}"
    if picture is not None:
        text += f"\n![What each process keeps, over time]({picture})\n"
    allowances = [*(_allowance(name, ALLOWED[name]) for name in ALLOWED), _allowance("entries of each kind", ENTRIES)]
    bullets = "".join(f"* {allowance}\n" for allowance in allowances)
    return text + _FLAT + _wrapped(_FLAT_TEXT.format(judged_s=JUDGED_FROM_S)) + "\n" + bullets


def summary(soaked: Soaked) -> str:
    """In one sentence or two."""
    wrong = f"{len(soaked.complaints)} things were wrong" if soaked.complaints else "nothing was wrong or lost"
    growing = soaked.growing()
    flat = f"{len(growing)} measures grow" if growing else "all that is judged is flat"
    return _wrapped(
        f"{soaked.seconds:,.0f} seconds (in {soaked.real_s:,.0f} s of real time): {soaked.faults.total():,} faults, "
        f"{soaked.failovers:,} times a lane went on over another link; {soaked.operations:,} operations in "
        f"{soaked.rounds:,} rounds, {soaked.resent_bytes / MIB:,.1f} MiB sent again; {wrong}; {flat}."
    )


def _problems(soaked: Soaked) -> str:
    found = [*soaked.complaints, *soaked.growing()]
    if not found:
        return ""
    blocks = [textwrap.indent(text, "    ") for text in (*found, *([soaked.story] if soaked.story else []))]
    return "\n**What was wrong:**\n\n" + "\n\n".join(blocks) + "\n"


def _faults(soaked: Soaked) -> str:
    rows = [[TITLES.get(key, key), f"{times:,}"] for key, times in soaked.faults.most_common()]
    return "\n" + _table(("fault", "times"), rows) + "\n" if rows else ""


def _measures(soaked: Soaked) -> str:
    rows = [
        [track, name, *_figures(name, verdict), "yes" if verdict.is_flat else ("**no**" if soaked.is_judged else "–")]
        for track, verdicts in soaked.verdicts().items()
        for name, verdict in verdicts.items()
    ]
    return _table(_HEADINGS, rows) if rows else "It was too short to say what grows.\n"


def _figures(name: str, verdict: Verdict) -> list[str]:
    values = (verdict.start, verdict.middle, verdict.end, verdict.growth, verdict.bound)
    if name == "memory":
        return [f"{value / MIB:,.1f} MiB" for value in values]
    return [f"{value:,.0f}" for value in values]


def _allowance(name: str, allowance: Allowance) -> str:
    amount = f"{allowance.amount / MIB:.0f} MiB" if name == "memory" else f"{allowance.amount:,.0f}"
    share = f" and {100 * allowance.share:.0f} % of the level" if allowance.share else ""
    return f"{name}: {amount}{share}: {allowance.why}"


def _where(facts: Mapping[str, Any]) -> str:
    return _wrapped(
        "On one machine: {system} {release} ({architecture}), {cores} cores; Python {python}, numpy {numpy}, uvloop "
        "{uvloop}, r2ccl {r2ccl}.".format(**facts)
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text.strip(), 118, break_long_words=False, break_on_hyphens=False) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
