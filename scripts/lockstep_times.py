"""What lockstep gives: all-reduces of ranks of one machine, awaited one after the other, with it and without it.

    r2ccl run -n 2 scripts/lockstep_times.py
    r2ccl run -n 4 scripts/lockstep_times.py
    r2ccl run -n 2 scripts/lockstep_times.py --steps
    r2ccl run -n 2 scripts/lockstep_times.py --floor

Rounds with and without take turns in the same processes. Rank 0 prints the medians of the rounds, least to most; with
``--steps`` how many of the interpreter's steps one of 4 B takes, those of waiting included. With ``--floor`` it is the
exchange alone, and no operation: a header is packed, a frame posted, the peer's awaited, the sum made.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import uvloop

import r2ccl
from r2ccl.actors.lockstep import Lockstep
from r2ccl.communicator import Communicator
from r2ccl.protocol.wire import Flag, Kind, pack_header

SIZES = (4, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20)
ROUNDS = 5
COUNT = 200

_START = Lockstep.start


def allow(lockstep: bool) -> None:
    """From now on, here."""
    Lockstep.start = _START if lockstep else lambda self, operation: False  # type: ignore[method-assign]


async def median_us(comm: Communicator, x: np.ndarray[Any, Any]) -> float:
    times = []
    await comm.barrier()
    for _ in range(COUNT):
        began = time.perf_counter()
        await comm.all_reduce(x)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def floor_us(comm: Communicator, x: np.ndarray[Any, Any]) -> float:
    """Of two ranks, without any question whether it is right to do so."""
    peer = 1 - comm.rank
    way = comm._coordinator._lockstep._way(peer)
    assert way is not None, "no memory is shared"
    posts, payload, times = way[0], x.view(np.uint8).data, []
    await comm.barrier()
    time.sleep(0.05)  # noqa: ASYNC251, TID251 - the other one's loop must have no turn any more in which it would read
    for number in range(COUNT):
        began = time.perf_counter()
        header = pack_header(Kind.CHUNK, Flag.LOCKSTEP, len(payload), 1 << 40, number, 0, comm.rank, peer)
        while not posts.post(header, payload, (None,)):
            pass
        frame = None
        while frame is None:
            frame = posts.next_frame(True)
        np.add(x, np.frombuffer(frame[1], x.dtype), out=x)
        posts.take(frame)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def steps(comm: Communicator, x: np.ndarray[Any, Any]) -> float:
    """Of the interpreter, for one operation. Rank 0 counts, which slows it: others wait for it, and not it for them."""
    counted = 0

    def entered(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return stepped

    def stepped(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal counted
        counted += event == "opcode"
        return stepped

    async def many() -> None:
        for _ in range(COUNT):
            await comm.all_reduce(x)

    await comm.barrier()
    sys.settrace(entered if comm.rank == 0 else None)
    await many()
    sys.settrace(None)
    return counted / COUNT


def told(found: dict[bool, list[float]], is_floor: bool) -> str:
    """The least and the most, without lockstep and with it; the exchange alone has none either way."""
    parts = {"alone": found[True] + found[False]} if is_floor else {"without": found[False], "with": found[True]}
    return "   ".join(f"{name} {min(figures):8.0f} to {max(figures):6.0f}" for name, figures in parts.items())


async def main() -> None:
    measure = steps if "--steps" in sys.argv else floor_us if "--floor" in sys.argv else median_us
    sizes = {steps: SIZES[:1], floor_us: SIZES[:4], median_us: SIZES}[measure]
    async with r2ccl.connect() as comm:
        for size in sizes:
            x = np.zeros(max(1, size // 4), np.float32)
            found: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 * ROUNDS + 2):
                lockstep = number % 2 == 1
                allow(lockstep)
                figure = await measure(comm, x)
                if number >= 2:  # the first of each warm up
                    found[lockstep].append(figure)
            if comm.rank == 0:
                print(f"{size:7} B   {told(found, measure is floor_us)}", flush=True)


if __name__ == "__main__":
    (asyncio.run if "--steps" in sys.argv else uvloop.run)(main())
