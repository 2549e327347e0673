"""What lending gives: large all-reduces of ranks of one machine, with it and without it.

    r2ccl run -n 2 scripts/lending_times.py
    r2ccl run -n 4 scripts/lending_times.py

Rounds with and without take turns in the same processes. Rank 0 prints its medians of the rounds, least to most, and
the processor time that it used for one operation.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import uvloop

import r2ccl
from r2ccl.communicator import Communicator
from r2ccl.transport.shared_loans import Loans

SIZES_MIB = (4, 16, 64)
ROUNDS = 5
#: So much is moved in a round.
ROUND_MIB = 640

_TAKES = Loans.takes


def allow(lending: bool) -> None:
    """From now on, here."""
    Loans.takes = _TAKES if lending else lambda self, header, payload, room: False  # type: ignore[method-assign]


async def one_round(comm: Communicator, x: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The median time of an operation, and the mean processor time, in milliseconds."""
    times = []
    await comm.barrier()
    used = time.process_time()
    for _ in range(ROUND_MIB * (1 << 20) // x.nbytes):
        began = time.perf_counter()
        await comm.all_reduce(x)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3, (time.process_time() - used) / len(times) * 1e3


def told(rounds: list[tuple[float, float]]) -> str:
    took, used = zip(*rounds, strict=True)
    return f"{min(took):6.2f} to {max(took):6.2f} ms, processor {min(used):6.2f} to {max(used):6.2f}"


async def main() -> None:
    async with r2ccl.connect() as comm:
        for mib in SIZES_MIB:
            x = np.zeros(mib << 18, np.float32)
            found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for number in range(2 * ROUNDS + 2):
                allow(number % 2 == 1)
                figures = await one_round(comm, x)
                if number >= 2:  # the first of each warm up
                    found[number % 2 == 1].append(figures)
            if comm.rank == 0:
                print(f"{mib:3} MiB   without {told(found[False])}   with {told(found[True])}", flush=True)


if __name__ == "__main__":
    uvloop.run(main())
