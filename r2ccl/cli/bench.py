"""``r2ccl bench``: how fast the collectives are here, with every element checked, and beside other libraries.

This file is the conductor: it starts the ranks of r2ccl and of the peer, gives them their turns, and prints. Two
measurements an hour apart differ more than two libraries do, so all ranks of both are started once, and at each size
one library works while the ranks of the other are parked; then they swap, and who goes first alternates.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import typer

from r2ccl._version import __version__
from r2ccl.cli import bench_flags as flags
from r2ccl.cli import bench_report
from r2ccl.cli.bench_collectives import COLLECTIVES, Form
from r2ccl.cli.bench_machine import Load, cores_used_by_others, machine
from r2ccl.cli.bench_options import FILLING_MAX, FILLING_MIN, Asked, Options, check
from r2ccl.cli.bench_report import Row, Traffic, TurnResult
from r2ccl.cli.bench_teams import RankFailed, Team, peer_programs, r2ccl_programs
from r2ccl.cli.bench_turns import Turn
from r2ccl.cli.launcher import new_job
from r2ccl.config import environment

#: A shell's exit codes for what Ctrl-C and SIGTERM ended.
_INTERRUPTED, _TERMINATED = 130, 143
#: Leaves room for as many checks in a turn, each with data of its own.
_SEED_STEP = 1000

BENCH_HELP = f"""Time a collective on this machine, over loopback, and check every element of its results.

COLLECTIVE is one of {", ".join(COLLECTIVES)}. Flags and table are those of nccl-tests, but -n is the number of ranks;
columns of a form that r2ccl does not have say N/A. An iteration takes as long as its slowest rank; the time is the
median of the iterations, and the bandwidths are in GB/s of 10^9 bytes. Ends with 1 if an element is wrong.

With --peer another library's ranks take turns with r2ccl's on the same cores, for several rounds; the table then shows
medians and, from least to most, the rounds. Below 1, the last column says that r2ccl took less time.

Examples:

* `r2ccl bench all_reduce -n 2 -b 4 -e 128M -f 4`

* `r2ccl bench all_gather -n 4 --nics-per-rank 2 -b 1M -e 16M -i 1M -d bfloat16`

* `r2ccl bench all_reduce --peer gloo --torch-python /path/to/python/with/torch`

* `r2ccl bench all_to_all --peer openmpi --json | jq '.rows[] | [.size, .time_us, .peer.time_us]'`
"""


class Progress:
    """One line on a terminal's standard error that is written over; nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_shown = False
        self._is_terminal = stream.isatty()

    def say(self, text: str) -> None:
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Before anything else is printed."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False


class Bench:
    """All turns of one benchmark."""

    def __init__(self, options: Options, ours: Team, peer: Team | None, progress: Progress) -> None:
        self._options = options
        self._ours = ours
        self._peer = peer
        self._progress = progress

    def rows(self) -> Iterator[Row]:
        """One size after the other. Raises :class:`RankFailed`, :class:`UsageError`."""
        for index, count in enumerate(self._options.counts):
            yield self._row(count, index)

    def _row(self, count: int, index: int) -> Row:
        options = self._options
        first, *others = options.collective.forms
        iterations = self._iterations(first, count)
        ours: dict[Form, list[TurnResult]] = {form: [] for form in options.collective.forms}
        theirs: list[TurnResult] = []
        for number in range(options.rounds):
            self._progress.say(f"{options.size_of(count):,} bytes, round {number + 1} of {options.rounds}")
            seed = (index * options.rounds + number) * _SEED_STEP
            turn = self._turn(first, count, iterations, seed)
            for team in self._in_order(number):
                (ours[first] if team is self._ours else theirs).append(self._play(team, turn))
            for form in others:
                ours[form].append(self._play(self._ours, self._turn(form, count, iterations, seed)))
        return Row(
            options.size_of(count),
            count,
            iterations,
            {form: bench_report.timing(turns, options.checks) for form, turns in ours.items()},
            bench_report.timing(theirs, options.checks) if theirs else None,
            bench_report.ratio(ours[first], theirs) if theirs else None,
        )

    def _in_order(self, number: int) -> list[Team]:
        """Who plays when; it alternates who goes first."""
        if self._peer is None:
            return [self._ours]
        return [self._ours, self._peer] if number % 2 == 0 else [self._peer, self._ours]

    def _iterations(self, form: Form, count: int) -> int:
        """As asked, or as many as fill the time for the slower library at its best of three."""
        options = self._options
        if options.seconds is None:
            return options.iterations
        trial = self._turn(form, count, FILLING_MIN, 0, checks=0)
        slowest_s = max(min(self._play(team, trial).time_s for _ in range(3)) for team in self._in_order(0))
        return max(FILLING_MIN, min(FILLING_MAX, int(options.seconds / slowest_s)))

    def _turn(self, form: Form, count: int, iterations: int, seed: int, checks: int | None = None) -> Turn:
        options = self._options
        return Turn(
            options.collective.name, form, count, options.dtype, options.op, max(0, options.root), options.warmup,
            iterations, options.checks if checks is None else checks, seed,
        )  # fmt: skip

    def _play(self, team: Team, turn: Turn) -> TurnResult:
        if team is self._ours and self._options.damage:
            turn = turn.damaged(self._options.damage)
        return bench_report.turn_result(team.play(turn), not self._options.collective.has_data, turn.checks)


def head(options: Options, ours: Team, peer: Team | None) -> list[str]:
    """What is said before the table: what runs where, by which versions."""
    about = machine()
    sizes = [options.size_of(count) for count in options.counts]
    how_many = f"{options.seconds:g} s of iterations" if options.seconds else f"iters: {options.iterations}"
    lines = [
        f"# r2ccl {__version__} bench {options.collective.name}: {options.ranks} ranks, "
        f"{options.nics_per_rank} NICs per rank, loopback TCP",
        f"# minBytes {sizes[0]} maxBytes {sizes[-1]} step: {options.step} warmup iters: {options.warmup} {how_many} "
        f"rounds: {options.rounds} validation: {options.checks}",
        f"# python {about['python']}, numpy {about['numpy']}, uvloop {about['uvloop']}, {about['system']} "
        f"{about['release']} {about['architecture']}, {about['cores']} cores",
        "#",
        "# Using devices",
    ]
    lines += [f"#  Rank {hello.rank:>3} Pid {hello.pid:>7} NICs {hello.about}" for hello in ours.hellos]
    if peer is not None:
        lines += ["#", f"# Peer {peer.name}: {peer.hellos[0].about}, {_how_a_peer_goes(peer.name)}"]
    return [*lines, "#", *bench_report.heading(options)]


def _how_a_peer_goes(name: str) -> str:
    return {
        "gloo": "over loopback TCP",
        "openmpi": "over loopback TCP (pml ob1, btl self,tcp)",
        "mptcp": "the kernel's MPTCP over loopback, a ring in numpy",
    }[name]


@contextlib.contextmanager
def teams(options: Options) -> Iterator[tuple[Team, Team | None]]:
    """r2ccl's ranks and the peer's, ready for turns of any collective. As :func:`perform`, raises."""
    with contextlib.ExitStack() as ending:
        directory = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="r2ccl-bench-")))
        ours = ending.enter_context(Team("r2ccl", options.ranks, directory, options.timeout_s))
        command = [sys.executable, "-m", "r2ccl.cli.bench_rank", str(ours.control)]
        job = new_job(command, options.ranks, options.nics_per_rank)
        inherited = environment()
        peer = None
        if options.peer is not None:
            peer = ending.enter_context(Team(options.peer, options.ranks, directory, options.timeout_s))
            python = options.peer_python or sys.executable
            programs = peer_programs(options.peer, python, options.ranks, peer.control, inherited)
            peer.start(programs)
        ours.start(r2ccl_programs(job, inherited))
        for team in (ours, peer):
            if team is not None:
                team.meet()
        yield ours, peer


def perform(options: Options, out: TextIO, progress: Progress) -> tuple[list[Row], Traffic, dict[str, Any]]:
    """The benchmark from begin to end; prints as it goes. Raises :class:`RankFailed`, :class:`UsageError`."""
    load = Load.now()
    progress.say("starting the ranks")
    with teams(options) as (ours, peer):
        rows, traffic = _measure(options, ours, peer, out, progress)
    load_after = Load.now()
    others = cores_used_by_others(load, load_after)
    if others is not None:
        print(f"# Used by other processes meanwhile : {others:.2f} cores", file=out)
    return rows, traffic, machine() | {"cores_used_by_others": None if others is None else round(others, 3)}


def _measure(
    options: Options, ours: Team, peer: Team | None, out: TextIO, progress: Progress
) -> tuple[list[Row], Traffic]:
    progress.clear()
    _print(head(options, ours, peer), out)
    before = ours.stats()
    rows = []
    for row in Bench(options, ours, peer, progress).rows():
        rows.append(row)
        progress.clear()
        _print([bench_report.line(options, row)], out)
    traffic = Traffic.between(before, ours.stats())
    _print(bench_report.closing(options, rows, traffic), out)
    return rows, traffic


def _print(lines: Sequence[str], out: TextIO) -> None:
    print("\n".join(lines), file=out, flush=True)


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """So that ranks are ended then, too."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def bench_command(
    collective: flags.Collective,
    ranks: flags.Ranks = 2,
    minbytes: flags.Minbytes = "4",
    maxbytes: flags.Maxbytes = "128M",
    stepfactor: flags.Stepfactor = None,
    stepbytes: flags.Stepbytes = None,
    iterations: flags.Iterations = 20,
    seconds: flags.Seconds = None,
    warmup: flags.Warmup = 5,
    dtype: flags.Dtype = "float32",
    op: flags.Op = "sum",
    root: flags.Root = 0,
    checks: flags.Checks = 1,
    nics_per_rank: flags.NicsPerRank = 1,
    peer: flags.Peer = None,
    peer_python: flags.PeerPython = None,
    rounds: flags.Rounds = None,
    timeout_s: flags.TimeoutS = 300.0,
    as_json: flags.AsJson = False,
    damage: flags.Damage = 0,
) -> None:
    """See BENCH_HELP."""
    asked = Asked(
        collective, ranks, minbytes, maxbytes, stepfactor, stepbytes, iterations, seconds, warmup, dtype, op, root,
        checks, nics_per_rank, peer, peer_python, rounds, timeout_s, damage,
    )  # fmt: skip
    options = check(asked)
    progress = Progress(sys.stderr)
    try:
        with _ending_on_sigterm():
            rows, traffic, where = perform(options, sys.stderr if as_json else sys.stdout, progress)
    except RankFailed as failed:
        progress.clear()
        print(f"r2ccl bench: {failed}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        progress.clear()
        print("r2ccl bench: interrupted", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read the table is gone, as with `head`; nothing is left to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(bench_report.as_json(options, rows, traffic, where)))
    if bench_report.wrong_total(rows) or bench_report.peer_wrong_total(rows):
        raise typer.Exit(1)
