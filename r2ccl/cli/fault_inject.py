"""``r2ccl fault-inject``: break a network, a process or a running job on purpose, for a while, and mend it again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from r2ccl.config import environment
from r2ccl.errors import UsageError
from r2ccl.fault_control import directories, make_private
from r2ccl.protocol.fault_kinds import VALUES, Direction, Kind, duration, request

FAULT_INJECT_HELP = """Break something on purpose, for a while: an interface, a lab's NIC, a process, or a running job.

KIND is link-down, silent-drop, loss, rate, delay, corrupt, flap, stop or kill; `--list` says of each what it does, how
far it reaches and how it is undone, and what is in force now. TARGET is

* an interface's name: asks before it acts (`--yes`), refuses what your own way to this machine leads over (`--force`)

* `lab:NAME/HOST/NIC`: a NIC of an emulated host, such as lab:demo/h0/nic1

* `pid:N`: a process, for stop and kill

* `job:NAME`, `job:NAME/RANK`, `job:NAME/RANK/NIC`: a running job whose ranks were started with R2CCL_FAULT_INJECTION=1,
  on this machine, by this user; NAME is its R2CCL_JOB; its secret is taken from R2CCL_SECRET or R2CCL_SECRET_FILE.

A fault is undone when the command ends, however it ends: at `--for`, at Ctrl-C, or when it is killed (a watchdog
process sees to that, or the rank itself). Only with `--stay` it stays; the command that undoes it is printed.

Examples:

* `r2ccl fault-inject silent-drop eth1 --for 10s`

* `r2ccl fault-inject loss eth1 2% --for 1m --yes`

* `r2ccl fault-inject rate eth1 100mbit --dry-run` (what it would do, as commands of ip, tc and nft)

* `r2ccl fault-inject flap eth1 --pattern "0.1s down, 0.4s up" --times 20`

* `r2ccl fault-inject link-down job:train/0/nic1 --for 1s`

* `r2ccl fault-inject stop pid:4711 --for 30s`

* `r2ccl fault-inject undo all` (what `--stay` left, or a machine that lost command and watchdog at once)
"""

_UNDO = "undo"
_ALL = "all"


def fault_inject_command(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="What to do; or undo.")] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="To what; for undo a fault's id, or all.")
    ] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="2%, 100mbit, 5ms: of loss, corrupt, rate, delay.")
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", metavar="TIME", help="So long: 500ms, 10s, 2m.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Leave it in force when this command ends.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also what your own way here leads over.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    pattern: Annotated[str | None, typer.Option(help="Of a flap: phases, in order.")] = None,
    times: Annotated[int, typer.Option(min=1, help="Of a flap: how often the pattern.")] = 1,
    flapping: Annotated[
        str | None, typer.Option("--with", help="Of a flap: link-down (the default) or silent-drop.")
    ] = None,
    direction: Annotated[Direction | None, typer.Option(help="Of the traffic: in, out or both.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Every kind of fault, and what is in force.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """See FAULT_INJECT_HELP."""
    from r2ccl.cli.fault_inject_targets import Options, act, undo_jobs

    environ = environment()
    directory = directories(environ)[0]
    if listing:
        return show_list(directory, as_json)
    if kind is None or target is None:
        raise UsageError("fault-inject needs KIND and TARGET, such as: r2ccl fault-inject silent-drop eth1 --for 10s")
    if target in (*Kind, _UNDO) and kind not in (*Kind, _UNDO):
        kind, target = target, kind  # either order
    say = _say_json if as_json else _say
    if kind == _UNDO:
        return undo_jobs(target, environ, say) if target.startswith("job:") else undo_records(target, directory, say)
    try:
        wanted = request(
            _kind(kind), value, direction=direction, flap_pattern=pattern, times=times,
            flapping=None if flapping is None else _kind(flapping),
        )  # fmt: skip
        for_s = None if for_ is None else duration(for_)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    if stay and wanted.phases:
        raise UsageError("a flap lives in this command and cannot stay; --times and --for say how long it goes on")
    if for_s is not None and wanted.kind is Kind.KILL:
        raise UsageError("kill happens once, and is not undone: leave out --for")
    return act(wanted, target, Options(for_s, stay, yes, force, dry_run), directory, environ, say)


def _kind(word: str) -> Kind:
    try:
        return Kind(word)
    except ValueError:
        raise ValueError(f"{word!r} is no kind of fault; there are {', '.join(Kind)}") from None


def show_list(directory: Path, as_json: bool) -> None:
    """What can be done, and what is in force or was left behind."""
    from r2ccl.lab.fault_run import records
    from r2ccl.lab.fault_words import ALWAYS, WORDS

    kinds = [
        {
            "kind": kind.value, "value": VALUES.get(kind, ""), "layer": words.layer, "reach": words.reach,
            "undo": words.undo, "in a job": words.in_a_job,
        }
        for kind, words in WORDS.items()
    ]  # fmt: skip
    in_force = [{"id": record.identity, "fault": record.title} for record in records(directory)]
    if as_json:
        print(json.dumps({"kinds": kinds, "in_force": in_force}))
        return
    for row in kinds:
        print(f"{row['kind']} {row['value']}".rstrip())
        for word in ("layer", "reach", "undo", "in a job"):
            print(f"    {word + ':':10}{row[word]}")
    print(f"\n    time cap: {ALWAYS}\n\nin force, or left behind: {'' if in_force else 'nothing'}")
    for fault in in_force:
        print(f"    {fault['id']}  {fault['fault']}  (r2ccl fault-inject undo {fault['id']})")


def undo_records(which: str, directory: Path, say: Any) -> None:
    """End faults of this machine that stay, or were left behind."""
    from r2ccl.lab.fault_hands import undo_record
    from r2ccl.lab.fault_run import FaultNotUndone, records

    if directory.is_dir():
        make_private(directory)
    found = [record for record in records(directory) if which in (_ALL, record.identity)]
    if not found and which != _ALL:
        raise UsageError(f"no fault {which!r} is in force; r2ccl fault-inject --list says which are")
    wrong = []
    for record in found:
        problems = undo_record(record)
        wrong += problems
        say("not undone" if problems else "undone", {"id": record.identity, "fault": record.title})
    if wrong:
        raise FaultNotUndone("; ".join(wrong))
    if not found:
        say("nothing is in force", {})


def _say(what: str, about: dict[str, Any]) -> None:
    if what == "plan":
        for word, text in about.items():
            if isinstance(text, list):
                print(f"{word + ':':10}{len(text)}")
                for line in text:
                    print(f"    {line}")
            else:
                print(f"{word + ':':10}{text}")
    else:
        print(f"{what}{': ' if about else ''}{', '.join(f'{text}' for text in about.values())}")
    sys.stdout.flush()


def _say_json(what: str, about: dict[str, Any]) -> None:
    print(json.dumps({"event": what, **about}), flush=True)


def main() -> None:
    """The console script ``r2ccl_fault_inject``."""
    from r2ccl.cli.main import main as root

    root(["fault-inject", *sys.argv[1:]])
