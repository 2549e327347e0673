"""``r2ccl nics``: what a rank that starts here would take for its NICs, and why it leaves the others out.

The choice is that of ``connect``, by the same settings. Beside it stands what the system says about each interface,
used or not: state, speed, MTU, addresses, driver, and where on the bus it sits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from r2ccl.cli.plain_table import aligned, mbit_s
from r2ccl.config import environment, read_settings
from r2ccl.errors import ConfigurationError
from r2ccl.rendezvous.launch import place
from r2ccl.transport.nic_facts import NicFacts, read_nic_facts
from r2ccl.transport.nics import find_nics

NICS_HELP = """Show the NICs that r2ccl would use on this host, and why others are left out.

Nothing is opened and nobody is asked. Ends with 2 if no rank could start here, because no NIC is usable or the settings
name one that is not there, and else with 0.

Examples:

* `r2ccl nics`

* `R2CCL_NICS=eth0,eth1 r2ccl nics` (would these do?)

* `r2ccl nics --json | jq '.nics[] | {device, speed_mbit_s, numa_node}'`
"""


def nics_command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """See NICS_HELP."""
    gathered = gather_nics(environment(), read_nic_facts())
    print(json.dumps(gathered, indent=2) if as_json else "\n".join(shown_nics(gathered)))
    if gathered["error"]:
        raise typer.Exit(2)


def gather_nics(environ: Mapping[str, str], facts: Mapping[str, NicFacts]) -> dict[str, Any]:
    """Everything there is to tell, ready for JSON. Raises :class:`ConfigurationError` for settings that are wrong."""
    settings = read_settings(environ).settings
    try:
        selection = find_nics(
            settings.nics, settings.spare_nics, rendezvous_is_loopback=_meets_on_loopback(environ), environ=environ
        )
    except ConfigurationError as wrong:
        out = [{**_told(each), "reason": "no choice was made"} for each in facts.values()]
        return {"nics": [], "left_out": out, "error": str(wrong)}
    nics = []
    for nic in selection.nics:
        told = _told(facts.get(nic.name, NicFacts(nic.name)))
        chosen = {
            "nic": f"nic{nic.index}",
            "address": nic.endpoint.host,
            "spare": nic.spare,
            "speed_mbit_s": settings.nic_speed_mbit_s or nic.speed_mbit_s,
        }
        nics.append({**told, **chosen})
    left_out = [{**_told(facts.get(out.name, NicFacts(out.name))), "reason": out.reason} for out in selection.left_out]
    return {"nics": nics, "left_out": left_out, "error": None}


def _told(facts: NicFacts) -> dict[str, Any]:
    fields = dataclasses.asdict(facts)
    fields["device"] = fields.pop("name")
    fields["networks"] = [f"{address}/{length}" for address, length in facts.networks]
    return {"device": fields.pop("device"), "state": facts.state, **fields}


def _meets_on_loopback(environ: Mapping[str, str]) -> bool:
    """Outside a job nobody has said where ranks meet."""
    try:
        return place(environ).is_loopback
    except ConfigurationError:
        return False


def shown_nics(gathered: Mapping[str, Any]) -> list[str]:
    """As lines for a person."""
    lines = []
    if gathered["error"]:
        lines += [f"no rank could start here: {gathered['error']}", ""]
    if gathered["nics"]:
        rows = [
            [nic["nic"], nic["device"], nic["address"], *_columns(nic), "spare" if nic["spare"] else "carries"]
            for nic in gathered["nics"]
        ]
        lines += aligned(("NIC", "device", "address", *_HEADS, "share"), rows)
    if gathered["left_out"]:
        rows = [[out["device"], *_columns(out), out["reason"]] for out in gathered["left_out"]]
        lines += ["", "left out:", *aligned(("device", *_HEADS, "why"), rows)]
    return lines


_HEADS = ("state", "speed", "MTU", "driver", "bus address", "NUMA node")


def _columns(nic: Mapping[str, Any]) -> list[str]:
    numa = "-" if nic["numa_node"] is None else str(nic["numa_node"])
    return [
        nic["state"], mbit_s(nic["speed_mbit_s"]), str(nic["mtu_bytes"]), nic["driver"] or "-",
        nic["bus_address"] or "-", numa,
    ]  # fmt: skip
