"""What torch has no call for, of a process group of r2ccl, however torch holds it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from r2ccl.communicator import Communicator
from r2ccl.errors import UsageError
from r2ccl.torch_backend import reconfiguring, shrinking
from r2ccl.torch_backend.backend import Backend, within
from r2ccl.torch_backend.group import Failure
from r2ccl.torch_backend.process_group import ProcessGroup


def communicator(group: Any = None) -> Communicator:
    """The communicator that a group runs on (None: the default group), for its ``stats()``, ``events``, ``counters``
    and ``epoch``. To call collectives on it besides torch's would confuse the numbering, unless all ranks do."""
    return _ours(group, "communicator").communicator


def failure(group: Any = None) -> Failure | None:
    """Why a group refuses work; None while it can be used."""
    return _ours(group, "failure").failure


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """As ``torch.distributed.monitored_barrier``, which torch 2.13 has for gloo alone. Who did not come in time is
    named on every rank, by :class:`~r2ccl.errors.CollectiveTimeout`, and always all of them, so ``wait_all_ranks``
    makes no difference."""
    _ours(group, "monitored_barrier").monitored_barrier(timeout, wait_all_ranks)


def shrink(group: Any = None, exclude: Sequence[int] = (), timeout: timedelta | None = None) -> Any:
    """Go on without the ranks that are lost (None: of the default group). All that are left call it, after an error
    told of the loss. Returns the process group of those that are left, in their old order; it is the default group
    if that was shrunk, ranks are then numbered anew, and all other groups have ended.

    The members agree on who is left: a strict majority of them, less those proven dead, or of two halves the one with
    the lowest rank. Elsewhere it raises :class:`~r2ccl.errors.NoQuorum`, or :class:`~r2ccl.errors.Evicted` on a rank
    that the others lost; a member that does not call it within ``timeout`` (None: the group's) is a
    :class:`~r2ccl.errors.CollectiveTimeout` that names it. ``exclude`` names ranks of the group to leave out, as
    ``torch.distributed.shrink_group`` has it: all others call it with the same ones, and without a loss, too.
    """
    chosen = torch.distributed.group.WORLD if group is None else group
    old = _ours(chosen, "shrink")
    is_default = chosen is torch.distributed.group.WORLD
    if exclude:
        if old._group.rank in exclude or not set(exclude) < set(range(old._group.size)):
            raise UsageError(
                f"shrink: exclude={list(exclude)!r:.80} must be ranks of the group, and not this one, {old._group.rank}"
            )
        job, made = shrinking.without(old, is_default, exclude, 0, timeout)
    else:
        job, made = shrinking.agreed(old, is_default, timeout)
    new = Backend(made, job) if isinstance(old, Backend) else ProcessGroup(made, job, old.get_group_store())
    return shrinking.replaced(chosen, old, new)


def survivors(group: Any = None, timeout: timedelta | None = None) -> tuple[int, list[str]]:
    """After a loss, what torch's reconfigure calls leave to the program: a number and the handles of those that are
    left, the same on all of them, as the members agree. Of torch 2.14 and later::

        uuid, handles = r2ccl.torch_backend.survivors()
        torch.distributed._reconfigure(uuid, handles).wait()

    Raises what :func:`shrink` would."""
    ours = _ours(group, "survivors")
    return reconfiguring.survivors(ours.communicator, ours._group.limit_s(timeout))


def dump_flight_recorder(path: str | Path | None = None, group: Any = None) -> Path:
    """Write this rank's latest calls to the file that torch's ``torchfrtrace`` reads: ``path`` with the rank behind it
    (None: TORCH_FR_DUMP_TEMP_FILE). Of all groups of the job that ``group`` is of. Returns the file's name."""
    return _ours(group, "dump_flight_recorder").job.dump(path)


def _ours(group: Any, call: str) -> ProcessGroup | Backend:
    chosen = torch.distributed.group.WORLD if group is None else group
    found = chosen if isinstance(chosen, ProcessGroup) else None if chosen is None else within(chosen)
    if found is None:
        raise UsageError(f"{call}: the group is none of r2ccl: its backend is {_backend_name(chosen)}")
    return found


def _backend_name(group: Any) -> str:
    return "unknown, for there is no default group" if group is None else str(torch.distributed.get_backend(group))
