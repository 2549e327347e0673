"""What shared memory gains over loopback TCP on this machine: all-reduces by both, in turns, in the same processes.

    r2ccl run -n 2 scripts/compare_shared_memory.py

Each rank takes part in two jobs, one with shared memory and one without. For every size both get a number of short
rounds, one after the other, so that whatever else the machine does meets both. Rank 0 prints the medians of the rounds'
median times, the ratio of a round's two times (median, and the range between its quartiles), and the processor time per
operation and rank of both.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Awaitable, Callable

import numpy as np
import uvloop

import r2ccl
from r2ccl.communicator import Communicator
from r2ccl.config import environment

SIZES = (4, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27)
ROUNDS = 15
#: About this much time for a round, on a machine that has nothing else to do.
ROUND_S = 0.15


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def round_of(comm: Communicator, values: np.ndarray, count: int) -> tuple[float, float]:
    """Median time of an operation, and processor time per operation."""
    await comm.barrier()
    before, times = processor_s(), []
    for _ in range(count):
        began = time.perf_counter()
        await comm.all_reduce(values)
        times.append(time.perf_counter() - began)
    return statistics.median(times), (processor_s() - before) / count


async def compare(jobs: list[Communicator], size: int, tell: Callable[[str], None]) -> None:
    values = np.zeros(max(1, size // 4), np.float32)
    count = max(3, int(ROUND_S / (60e-6 + size / 1.5e9)))
    rounds: list[list[tuple[float, float]]] = [[], []]
    for number in range(ROUNDS + 1):
        for which, comm in enumerate(jobs):
            taken = await round_of(comm, values, count)
            if number:  # the first warms up
                rounds[which].append(taken)
    ratios = [shared[0] / tcp[0] for shared, tcp in zip(*rounds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    times = [statistics.median(taken for taken, _ in every) * 1e6 for every in rounds]
    used = [statistics.median(used for _, used in every) * 1e6 for every in rounds]
    tell(
        f"{size:>10} B  {times[0]:>9.1f} us shared  {times[1]:>9.1f} us TCP  ratio {middle:.2f} "
        f"({low:.2f} to {high:.2f})  processor {used[0]:.0f} / {used[1]:.0f} us"
    )


async def main() -> None:
    told = environment()
    rank, host, port = int(told["RANK"]), told["MASTER_ADDR"], int(told["MASTER_PORT"])
    connections: list[Awaitable[Communicator]] = [
        r2ccl.connect(rendezvous=f"tcp://{host}:{port + offset}", shared_memory=setting)
        for offset, setting in enumerate(("auto", "off"))
    ]
    jobs = [await connection for connection in connections]
    for size in SIZES:
        await compare(jobs, size, print if rank == 0 else lambda _: None)
    for comm in jobs:
        await comm.close()


if __name__ == "__main__":
    uvloop.run(main())
