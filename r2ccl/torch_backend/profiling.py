"""Calls in a torch profile.

Under ``torch.profiler`` each call shows twice, by one name (``r2ccl:all_reduce``): as an operator with the shapes of
its tensors, which ends when the call returns; and as an annotation that ends when the work does, however long after, on
whichever thread. One of torch's ranges cannot be both: what ends elsewhere has no shapes. Where no profiler runs on
the calling thread, asking costs 40 ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.autograd
from torch import Tensor
from torch.autograd.profiler import record_function

#: Names of c10d's that the public functions have not.
PUBLIC: Final = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allreduce_coalesced": "all_reduce_coalesced",
        "allgather": "all_gather",
        "allgather_coalesced": "all_gather_coalesced",
        "alltoall": "all_to_all",
        "recv_anysource": "recv",
    }
)

#: Is the calling thread profiled?
profiled = torch.autograd._profiler_enabled


class Span:
    """A call that is profiled: made before it, entered around it, and told of the work that it returned."""

    def __init__(self, call: str, arguments: Iterable[Any]) -> None:
        self._name = f"r2ccl:{PUBLIC.get(call, call)}"
        self._annotation = record_function(self._name)
        self._operator = torch._C._profiler._RecordFunctionFast(self._name, list(_tensors(arguments)), {})

    def __enter__(self) -> Span:
        self._annotation.__enter__()
        self._operator.__enter__()
        return self

    def until(self, work: Any) -> None:
        """The annotation lasts until ``work`` has ended."""
        ended: torch.futures.Future[None] = torch.futures.Future()
        self._annotation._call_end_callbacks_on_future(ended)
        work.when_done(lambda: ended.set_result(None))

    def __exit__(self, *raised: object) -> None:
        self._operator.__exit__(None, None, None)
        self._annotation.__exit__(None, None, None)


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Those of c10d's arguments, which are tensors, lists of them, and lists of lists."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)
