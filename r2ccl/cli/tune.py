"""``r2ccl tune``: measures what a message costs here, and writes it where every job of this user finds it.

In a job (``r2ccl run``, torchrun, srun...) its ranks measure; else this process starts some on this machine. This file
parses, calls and prints; what is measured is in tune_measure, by whom in tune_job, what is told in tune_report.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from r2ccl._version import __version__
from r2ccl.cli.tune_job import Outcome, Watcher, measure, own_placement, started_ranks
from r2ccl.cli.tune_report import as_object, lines, merged
from r2ccl.config import environment, read_settings
from r2ccl.errors import ConfigurationError, UsageError
from r2ccl.rendezvous.launch import Placement
from r2ccl.tuning import OFF, Tuning, default_path, read_tuning, write_tuning

TUNE_HELP = """Measure what a message costs here, so that the planner goes by this machine's figures.

In a job, started by `r2ccl run`, torchrun, srun and the like, its ranks measure: the network between nodes, shared
memory and loopback within rank 0's. Else some ranks are started on this machine. All-reduces by two algorithms and
broadcasts in chunks, from 4 bytes to 4 MiB, are timed in turns for some seconds, and a robust regression gives alpha (a
message), beta (a byte) and what one more message costs; reduction and memory are timed on rank 0. Do it while the
machine is idle.

The figures are written to the file that `R2CCL_TUNING` names, else to `$XDG_CACHE_HOME/r2ccl/tuning.json`
(`~/.cache/...`), where `connect` finds them. Those of wires that were not measured this time stay. In a job all ranks
go by the figures that rank 0 finds; `R2CCL_TUNING=off` goes by none.

Ends with 0; 1 if it could not be measured; 2 for what it was asked wrongly.

Examples:

* `r2ccl tune`

* `r2ccl tune -n 4 --dry-run` (measure and print, write nothing)

* `srun -N 2 --ntasks-per-node 2 r2ccl tune --output shared/tuning.json`, then `R2CCL_TUNING=shared/tuning.json`

* `r2ccl tune --json | jq .switches.loopback`
"""

#: Of the ranks that are started here, more than processes that a person wants for a measurement.
RANKS_MAX = 64
TURNS_MAX = 1000


class _Bar(Watcher):
    """One bar on a terminal's standard error; nothing elsewhere."""

    def __init__(self, console: Console, turns: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._turns = turns
        self._task: Any = None

    def begin(self, wire: str, ranks: int) -> None:
        self._task = self.progress.add_task(f"{wire.replace('_', ' ')}, {ranks} ranks", total=self._turns)

    def turn(self) -> None:
        self.progress.advance(self._task)


def tune_command(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, max=RANKS_MAX, help="Ranks to start here.")] = 2,
    turns: Annotated[int, typer.Option("--turns", min=1, max=TURNS_MAX, help="Each is measured so often.")] = 15,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write this file instead.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """See TUNE_HELP."""
    environ = environment()
    placement = own_placement(environ)
    path = None if dry_run else target(output, environ)
    before = None if path is None else figures_before(path)
    # In a job all ranks measure, and one of them speaks.
    speaks = placement is None or placement.rank == 0
    console = Console(stderr=True, highlight=False)
    try:
        outcome = run(placement, ranks, turns, _Bar(console, turns) if speaks else None, environ)
    except ValueError as senseless:
        print(f"r2ccl tune: {senseless}; measure again when the machine is idle", file=sys.stderr)
        raise typer.Exit(1) from None
    if not speaks:
        return
    tuning = merged(outcome, before)
    if path is not None:
        write(path, tuning, measured_words(outcome))
    if as_json:
        print(json.dumps(as_object(outcome, tuning, path), indent=2))
        return
    print("\n".join(lines(outcome, tuning)))
    print(f"\nwritten to {path}; jobs whose rank 0 finds it go by it" if path else "\nnothing was written (--dry-run)")


def target(output: Path | None, environ: Mapping[str, str]) -> Path:
    """Where the figures go. Raises :class:`UsageError` before anything is measured in vain."""
    named = read_settings(environ).settings.tuning
    path = output or (Path(named) if named and named != OFF else default_path(environ))
    if path is None:
        raise UsageError("this user has no home to keep the figures in: name a file with --output")
    if path.is_dir():
        raise UsageError(f"{path} is a directory: name a file with --output")
    return path


def figures_before(path: Path) -> Tuning | None:
    """Of wires that are not measured this time. A file that cannot be right is replaced as a whole."""
    try:
        return read_tuning(path).tuning if path.exists() else None
    except ConfigurationError:
        return None


def run(placement: Placement | None, ranks: int, turns: int, bar: _Bar | None, environ: Mapping[str, str]) -> Outcome:
    """All measurements, on a loop of their own."""
    import uvloop  # every rank has it; a command line that does something else need not wait for it

    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if placement is None:
            placement, settings = stack.enter_context(started_ranks(ranks, turns, environ))
        if bar is not None:
            stack.enter_context(bar.progress)
        return uvloop.run(measure(placement, settings, turns, bar or Watcher()))


def measured_words(outcome: Outcome) -> str:
    """Where and on what, for who finds the file."""
    wires = ", ".join(f"{wire} by {len(each.samples)} samples" for wire, each in outcome.wires.items())
    nodes = f"{outcome.nodes} nodes" if outcome.nodes > 1 else "one node"
    today = datetime.now(UTC).date().isoformat()
    return f"{today} on {platform.node()}: {outcome.ranks} ranks on {nodes}, {wires}, r2ccl {__version__}"


def write(path: Path, tuning: Tuning, measured: str) -> None:
    """Raises :class:`UsageError`."""
    try:
        write_tuning(path, tuning, measured)
    except OSError as refused:
        raise UsageError(f"{path} cannot be written: {refused.strerror}: name a file with --output") from refused
