"""One rank of the benchmark as a program without a loop has it: it waits, and the actors run on the progress thread.

python -m r2ccl.cli.bench_blocking CONTROL_SOCKET
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import r2ccl.blocking
from r2ccl.cli.bench_collectives import Shape
from r2ccl.cli.bench_data import Buffers
from r2ccl.cli.bench_rank import prepare
from r2ccl.cli.bench_turns import Control, Hello, Unsupported, serve


class Waiting:
    """r2ccl.blocking, as the benchmark sees a library that waits."""

    def __init__(self, comm: r2ccl.blocking.Communicator) -> None:
        self.rank, self.ranks = comm.rank, comm.size
        self._comm = comm

    def barrier(self) -> None:
        self._comm.barrier()

    def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
        """See bench_turns.Library."""
        return self.prepare_window(shape, [buffers])

    def prepare_window(self, shape: Shape, window: Sequence[Buffers]) -> Callable[[], Any]:
        """See bench_turns.WindowedLibrary."""
        if shape.collective == "sendrecv":
            raise Unsupported("sendrecv is two calls, and is timed on the loop only")
        starts = [prepare(self._comm.futures, shape, buffers) for buffers in window]
        if len(starts) == 1:
            start = starts[0]
            return lambda: start().wait()

        def operation() -> None:
            for work in [start() for start in starts]:
                work.wait()

        return operation


def main(path: str) -> None:
    """One rank from begin to end."""
    with Control(path) as control, r2ccl.blocking.connect() as comm:
        control.introduce(Hello(comm.rank, os.getpid(), "progress thread"))
        serve(Waiting(comm), control)


if __name__ == "__main__":
    main(sys.argv[1])
