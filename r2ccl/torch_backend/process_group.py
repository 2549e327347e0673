"""r2ccl as a subclass of torch's ProcessGroup: for every torch that has no Python backends, that is before 2.14.

What torch would look up in a backend of C++ it finds here: device types, the backend of a device, what is supported.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from r2ccl.torch_backend.calls import Calls
from r2ccl.torch_backend.dynamo import not_compiled
from r2ccl.torch_backend.group import Group
from r2ccl.torch_backend.job import Job
from r2ccl.torch_backend.own_messages import OwnMessages


@not_compiled
class ProcessGroup(Calls, torch.distributed.ProcessGroup):  # type: ignore[misc, unused-ignore]
    """One process group."""

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
