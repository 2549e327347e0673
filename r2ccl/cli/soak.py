"""``r2ccl soak``: faults without end, in the lab and in virtual time, and whether anything is lost or leaks.

This file is the conductor: it reads what is wanted, runs the parts, shows how far they are, and writes the report.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from r2ccl.cli import soak_plot, soak_report
from r2ccl.cli.bench_machine import machine
from r2ccl.cli.demo import why_not_namespaces
from r2ccl.cli.faults import Meter
from r2ccl.cli.faults_plot import is_possible
from r2ccl.errors import UsageError
from r2ccl.sim.soaked import Soaked

HOSTS_MIN, NICS_MIN = 2, 2
#: Real seconds for a virtual one, about, on one core.
REAL_SHARE: Final = 0.25
#: Of ranks that start, and of the end.
AROUND_S: Final = 20.0
#: Of progress for each part, where there is no terminal.
LINES: Final = 20

SOAK_HELP = """Break the network again and again for a long time, and see whether anything is lost or leaks.

In the lab (emulated hosts, real processes, real interfaces) a fault begins every second: link down at the far or near
end, silence both ways or one way, loss, a slow NIC, flaps, an address taken, two ranks without a common rail, a host
without any NIC for a moment, a process that is stopped. In virtual time the same actors live through an hour of
simulated faults in some minutes. Ranks work all the time; every element of every result is compared; memory,
descriptors, tasks, timers and everything that the runtime keeps are measured each second and must not grow.

The lab is Linux only; it needs root (or a kernel that lets users make namespaces) and nftables.
Ends with 1 if anything was lost, wrong or grew, with the seed and how to repeat it.

Examples:

* `r2ccl soak` (ten minutes in the lab, an hour of virtual time)

* `r2ccl soak --seconds 60 --virtual-seconds 600 --seed 7`

* `r2ccl soak --seconds 0 --json | jq .virtual.growing` (no lab: needs no root)

* `r2ccl soak --write docs/soak.md --plot docs/images/soak.svg`
"""


def repeat(seed: int, seconds: float, virtual_seconds: float, lab: tuple[int, int, float]) -> str:
    """What to paste into a shell to see it again."""
    hosts, nics, rate = lab
    return (
        f"r2ccl soak --seconds {seconds:g} --virtual-seconds {virtual_seconds:g} --hosts {hosts} --nics {nics} "
        f"--rate {rate:g} --seed {seed}"
    )


def perform(
    seed: int, seconds: float, virtual_seconds: float, lab: tuple[int, int, float], console: Console
) -> dict[str, Soaked]:
    """The parts that are wanted, by name."""
    parts: dict[str, Soaked] = {}
    lab_s = seconds + AROUND_S if seconds else 0.0
    with Meter(console, lab_s + virtual_seconds * REAL_SHARE) as meter:
        if seconds:
            teller = Teller(meter, console, "lab", 0.0, 1.0, seconds)
            parts["lab"] = _in_lab(seed, seconds, lab, teller.tell)
        if virtual_seconds:
            from r2ccl.sim import soak  # not at the top: it is not wanted always

            teller = Teller(meter, console, "virtual time", lab_s, REAL_SHARE, virtual_seconds)
            parts["virtual"] = soak.run(seed, virtual_seconds, teller.tell)
    return parts


class Teller:
    """Tells how far a part is: all the time on a terminal, else now and then."""

    def __init__(
        self, meter: Meter, console: Console, name: str, from_s: float, real_share: float, seconds: float
    ) -> None:
        self._meter = meter
        self._name = name
        self._from_s = from_s
        self._real_share = real_share
        self._every_s = 0.0 if console.is_terminal else seconds / LINES
        self._next_s = 0.0

    def tell(self, soaked: Soaked) -> None:
        """So far."""
        if soaked.seconds < self._next_s:
            return
        self._next_s = soaked.seconds + self._every_s
        what = (
            f"{self._name}: {soaked.seconds:,.0f} s, {soaked.faults.total():,} faults, {soaked.operations:,} "
            f"operations, {len(soaked.complaints)} wrong"
        )
        self._meter.tell(what, self._from_s + soaked.seconds * self._real_share)


def _in_lab(seed: int, seconds: float, shape: tuple[int, int, float], progress: Callable[[Soaked], None]) -> Soaked:
    from r2ccl.cli import soak_lab
    from r2ccl.lab import Lab  # not at the top: only Linux has it

    hosts, nics, rate = shape
    with Lab(hosts=hosts, nics=nics, rate_mbit_s=rate, name="soak") as lab:
        return soak_lab.play(lab, seed, seconds, progress)


def as_json(seed: int, again: str, parts: dict[str, Soaked]) -> dict[str, Any]:
    """All figures."""
    return {
        "seed": seed,
        "repeat": again,
        "good": all(soaked.is_good for soaked in parts.values()),
        "machine": machine(),
        **{name: soaked.as_json() for name, soaked in parts.items()},
    }


def titled(parts: dict[str, Soaked]) -> dict[str, Soaked]:
    """By their headings."""
    titles = {"lab": "In the lab", "virtual": "In virtual time"}
    return {titles[name]: soaked for name, soaked in parts.items()}


def _check(seconds: float, virtual_seconds: float, hosts: int, nics: int) -> None:
    if not seconds and not virtual_seconds:
        raise UsageError("nothing to do: give --seconds or --virtual-seconds")
    if hosts < HOSTS_MIN or nics < NICS_MIN:
        raise UsageError(f"at least {HOSTS_MIN} hosts with {NICS_MIN} NICs each, or a fault would leave no path")
    if seconds and (reason := why_not_namespaces()):
        raise UsageError(f"no emulated hosts can be made here: {reason}; --seconds 0 soaks in virtual time alone")
    if seconds and shutil.which("nft") is None:
        raise UsageError(
            "packets are lost by nftables: apt-get install nftables; --seconds 0 soaks in virtual time alone"
        )


def _check_files(*files: Path | None) -> None:
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"there is no directory {file.parent} for {file.name}")


def _show(console: Console, parts: dict[str, Soaked], again: str) -> None:
    """How it ended, in short. Raises :class:`typer.Exit` where it ended badly."""
    for name, soaked in parts.items():
        console.print(f"{name}: {' '.join(soak_report.summary(soaked).split())}", soft_wrap=True)
        for text in (*soaked.complaints, *soaked.growing()):
            console.print(f"  {text}", style="red", markup=False, soft_wrap=True)
    if not all(soaked.is_good for soaked in parts.values()):
        console.print(f"repeat: {again}", soft_wrap=True, markup=False)
        raise typer.Exit(1)


def soak_command(
    seconds: Annotated[float, typer.Option(min=0, help="In the lab; 0: leave it out.")] = 600.0,
    virtual_seconds: Annotated[float, typer.Option(min=0, help="In virtual time; 0: leave it out.")] = 3600.0,
    hosts: Annotated[int, typer.Option(help="Emulated hosts, one rank each.")] = 3,
    nics: Annotated[int, typer.Option(help="NICs per host.")] = 2,
    rate: Annotated[float, typer.Option(min=10, help="Rate of each NIC in Mbit/s, each way.")] = 500.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Draws work and faults; default: a new one.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the report here; default: standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="And a picture, where there is matplotlib.")] = None,
    as_object: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")] = False,
) -> None:
    """See SOAK_HELP."""
    console = Console(stderr=True, highlight=False)
    _check(seconds, virtual_seconds, hosts, nics)
    _check_files(write, plot)
    drawn = seed if seed is not None else secrets.randbelow(1 << 32)
    lab = (hosts, nics, rate)
    console.print(f"about {(seconds + virtual_seconds * REAL_SHARE) / 60:.0f} minutes; seed {drawn}", soft_wrap=True)
    parts = perform(drawn, seconds, virtual_seconds, lab, console)
    again = repeat(drawn, seconds, virtual_seconds, lab)
    picture = None
    if plot is not None and is_possible():
        soak_plot.plot(plot, titled(parts))
        picture = plot.name if write is None else os.path.relpath(plot, write.parent)
    page = soak_report.page(titled(parts), machine(), _command(), picture)
    if write is not None:
        write.write_text(page)
    if as_object:
        print(json.dumps(as_json(drawn, again, parts)))
    elif write is None:
        print(page, end="")
    _show(console, parts, again)


def _command() -> str:
    """As it was typed."""
    return shlex.join(["r2ccl", *sys.argv[1:]]) if sys.argv[1:2] == ["soak"] else "r2ccl soak"
