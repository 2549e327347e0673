"""``r2ccl topology-check``: before a job, over all its hosts: will their network carry it, and what does it survive?

Parse, call, print: ``topology_session`` brings the ranks together, ``topology_conductor`` asks them, ``planner`` judges
(``network_findings``, ``survival``), ``topology_report`` words it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import typer

from r2ccl.cli.topology_report import as_lines, as_object
from r2ccl.cli.topology_session import FINE, NOT_CHECKED, PROBLEMS, Wishes, take_part
from r2ccl.config import environment, read_settings
from r2ccl.errors import R2cclError
from r2ccl.planner.network_findings import findings
from r2ccl.planner.network_picture import Picture
from r2ccl.planner.survival import survival
from r2ccl.rendezvous.launch import place

#: Long enough for TCP to fill the network, short enough for eight NICs.
RATE_S = 0.5
RATE_S_MAX = 30.0

TOPOLOGY_CHECK_HELP = """Check the network of a job before it starts: run it on every host, as the job will be.

One process per host, started as the job's ranks are (torchrun, mpirun, srun, `r2ccl run`, or --rank, --size and
--rendezvous), with the job's secret and its R2CCL_NICS. They meet at rank 0, try every pair of NICs, and rank 0 prints:
who reaches whom on which NIC and how soon, whether rails are symmetric, speeds, interface and path MTU, duplicate
addresses, subnets that two NICs share, clocks, what the job survives, and last what is wrong. It needs no root.

Exit code, the same on all ranks: 0 fine, perhaps with notes; 1 problems that will harm a job; 2 it could not be
checked, for example because a host did not come within --timeout.

Examples:

* `mpirun -n 8 --map-by node -x R2CCL_SECRET_FILE r2ccl topology-check`

* `srun --ntasks-per-node=1 r2ccl topology-check --json > network.json`

* `torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint node0:29400 -m r2ccl.cli.topology_check`

* `r2ccl topology-check --rank 1 --size 2 --rendezvous tcp://node0:29500` (and `--rank 0` on node0)

* `r2ccl run -n 3 --nics-per-rank 2 -- -m r2ccl.cli.topology_check` (on this machine's loopback, to see what it prints)
"""


def topology_check_command(
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="This host's; else as launched.")] = None,
    size: Annotated[int | None, typer.Option("--size", min=1, help="How many hosts; else as launched.")] = None,
    rendezvous: Annotated[
        str | None, typer.Option("--rendezvous", metavar="tcp://HOST:PORT", help="Where rank 0 is; else as launched.")
    ] = None,
    nics: Annotated[str | None, typer.Option("--nics", help="In place of R2CCL_NICS.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="Seconds in which all hosts have to come.")
    ] = None,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Measure no rates: sends next to nothing.")] = False,
    rate_s: Annotated[
        float, typer.Option("--rate-seconds", min=0.05, max=RATE_S_MAX, help="For how long each NIC sends.")
    ] = RATE_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """See TOPOLOGY_CHECK_HELP."""
    arguments: dict[str, Any] = {"nics": nics, "connect_timeout_s": timeout}
    given = {name: value for name, value in arguments.items() if value is not None}
    placement = place(environment(), rank=rank, size=size, rendezvous=rendezvous)

    def say(line: str) -> None:
        if placement.rank == 0:
            print(f"topology-check: {line}", file=sys.stderr, flush=True)

    def report(picture: Picture) -> int:
        code, text = judged(picture, as_json)
        print(text, flush=True)
        return code

    reading = read_settings(environment(), given)
    for warning in reading.warnings:
        say(f"warning: {warning}")
    wishes = Wishes(0.0 if no_rate else rate_s, say, report)
    try:
        code = asyncio.run(take_part(placement, reading.settings, wishes))
    except R2cclError as failed:
        print(f"topology-check: rank {placement.rank} could not check: {failed}", file=sys.stderr)
        if as_json and placement.rank == 0:
            print(json.dumps({"exit_code": NOT_CHECKED, "error": str(failed)}, indent=2), flush=True)
        raise typer.Exit(NOT_CHECKED) from None
    except KeyboardInterrupt:
        print(f"topology-check: rank {placement.rank}: interrupted", file=sys.stderr)
        raise typer.Exit(NOT_CHECKED) from None
    raise typer.Exit(code)


def judged(picture: Picture, as_json: bool) -> tuple[int, str]:
    """The exit code, and what to print."""
    survivals = survival(picture)
    found = findings(picture, survivals)
    code = PROBLEMS if any(finding.is_problem for finding in found) else FINE
    if as_json:
        return code, json.dumps(as_object(picture, survivals, found, code), indent=2)
    return code, "\n".join(as_lines(picture, survivals, found))


def main() -> None:
    """The console script ``r2ccl_topology_check``, and ``python -m r2ccl.cli.topology_check``."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.command("topology-check", help=TOPOLOGY_CHECK_HELP)(topology_check_command)
    try:
        app()
    except R2cclError as error:
        print(f"r2ccl: {error}", file=sys.stderr)
        sys.exit(NOT_CHECKED)


if __name__ == "__main__":
    main()
