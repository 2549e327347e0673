"""r2ccl as a subclass of torch's Backend: for torch 2.14 and later, which has Python backends.

torch then holds it in a process group of its own, beside those of other devices, and keeps of a Python object only what
C++ needs of it. So this object is held until it ends (:meth:`Backend._hold`), or Python would collect it under torch's
hands. Of our Work torch shows ``wait`` and ``get_future`` alone.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed

from r2ccl.errors import CollectiveTimeout
from r2ccl.torch_backend import reconfiguring, shrinking
from r2ccl.torch_backend.calls import Calls
from r2ccl.torch_backend.dynamo import not_compiled
from r2ccl.torch_backend.group import Group
from r2ccl.torch_backend.job import Job
from r2ccl.torch_backend.own_messages import OwnMessages
from r2ccl.torch_backend.tensors import Loan
from r2ccl.torch_backend.works import Work


@not_compiled
class Backend(Calls, c10d.Backend):  # type: ignore[misc, unused-ignore]
    """One process group's part for tensors on the CPU."""

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = True
    supports_reconfigure = True

    def __init__(self, group: Group, job: Job) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._own = OwnMessages(group.rank)
        self.job = job
        # What the interpreter calls at its end it holds until then.
        atexit.register(self._hold)
        group.communicator.when_closed(self._let_go)
        job.connected.when_closed(self._let_go)

    def getBackendName(self) -> str:
        return "r2ccl"

    def name(self) -> str:
        return "r2ccl"

    def get_error(self) -> Any:
        """torch's word for why the group refuses work, if it does."""
        failure = self.failure
        if failure is None:
            return c10d.ErrorType.SUCCESS
        if isinstance(failure.error, CollectiveTimeout):
            return c10d.ErrorType.TIMEOUT
        return c10d.ErrorType.REMOTE_ERROR

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> Backend:
        """What torch's ``shrink_group`` calls: a backend without these ranks, in the place of this one."""
        job, group = shrinking.without(self, self._is_default, ranks_to_exclude, shrink_flags, None)
        self.give_way()
        return Backend(group, job)

    def get_reconfigure_handle(self) -> str:
        communicator = self._group.communicator
        return reconfiguring.handle_of(communicator, communicator.members[communicator.rank])

    def reconfigure(self, opts: Any) -> Work:
        """Go on with those whose handles these are."""
        job, group = reconfiguring.reconfigured(self, self._is_default, opts.handles, opts.timeout)
        if (group.rank, group.size) != (self.rank(), self.size()) and self._is_default:
            shrinking.replaced(torch.distributed.group.WORLD, self, Backend(group, job))
        # Who holds the old process group reaches the new one, too.
        self._group, self.job = group, job
        return group.work([], Loan("reconfigure"), [torch.empty(0)])

    @property
    def _is_default(self) -> bool:
        world = torch.distributed.group.WORLD
        return world is not None and within(world) is self

    def _hold(self) -> None:
        """The end of the program: nothing is left to be done."""

    def _let_go(self) -> None:
        atexit.unregister(self._hold)


def within(group: Any) -> Backend | None:
    """The backend of ours that a process group holds, if it does; also beneath torch's wrapper for debugging."""
    if torch.device("cpu") not in group._device_types:
        return None
    held = group._get_backend(torch.device("cpu"))
    held = getattr(held, "wrapped_pg", held)
    return held if isinstance(held, Backend) else None
