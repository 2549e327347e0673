"""One rank of the benchmark: connected by r2ccl once, then parked until it has a turn (see bench_turns).

python -m r2ccl.cli.bench_rank CONTROL_SOCKET
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

import r2ccl
from r2ccl.cli.bench_collectives import Shape
from r2ccl.cli.bench_data import Buffers, Exercise, make_buffers
from r2ccl.cli.bench_turns import Answer, Hello, Turn
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
    buffers = make_buffers(shape)
    buffers.zero()
    operation = prepare(comm, shape, buffers)
    for _ in range(turn.warmup):
        await operation()
    await comm.barrier()
    starts_s, times_s = [], []
    for _ in range(turn.iterations):
        started_s = time.perf_counter()
        await operation()
        times_s.append(time.perf_counter() - started_s)
        starts_s.append(started_s)
    wrong = 0
    for check in range(turn.checks):
        exercise = Exercise(shape, turn.seed + check)
        exercise.fill(buffers)
        result = await operation()
        wrong += exercise.wrong_elements(buffers, result, turn.damage) + exercise.changed_inputs(buffers)
    return Answer(starts_s, times_s, wrong)


async def serve(control: str) -> None:
    """Connect, introduce this rank, play until the benchmark ends."""
    reader, writer = await asyncio.open_unix_connection(control, limit=LINE_BYTES_MAX)
    async with r2ccl.connect() as comm:
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
    uvloop.run(serve(sys.argv[1]))
