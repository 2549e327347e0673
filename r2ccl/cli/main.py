"""The command line: parse, call, print. What is decided is decided elsewhere."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from r2ccl._version import __version__
from r2ccl.cli.bench import BENCH_HELP, bench_command
from r2ccl.cli.demo import demo_command
from r2ccl.cli.fault_inject import FAULT_INJECT_HELP, fault_inject_command
from r2ccl.cli.faults import FAULTS_HELP, faults_command
from r2ccl.cli.info import INFO_HELP, info_command
from r2ccl.cli.lab import lab_app
from r2ccl.cli.nics import NICS_HELP, nics_command
from r2ccl.cli.performance import PERFORMANCE_HELP, performance_command
from r2ccl.cli.ping import PING_HELP, ping_command
from r2ccl.cli.soak import SOAK_HELP, soak_command
from r2ccl.cli.topology_check import TOPOLOGY_CHECK_HELP, topology_check_command
from r2ccl.cli.tune import TUNE_HELP, tune_command
from r2ccl.errors import R2cclError

app = typer.Typer(
    name="r2ccl",
    help="Collective communication that survives the loss of a NIC.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

_RUN_HELP = """Run a script as several ranks on this machine, over loopback.

Every rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and a fresh job secret in its environment, so
that `r2ccl.connect()` needs no arguments. Lines are printed with the rank in front. When one rank fails, all are ended,
and its exit code is ours. What follows the script's name belongs to the script.

Examples:

* `r2ccl run -n 4 train.py --epochs 3`

* `r2ccl run -n 2 --nics-per-rank 2 train.py` (two stand-ins for NICs per rank: 127.0.1.r and 127.0.2.r)

* `r2ccl run -n 4 -- -m mypackage.train`
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"r2ccl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Collective communication that survives the loss of a NIC."""


@app.command(
    help=_RUN_HELP,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    no_args_is_help=True,
)
def run(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="What each rank runs.")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks.")] = 2,
    nics_per_rank: Annotated[int, typer.Option("--nics-per-rank", min=1, help="Loopback addresses per rank.")] = 1,
) -> None:
    from r2ccl.cli.launcher import launch

    raise typer.Exit(launch(command, ranks, nics_per_rank))


app.command("demo")(demo_command)
app.command("info", help=INFO_HELP)(info_command)
app.command("bench", help=BENCH_HELP, no_args_is_help=True)(bench_command)
app.command("fault-inject", help=FAULT_INJECT_HELP, no_args_is_help=True)(fault_inject_command)
app.command("faults", help=FAULTS_HELP)(faults_command)
app.command("performance", help=PERFORMANCE_HELP)(performance_command)
app.command("topology-check", help=TOPOLOGY_CHECK_HELP)(topology_check_command)
app.command("nics", help=NICS_HELP)(nics_command)
app.command("ping", help=PING_HELP, no_args_is_help=True)(ping_command)
app.command("tune", help=TUNE_HELP)(tune_command)
app.add_typer(lab_app)
app.command("soak", help=SOAK_HELP)(soak_command)


def main(arguments: list[str] | None = None) -> None:
    """The console script. Errors that a user can mend are one line, without a trace."""
    try:
        app(arguments)
    except R2cclError as error:
        print(f"r2ccl: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
