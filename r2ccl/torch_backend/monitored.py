"""``monitored_barrier``, which torch 2.13 offers for gloo alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from r2ccl.errors import UsageError
from r2ccl.torch_backend.backend import within
from r2ccl.torch_backend.process_group import ProcessGroup


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """As ``torch.distributed.monitored_barrier``, of a group of r2ccl. Who did not come in time is named on every rank,
    by :class:`~r2ccl.errors.CollectiveTimeout`, and always all of them, so ``wait_all_ranks`` makes no difference."""
    chosen = torch.distributed.group.WORLD if group is None else group
    ours = chosen if isinstance(chosen, ProcessGroup) else within(chosen)
    if ours is None:
        raise UsageError("monitored_barrier: the group is none of r2ccl; see torch.distributed.monitored_barrier")
    ours.monitored_barrier(timeout, wait_all_ranks)
