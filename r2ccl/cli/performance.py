"""``r2ccl performance``: all that docs/performance-figures.md says, measured in one run.

This file is the conductor: it reads what is wanted, plays the parts, keeps what they give, and writes the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from r2ccl.cli import performance_lab, performance_page, performance_plot
from r2ccl.cli import performance_parts as parts
from r2ccl.cli.bench_machine import Load, cores_used_by_others, machine
from r2ccl.cli.bench_teams import RankFailed
from r2ccl.cli.faults import Meter
from r2ccl.cli.performance_contest import Contest, SideStart, started
from r2ccl.cli.performance_figures import Results
from r2ccl.cli.performance_parts import QUICK, WHOLE, Pythons, Scale
from r2ccl.config import environment
from r2ccl.errors import UsageError

#: Sides of a part, at most: for the estimate before they are known.
_SIDES: Final = 5
_LAB_S: Final = 5.0
_CONGESTION_CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_CPUINFO: Final = Path("/proc/cpuinfo")

PERFORMANCE_HELP = f"""Measure r2ccl beside its peers and beside what this machine can do, in one run.

All-reduces over loopback TCP and shared memory with 2 and 4 ranks, beside gloo, Open MPI, and loops that only move the
bytes; between two emulated hosts with two NICs each, beside plain TCP streams and kernel MPTCP; the gaps of a ticker on
a server's loop; the rate of many small operations; the price of checksums, ledger and acknowledgements.
All sides of a part take turns. Every side's results are checked. About half an hour; with --quick three minutes.

PARTS are names, with commas between: {", ".join(parts.PARTS)}. Default: all. {" and ".join(parts.IN_A_LAB)} make
emulated hosts, which needs Linux and root, or a kernel that lets users make namespaces.

With --keep FILE, what was measured is kept there after every part, and a run goes on with the parts that are missing.
A peer that is not there is left out. Ends with 1 if an element was wrong or a rank of r2ccl failed.

Examples:

* `r2ccl performance --quick --torch-python /path/to/python/with/torch`

* `r2ccl performance lab,price --json | jq '.goals[] | select(.reached | not)'`

* `r2ccl performance --write docs/performance-figures.md --plots docs/images`
"""


class Run:
    """Plays parts and keeps what they give."""

    def __init__(self, scale: Scale, pythons: Pythons, results: Results, console: Console, keep: Path | None) -> None:
        self._scale = scale
        self._pythons = pythons
        self._results = results
        self._console = console
        self._keep = keep
        self._inherited = environment()

    def play(self, keys: Sequence[str]) -> None:
        """Those that are missing. Raises :class:`RankFailed`, :class:`UsageError`."""
        missing = [key for key in keys if key not in self._results.parts]
        with Meter(self._console, sum(map(self._estimate_s, missing))) as meter:
            done_s = 0.0
            for key in missing:
                self._part(key, meter, done_s)
                done_s += self._estimate_s(key)

    def _part(self, key: str, meter: Meter, done_s: float) -> None:
        if key in parts.IN_A_LAB and (reason := performance_lab.why_not()):
            self._results.left_out[key] = reason
            return
        course, load = parts.course(key, self._scale), Load.now()
        meter.tell(f"{key}: starting", done_s)
        left_out = self._results.left_out
        with (
            tempfile.TemporaryDirectory(prefix="r2ccl-") as directory,
            self._sides(key, course.ranks) as starts,
            started(starts, course, Path(directory), left_out) as sides,
        ):
            contest = Contest(course, sides, left_out, lambda what, part_s: meter.tell(what, done_s + part_s))
            self._results.parts[key] = contest.play()
        self._note(load)

    @contextlib.contextmanager
    def _sides(self, key: str, ranks: int) -> Iterator[Sequence[SideStart]]:
        if key not in parts.IN_A_LAB:
            yield parts.loopback_sides(key, ranks, self._pythons, self._inherited)
            return
        with performance_lab.lab(self._inherited) as place:
            yield performance_lab.sides(key, place, self._pythons)

    def _note(self, before: Load) -> None:
        """How long it took, and who else was there."""
        after = Load.now()
        seconds = after.now_s - before.now_s
        self._results.seconds += seconds
        self._results.others_s += seconds * (cores_used_by_others(before, after) or 0.0)
        if self._keep is not None:
            self._keep.write_text(json.dumps(self._results.as_json()))

    def _estimate_s(self, key: str) -> float:
        lab_s = _LAB_S if key in parts.IN_A_LAB else 0.0
        return lab_s + parts.course(key, self._scale).estimate_s(_SIDES)

    def total_s(self, keys: Sequence[str]) -> float:
        """Of all that is missing, about."""
        return sum(self._estimate_s(key) for key in keys if key not in self._results.parts)


def facts() -> dict[str, Any]:
    """Of the machine; no name of a host or user."""
    congestion_control = _CONGESTION_CONTROL.read_text().strip() if _CONGESTION_CONTROL.exists() else "unknown"
    return machine() | {
        "congestion_control": congestion_control,
        "processor": processor(_CPUINFO.read_text() if _CPUINFO.exists() else ""),
    }


def processor(cpuinfo: str) -> str:
    """From the text of /proc/cpuinfo."""
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return models[0] if models else "unknown processor"


def _results(keep: Path | None, quick: bool) -> Results:
    """What is kept, or none yet. Raises :class:`UsageError`."""
    scale = "quick" if quick else "whole"
    if keep is None or not keep.exists():
        return Results(facts=facts() | {"scale": scale})
    kept = Results.parse(json.loads(keep.read_text()))
    if kept.facts["scale"] != scale:
        raise UsageError(f"{keep} is of a {kept.facts['scale']} run, and this is a {scale} one: take another file")
    return kept


def _write(results: Results, write: Path | None, plots: Path | None) -> str:
    pictures: dict[str, str] = {}
    if plots is not None and performance_plot.is_possible():
        for key in (key for key in performance_plot.DRAWN if key in results.parts):
            file = plots / performance_plot.file_name(key)
            performance_plot.plot(file, results.parts[key], performance_page.NAMES)
            pictures[key] = file.name if write is None else os.path.relpath(file, write.parent)
    page = performance_page.page(results, _command(sys.argv[1:]), pictures)
    if write is not None:
        write.write_text(page)
    return page


#: Options whose value is where something lies on this machine, and what is said instead; None: nothing is.
_PLACES: Final[Mapping[str, str | None]] = {
    "--torch-python": "/path/to/python/with/torch", "--mpi-python": "/path/to/python/with/mpi4py", "--keep": None,
}  # fmt: skip


def _command(typed: Sequence[str]) -> str:
    """As it was typed, without where things lie on this machine."""
    said: list[str] = []
    arguments = iter(typed if typed[:1] == ["performance"] else ["performance"])
    for argument in arguments:
        if argument in _PLACES:
            next(arguments, None)
            instead = _PLACES[argument]
            said += [] if instead is None else [argument, instead]
        else:
            said.append(argument)
    return shlex.join(["r2ccl", *said])


def _check_places(write: Path | None, plots: Path | None, keep: Path | None) -> None:
    for file in (write, keep):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"there is no directory {file.parent} for {file.name}")
    if plots is not None and not plots.is_dir():
        raise UsageError(f"there is no directory {plots} for pictures")


def performance_command(
    named: Annotated[list[str] | None, typer.Argument(metavar="[PARTS]", help="Which; default: all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds: three minutes.")] = False,
    torch_python: Annotated[str | None, typer.Option(help="An interpreter with torch, for gloo.")] = None,
    mpi_python: Annotated[str | None, typer.Option(help="One with mpi4py, mpirun beside it; default: this.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the page here; default: standard output.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Pictures, into this directory; needs matplotlib.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep results here after each part, and go on from them.")] = None,
    as_object: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the page.")] = False,
) -> None:
    """See PERFORMANCE_HELP."""
    console = Console(stderr=True, highlight=False)
    keys = parts.split_keys(named or ())
    _check_places(write, plots, keep)
    results = _results(keep, quick)
    run = Run(
        QUICK if quick else WHOLE, Pythons(torch_python or sys.executable, mpi_python or sys.executable), results,
        console, keep,
    )  # fmt: skip
    console.print(f"about {run.total_s(keys) / 60:.0f} minutes", soft_wrap=True)
    try:
        run.play(keys)
    except RankFailed as failed:
        console.print(f"r2ccl performance: {failed}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    page = _write(results, write, plots)
    if as_object:
        print(json.dumps(performance_page.as_json(results)))
    elif write is None:
        print(page, end="")
    for what, why in sorted(results.left_out.items()):
        console.print(f"left out: {what}: {why}", markup=False, soft_wrap=True)
    console.print(f"{results.wrong} wrong elements", soft_wrap=True)
    if results.wrong:
        raise typer.Exit(1)
