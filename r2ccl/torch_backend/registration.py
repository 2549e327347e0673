"""How torch learns of the backend ``r2ccl``, and makes its groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from r2ccl.torch_backend.backend import Backend, within
from r2ccl.torch_backend.group import Group
from r2ccl.torch_backend.job import Job, connect
from r2ccl.torch_backend.process_group import ProcessGroup

NAME = "r2ccl"
#: cuda is here so that a tensor on it is refused by us, who can say what to do. No device becomes ours by default.
DEVICES = ("cpu", "cuda")


#: Before, only a process group can be subclassed.
FIRST_WITH_PYTHON_BACKENDS = (2, 14)
HAS_PYTHON_BACKENDS = tuple(map(int, torch.__version__.split(".")[:2])) >= FIRST_WITH_PYTHON_BACKENDS


def register() -> None:
    """Tell torch of the backend. May be called twice. From torch 2.14 on torch calls it by itself: it is the entry
    point ``r2ccl`` of ``torch.distributed.backends``."""
    torch.distributed.Backend.register_backend(NAME, create, extended_api=True, devices=list(DEVICES))


def create(options: Any, pg_options: Any) -> ProcessGroup | Backend:
    """What torch calls for each group, on its members."""
    del pg_options
    job, group = job_and_group(options)
    return Backend(group, job) if HAS_PYTHON_BACKENDS else ProcessGroup(group, job, options.store)


def job_and_group(options: Any) -> tuple[Job, Group]:
    """A group of the default group's job, or of a job of its own."""
    rank, size, name = options.group_rank, options.group_size, options.group_id
    timeout: timedelta = options.timeout
    ranks = list(options.global_ranks_in_group) or list(range(size))
    default = torch.distributed.group.WORLD if torch.distributed.is_initialized() else None
    ours = default if isinstance(default, ProcessGroup) else None if default is None else within(default)
    if ours is not None and ours.job.covers(ranks):
        return ours.job, ours.job.part(name, ranks, timeout)
    job = connect(options.store, rank, size, name, ranks, timeout)
    return job, job.whole(name, timeout)
