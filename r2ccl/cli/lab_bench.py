"""``r2ccl lab bench``: what r2ccl's all-reduce carries between the hosts of a lab, beside plain TCP streams.

The measure is what the network gives in the same minutes: a ring of plain streams, one on each rail, measured before
and after. A ring's bus bandwidth is what each host sends and receives meanwhile, so the two compare directly. They do
not run at once: each would take from the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from r2ccl.cli import bench_report
from r2ccl.cli.bench_options import Asked, Options, check
from r2ccl.cli.bench_report import Row, Traffic
from r2ccl.cli.demo_ranks import RankFailed, Ranks
from r2ccl.cli.demo_stage import Process, pipes, rank_program
from r2ccl.cli.faults_figures import received_gbit_s
from r2ccl.cli.faults_streams import StreamOptions
from r2ccl.clock import MonotonicClock
from r2ccl.config import environment
from r2ccl.errors import UsageError

if TYPE_CHECKING:
    from r2ccl.cli.lab_run import LabJob
    from r2ccl.lab.control import LabReport

BENCH_HELP = """Time r2ccl's all-reduce between the hosts of a lab, every element checked, beside plain TCP streams.

Streams go first and last: one for each NIC, from each host to the next, as fast as they can. `busbw` is what each host
sends and receives in an all-reduce; the last column is its share of what the streams carried, the mean of both.

Examples:

* `r2ccl lab bench`

* `r2ccl lab bench -b 1M -e 64M -f 8 --json`
"""
STREAMS_WARM_S = 0.5
STREAMS_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LabStarter:
    """Starts a program on each host; see :class:`~r2ccl.cli.demo_stage.Starter`."""

    job: LabJob

    def start(self, rank: int, argv: Sequence[str], descriptors: Sequence[int]) -> Process:
        from r2ccl.cli.lab_run import way_in

        host = self.job.entrance.report.hosts[rank]
        environ = self.job.environment(environment(), rank)
        return subprocess.Popen(way_in(host, argv), env=environ, **pipes(descriptors))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the all-reduces, as they were typed."""

    minbytes: str
    maxbytes: str
    stepfactor: float
    iterations: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All of it."""

    rows: list[Row]
    traffic: Traffic
    #: Gbit/s of whoever received least, before and after.
    streams_gbit_s: tuple[float, float]

    @property
    def mean_streams_gbit_s(self) -> float:
        return sum(self.streams_gbit_s) / len(self.streams_gbit_s)

    def busbw_gbit_s(self, options: Options, row: Row) -> float:
        time_s = bench_report.primary(row).time_s.median
        return bench_report.busbw_gb_s(options, row.size_bytes, time_s) * 8


def streams(job: LabJob, seconds: float) -> float:
    """What plain streams carry between all hosts, in Gbit/s. Raises :class:`RankFailed`."""
    hosts = job.entrance.report.hosts

    def program(rank: int, report_descriptor: int) -> list[str]:
        following = hosts[(rank + 1) % len(hosts)]
        rails = tuple((own.address, other.address) for own, other in zip(hosts[rank].nics, following.nics, strict=True))
        options = StreamOptions(report_descriptor, rails, False)
        return rank_program("r2ccl.cli.faults_streams", options.as_argument())

    ranks = Ranks(LabStarter(job), len(hosts), program)
    try:
        deadline_s = MonotonicClock.now() + STREAMS_START_TIMEOUT_S
        while not all(rank.is_ready for rank in ranks.all):
            if MonotonicClock.now() > deadline_s:
                raise RankFailed(f"not all streams started within {STREAMS_START_TIMEOUT_S:g} s")
            ranks.wait(0.1)
        begin_s = MonotonicClock.now() + STREAMS_WARM_S
        while (now := MonotonicClock.now()) < begin_s + seconds:
            ranks.wait(begin_s + seconds - now)
        ranks.stop()
        return received_gbit_s(ranks.records, (begin_s, begin_s + seconds))
    finally:
        ranks.close()


def all_reduces(job: LabJob, options: Options) -> tuple[list[Row], Traffic]:
    """r2ccl's turns. Raises :class:`RankFailed`."""
    from r2ccl.cli.bench import Bench, Progress
    from r2ccl.cli.bench_teams import Program, Team

    inherited = environment()
    with (
        tempfile.TemporaryDirectory(prefix="r2ccl-lab-") as directory,
        Team("r2ccl", options.ranks, Path(directory), options.timeout_s) as team,
    ):
        job = replace(job, command=(sys.executable, "-m", "r2ccl.cli.bench_rank", str(team.control)))
        team.start([Program(job.program(rank), job.environment(inherited, rank)) for rank in range(options.ranks)])
        team.meet()
        before = team.stats()
        progress = Progress(sys.stderr)
        rows = list(Bench(options, team, None, progress).rows())
        progress.clear()
        return rows, Traffic.between(before, team.stats())


def measure(lab: str, sizes: Sizes, seconds: float) -> tuple[Options, Measured]:
    """Streams, all-reduces, streams. Raises :class:`RankFailed`, :class:`UsageError`."""
    from r2ccl.cli.lab_run import entered, new_lab_job
    from r2ccl.lab import registry

    with registry.Line(lab) as line, entered(line, "r2ccl lab bench") as entrance:
        hosts = len(entrance.report.hosts)
        if hosts < 2:
            raise UsageError("between hosts there must be two at least: r2ccl lab up --hosts 2")
        refuse_dead_nics(entrance.report, lab)
        options = check(
            Asked(
                "all_reduce", hosts, sizes.minbytes, sizes.maxbytes, sizes.stepfactor, iterations=sizes.iterations,
                nics_per_rank=len(entrance.report.hosts[0].nics),
            )
        )  # fmt: skip
        job = new_lab_job(["true"], 1, entrance, lab)
        before = streams(job, seconds)
        rows, traffic = all_reduces(job, options)
        return options, Measured(rows, traffic, (before, streams(job, seconds)))


def refuse_dead_nics(report: LabReport, lab: str) -> None:
    """Plain streams need every NIC. Raises :class:`UsageError`."""
    for host in report.hosts:
        for nic in host.nics:
            if not nic.carrier or nic.state != "up":
                raise UsageError(
                    f"{host.name} {nic.name} is down, and plain streams, the measure here, need every NIC: "
                    f"r2ccl lab fault --name {lab} heal, or wait until the fault is over"
                )


def lines(options: Options, measured: Measured) -> list[str]:
    """For people."""
    before, after = measured.streams_gbit_s
    said = [
        f"# all-reduce of float32 between {options.ranks} hosts with {options.nics_per_rank} NICs",
        f"# plain TCP streams carry {before:.3f} Gbit/s before, {after:.3f} after",
        f"# {'size':>10}  {'time':>10}  {'busbw':>8}  {'wrong':>5}  of the streams",
        f"# {'(B)':>10}  {'(us)':>10}  {'(Gbit/s)':>8}",
    ]
    for row in measured.rows:
        timed, busbw = bench_report.primary(row), measured.busbw_gbit_s(options, row)
        said.append(
            f"{row.size_bytes:>12}  {timed.time_s.median * 1e6:>10.1f}  {busbw:>8.3f}  {timed.wrong or 0:>5}  "
            f"{100 * busbw / measured.mean_streams_gbit_s:.1f}%"
        )
    traffic = measured.traffic
    shares = ", ".join(f"{nic} {100 * traffic.share(nic):.1f}%" for nic in traffic.sent_bytes)
    return [*said, f"# sent by {shares}; resent {traffic.resent_bytes:,} bytes, {traffic.failovers} failovers"]


def as_json(options: Options, measured: Measured) -> dict[str, Any]:
    """For programs."""
    mean = measured.mean_streams_gbit_s
    rows = [
        {
            "size": row.size_bytes,
            "time_us": bench_report.primary(row).time_s.median * 1e6,
            "busbw_gbit_s": measured.busbw_gbit_s(options, row),
            "of_streams": measured.busbw_gbit_s(options, row) / mean,
            "wrong": bench_report.primary(row).wrong,
        }
        for row in measured.rows
    ]
    before, after = measured.streams_gbit_s
    return {
        "hosts": options.ranks, "nics": options.nics_per_rank, "streams_gbit_s": {"before": before, "after": after},
        "rows": rows, "resent_bytes": measured.traffic.resent_bytes, "failovers": measured.traffic.failovers,
    }  # fmt: skip


def lab_bench_command(
    minbytes: Annotated[str, typer.Option("-b", "--minbytes", help="The smallest size.")] = "64K",
    maxbytes: Annotated[str, typer.Option("-e", "--maxbytes", help="The largest.")] = "16M",
    stepfactor: Annotated[float, typer.Option("-f", "--stepfactor", help="Between sizes.")] = 16.0,
    iterations: Annotated[int, typer.Option("--iters", help="Timed operations of each size.")] = 10,
    seconds: Annotated[float, typer.Option(help="How long streams run, each time.", min=0.2, max=600)] = 2.0,
    name: Annotated[str | None, typer.Option(help="Which lab, if there are several.")] = None,
    as_one_object: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """See BENCH_HELP."""
    from r2ccl.lab import registry

    try:
        options, measured = measure(registry.chosen(name), Sizes(minbytes, maxbytes, stepfactor, iterations), seconds)
    except RankFailed as failed:
        print(f"r2ccl lab bench: {failed}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(json.dumps(as_json(options, measured)) if as_one_object else "\n".join(lines(options, measured)))
    if bench_report.wrong_total(measured.rows):
        raise typer.Exit(1)
