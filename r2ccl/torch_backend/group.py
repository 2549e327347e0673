"""What a process group is to r2ccl: a communicator, and how its calls are made and their failures told.

Both of torch's ways to plug in a backend sit on this one class. An error that reaches the caller is the core's own
type, with notes on what was called, in which group, how the NICs are, and whether the group can be used any further.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from torch import Tensor

from r2ccl.actors.work import Work as CoreWork
from r2ccl.communicator import Communicator
from r2ccl.errors import CommunicatorClosed, R2cclError, UsageError
from r2ccl.torch_backend.flight_recorder import FlightRecorder, Line
from r2ccl.torch_backend.tensors import Loan
from r2ccl.torch_backend.works import Callbacks, Work

UNUSABLE = "the group refuses further work; torch.distributed.destroy_process_group() ends it, and another can be made"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a group cannot be used any more."""

    #: A :class:`~r2ccl.errors.PeerLost`, CollectiveTimeout, CollectiveMismatch, CommunicatorAborted, ...
    error: BaseException
    #: The first call that failed here, in words; empty: none was under way.
    call: str
    #: Its number in the group; -1: it had none.
    operation: int
    #: Each NIC by name, and its state when this was told.
    nics: Mapping[str, str]


class Group:
    """One process group on this rank."""

    def __init__(
        self,
        communicator: Communicator,
        line: Line,
        timeout: timedelta,
        callbacks: Callbacks,
        recorder: FlightRecorder,
        on_failed: Callable[[], None],
    ) -> None:
        self.communicator = communicator
        self.line = line
        self.timeout = timeout
        self._callbacks = callbacks
        self._recorder = recorder
        #: Called when somebody hears first that the group has failed.
        self._on_failed = on_failed
        self._failure: Failure | None = None

    @property
    def name(self) -> str:
        return self.line.name

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of each member, its rank in the default group."""
        return self.line.ranks

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    @property
    def failure(self) -> Failure | None:
        """None while the group can be used, else why it cannot."""
        error = self.communicator.failure
        if self._failure is None and error is not None:
            self._failure = Failure(error, "", -1, self._nics())
        return self._failure

    def limit_s(self, asked: timedelta | None) -> float | None:
        """The limit of an operation; torch passes a negative one where the caller named none."""
        limit = self.timeout if asked is None or asked <= timedelta(0) else asked
        return limit.total_seconds() or None

    def work(self, parts: Sequence[CoreWork], loan: Loan, tensors: list[Tensor]) -> Work:
        """What a collective returns."""
        self._recorder.collective(self.line, loan, parts, self.timeout.total_seconds())
        return Work(parts, loan, tensors, self._callbacks, self._explained)

    def message(self, part: CoreWork, loan: Loan, tensors: list[Tensor], peer: int, tag: int) -> Work:
        """What a message's call returns."""
        timeout_s = self.timeout.total_seconds()
        self._recorder.message(self.line, loan, [part], timeout_s, self.rank, peer, tag)
        return Work([part], loan, tensors, self._callbacks, self._explained)

    def refused(self, error: R2cclError, call: str) -> BaseException:
        """What a call raises that has not begun: the error itself, if the call was wrong."""
        if isinstance(error, UsageError) and not isinstance(error, CommunicatorClosed):
            return error
        return self._told(error, call, -1)

    def _explained(self, error: BaseException, part: CoreWork) -> BaseException:
        return self._told(error, part.call, part.operation)

    def _told(self, error: BaseException, call: str, operation: int) -> BaseException:
        """The same error, for one call: the core's may be that of many."""
        told = copy.copy(error)
        told.__cause__, told.__suppress_context__ = error.__cause__, True
        nics = self._nics()
        number = f"operation {operation}, " if operation >= 0 else ""
        told.add_note(f"{number}{call}, of the process group {self.name!r} of ranks {list(self.ranks)}")
        if nics:
            told.add_note("NICs of this rank: " + ", ".join(f"{name} {state}" for name, state in nics.items()))
        for sentence in self._verdicts():
            told.add_note(sentence)
        if self.communicator.failure is not None or isinstance(error, CommunicatorClosed):
            told.add_note(UNUSABLE)
            if self._failure is None:
                self._failure = Failure(told, call, operation, nics)
                self._on_failed()
        return told

    def _nics(self) -> Mapping[str, str]:
        """Each NIC's state, as far as it can be read from another thread."""
        stats = self._stats()
        return MappingProxyType(
            {f"{name} ({nic['device']})": nic["state"] for name, nic in stats.get("nics", {}).items()}
        )

    def _verdicts(self) -> list[str]:
        """What is thought of the latest losses."""
        latest = [one for one in self._stats().get("incidents", []) if one["verdict"]][-2:]
        return [f"incident {one['number']}, {one['cause']}: {one['verdict']}; {one['evidence']}" for one in latest]

    def _stats(self) -> dict[str, Any]:
        # The actors go on while we read: what changes under our hands is left out.
        with contextlib.suppress(RuntimeError):
            return self.communicator.stats()
        return {}

    def close(self) -> None:
        """Say goodbye and end; bounded by R2CCL_CLOSE_TIMEOUT."""
        self.communicator.close_and_wait()
