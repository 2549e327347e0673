"""Where a call from the progress thread spends its time: 4 B between two ranks, by r2ccl.blocking.

    r2ccl run -n 2 scripts/thread_times.py
    R2CCL_SHARED_MEMORY=off r2ccl run -n 2 scripts/thread_times.py

Rank 0 prints medians in microseconds: until the call crosses to the other thread, until it is there, to start it, until
it has ended there, and until the caller goes on; and what it takes to go to another thread's loop and back, alone. An
answer below nought was there before all was started: in lockstep it is over within the call.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import uvloop

import r2ccl.blocking
from r2ccl.actors.work import Work
from r2ccl.progress import ProgressThread

PARTS = ("checks", "crossing", "start and send", "answer", "going on", "all")
COUNT, WARM_UP = 3000, 500

#: When each part was over last.
over: dict[str, float] = {}


def noted(kind: type[Any], name: str, before: str = "", after: str = "") -> None:
    """From now on it is noted when a method is called, and when it returns."""
    method = getattr(kind, name)

    def called(*arguments: Any) -> Any:
        if before:
            over[before] = time.perf_counter()
        method(*arguments)
        if after:
            over[after] = time.perf_counter()

    setattr(kind, name, called)


def median_us(call: Callable[[], object]) -> float:
    times = []
    for _ in range(COUNT):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def there_and_back() -> float:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def cross() -> None:
        lock = threading.Lock()
        lock.acquire()
        loop.call_soon_threadsafe(lock.release)
        lock.acquire()

    return median_us(cross)


def main() -> None:
    noted(ProgressThread, "call", before="checks")
    noted(ProgressThread, "_drain", before="crossing", after="start and send")
    noted(Work, "finish", before="answer")
    x, parts = np.zeros(1, np.float32), []
    with r2ccl.blocking.connect() as comm:
        for number in range(COUNT):
            began = time.perf_counter()
            comm.all_reduce(x)
            times = [began, *(over[part] for part in PARTS[:-2]), time.perf_counter()]
            if number >= WARM_UP:
                parts.append([*(b - a for a, b in zip(times, times[1:], strict=False)), times[-1] - began])
        if comm.rank == 0:
            medians = [1e6 * statistics.median(column) for column in zip(*parts, strict=True)]
            told = "   ".join(f"{part} {took:.0f}" for part, took in zip(PARTS, medians, strict=True))
            print(f"{told}   there and back alone {there_and_back():.0f}", flush=True)


if __name__ == "__main__":
    main()
