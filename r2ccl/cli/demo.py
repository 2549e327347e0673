"""``r2ccl demo``: ranks on emulated hosts add up tensors without pause while NICs are cut and given back.

This file is the conductor: it opens the stage, starts the ranks, makes the cuts on time, and hands what the ranks told
to the report, the screen and the plot.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from r2ccl.cli import demo_plot, demo_report, demo_stage
from r2ccl.cli.demo_faults import Fault
from r2ccl.cli.demo_ranks import RankFailed, Ranks, demo_program, tails
from r2ccl.cli.demo_report import Cut, PlannedCut, Summary
from r2ccl.cli.demo_screen import Screen
from r2ccl.cli.demo_stage import Stage
from r2ccl.clock import MonotonicClock
from r2ccl.errors import UsageError

#: float32. One operation takes some 25 ms, 2 MiB on two NICs of 500 Mbit/s, so a cut is always in the middle of some.
#: In a ring with one slow rank its neighbours wait for a segment now and then, so smaller operations stall less.
ELEMENT_BYTES = 4
ELEMENTS_PER_MBIT_S = 1 << 9
ELEMENTS_MIN, ELEMENTS_MAX = 1 << 16, 1 << 23
SECONDS_PER_CUT = 4.0
SECONDS_AT_THE_END = 2.0
START_TIMEOUT_S = 60.0
#: No operation completed for so long, with a path left for every rank: that is a failure, not a gap.
STANDSTILL_S = 15.0
DRAW_S = 0.1
#: Slower, heartbeats come too late to tell a NIC that is there from one that is lost; faster, no host keeps up.
RATE_MBIT_S_MIN, RATE_MBIT_S_MAX = 1.0, 30_000.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What was asked for."""

    ranks: int
    #: All of them, spares included.
    nics: int
    spares: int
    rate_mbit_s: float
    cuts: int
    seconds: float
    fault: Fault
    seed: int

    @property
    def carrying(self) -> int:
        """NICs per rank that carry from the start; these are cut."""
        return self.nics - self.spares

    @property
    def elements(self) -> int:
        """Of each all-reduce: more for faster NICs."""
        wanted = int(self.carrying * self.rate_mbit_s) * ELEMENTS_PER_MBIT_S
        return max(ELEMENTS_MIN, min(wanted, ELEMENTS_MAX))


class Demo:
    """One run on an open stage."""

    def __init__(self, options: DemoOptions, stage: Stage, screen: Screen) -> None:
        self.options = options
        self.cuts: list[Cut] = []
        self._stage = stage
        self._screen = screen
        self._next_draw_s = 0.0
        self._progress = (0, 0.0)

    def run(self, ranks: Ranks) -> tuple[float, float]:
        """Cuts included, to the end of the stream; returns when it began and ended. Raises :class:`RankFailed`."""
        self._wait_for_start(ranks)
        begin_s = MonotonicClock.now()
        self._screen.begin(begin_s)
        mib = self.options.elements * ELEMENT_BYTES / (1 << 20)
        self._screen.say(begin_s, f"{len(ranks.all)} ranks are connected, all-reduces of {mib:g} MiB are running")
        options = self.options
        rng = random.Random(options.seed)
        for planned in demo_report.plan_cuts(rng, options.cuts, options.seconds, options.ranks, options.carrying):
            self._cut_and_restore(ranks, begin_s, planned)
        self._stream_until(ranks, begin_s + options.seconds)
        end_s = MonotonicClock.now()
        ranks.stop()
        self._next_draw_s = 0.0
        self._draw(ranks)
        return begin_s, end_s

    def _wait_for_start(self, ranks: Ranks) -> None:
        deadline = MonotonicClock.now() + START_TIMEOUT_S
        while not all(rank.is_ready for rank in ranks.all):
            ranks.wait(DRAW_S)
            self._draw(ranks)
            if MonotonicClock.now() > deadline:
                late = next(rank for rank in ranks.all if not rank.is_ready)
                raise RankFailed(f"rank {late.number} did not start within {START_TIMEOUT_S:g} s{tails(ranks.all)}")

    def _cut_and_restore(self, ranks: Ranks, begin_s: float, planned: PlannedCut) -> None:
        rank, nic = planned.rank, planned.nic
        self._stream_until(ranks, begin_s + planned.cut_s)
        cut_s = self._stage.cut(rank, nic)
        self._screen.cut.add((rank, nic))
        self._screen.say(cut_s, f"CUT: rank {rank} loses NIC {nic} ({self.options.fault})", "bold red")
        self._stream_until(ranks, begin_s + planned.restore_s)
        restored_s = self._stage.restore(rank, nic)
        self._screen.cut.discard((rank, nic))
        self.cuts.append(Cut(rank, nic, cut_s, restored_s))
        gap_ms = demo_report.failover_gaps_ms(ranks.records, self.cuts[-1:], restored_s)[0]
        self._screen.say(restored_s, f"recovered after {gap_ms:.1f} ms; rank {rank} gets NIC {nic} back", "bold green")

    def _stream_until(self, ranks: Ranks, until_s: float) -> None:
        while (now := MonotonicClock.now()) < until_s:
            ranks.wait(min(until_s - now, DRAW_S))
            self._draw(ranks)
            self._notice_standstill(ranks, now)

    def _notice_standstill(self, ranks: Ranks, now: float) -> None:
        operations, since_s = self._progress
        if ranks.operations != operations or since_s == 0.0:
            self._progress = (ranks.operations, now)
        elif now - since_s > STANDSTILL_S:
            raise RankFailed(f"no operation was completed for {STANDSTILL_S:g} s{tails(ranks.all)}")

    def _draw(self, ranks: Ranks) -> None:
        now = MonotonicClock.now()
        if now >= self._next_draw_s:
            self._next_draw_s = now + DRAW_S
            wrong = sum(record.wrong_elements for record in ranks.records)
            self._screen.draw(ranks.all, ranks.operations, wrong)


def choose_stage(options: DemoOptions, force_loopback: bool) -> tuple[AbstractContextManager[Stage], str]:
    """Where the demo runs, and the sentence that tells it and why."""
    shape = (options.ranks, options.nics, options.spares, options.rate_mbit_s)
    reason = "as you asked" if force_loopback else why_not_namespaces()
    what = f"{options.ranks} ranks with {options.nics} NICs of {options.rate_mbit_s:g} Mbit/s each"
    if reason:
        where = f"NICs are loopback addresses, cut by the faulty transport ({reason})"
        return demo_stage.loopback(*shape), f"{what}; {where}"
    where = f"real interfaces (veth) of emulated hosts, cut by {options.fault} at the far end"
    return demo_stage.namespaces(*shape, options.fault), f"{what}: {where}"


def why_not_namespaces() -> str:
    """Empty if a lab can be made here. Does not return where becoming root of a user namespace may help."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    from r2ccl.lab import can_create_namespaces
    from r2ccl.lab.superuser import exec_as_superuser, may_become_superuser

    possible, reason = can_create_namespaces()
    if not possible and may_become_superuser():
        exec_as_superuser([sys.executable, *sys.orig_argv[1:]])
    return reason


def perform(options: DemoOptions, force_loopback: bool, console: Console, plot_file: Path | None) -> Summary:
    """The demo from begin to end. Raises :class:`RankFailed`."""
    opening, title = choose_stage(options, force_loopback)
    with opening as stage, Screen(console, title, options.rate_mbit_s, options.nics, options.spares) as screen:
        program = demo_program(stage, options.seed, options.elements, options.fault)
        ranks = Ranks(stage, options.ranks, program)
        try:
            demo = Demo(options, stage, screen)
            run = demo.run(ranks)
        finally:
            ranks.close()
        if plot_file is not None:
            demo_plot.plot(plot_file, ranks.all, demo.cuts, run[0], options.nics, title)
        return demo_report.summarise(
            ranks.records,
            demo.cuts,
            run,
            nics_per_rank=options.nics,
            operation_bytes=options.elements * ELEMENT_BYTES,
            emulation=stage.emulation,
        )


def print_summary(console: Console, summary: Summary, elements: int) -> None:
    """What people want to know."""
    checked = summary.operations * summary.ranks * elements
    console.print(
        f"{summary.operations} all-reduces, {checked:,} elements checked, {summary.wrong_elements} wrong; "
        f"{summary.failovers} failovers, {summary.resent_bytes / 1e6:.1f} MB resent",
        soft_wrap=True,
    )
    if summary.failovers:
        gaps = ", ".join(f"{gap:.1f}" for gap in summary.failover_gaps_ms)
        console.print(f"gaps: {gaps} ms", soft_wrap=True)
        console.print(
            f"bus bandwidth: {summary.busbw_gbit_s_before:.2f} Gbit/s before, {summary.busbw_gbit_s_degraded:.2f} "
            f"with a NIC away, {summary.busbw_gbit_s_after:.2f} after its return",
            soft_wrap=True,
        )


def checked_options(options: DemoOptions) -> DemoOptions:
    """The same. Raises :class:`UsageError` if they cannot be met."""
    if options.ranks < 2:
        raise UsageError("a demo needs at least 2 ranks")
    if options.carrying < 1 or options.nics < 2:
        raise UsageError("a rank that loses its only NIC has nothing to fail over to: give it at least 2")
    if not RATE_MBIT_S_MIN <= options.rate_mbit_s <= RATE_MBIT_S_MAX:
        raise UsageError(f"a NIC's rate is from {RATE_MBIT_S_MIN:g} to {RATE_MBIT_S_MAX:g} Mbit/s")
    if options.seed < 0:
        raise UsageError("a seed is not negative")
    if not math.isfinite(options.seconds):
        raise UsageError("how long to run is a number of seconds")
    enough_s = options.cuts * demo_report.SLOT_S_MIN + demo_report.LAST_LOOK_S
    if options.seconds < enough_s:
        raise UsageError(
            f"{options.cuts} cuts need {enough_s:g} s: each with outage and return takes 2.5 s, the end 1.5 s"
        )
    return options


def demo_command(
    ranks: Annotated[int, typer.Option(help="Rank processes, each on a host of its own.")] = 4,
    nics: Annotated[int, typer.Option(help="NICs per rank that carry traffic.")] = 2,
    rate: Annotated[float, typer.Option(help="Rate of each NIC in Mbit/s, each way.")] = 500.0,
    cuts: Annotated[int, typer.Option(min=0, help="How many times to cut a NIC.")] = 3,
    seconds: Annotated[float | None, typer.Option(help="How long to run; default: 4 for each cut, and 2.")] = None,
    fault: Annotated[str, typer.Option(help="link-down (the NIC loses its carrier) or silent-drop.")] = "link-down",
    spare: Annotated[bool, typer.Option("--spare", help="One more NIC per rank stands by.")] = False,
    loopback: Annotated[bool, typer.Option("--loopback", help="Don't try to make emulated hosts.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw throughput per NIC over time into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last.")] = False,
    seed: Annotated[int | None, typer.Option(help="For which NICs are cut and when, and for the data.")] = None,
) -> None:
    """Watch all-reduces survive the loss of NICs, every element checked."""
    # With --json, standard output belongs to the object alone.
    console = Console(stderr=as_json, highlight=False)
    if fault not in ("link-down", "silent-drop"):
        raise typer.BadParameter("it is link-down or silent-drop", param_hint="--fault")
    total_s = seconds if seconds is not None else cuts * SECONDS_PER_CUT + SECONDS_AT_THE_END
    drawn = seed if seed is not None else secrets.randbelow(1 << 32)
    kind: Fault = "link-down" if fault == "link-down" else "silent-drop"
    options = DemoOptions(ranks, nics + int(spare), int(spare), rate, cuts, total_s, kind, drawn)
    try:
        checked_options(options)
        if plot is not None:
            demo_plot.require_matplotlib()
            if not plot.absolute().parent.is_dir():
                raise UsageError(f"there is no directory {plot.parent} for the plot")
        summary = perform(options, loopback, console, plot)
    except UsageError as wrong:
        console.print(f"r2ccl demo: {wrong}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except RankFailed as failed:
        console.print(f"r2ccl demo: {failed}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    print_summary(console, summary, options.elements)
    if seed is None:
        console.print(f"the same again: --seed {drawn}", style="dim")
    console.print(demo_report.closing_line(summary, options.cuts), markup=False, style="bold")
    if as_json:
        print(json.dumps(summary.as_json()), flush=True)
    if not demo_report.is_success(summary, options.cuts):
        raise typer.Exit(1)
