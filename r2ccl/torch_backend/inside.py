"""What torch has no call for, of a process group of r2ccl, however torch holds it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from r2ccl.communicator import Communicator
from r2ccl.errors import UsageError
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


def _ours(group: Any, call: str) -> ProcessGroup | Backend:
    chosen = torch.distributed.group.WORLD if group is None else group
    found = chosen if isinstance(chosen, ProcessGroup) else None if chosen is None else within(chosen)
    if found is None:
        raise UsageError(f"{call}: the group is none of r2ccl: its backend is {_backend_name(chosen)}")
    return found


def _backend_name(group: Any) -> str:
    return "unknown, for there is no default group" if group is None else str(torch.distributed.get_backend(group))
