"""``r2ccl ping HOST``: from each NIC in turn, whether a host's kernel answers, how soon, and how often it does not.

It connects by TCP and hangs up, so it needs neither root nor anybody who listens there: a port where nobody listens
answers with a reset, which is an answer. Each connect is bound to the NIC's address and device. What is sent again by
the kernel is not waited for: a lost packet is a lost ping.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import typer

from r2ccl.cli.plain_table import aligned, milliseconds
from r2ccl.clock import Clock, MonotonicClock
from r2ccl.config import environment, read_settings
from r2ccl.errors import UsageError
from r2ccl.rendezvous.launch import is_loopback_host
from r2ccl.topology import Nic
from r2ccl.transport.nics import find_nics
from r2ccl.transport.tcp_knock import Knock, knock

#: "Discard": hardly ever served, so a kernel answers with a reset and no program is disturbed.
PORT = 9
#: The kernel sends a lost first packet again after 1 s, which would hide the loss.
WAIT_S = 0.9

PING_HELP = """Ping a host from each NIC of this one, by TCP: no root, no listener.

A kernel that answers is an answer, be it with a reset because nobody listens at the port; silence, and no route, are
losses. A firewall that drops what it does not know looks like silence: name a port that it lets through. NICs are those
that r2ccl would use (`r2ccl nics`).

Ends with 0 if every NIC got every answer, 1 if some are missing, 2 if it could not be tried.

Examples:

* `r2ccl ping node1`

* `r2ccl ping 10.0.1.2 --count 100 --interval 0.05`

* `R2CCL_NICS=eth1 r2ccl ping node1 --port 22 --json`
"""


@dataclass(frozen=True, slots=True)
class Pings:
    """What one NIC's pings came to. Times are of those that were answered; 0 where none was."""

    nic: str
    device: str
    address: str
    sent: int
    answered: int
    loss: float
    rtt_min_s: float
    rtt_median_s: float
    rtt_max_s: float
    #: What was heard in place of an answer, most frequent first.
    trouble: tuple[str, ...]


def ping_command(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A name or an IPv4 address.")],
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=100_000, help="Pings from each NIC.")] = 5,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.0, help="Seconds between two pings.")] = 0.2,
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="The port; it may be closed.")] = PORT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """See PING_HELP."""
    settings = read_settings(environment()).settings
    address = resolve(host)
    selection = find_nics(
        settings.nics, settings.spare_nics, rendezvous_is_loopback=is_loopback_host(address), environ=environment()
    )
    if not as_json:
        print(f"{host} ({address}), port {port}: {count} connects from each NIC")

    def done(pings: Pings) -> None:
        if not as_json:
            print("\n".join(shown_pings([pings], heads=pings.nic == "nic0")), flush=True)

    try:
        found = asyncio.run(ping_from_all(selection.nics, (address, port), count, interval, MonotonicClock(), done))
    except KeyboardInterrupt:
        print("r2ccl ping: interrupted", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(as_object(host, address, port, found), indent=2))
    raise typer.Exit(exit_code(found))


def resolve(host: str) -> str:
    """The IPv4 address. Raises :class:`UsageError`."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as unknown:
        raise UsageError(f"{host!r} is no host that has an IPv4 address here: {unknown.strerror or unknown}") from None
    return str(found[0][4][0])


def exit_code(found: Sequence[Pings]) -> int:
    """0: every answer; 1: some are missing."""
    return 0 if all(pings.answered == pings.sent for pings in found) else 1


def as_object(host: str, address: str, port: int, found: Sequence[Pings]) -> dict[str, Any]:
    """For scripts."""
    return {"host": host, "address": address, "port": port, "nics": [dataclasses.asdict(pings) for pings in found]}


async def ping_from_all(
    nics: Sequence[Nic],
    remote: tuple[str, int],
    count: int,
    interval_s: float,
    clock: Clock,
    done: Callable[[Pings], None] = lambda _: None,
) -> list[Pings]:
    """One NIC after the other, so that they do not disturb one another."""
    found = []
    for nic in nics:
        knocks = []
        for number in range(count):
            if number:
                await asyncio.sleep(interval_s)
            knocks.append(await knock(nic.name, nic.endpoint.host, remote, WAIT_S, clock))
        found.append(summed_up(nic, knocks))
        done(found[-1])
    return found


def summed_up(nic: Nic, knocks: Sequence[Knock]) -> Pings:
    """One NIC's figures."""
    times = [each.seconds for each in knocks if each.answered]
    trouble = Counter(each.detail or each.answer.name.lower() for each in knocks if not each.answered)
    return Pings(
        nic=f"nic{nic.index}",
        device=nic.name,
        address=nic.endpoint.host,
        sent=len(knocks),
        answered=len(times),
        loss=1 - len(times) / len(knocks),
        rtt_min_s=min(times, default=0.0),
        rtt_median_s=median(times) if times else 0.0,
        rtt_max_s=max(times, default=0.0),
        trouble=tuple(f"{what} ({often} times)" if often > 1 else what for what, often in trouble.most_common()),
    )


def shown_pings(found: Sequence[Pings], heads: bool = True) -> list[str]:
    """As lines for a person."""
    rows = []
    for pings in found:
        times = (pings.rtt_min_s, pings.rtt_median_s, pings.rtt_max_s)
        shown = [milliseconds(each) if pings.answered else "-" for each in times]
        rows.append([
            f"{pings.nic:<6}", f"{pings.device:<12}", f"{pings.address:<15}", f"{pings.answered}/{pings.sent:<6}",
            f"{pings.loss:.0%}".rjust(4), *(each.rjust(11) for each in shown), "; ".join(pings.trouble),
        ])  # fmt: skip
    titles = ("NIC   ", "device", "address", "answered", "loss", "min", "median", "max", "trouble")
    lines = aligned(titles, rows)
    return lines if heads else lines[1:]
