"""One rank of the benchmark: connected by r2ccl once, then parked until it has a turn (see bench_turns).

python -m r2ccl.cli.bench_rank CONTROL_SOCKET [loop | thread]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

import r2ccl
from r2ccl.cli.bench_collectives import Shape
from r2ccl.cli.bench_data import Buffers, make_buffers
from r2ccl.cli.bench_turns import Answer, Hello, Turn, exercises, tick
from r2ccl.communicator import Communicator

#: What a rank says of itself is short; introductions of thousands of ranks are not.
LINE_BYTES_MAX = 4 << 20

Operation = Callable[[], Any]


def prepare(comm: Communicator, shape: Shape, buffers: Buffers) -> Operation:
    """The call, ready to be made any number of times; what it returns is to be awaited."""
    x, out, root = buffers.x, buffers.out, shape.root
    op = r2ccl.Op(shape.op) if shape.op else r2ccl.Op.SUM
    operations: dict[str, Operation] = {
        "all_reduce": lambda: comm.all_reduce(x, op),
        "broadcast": lambda: comm.broadcast(x, root),
        "reduce": lambda: comm.reduce(x, root, op),
        "all_gather": lambda: comm.all_gather_into(out, x),
        "reduce_scatter": lambda: comm.reduce_scatter(out, x, op),
        "gather": lambda: comm.gather(x, root),
        "scatter": lambda: comm.scatter(out, x, root),
        "all_to_all": lambda: comm.all_to_all(out, x),
        "sendrecv": lambda: _send_and_receive(comm, shape, buffers),
        "barrier": comm.barrier,
    }
    return operations[shape.collective]


async def _send_and_receive(comm: Communicator, shape: Shape, buffers: Buffers) -> None:
    received = comm.recv(buffers.out, shape.previous_rank)
    await comm.send(buffers.x, shape.next_rank)
    await received


async def play(comm: Communicator, turn: Turn) -> Answer:
    """One turn."""
    shape = turn.shape(comm.rank, comm.size)
    window = [make_buffers(shape) for _ in range(turn.window)]
    for buffers in window:
        buffers.zero()
    operation = at_once([prepare(comm, shape, buffers) for buffers in window])
    for _ in range(turn.warmup):
        await operation()
    await comm.barrier()
    gaps_s: list[float] = []
    if turn.tick_s:
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(tick(turn.tick_s, gaps_s))
            times = await timed(operation, turn.iterations)
            ticker.cancel()
    else:
        times = await timed(operation, turn.iterations)
    wrong = 0
    for check in range(turn.checks):
        expected = exercises(turn, shape, check)
        for exercise, buffers in zip(expected, window, strict=True):
            exercise.fill(buffers)
        result = await operation()
        for exercise, buffers in zip(expected, window, strict=True):
            wrong += exercise.wrong_elements(buffers, result, turn.damage) + exercise.changed_inputs(buffers)
    return Answer(times.starts_s, times.times_s, wrong, cpu_s=times.cpu_s, gaps_s=gaps_s)


def at_once(operations: Sequence[Operation]) -> Operation:
    """All of them started, then waited for, as one."""
    if len(operations) == 1:
        return operations[0]

    async def window() -> None:
        for work in [operation() for operation in operations]:
            await work

    return window


async def timed(operation: Operation, iterations: int) -> Answer:
    """The timed part, back to back."""
    starts_s, times_s = [], []
    cpu_before_s = time.process_time()
    for _ in range(iterations):
        started_s = time.perf_counter()
        await operation()
        times_s.append(time.perf_counter() - started_s)
        starts_s.append(started_s)
    return Answer(starts_s, times_s, cpu_s=time.process_time() - cpu_before_s)


async def serve(control: str, progress: str = "loop") -> None:
    """Connect, introduce this rank, play until the benchmark ends."""
    reader, writer = await asyncio.open_unix_connection(control, limit=LINE_BYTES_MAX)
    async with r2ccl.connect(progress=progress) as comm:
        addresses = ", ".join(nic["address"].rpartition(":")[0] for nic in comm.stats()["nics"].values())
        writer.write(Hello(comm.rank, os.getpid(), addresses).as_line().encode())
        await reader.readline()
        while line := await reader.readline():
            if line.strip() == b"stats":
                writer.write(json.dumps(traffic(comm)).encode() + b"\n")
            else:
                writer.write((await play(comm, Turn.parse(line))).as_line().encode())
    writer.close()


def traffic(comm: Communicator) -> dict[str, Any]:
    """What this rank's NICs have sent so far."""
    stats = comm.stats()
    return {
        "nics": {name: [nic["sent_bytes"], nic["resent_bytes"]] for name, nic in stats["nics"].items()},
        "failovers": stats["counters"]["failovers"],
    }


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
