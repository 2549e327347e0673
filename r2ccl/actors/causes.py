"""What a caller is told of why its operations failed: one error for each cause, which names all that are to blame.

A rank fails with the first loss that it hears of, but ranks are often lost together: a switch takes a whole rack. So an
error names every member that is known to be lost when it is raised, those that another rank told of and our own. It is
``dead`` only if all of them are proven dead.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from r2ccl.errors import CollectiveMismatch, CollectiveTimeout, CommunicatorAborted, PeerLost, R2cclError
from r2ccl.protocol.wire import Abort

logger = logging.getLogger("r2ccl")

DEAD, UNREACHABLE = "dead", "unreachable"
#: What is said in words, of some dozens of ranks; ranks themselves are all named.
TEXT_CHARACTERS_MAX = 4096
CUT = " ..."


class Loss(NamedTuple):
    """Why a rank is lost, and how that is known."""

    cause: str
    verdict: str


def fitting(abort: Abort) -> Abort:
    """The same, with no more words than a frame has room for: a thousand verdicts, or somebody's whole report, would
    be told to nobody."""
    if len(abort.text) <= TEXT_CHARACTERS_MAX:
        return abort
    return dataclasses.replace(abort, text=f"{abort.text[: TEXT_CHARACTERS_MAX - len(CUT)]}{CUT}")


def naming_all_lost(abort: Abort, members: Iterable[int], lost: Mapping[int, Loss]) -> Abort:
    """The same, with those members named that we have lost besides; if it is about a loss at all."""
    told = abort.details
    if abort.cause not in (DEAD, UNREACHABLE) or any(type(rank) is not int for rank in told):
        return abort
    besides = sorted(rank for rank in members if rank in lost and rank not in told)
    if not besides:
        return abort
    cause = DEAD if {abort.cause, *(lost[rank].cause for rank in besides)} == {DEAD} else UNREACHABLE
    first = f"rank {told[0]}: {abort.text}" if len(told) == 1 else abort.text
    text = "; ".join([first, *(f"rank {rank}: {lost[rank].verdict}" for rank in besides)])
    return dataclasses.replace(abort, cause=cause, text=text, details=tuple(sorted({*told, *besides})))


def error_of(abort: Abort, origin: int) -> R2cclError:
    """What the caller gets. Details come from a peer: whatever does not fit becomes a plain abort."""
    details = abort.details
    try:
        if abort.cause == "timeout":
            call, timeout_s, not_entered, entered, finished = details
            return CollectiveTimeout(abort.operation, str(call), float(timeout_s), not_entered, entered, finished)
        if abort.cause == "mismatch":
            return CollectiveMismatch(abort.operation, {int(rank): str(call) for rank, call in details})
        if abort.cause in (DEAD, UNREACHABLE):
            return PeerLost([int(rank) for rank in details], abort.cause, abort.text)
    except (TypeError, ValueError, OverflowError):
        logger.warning("rank %d aborted with details that do not fit its cause %s", origin, abort.cause)
    return CommunicatorAborted(f"rank {origin} aborted the communicator: {abort.text}")
