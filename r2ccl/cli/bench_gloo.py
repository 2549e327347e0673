"""gloo as torch.distributed offers it, for comparison. Runs in an interpreter that has torch (see bench_peer_start)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from r2ccl.cli.bench_collectives import Shape
from r2ccl.cli.bench_data import Array, Buffers
from r2ccl.cli.bench_turns import Control, Hello, PeerOptions, Unsupported, serve

#: r2ccl's ops by torch's names; gloo has no other.
OPS: Final = MappingProxyType(
    {
        "sum": "SUM",
        "product": "PRODUCT",
        "min": "MIN",
        "max": "MAX",
        "bitwise_and": "BAND",
        "bitwise_or": "BOR",
        "bitwise_xor": "BXOR",
    }
)


class Gloo:
    """One rank."""

    def __init__(self, options: PeerOptions) -> None:
        import torch
        import torch.distributed

        assert options.rank is not None
        self.rank, self.ranks = options.rank, options.ranks
        self.version = str(torch.__version__)
        self._torch: Any = torch
        self._distributed: Any = torch.distributed
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{options.control}.gloo",  # a port that is free now may be taken in a moment
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(hours=1),  # how long a turn may take is the benchmark's to say
        )

    def close(self) -> None:
        self._distributed.destroy_process_group()

    def barrier(self) -> None:
        self._distributed.barrier()

    def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
        """See bench_turns.Library."""
        x, out = self._tensor(buffers.x), self._tensor(buffers.out)
        operation = self._operation(shape, x, out)
        try:
            operation()  # gloo says only when it is called what it cannot do, and then on all ranks alike
        except (RuntimeError, ValueError, TypeError) as refused:
            raise Unsupported(f"{shape.collective} of {shape.dtype}: {_first_line(refused)}") from refused
        return operation

    def prepare_window(self, shape: Shape, window: Sequence[Buffers]) -> Callable[[], Any]:
        """See bench_turns.WindowedLibrary."""
        if shape.collective != "all_reduce":
            raise Unsupported(f"windows are of all_reduce here, not of {shape.collective}")
        tensors, op = [self._tensor(buffers.x) for buffers in window], self._op(shape)

        def operation() -> None:
            for work in [self._distributed.all_reduce(tensor, op, async_op=True) for tensor in tensors]:
                work.wait()

        return operation

    def _operation(self, shape: Shape, x: Any, out: Any) -> Callable[[], Any]:
        distributed, root = self._distributed, shape.root
        parts = list(out.chunk(shape.ranks)) if shape.collective == "gather" and out is not None else None
        given = list(x.chunk(shape.ranks)) if shape.collective == "scatter" and x is not None else None
        operations: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: distributed.all_reduce(x, self._op(shape)),
            "broadcast": lambda: distributed.broadcast(x, root),
            "reduce": lambda: distributed.reduce(x, root, self._op(shape)),
            "all_gather": lambda: distributed.all_gather_into_tensor(out, x),
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(out, x, self._op(shape)),
            "gather": lambda: distributed.gather(x, parts, root),
            "scatter": lambda: distributed.scatter(out, given, root),
            "all_to_all": lambda: distributed.all_to_all_single(out, x),
            "sendrecv": lambda: self._send_and_receive(shape, x, out),
            "barrier": distributed.barrier,
        }
        return operations[shape.collective]

    def _send_and_receive(self, shape: Shape, x: Any, out: Any) -> None:
        received = self._distributed.irecv(out, shape.previous_rank)
        self._distributed.send(x, shape.next_rank)
        received.wait()

    def _op(self, shape: Shape) -> Any:
        if shape.op not in OPS:
            raise Unsupported(f"it has no {shape.op}")
        return getattr(self._distributed.ReduceOp, OPS[shape.op])

    def _tensor(self, array: Array | None) -> Any:
        """The same memory."""
        if array is None:
            return None
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        try:
            return self._torch.from_numpy(array)
        except TypeError as refused:
            raise Unsupported(f"torch has no {array.dtype.name}") from refused


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def main(argument: str) -> None:
    """One rank from begin to end."""
    options = PeerOptions.parse(argument)
    with Control(options.control) as control:
        try:
            gloo = Gloo(options)
        except ImportError as missing:
            why = f"no torch ({missing}): pip install torch, or name an interpreter that has it with --torch-python"
            control.refuse(options.rank or 0, why)
            return
        control.introduce(Hello(gloo.rank, os.getpid(), f"torch {gloo.version}"))
        serve(gloo, control)
        gloo.close()
