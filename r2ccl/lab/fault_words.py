"""What each fault says of itself: its layer, its reach, its time cap and its undo. For ``--list`` and before acting."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from r2ccl.lab.fault_run import Limits
from r2ccl.lab.kernel_faults import Fault
from r2ccl.protocol.fault_kinds import Kind, Request


@dataclass(frozen=True, slots=True)
class Words:
    """Of one kind of fault, in the kernel and within a running job; empty: it cannot be done there."""

    layer: str
    reach: str
    undo: str
    in_a_job: str


_TABLE_UNDO = "its table of nftables is deleted as a whole"
_QDISC_UNDO = "the root qdisc that was there is put back as it was"
_ALL = "all programs' traffic over the interface"

WORDS: Final = MappingProxyType(
    {
        Kind.LINK_DOWN: Words(
            "the interface (ip link)", f"{_ALL}, and all that listens for carriers",
            "the interface is set up; IPv6 addresses, permanent neighbours and routes that went with it come back",
            "nothing passes the NIC's connections, and the rank is told that its carrier is gone",
        ),
        Kind.SILENT_DROP: Words(
            "packets (nftables, ingress and egress)", f"{_ALL}; carrier and addresses stay", _TABLE_UNDO,
            "nothing passes the NIC's connections, and nobody is told",
        ),
        Kind.LOSS: Words(
            "packets (nftables, ingress and egress)", f"a share of packets, at random, of {_ALL}", _TABLE_UNDO,
            "a share of frames comes late by 200 ms, as what TCP sends again, and all behind it",
        ),
        Kind.RATE: Words(
            "queueing (tc tbf) out, packets (nftables) in", f"{_ALL}; what comes in beyond the rate is dropped",
            f"{_QDISC_UNDO}; {_TABLE_UNDO}", "frames go out no faster",
        ),
        Kind.DELAY: Words(
            "queueing (tc netem, where the kernel has it)", f"{_ALL}, going out", _QDISC_UNDO,
            "frames go out so much later",
        ),
        Kind.CORRUPT: Words(
            "packets (nftables, ingress and egress)",
            "one bit of a share of TCP segments, behind the NIC's check: only a program's own check finds it",
            _TABLE_UNDO,
            "one bit of a share of the chunks; found by R2CCL_CHECKSUM, which is off within one node unless it is on",
        ),
        Kind.FLAP: Words(
            "as link-down, or as silent-drop (--with)", f"{_ALL}, by turns", "as link-down or silent-drop",
            "as link-down, or as silent-drop (--with), by turns",
        ),
        Kind.STOP: Words("the process (SIGSTOP)", "one process, all its threads", "SIGCONT", "the rank's process"),
        Kind.KILL: Words("the process (SIGKILL)", "one process", "none: dead is dead", "the rank's process"),
    }
)  # fmt: skip

ALWAYS: Final = (
    "Undone when the command ends, however it ends (a watchdog process undoes for one that is killed), after --for, "
    "or at Ctrl-C; only with --stay it stays, and the command that undoes it is printed."
)


def time_cap(request: Request, limits: Limits) -> str:
    """How long at most."""
    if request.kind is Kind.KILL:
        return "none: it happens once"
    spans = [seconds for seconds in (limits.for_s, request.seconds) if seconds is not None]
    if limits.stay:
        return f"{min(spans):g} s, also without this command" if spans else "none: it stays until it is undone"
    return f"{min(spans):g} s, or the end of this command" if spans else "the end of this command (Ctrl-C)"


def describe(fault: Fault, limits: Limits) -> dict[str, str]:
    """What is said before anything is done."""
    words = WORDS[fault.request.kind]
    return {
        "fault": fault.title,
        "layer": words.layer,
        "reach": words.reach,
        "time cap": time_cap(fault.request, limits),
        "undo": "; ".join(operation.shown for operation in fault.undo) or words.undo,
    }
