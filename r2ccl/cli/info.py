"""``r2ccl info``: what a rank that starts here and now would go by, and who said so.

Settings with their origins, the tuning, the NICs with the reasons for leaving others out, versions, and the bound on
memory. It opens nothing and asks nobody else. On a terminal it prints tables, to a pipe plain lines, with ``--json``
one object.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from r2ccl._version import __version__
from r2ccl.cli.plain_table import aligned
from r2ccl.cli.tune_report import told_of
from r2ccl.config import Reading, Settings, environment, read_settings, shown_value
from r2ccl.errors import ConfigurationError
from r2ccl.protocol.outbox import CREDIT_ON_ONE_MACHINE
from r2ccl.reduction import kernel_name
from r2ccl.rendezvous.launch import place
from r2ccl.topology import device_label
from r2ccl.transport.cross_memory import others_may_read
from r2ccl.transport.nic_lanes import with_lanes
from r2ccl.transport.nics import find_nics
from r2ccl.transport.node_identity import node_id
from r2ccl.transport.shared_ring import rings_work_here
from r2ccl.tuning import TuningFile, find_tuning

#: For the example where no launcher says how many ranks there are.
EXAMPLE_RANKS = 8

#: Of large chunks.
_WAYS: Final = {
    "lent": "lent: one rank reads the other's memory",
    "ring": "copied in and out of shared memory, for the kernel lets no rank read another's (kernel.yama.ptrace_scope)",
    "tcp": "by TCP",
}

INFO_HELP = """Print every setting with its value, its origin and its meaning; and NICs, versions, the bound on memory.

Nothing is opened and no other rank is asked: it is what a rank that is started here would go by. A setting comes from
the first that has it: an argument of `connect`, the environment, a file (`R2CCL_CONFIG`, else `./r2ccl.toml`, else
`~/.config/r2ccl.toml`), the default. Secrets are never shown. Ends with 2 if no rank could start.

Examples:

* `r2ccl info`

* `R2CCL_NICS=eth0,eth1 r2ccl info` (would these NICs do?)

* `r2ccl info --json | jq .settings.chunk_bytes.origin`
"""


@dataclasses.dataclass(frozen=True, slots=True)
class NicReport:
    """The NICs that a rank would use, the interfaces that it would not, and what is wrong if it could not start."""

    nics: tuple[Mapping[str, Any], ...]
    left_out: tuple[Mapping[str, str], ...]
    error: str = ""


def info_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """See INFO_HELP."""
    gathered = gather(environment())
    if as_json:
        print(json.dumps(gathered, indent=2))
    else:
        show(gathered, Console())
    if gathered["nic_error"]:
        raise typer.Exit(2)


def gather(environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything there is to tell, ready for JSON. Raises :class:`ConfigurationError` for settings that are wrong."""
    reading = read_settings(environ)
    settings = reading.settings
    ranks, rendezvous_is_loopback = _job(environ)
    found = _nics(settings, environ, rendezvous_is_loopback)
    return {
        "r2ccl": __version__,
        "python": platform.python_version(),
        "numpy": _version_of("numpy"),
        "uvloop": _version_of("uvloop"),
        "node": node_id(settings.node_id),
        "reduction_kernel": kernel_name(),
        "settings_file": str(reading.file) if reading.file is not None else None,
        "tuning": _tuning(find_tuning(settings.tuning, environ)),
        "warnings": reading.warnings,
        "settings": {field.name: _setting(field, reading) for field in dataclasses.fields(Settings)},
        "nics": list(found.nics),
        "left_out": list(found.left_out),
        "nic_error": found.error or None,
        "memory_bound": memory_bound(settings.credit_bytes, ranks or EXAMPLE_RANKS),
        "large_chunks": _large_chunks(settings),
    }


def _large_chunks(settings: Settings) -> str:
    """How they get from one rank of this machine to another."""
    if settings.shared_memory == "off" or not rings_work_here():
        return "tcp"
    return "lent" if others_may_read() else "ring"


def _tuning(found: TuningFile | None) -> dict[str, Any] | None:
    """What plans are made from, if this is rank 0; None: from defaults."""
    if found is None:
        return None
    return {"file": str(found.path), "measured": found.measured, **told_of(found.tuning)}


def memory_bound(credit_bytes: int, ranks: int) -> dict[str, Any]:
    """How much may arrive at a rank before it has called the operation that it belongs to: peers x credit, and more
    where they are on its machine."""
    bound, near = (ranks - 1) * credit_bytes, CREDIT_ON_ONE_MACHINE
    return {
        "credit_bytes": credit_bytes,
        "ranks": ranks,
        "bytes": bound,
        "one_machine_bytes": near * bound,
        "formula": f"peers x credit: for {ranks} ranks {ranks - 1} x {credit_bytes} = {bound} bytes per rank; "
        f"{near} x as much of peers on its machine",
    }


def _job(environ: Mapping[str, str]) -> tuple[int | None, bool]:
    """How many ranks, and whether they meet on loopback; outside a job nobody has said."""
    try:
        placement = place(environ)
    except ConfigurationError:
        return None, False
    return placement.size, placement.is_loopback


def _nics(settings: Settings, environ: Mapping[str, str], rendezvous_is_loopback: bool) -> NicReport:
    try:
        selection = find_nics(
            settings.nics, settings.spare_nics, rendezvous_is_loopback=rendezvous_is_loopback, environ=environ
        )
    except ConfigurationError as wrong:
        return NicReport((), (), str(wrong))
    speed_mbit_s = settings.nic_speed_mbit_s
    found = [dataclasses.replace(nic, speed_mbit_s=speed_mbit_s or nic.speed_mbit_s) for nic in selection.nics]
    lanes = with_lanes(found, settings.lanes_per_nic)
    nics = tuple(
        {
            "nic": f"nic{nic.index}",
            "device": nic.name,
            "label": device_label(nic, lanes),
            "address": nic.endpoint.host,
            "speed_mbit_s": nic.speed_mbit_s,
            "mtu_bytes": nic.mtu_bytes,
            "spare": nic.spare,
        }
        for nic in lanes
    )
    return NicReport(nics, tuple({"device": out.name, "reason": out.reason} for out in selection.left_out))


def _setting(field: dataclasses.Field[Any], reading: Reading) -> dict[str, Any]:
    value = getattr(reading.settings, field.name) if field.repr else shown_value(reading.settings, field.name)
    return {
        "value": value,
        "unit": field.metadata["unit"],
        "origin": reading.origins[field.name],
        "variable": field.metadata["variable"],
        "meaning": field.metadata["why"],
    }


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def show(gathered: Mapping[str, Any], console: Console) -> None:
    """As tables on a terminal, as plain lines elsewhere."""
    for word in ("r2ccl", "python", "numpy", "uvloop", "node", "reduction_kernel"):
        _say(console, f"{word.replace('_', ' ')}: {gathered[word]}")
    _say(console, f"settings file: {gathered['settings_file'] or 'none'}")
    _say(console, f"memory bound: {gathered['memory_bound']['formula']}")
    _say(console, f"large chunks between ranks of this machine: {_WAYS[gathered['large_chunks']]}")
    _show_tuning(gathered["tuning"], console)
    for warning in gathered["warnings"]:
        _say(console, f"warning: {warning}")
    rows = [(name, _value(row), row["origin"], row["meaning"]) for name, row in gathered["settings"].items()]
    _table(console, "settings", ("setting", "value", "origin", "meaning"), rows)
    if gathered["nic_error"]:
        _say(console, f"NICs: {gathered['nic_error']}")
        return
    nics = [
        (
            nic["nic"], nic["label"], nic["address"],
            f"{nic['speed_mbit_s']} Mbit/s" if nic["speed_mbit_s"] else "unknown",
            str(nic["mtu_bytes"]), "spare" if nic["spare"] else "carries",
        )
        for nic in gathered["nics"]
    ]  # fmt: skip
    _table(console, "NICs", ("NIC", "device", "address", "speed", "MTU", "share"), nics)
    left_out = [(out["device"], out["reason"]) for out in gathered["left_out"]]
    _table(console, "left out", ("device", "why"), left_out)


def _show_tuning(tuning: Mapping[str, Any] | None, console: Console) -> None:
    if tuning is None:
        _say(console, "tuning: none, plans are made from defaults (measure with `r2ccl tune`)")
        return
    _say(console, f"tuning: {tuning['file']} ({tuning['measured']})")
    for wire, cost in tuning["wires"].items():
        alpha_us, gb_s = cost["alpha_s"] * 1e6, 1e-9 / cost["beta_s_per_byte"]
        _say(console, f"  {wire.replace('_', ' ')}: a message {alpha_us:.1f} us, then {gb_s:.2f} GB/s")


def _value(row: Mapping[str, Any]) -> str:
    value = row["value"]
    if value == "":
        return "empty"
    text = str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {row['unit']}".rstrip()


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(console: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        _say(console, f"\n{title}: none")
    elif console.is_terminal:
        table = Table(*heads, title=title, title_justify="left")
        for row in rows:
            # A name of an interface or a file may hold brackets, which are markup to rich.
            table.add_row(*map(escape, row))
        console.print(table)
    else:
        _say(console, f"\n{title}:")
        for line in aligned(heads, rows):
            _say(console, line)
