"""What small operations cost: one after another, in windows, by memory, by loopback TCP and from a progress thread.

    r2ccl run -n 2 scripts/small_operations.py
    r2ccl run -n 2 -- /path/to/python/with/torch scripts/small_operations.py --gloo

Float32 all-reduces. Each way gets a number of short rounds, in turns with the others, in the same processes, so that
whatever else the machine does meets all; with ``--gloo``, torch's gloo takes its turns, too. Rank 0 prints for each way
the least and the median time of one that is awaited at once, and processor time of a rank for it; then the same for
windows of 64 that are called without waiting and awaited together. The least time is what it takes when both ranks have
a core; the processor time says most where other programs compete for them. The ratio is to gloo's round before it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np
import uvloop

import r2ccl
from r2ccl import blocking
from r2ccl.config import environment

SIZES = (4, 1 << 10, 1 << 12, 1 << 14, 1 << 16)
ROUNDS = 7
COUNT = 512
WINDOW = 64


class Round(NamedTuple):
    """Times of one round, in seconds."""

    least: float
    median: float
    processor: float
    window: float
    window_processor: float


class Way:
    """How to do it: one at a time, and many at once."""

    def __init__(
        self,
        name: str,
        one: Callable[[Any], Awaitable[Any]],
        many: Callable[[list[Any]], Awaitable[Any]],
        settle: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.name = name
        self.one = one
        self.many = many
        #: Waits until the peers have all that was sent; None: they need nothing of this process's loop for it.
        self.settle = settle

    async def round(self, make: Callable[[int], Any], size: int) -> Round:
        """COUNT operations one after another, and as many in windows."""
        x, several = make(size), [make(size) for _ in range(WINDOW)]
        await self.one(x)
        times = []
        used = time.process_time()
        for _ in range(COUNT):
            began = time.perf_counter()
            await self.one(x)
            times.append(time.perf_counter() - began)
        processor = (time.process_time() - used) / COUNT
        used, began = time.process_time(), time.perf_counter()
        for _ in range(COUNT // WINDOW):
            await self.many(several)
        taken, used = time.perf_counter() - began, time.process_time() - used
        if self.settle is not None:
            await self.settle()
        return Round(min(times), statistics.median(times), processor, taken / COUNT, used / COUNT)


def of_loop(name: str, comm: Any) -> Way:
    """On the caller's loop."""

    async def many(arrays: list[Any]) -> None:
        for work in [comm.all_reduce(x) for x in arrays]:
            await work

    async def one(x: Any) -> None:
        await comm.all_reduce(x)

    async def settle() -> None:
        # What went out from copies may wait for its socket. The next way may block the loop, and the peer would wait.
        while any(lane["outstanding_bytes"] for lane in comm.stats()["lanes"].values()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    return Way(name, one, many, settle)


def of_thread(name: str, comm: Any) -> Way:
    """Waiting, while the progress thread does it."""

    async def many(arrays: list[Any]) -> None:
        for work in [comm.futures.all_reduce(x) for x in arrays]:
            work.wait()

    async def one(x: Any) -> None:
        comm.all_reduce(x)

    return Way(name, one, many)


def of_gloo(rank: int, size: int, address: str) -> Way:
    """torch.distributed on gloo."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)

    async def many(tensors: list[Any]) -> None:
        for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
            work.wait()

    async def one(x: Any) -> None:
        dist.all_reduce(x)

    return Way("gloo", one, many)


def zeros(size: int) -> Any:
    return np.zeros(max(1, size // 4), np.float32)


def tensors(size: int) -> Any:
    import torch

    return torch.zeros(max(1, size // 4))


async def compare(ways: list[Way], size: int, tell: Callable[[str], None]) -> None:
    rounds: dict[str, list[Round]] = {way.name: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way in ways:
            taken = await way.round(tensors if way.name == "gloo" else zeros, size)
            if number:  # the first warms up
                rounds[way.name].append(taken)
    for name, taken_all in rounds.items():
        middle = Round(*(statistics.median(column) * 1e6 for column in zip(*taken_all, strict=True)))
        least = min(one.least for one in taken_all) * 1e6
        line = f"{size:>6} B  {name:<13} least {least:6.1f}  median {middle.median:7.1f}"
        line += f"  processor {middle.processor:6.1f} us"
        line += f" | windows {middle.window:7.1f}  processor {middle.window_processor:6.1f} us each"
        if "gloo" in rounds and name != "gloo":
            pairs = list(zip(taken_all, rounds["gloo"], strict=True))
            one_by_one = statistics.median(ours.median / theirs.median for ours, theirs in pairs)
            in_windows = statistics.median(theirs.window / ours.window for ours, theirs in pairs)
            line += f" | x gloo's time {one_by_one:.2f}, x gloo's rate in windows {in_windows:.1f}"
        tell(line)


async def main() -> None:
    told = environment()
    rank, host, port = int(told["RANK"]), told["MASTER_ADDR"], int(told["MASTER_PORT"])

    def place(offset: int) -> str:
        return f"tcp://{host}:{port + offset}"

    memory = await r2ccl.connect(rendezvous=place(0))
    tcp = await r2ccl.connect(rendezvous=place(1), shared_memory="off")
    thread = blocking.connect(rendezvous=place(2), shared_memory="off")
    ways = [of_loop("memory", memory), of_loop("TCP", tcp), of_thread("TCP, thread", thread)]
    if "--gloo" in sys.argv[1:]:
        ways.insert(0, of_gloo(rank, memory.size, place(3)))
    for size in SIZES:
        await compare(ways, size, print if rank == 0 else lambda _: None)
    thread.close()
    await asyncio.gather(memory.close(), tcp.close())


if __name__ == "__main__":
    uvloop.run(main())
