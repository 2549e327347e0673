"""r2ccl as a subclass of torch's ProcessGroup: for every torch that has no Python backends, that is before 2.14.

What torch would look up in a backend of C++ it finds here: device types, the backend of a device, what is supported.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from r2ccl.errors import CommunicatorClosed
from r2ccl.torch_backend.calls import Calls
from r2ccl.torch_backend.dynamo import not_compiled
from r2ccl.torch_backend.group import Failure, Group
from r2ccl.torch_backend.job import Job
from r2ccl.torch_backend.own_messages import OwnMessages


@not_compiled
class ProcessGroup(Calls, torch.distributed.ProcessGroup):  # type: ignore[misc, unused-ignore]
    """One process group. Its ``failure`` says why it cannot be used any more; None while it can."""

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = False

    def __init__(self, group: Group, job: Job, store: Any) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._own = OwnMessages(group.rank)
        self.job = job
        self._store = store
        self._name = group.name
        self._description = ""

    @property
    def failure(self) -> Failure | None:
        """Why the group refuses work; None while it works."""
        return self._group.failure

    @property
    def communicator(self) -> Any:
        """The :class:`r2ccl.Communicator` beneath, for its ``stats()``, ``events`` and ``counters``."""
        return self._group.communicator

    # Who it is.

    def getBackendName(self) -> str:
        return "r2ccl"

    def name(self) -> str:
        return "r2ccl"

    def _get_backend_name(self) -> str:
        return "r2ccl"

    def getRank(self) -> int:
        return self._group.rank

    def getSize(self) -> int:
        return self._group.size

    def rank(self) -> int:
        return self._group.rank

    def size(self) -> int:
        return self._group.size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        return self._description

    def get_group_store(self) -> Any:
        return self._store

    # What torch asks a backend.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.timeout = timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._group.timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        """The core numbers its operations."""

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose :class:`~r2ccl.errors.CollectiveTimeout` names all who did not come, on every rank."""
        self.barrier(timeout).wait()

    # Its end.

    def shutdown(self) -> None:
        """Say goodbye and end, within R2CCL_CLOSE_TIMEOUT. Ending the default group ends all groups of the job."""
        self._own.end(CommunicatorClosed("the process group was destroyed"))
        self._group.close()

    def abort(self) -> None:
        """End at once what is under way. Of the default group, and with it all of the job: the others see this rank
        die. Another group fails on all its members, and on no other rank."""
        self._own.end(CommunicatorClosed("the process group was aborted"))
        if self._group.communicator is self.job.communicator:
            self._group.communicator.abort()
        else:
            who = self._group.ranks[self._group.rank]
            self._group.communicator.abort_alone(f"rank {who} called abort() of the process group {self._name!r}")
