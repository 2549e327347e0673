"""``r2ccl lab``: emulated hosts with several NICs that stay up between commands, for r2ccl or any other program."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from r2ccl.cli.lab_bench import BENCH_HELP, lab_bench_command
from r2ccl.cli.lab_fault import FAULT_HELP, fault_command
from r2ccl.cli.plain_table import aligned
from r2ccl.errors import UsageError

if TYPE_CHECKING:
    from r2ccl.lab.control import LabReport

LAB_HELP = """Emulated hosts with several NICs on this machine: try r2ccl, or any program, on a network that breaks.

Needs Linux, and root or a kernel that lets users make namespaces. Nothing of the machine's own network is touched.

Example:

* `r2ccl lab up --hosts 3 --nics 2 --rate 2gbit`

* `r2ccl lab run -- python train.py`

* `r2ccl lab fault link-down h1 nic0 --for 10s`

* `r2ccl lab down`
"""

UP_HELP = """Make a lab and leave it up: hosts h0, h1 ... with NICs nic0, nic1 ..., one switch for each rail.

NIC k of host h has the address 10.200.k.(h+1). Each host has its own name, /etc/hosts and /sys. Several labs with
different names may be up at once; they don't see one another.

Examples:

* `r2ccl lab up --hosts 3 --nics 2 --rate 2gbit`

* `r2ccl lab up --routed` (a router joins the rails)

* `r2ccl lab up --hosts 4 --leaf-spine --spines 2 --name fabric` (one NIC per host, several equal paths between hosts)
"""

RUN_HELP = """Run a program in a lab: as all ranks of a job, or with --host once, on one host.

Without --host every host runs as many ranks as --ranks-per-host says. They find RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and a fresh job secret in their environment. Lines are printed with the rank
in front. When one rank fails, all are ended, and its exit code is ours.

With --host the program has this terminal, and its exit code is ours; without a program it is a shell.

Examples:

* `r2ccl lab run -- python train.py`

* `r2ccl lab run --ranks-per-host 2 train.py --epochs 3`

* `r2ccl lab run --host h0 -- iperf3 -s` and `r2ccl lab run --host h1 -- iperf3 -c h0`

* `r2ccl lab run --host h0`
"""

SSH_HELP = """Run a command on a host as ssh would, for programs that start others by ssh, such as mpirun.

Example:

* `mpirun --prtemca plm_ssh_agent "r2ccl lab ssh" --host h0,h1 ./program`, started by `r2ccl lab run --host h0`
"""

Name = Annotated[str | None, typer.Option(help="Which lab, if there are several.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

lab_app = typer.Typer(
    name="lab", help=LAB_HELP, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


@lab_app.callback()
def _on_linux_only() -> None:
    if sys.platform != "linux":
        raise UsageError("a lab is made of network namespaces, which exist on Linux only")


@lab_app.command("up", help=UP_HELP)
def up_command(
    hosts: Annotated[int, typer.Option(help="How many hosts.")] = 3,
    nics: Annotated[int | None, typer.Option(help="NICs per host; default: 2, with --leaf-spine 1.")] = None,
    rate: Annotated[str, typer.Option(help="Of each NIC, each way, such as 2gbit.")] = "1gbit",
    routed: Annotated[bool, typer.Option("--routed", help="A router joins the rails.")] = False,
    leaf_spine: Annotated[bool, typer.Option("--leaf-spine", help="Each host behind a leaf, leaves joined.")] = False,
    spines: Annotated[int, typer.Option(help="Equal ways between leaves.")] = 2,
    name: Annotated[str, typer.Option(help="Of the lab.")] = "lab",
    as_json: AsJson = False,
) -> None:
    """See UP_HELP."""
    from r2ccl.cli import lab_up
    from r2ccl.lab.quantities import rate_mbit_s

    count, ways = lab_up.layout(hosts, nics, routed=routed, leaf_spine=leaf_spine, spines=spines)
    report = lab_up.bring_up(name, hosts, count, rate_mbit_s(rate), router=routed, ways=ways)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
        return
    print("\n".join(described(report)))
    which = "" if name == "lab" else f" --name {name}"
    print(f"next: r2ccl lab run{which} -- python train.py; r2ccl lab fault{which} link-down h1 nic0 --for 10s")
    print(f"end it with: r2ccl lab down{which}")


@lab_app.command(
    "run", help=RUN_HELP, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run_command(
    command: Annotated[list[str] | None, typer.Argument(metavar="PROGRAM [ARGS]...", help="What to run.")] = None,
    ranks_per_host: Annotated[int, typer.Option(min=1, help="How many ranks on each host.")] = 1,
    host: Annotated[str | None, typer.Option(help="Run it once, on this host, with this terminal.")] = None,
    name: Name = None,
) -> None:
    """See RUN_HELP."""
    from r2ccl.cli import lab_run
    from r2ccl.lab import registry

    lab = registry.chosen(name)
    if host is not None:
        raise typer.Exit(lab_run.run_on_host(lab, host, command or []))
    raise typer.Exit(lab_run.run_ranks(lab, command or [], ranks_per_host))


@lab_app.command(
    "ssh", help=SSH_HELP, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def ssh_command(
    host: Annotated[str, typer.Argument(help="Such as h1.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="For /bin/sh.")],
    name: Name = None,
) -> None:
    """See SSH_HELP."""
    from r2ccl.cli import lab_run
    from r2ccl.lab import registry

    raise typer.Exit(lab_run.run_on_host(registry.chosen(name), host, ["/bin/sh", "-c", " ".join(command)]))


@lab_app.command("status")
def status_command(name: Name = None, as_json: AsJson = False) -> None:
    """Show the labs that are up: hosts, NICs, addresses, rates, links, faults, and what runs in them."""
    from r2ccl.lab import registry

    reports = [registry.report(registry.chosen(name))] if name else registry.reports()
    if as_json:
        print(json.dumps({"labs": [report.as_json() for report in reports]}, indent=2))
        return
    print("\n\n".join("\n".join(described(report)) for report in reports) or "no lab is up: r2ccl lab up")


@lab_app.command("down")
def down_command(
    name: Name = None,
    every: Annotated[bool, typer.Option("--all", help="All labs of this user.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a lab, and every program in it."""
    from r2ccl.lab import registry

    if every and name is not None:
        raise UsageError("--all, or --name: take one of them")
    if every:
        taken = registry.take_all_down()
    else:
        taken = [registry.chosen(name)]
        registry.take_down(taken[0])
    if as_json:
        print(json.dumps({"down": taken}))
        return
    for lab in taken:
        print(f"{lab} is down")


lab_app.command("fault", help=FAULT_HELP)(fault_command)
lab_app.command("bench", help=BENCH_HELP)(lab_bench_command)


def described(report: LabReport) -> list[str]:
    """A lab, for people."""
    from r2ccl.lab.quantities import rate_text

    rows = [
        (host.name, nic.name, nic.address, rate_text(nic.rate_mbit_s), nic.state, "; ".join(nic.faults))
        for host in report.hosts
        for nic in host.nics
    ]
    table = aligned(("host", "NIC", "address", "rate", "link", "faults"), rows)
    nics = len(report.hosts[0].nics)
    head = f"{report.name}: {len(report.hosts)} hosts with {nics} NICs, {report.layout}, held by process {report.pid}"
    return [head, *table, *(f"runs: {program}" for program in report.programs)]
