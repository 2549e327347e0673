"""What ``fault-inject`` does about each kind of target: find it, plan, say, ask, act."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from r2ccl.config import job_secret, read_settings
from r2ccl.errors import R2cclError, UsageError
from r2ccl.fault_control import make_private
from r2ccl.lab.fault_guards import ancestors, environments, plan_process, refuse_interface, refuse_overlap, ssh_address
from r2ccl.lab.fault_hands import Hands, Patience, Watchdog
from r2ccl.lab.fault_run import Ending, Limits, new_identity, record_of, records, run
from r2ccl.lab.fault_undo import is_gone, this_network
from r2ccl.lab.fault_words import WORDS, describe, time_cap
from r2ccl.lab.interface_state import read_state
from r2ccl.lab.job_faults import JobTarget, RankLink, check, find
from r2ccl.lab.kernel_faults import Fault, plan
from r2ccl.lab.where import Where
from r2ccl.protocol.fault_control import write_fault
from r2ccl.protocol.fault_kinds import OF_PROCESSES, OF_QUEUES, Direction, Kind, Request

#: What happened, and about what.
Say = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What was said besides."""

    for_s: float | None = None
    stay: bool = False
    yes: bool = False
    force: bool = False
    dry_run: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(self.for_s, self.stay)


def act(request: Request, target: str, options: Options, directory: Path, environ: Mapping[str, str], say: Say) -> None:
    """Put a fault on a target, and take it away again. Raises :class:`~r2ccl.errors.R2cclError`."""
    scheme, colon, rest = target.partition(":")
    if colon and scheme == "pid":
        return on_process(request, _number(rest), options, directory, say, ask=request.kind is Kind.KILL)
    if colon and scheme == "job":
        return on_job(request, JobTarget.parse(target), options, directory, environ, say)
    if request.kind in OF_PROCESSES:
        raise UsageError(f"{request.kind} is done to a process: pid:NUMBER or job:NAME/RANK")
    if colon and scheme == "lab":
        where = lab_place(rest, request.kind)
        return on_interface(request, where, target, options, directory, environ, say)
    return on_interface(request, Where(None, target), target, options, directory, environ, say)


def _number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise UsageError(f"pid:{text} names no process; write pid:4711")
    return int(text)


def lab_place(text: str, kind: Kind) -> Where:
    """Of ``NAME/HOST/NIC``. Raises :class:`UsageError`, also where the lab's own fault is in the way: one of us would
    put back what the other one has made."""
    from r2ccl.lab import registry

    parts = text.split("/")
    if len(parts) != 3 or not all(parts):
        raise UsageError(f"lab:{text} is no NIC of a lab; write lab:NAME/HOST/NIC, such as lab:demo/h0/nic1")
    name, host, nic = parts
    where, standing = registry.where(name, host, nic)
    for fault in standing:
        if fault.startswith("near-end-down") or (fault.startswith("rate ") and kind in OF_QUEUES):
            raise UsageError(
                f"lab:{text} has a fault of the lab's own that is in the way ({fault}): r2ccl lab fault --name {name} "
                f"heal {host} {nic}"
            )
    return where


def on_interface(
    request: Request, where: Where, target: str, options: Options, directory: Path, environ: Mapping[str, str], say: Say
) -> None:
    """The kernel's faults."""
    if request.kind in OF_PROCESSES:
        raise UsageError(f"{request.kind} is done to a process: pid:NUMBER or job:NAME/RANK")
    hands = Hands(where.namespace)
    try:
        state = hands.call(lambda: read_state(where.interface))
        if where.namespace is None and not options.force:
            refuse_interface(state, ssh_address(environ, environments(ancestors())))
        identity = new_identity()
        steps = plan(request, state, identity)
        refuse_overlap(steps, where.interface, hands.call(this_network), records(directory))
        fault = Fault(identity, request, target, where.namespace, steps)
        _carry_out(fault, hands, options, directory, say, ask=where.namespace is None)
    finally:
        hands.close()


def on_process(request: Request, pid: int, options: Options, directory: Path, say: Say, *, ask: bool) -> None:
    """Stop or kill."""
    if request.kind not in OF_PROCESSES:
        raise UsageError(f"{request.kind} is done to an interface or a job, not to a process; stop and kill are")
    steps = plan_process(request.kind, pid, force=options.force)
    fault = Fault(new_identity(), request, f"process {pid}", None, steps)
    _carry_out(fault, Hands(None), options, directory, say, ask=ask)


def _carry_out(fault: Fault, hands: Hands, options: Options, directory: Path, say: Say, *, ask: bool) -> None:
    limits = options.limits
    do = [step.do.shown for step in fault.steps]
    say("plan", {**describe(fault, limits), "does": do})
    if options.dry_run:
        return
    _confirm(fault.title, options, ask)
    make_private(directory)
    record = record_of(fault, limits, hands.call(this_network), directory)
    watchdog = Watchdog()
    with Patience().listening() as patience:
        ending = run(
            fault, limits, record, hands, watchdog, lambda s: patience.wait(s, watchdog), lambda what: say(what, {})
        )
    if ending is Ending.STAYS:
        say("it stays; to undo it", {"undo": f"r2ccl fault-inject undo {fault.identity}"})
    elif ending is Ending.WATCHDOG and is_gone(record):
        raise UsageError(f"{fault.title}: its lab went down, and the fault with it")
    elif ending is Ending.WATCHDOG:
        raise UsageError(f"{fault.title}: undone before its time: {ending}")


def _confirm(title: str, options: Options, ask: bool) -> None:
    if not ask or options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{title}: nobody is there to confirm it; say --yes if it is meant")
    if not typer.confirm(f"{title}: do it?"):
        raise UsageError("nothing was done")


# Within a job.


def on_job(
    request: Request, target: JobTarget, options: Options, directory: Path, environ: Mapping[str, str], say: Say
) -> None:
    """By the control ports of its ranks."""
    if request.direction is not Direction.BOTH:
        raise UsageError("within a job a fault knows no direction: leave out --direction")
    settings = read_settings(environ).settings
    links = find(target, job_secret(settings), environ)
    with contextlib.ExitStack() as stack:
        for link in links:
            stack.callback(link.close)
        check(target, links)
        if request.kind in OF_PROCESSES:
            if len(links) != 1:
                raise UsageError(f"say which rank to {request.kind}: job:{target.job}/{links[0].rank}")
            pid = links[0].pid
            stack.close()
            return on_process(request, pid, options, directory, say, ask=False)
        ranks = ", ".join(str(link.rank) for link in links)
        nic = "all NICs" if target.nic is None else f"nic{target.nic}"
        about = {
            "fault": f"{request} on {nic} of rank {ranks} of job {target.job}",
            "layer": "the faulty transport within the rank, above the kernel",
            "reach": WORDS[request.kind].in_a_job,
            "time cap": time_cap(request, options.limits),
            "undo": _undo_in(target) if options.stay else "by the rank, when it hears no more from this command",
        }
        say("plan", about)
        if options.dry_run:
            return None
        return _break_ranks(request, target, links, options, say)


def _break_ranks(request: Request, target: JobTarget, links: list[RankLink], options: Options, say: Say) -> None:
    fault = {"do": "inject", "fault": write_fault(request), "nic": target.nic, "for_s": options.for_s}
    with Patience().listening() as patience:
        _ask_all(links, {**fault, "stay": options.stay})
        say("done", {})
        if not options.stay:
            seconds = [span for span in (options.for_s, request.seconds) if span is not None]
            gone = patience.wait_for(min(seconds) if seconds else None, links)
            _ask_all([link for link in links if link not in gone], {"do": "undo"})
            say("undone", {"gone": f"ranks that ended: {[link.rank for link in gone]}"} if gone else {})
            return
    say("it stays; to undo it", {"undo": _undo_in(target)})


def _undo_in(target: JobTarget) -> str:
    rank = "" if target.rank is None else f"/{target.rank}"
    return f"r2ccl fault-inject undo job:{target.job}{rank}"


def _ask_all(links: Sequence[RankLink], message: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [link.ask(message) for link in links]
    except OSError as gone:
        raise R2cclError(f"a rank does not answer: {gone}") from gone


def undo_jobs(text: str, environ: Mapping[str, str], say: Say) -> None:
    """End what stays within a job."""
    target = JobTarget.parse(text)
    if target.nic is not None:
        raise UsageError(f"a rank's faults are undone all at once: {_undo_in(target)}")
    links = find(target, job_secret(read_settings(environ).settings), environ)
    try:
        answers = _ask_all(links, {"do": "undo", "stay": True})
    finally:
        for link in links:
            link.close()
    say("undone", {"faults": f"{sum(int(answer.get('undone', 0)) for answer in answers)} in {len(links)} ranks"})
