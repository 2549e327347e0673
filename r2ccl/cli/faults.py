"""``r2ccl faults``: every kind of fault on emulated hosts, with MPTCP and gloo beside, and the page that tells of it.

This file is the conductor: it reads what is wanted, opens the lab, shows how far it is, and writes the results.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from r2ccl.cli import faults_options as work
from r2ccl.cli import faults_page, faults_plot
from r2ccl.cli.bench_machine import Load, cores_used_by_others, machine
from r2ccl.cli.demo import why_not_namespaces
from r2ccl.cli.demo_ranks import RankFailed
from r2ccl.cli.faults_figures import Figures, trials_of
from r2ccl.cli.faults_kinds import FAULTS
from r2ccl.cli.faults_options import GLOO, MPTCP, Options
from r2ccl.cli.faults_run import Results, Run, prepare_peers
from r2ccl.errors import UsageError

_CONGESTION_CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
#: Of failed ranks' last words, on the screen; all are in what --keep keeps.
_DETAILS_MAX: Final = 5

FAULTS_HELP = f"""Make every kind of fault on emulated hosts and see what r2ccl does about it, every element checked.

Each fault is made many times under a stream of all-reduces: how it was found, how soon, when it was repaired, and what
was left of the throughput, compared with plain TCP streams under the same fault. Kernel MPTCP and gloo are measured
beside it. At the end NICs are cut at random, {work.RANDOM_CUTS_PER_TRIAL} times for each of --cuts.
Linux only; needs root (or a kernel that lets users make namespaces) and nftables.

FAULTS are names, with commas between: {", ".join(FAULTS)}. Default: all.

With --keep FILE, what was measured is kept there after every step, and a run that was interrupted goes on where it was.
Ends with 1 if an element was wrong or a rank failed.

Examples:

* `r2ccl faults --write docs/faults.md --torch-python /path/to/python/with/torch`

* `r2ccl faults link-down,silent-drop --cuts 3 --no-peers`

* `r2ccl faults --cuts 1 --random-cuts 10000 --keep faults.json --json | jq .random`
"""


class Meter:
    """One bar on standard error; where that is no terminal, a line now and then."""

    def __init__(self, console: Console, total_s: float) -> None:
        self._console = console
        self._total_s = total_s
        self._said = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total_s)

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self, what: str, done_s: float) -> None:
        """What runs, and how far it is by the estimate."""
        self._bar.update(self._task, description=what, completed=min(done_s, self._total_s))
        topic = what if what.endswith(" wrong") else what.rpartition(":")[0]
        if not self._console.is_terminal and topic != self._said:
            self._said = topic
            self._console.print(f"{100 * done_s / max(self._total_s, 1.0):3.0f} %  {what}", soft_wrap=True)


def perform(options: Options, console: Console, keep: Path | None) -> tuple[Results, dict[str, Any]]:
    """All that is not done yet. Raises :class:`UsageError`, :class:`RankFailed`."""
    from r2ccl.lab import Lab  # not at the top: only Linux has it

    results = Results.open(options, keep)
    load = Load.now()
    with Lab(hosts=options.hosts, nics=options.nics, rate_mbit_s=options.rate_mbit_s, name="faults") as lab:
        prepare_peers(lab, options, results)
        with Meter(console, work.total_s(options)) as meter:
            run = Run(options, results, lab, meter.tell)
            run.table()
            run.random_cuts()
    load_after = Load.now()
    seconds = load_after.now_s - load.now_s
    results.seconds += seconds
    results.others_s += seconds * (cores_used_by_others(load, load_after) or 0.0)
    results.keep()
    facts = machine() | {
        "congestion_control": _CONGESTION_CONTROL.read_text().strip(),
        "cores_used_by_others": round(results.others_s / results.seconds, 2),
    }
    return results, facts


def as_json(results: Results, facts: dict[str, Any]) -> dict[str, Any]:
    """Medians and all trials."""
    figures = {name: Figures.of(trials_of(kept)) for name, kept in results.trials.items()}
    return {
        "options": dict(results.options),
        "machine": facts,
        "figures": {name: asdict(one) for name, one in figures.items()},
        "trials": results.trials,
        "random": results.random.as_json(),
        "left_out": results.left_out,
        "wrong_elements": faults_page.wrong_elements(results),
        "errors": faults_page.errors(results),
    }


def _write(options: Options, results: Results, facts: dict[str, Any], write: Path | None, plot: Path | None) -> str:
    picture = None
    if plot is not None and faults_plot.is_possible():
        faults_plot.plot(plot, results)
        picture = plot.name if write is None else os.path.relpath(plot, write.parent)
    page = faults_page.page(options, results, facts, _command(), picture)
    if write is not None:
        write.write_text(page)
    return page


def _command() -> str:
    """As it was typed, without where things lie on this machine."""
    arguments = list(sys.argv[1:])
    if "--torch-python" in arguments[:-1]:
        arguments[arguments.index("--torch-python") + 1] = "/path/to/python/with/torch"
    if "--keep" in arguments[:-1]:
        at = arguments.index("--keep")
        del arguments[at : at + 2]
    return shlex.join(["r2ccl", *arguments]) if arguments[:1] == ["faults"] else "r2ccl faults"


def faults_command(
    faults: Annotated[list[str] | None, typer.Argument(metavar="[FAULTS]", help="Which; default: all.")] = None,
    cuts: Annotated[int, typer.Option(min=1, help="How often link down and silence are made; others less often.")] = 20,
    random_cuts: Annotated[
        int | None, typer.Option(min=0, help=f"Default: {work.RANDOM_CUTS_PER_TRIAL} for each of --cuts.")
    ] = None,
    hosts: Annotated[int, typer.Option(help="Emulated hosts, one rank each.")] = 3,
    nics: Annotated[int, typer.Option(help="NICs per host.")] = 2,
    rate: Annotated[float, typer.Option(help="Rate of each NIC in Mbit/s, each way.")] = 500.0,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Measure MPTCP and gloo beside it.")] = True,
    torch_python: Annotated[str | None, typer.Option(help="An interpreter with torch, for gloo.")] = None,
    gloo_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that gloo is told to wait.")] = 10.0,
    write: Annotated[Path | None, typer.Option(help="Write the page here; default: standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="And a picture, where there is matplotlib.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep results here after each step, and go on from them.")] = None,
    as_object: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the page.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="For the random cuts and the data.")] = None,
) -> None:
    """See FAULTS_HELP."""
    console = Console(stderr=True, highlight=False)
    drawn = seed if seed is not None else secrets.randbelow(1 << 32)
    randoms = cuts * work.RANDOM_CUTS_PER_TRIAL if random_cuts is None else random_cuts
    options = work.checked(
        Options(
            cuts, randoms, hosts, nics, rate, work.split_keys(faults or ()), (MPTCP, GLOO) if peers else (),
            torch_python, gloo_timeout, drawn,
        )
    )  # fmt: skip
    for file in (write, plot, keep):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"there is no directory {file.parent} for {file.name}")
    if reason := why_not_namespaces():
        raise UsageError(f"no emulated hosts can be made here: {reason}")
    console.print(f"about {work.total_s(options) / 60:.0f} minutes; seed {drawn}", soft_wrap=True)
    try:
        results, facts = perform(options, console, keep)
    except RankFailed as failed:
        console.print(f"r2ccl faults: {failed}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    page = _write(options, results, facts, write, plot)
    if as_object:
        print(json.dumps(as_json(results, facts)))
    elif write is None:
        print(page, end="")
    for detail in faults_page.details(results)[:_DETAILS_MAX]:
        console.print(detail, style="dim", markup=False, soft_wrap=True)
    wrong, errors = faults_page.wrong_elements(results), faults_page.errors(results)
    console.print(f"{results.random.cuts:,} random cuts, {wrong} wrong elements, {len(errors)} errors", soft_wrap=True)
    if wrong or errors:
        raise typer.Exit(1)
