"""Many seeds: each draws a world with faults, runs it, and must find nothing wrong.

    python -m r2ccl.sim.swarm --seeds 200
    python -m r2ccl.sim.swarm --seed 17 --verbose      one seed, with everything that happens

Every world is run twice, and both histories must be the same, or no failure could be replayed. Then once without
faults: what a repaired world computed must have the same bits. A seed that fails prints its scenario, the latest events
of every rank and the command that replays it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

from r2ccl.clock import MonotonicClock
from r2ccl.sim import trial
from r2ccl.sim.scenario import draw

#: Handed to a worker at once: enough to hide the handing, few enough to end together.
SEEDS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one seed."""

    seed: int
    promise: str
    digest: str
    complaints: tuple[str, ...]
    #: The scenario and the latest events; only of a seed that failed.
    story: str
    chunks: int
    resent_chunks: int
    failovers: int
    epoch: int
    ended_well: int
    ended_badly: int
    virtual_s: float
    real_s: float

    @property
    def is_green(self) -> bool:
        return not self.complaints


def judge(seed: int, one_sided: bool = False, verbose: bool = False) -> Verdict:
    """Run a seed's world twice with faults and once without."""
    clock = MonotonicClock()
    began = clock.now()
    scenario = draw(seed, one_sided)
    first = trial.run(scenario, print if verbose else None)
    complaints = list(first.complaints)
    if not complaints:
        second = trial.run(scenario)
        if second.digest != first.digest:
            complaints.append(f"a second run took other steps: its history is {second.digest}, not {first.digest}")
        unharmed = trial.run(scenario.unharmed())
        complaints += [f"unharmed: {text}" for text in unharmed.complaints]
        if unharmed.failovers:
            complaints.append(f"unharmed: {unharmed.failovers} failovers in a world where nothing was wrong")
        complaints += _differences(first.results, unharmed.results)
    return Verdict(
        seed=seed,
        promise=scenario.promise.value,
        digest=first.digest,
        complaints=tuple(complaints),
        story=f"{scenario.describe()}\n{first.story}" if complaints else "",
        chunks=first.chunks,
        resent_chunks=first.resent_chunks,
        failovers=first.failovers,
        epoch=first.epoch,
        ended_well=first.ended_well,
        ended_badly=first.ended_badly,
        virtual_s=round(first.virtual_s, 6),
        real_s=round(clock.now() - began, 3),
    )


def _differences(
    harmed: dict[tuple[int, ...], tuple[int, str]], unharmed: dict[tuple[int, ...], tuple[int, str]]
) -> list[str]:
    """Calls that ended well in both worlds, with different bits, though nothing was replanned that rounds."""
    return [
        f"communicator {name[0]} call {name[1]}.{name[2]} has other bits on rank {name[3]} than in an unharmed world"
        for name, result in sorted(harmed.items())
        if name in unharmed and unharmed[name] != result and unharmed[name][0] == result[0]
    ]


def judge_all(seeds: Sequence[int], jobs: int, one_sided: bool) -> Iterator[Verdict]:
    """Verdicts in the order of the seeds, as they come."""
    if jobs == 1:
        yield from (judge(seed, one_sided) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(judge, seeds, [one_sided] * len(seeds), chunksize=SEEDS_AT_ONCE)


def replay_command(seed: int, one_sided: bool) -> str:
    """What to paste into a shell to see a seed again."""
    return f"{os.path.basename(sys.executable)} -m r2ccl.sim.swarm --seed {seed} --verbose" + (
        " --one-sided" if one_sided else ""
    )


def report(verdict: Verdict, one_sided: bool) -> str:
    """Everything about a seed that failed."""
    lines = [f"seed {verdict.seed} FAILED ({verdict.promise}):"]
    lines += [f"  - {complaint}" for complaint in verdict.complaints]
    lines += [verdict.story, "", f"replay: {replay_command(verdict.seed, one_sided)}", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 1 if any seed failed."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        verdict = judge(options.seed, options.one_sided, options.verbose)
        print(report(verdict, options.one_sided) if not verdict.is_green else _summary([verdict]))
        return 0 if verdict.is_green else 1
    seeds = range(options.first, options.first + options.seeds)
    verdicts: list[Verdict] = []
    for verdict in judge_all(seeds, max(1, options.jobs), options.one_sided):
        verdicts.append(verdict)
        if not options.json:
            _show(verdict, len(verdicts), len(seeds), options)
    failed = [verdict for verdict in verdicts if not verdict.is_green]
    if options.json:
        print(json.dumps({"failed": len(failed), "worlds": [asdict(verdict) for verdict in verdicts]}))
    else:
        print(("\n" if sys.stderr.isatty() else "") + _summary(verdicts))
    return 1 if failed else 0


def _show(verdict: Verdict, done: int, of: int, options: argparse.Namespace) -> None:
    """A line for each seed that is asked for or failed, and a line of progress that overwrites itself."""
    if not verdict.is_green:
        print(("\n" if sys.stderr.isatty() else "") + report(verdict, options.one_sided), flush=True)
    elif options.verbose:
        print(
            f"seed {verdict.seed} ok: {verdict.promise}; {verdict.chunks} chunks, {verdict.resent_chunks} resent, "
            f"{verdict.failovers} failovers, {verdict.virtual_s:.1f} s in {verdict.real_s:.2f} s",
            flush=True,
        )
    if sys.stderr.isatty():
        print(f"\r{done} of {of} worlds", end="", file=sys.stderr, flush=True)


def _summary(verdicts: Sequence[Verdict]) -> str:
    failed = [verdict.seed for verdict in verdicts if not verdict.is_green]
    total = {
        name: sum(getattr(verdict, name) for verdict in verdicts)
        for name in ("chunks", "resent_chunks", "failovers", "ended_well", "ended_badly", "virtual_s")
    }
    replanned = sum(verdict.epoch > 0 for verdict in verdicts)
    verdict = f"{len(failed)} FAILED: {', '.join(map(str, failed))}" if failed else "all green"
    return (
        f"{len(verdicts)} worlds, {verdict}; {total['ended_well']} operations ended well, "
        f"{total['ended_badly']} failed as they had to; {total['chunks']} chunks, {total['resent_chunks']} resent, "
        f"{total['failovers']} failovers, {replanned} worlds planned anew; {total['virtual_s']:.0f} s of virtual time"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m r2ccl.sim.swarm", description="Run many simulated worlds with faults."
    )
    parser.add_argument("--seeds", type=int, default=50, metavar="N", help="how many (default 50)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, metavar="N", help="this seed alone")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="processes (default 2)"
    )
    parser.add_argument(
        "--one-sided", action="store_true", help="all with NICs that write into the peer's memory; else every third"
    )
    parser.add_argument("--verbose", action="store_true", help="a line per seed; with --seed all that happens")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


if __name__ == "__main__":
    sys.exit(main())
