"""``r2ccl lab fault``: faults on the NICs of a lab, by the lab's own daemon, which also undoes them.

So a fault with ``--for`` ends on time whatever becomes of this command, and none outlives the lab.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from r2ccl.errors import UsageError

FAULT_HELP = """Break a NIC of a lab, or heal it.

KIND is one of: `link-down` (the far end of the wire: the NIC loses its carrier), `near-end-down` (as by `ip link set
nic0 down` on the host), `silent-drop` (everything vanishes, nobody is told), `loss` with a share of the packets, `rate`
with a rate; or `heal`, which undoes all faults of a NIC, of a host, or of the lab.

A fault stays until it is healed, for as long as `--for` says, or until the lab goes down. Another one of the same kind
on the same NIC takes its place.

Examples:

* `r2ccl lab fault link-down h1 nic0 --for 10s`

* `r2ccl lab fault loss h1 nic0 5%`

* `r2ccl lab fault rate h2 nic1 200mbit`

* `r2ccl lab fault heal h1 nic0`, or `r2ccl lab fault heal`
"""
HEAL: Final = "heal"


def break_nic(lab: str, kind: str, host: str, nic: str, amount: str | None, for_s: str | None) -> str:
    """Make the fault; returns what to say. Raises :class:`UsageError`."""
    from r2ccl.lab import quantities, registry
    from r2ccl.lab.control import Break

    readers = {"loss": quantities.share, "rate": quantities.rate_mbit_s}
    read = readers.get(kind, float)
    if amount is not None and kind not in readers:
        raise UsageError(f"{kind} wants nothing behind the NIC, and there is {amount!r}")
    seconds = None if for_s is None else quantities.time_s(for_s)
    number, nic_number = registry.host_number(host), registry.nic_number(nic)
    how_much = None if amount is None else read(amount)
    registry.ask(lab, Break(kind, number, nic_number, how_much, seconds))
    heal = f"until r2ccl lab fault heal h{number} nic{nic_number}" if seconds is None else f"for {seconds:g} s"
    return f"h{number} nic{nic_number}: {kind}{' ' + amount if amount else ''}, {heal}"


def heal_nics(lab: str, host: str | None, nic: str | None) -> list[str]:
    """Undo faults; returns what to say. Raises :class:`UsageError`."""
    from r2ccl.lab import registry
    from r2ccl.lab.control import Heal

    number = None if host is None else registry.host_number(host)
    healed = registry.ask(lab, Heal(number, None if nic is None else registry.nic_number(nic)))["healed"]
    return [f"healed {one}" for one in healed]


def fault_command(
    kind: Annotated[str, typer.Argument(help="link-down, near-end-down, silent-drop, loss, rate, or heal.")],
    host: Annotated[str | None, typer.Argument(help="Such as h1.")] = None,
    nic: Annotated[str | None, typer.Argument(help="Such as nic0.")] = None,
    amount: Annotated[str | None, typer.Argument(help="Of loss a share, of rate a rate: 5%, 200mbit.")] = None,
    for_s: Annotated[str | None, typer.Option("--for", help="How long, such as 10s.")] = None,
    name: Annotated[str | None, typer.Option(help="Which lab, if there are several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """See FAULT_HELP."""
    from r2ccl.lab import registry

    lab = registry.chosen(name)
    if kind == HEAL:
        if amount is not None or for_s is not None:
            raise UsageError("heal wants at most a host and a NIC: r2ccl lab fault heal h1 nic0")
        said = heal_nics(lab, host, nic)
    elif host is None or nic is None:
        raise UsageError(f"say which NIC, such as: r2ccl lab fault {kind} h1 nic0")
    else:
        said = [break_nic(lab, kind, host, nic, amount, for_s)]
    print(json.dumps({"lab": lab, "done": said}) if as_json else "\n".join(said) or "there was nothing to heal")
