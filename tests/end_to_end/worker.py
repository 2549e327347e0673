"""One rank under test: a process that does what it is told and says what came of it.

    python worker.py [asyncio|uvloop]

Commands come as JSON lines on standard input, ``{"id": 7, "do": "all_reduce", ...arguments}``. Each runs as a task of
its own, so that a stream can be asked how far it is and told to stop. One JSON line answers each on standard output:
``{"id": 7, "value": ...}`` or ``{"id": 7, "error": {"kind": "PeerLost", "at_s": ...}}``; times are of the monotonic
clock, which all processes of a machine share. The end of standard input, or of the parent, is the end of the rank.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import uvloop

import r2ccl
from r2ccl.errors import CollectiveMismatch, CollectiveTimeout, PeerLost, R2cclError

Vector = npt.NDArray[np.float32]

PR_SET_PDEATHSIG = 1
#: Elements filled or checked before the loop gets its turn: some 100 us.
PIECE = 1 << 17
#: Operations with different data, before it repeats.
SPREAD = 4093
#: More than arrive in a minute at the lab's rates.
ARRIVALS_CAPACITY = 1 << 17
EXIT_WITHOUT_PARENT = 70


class Payload:
    """Pseudo-random integers, others in each operation, whose sums are exact in float32: right or wrong, never near."""

    def __init__(self, rank: int, size: int, elements: int) -> None:
        tables = [
            np.random.default_rng(r).integers(-1000, 1000, elements + SPREAD).astype(np.float32) for r in range(size)
        ]
        self._own = tables[rank]
        self._sum: Vector = np.add.reduce(tables)

    async def fill(self, x: Vector, operation: int) -> None:
        """This rank's operands."""
        offset = operation * 61 % SPREAD
        for first in range(0, len(x), PIECE):
            piece = x[first : first + PIECE]
            piece[:] = self._own[offset + first : offset + first + len(piece)]
            await asyncio.sleep(0)

    async def wrong_elements(self, x: Vector, operation: int) -> int:
        """How many elements are not the sum."""
        offset, wrong = operation * 61 % SPREAD, 0
        for first in range(0, len(x), PIECE):
            piece = x[first : first + PIECE]
            wrong += int(np.count_nonzero(piece != self._sum[offset + first : offset + first + len(piece)]))
            await asyncio.sleep(0)
        return wrong


class Stream:
    """All-reduces without pause, each checked to the last element, until the ranks agree to stop.

    One element more than the payload is a vote: every rank adds 1 once it was told to stop, and all see the same sum.
    """

    def __init__(self, comm: r2ccl.Communicator, elements: int, in_flight: int) -> None:
        self._comm = comm
        self._payload = Payload(comm.rank, comm.size, elements)
        self._buffers = [np.zeros(elements + 1, np.float32) for _ in range(in_flight)]
        self.stopping = False
        self.operations = 0
        self.wrong_elements = 0
        self.completions: list[float] = []

    async def run(self) -> None:
        free = list(self._buffers)
        running: list[tuple[Vector, r2ccl.Work]] = []
        called, ended = 0, False
        while running or not ended:
            while free and not ended:
                x = free.pop()
                await self._payload.fill(x[:-1], called)
                x[-1] = float(self.stopping)
                running.append((x, self._comm.all_reduce(x)))
                called += 1
            x, work = running.pop(0)
            await work
            self.completions.append(time.monotonic())
            self.wrong_elements += await self._payload.wrong_elements(x[:-1], self.operations)
            self.wrong_elements += not 0 <= x[-1] <= self._comm.size
            self.operations += 1
            ended = ended or x[-1] != 0
            free.append(x)

    def report(self) -> dict[str, Any]:
        return {"operations": self.operations, "wrong_elements": self.wrong_elements}


class Worker:
    """Each ``do_`` method is a command."""

    def __init__(self) -> None:
        self.left = asyncio.get_running_loop().create_future()
        self._comm: r2ccl.Communicator | None = None
        self._stream: Stream | None = None
        self._unread = b""
        self._buffers: dict[str, Vector] = {}
        #: Kept alive, or the parent would wait for them at its end.
        self._children: list[Any] = []

    @property
    def comm(self) -> r2ccl.Communicator:
        assert self._comm is not None, "connect first"
        return self._comm

    def listen(self, tasks: asyncio.TaskGroup) -> None:
        """Take commands from now on."""
        asyncio.get_running_loop().add_reader(0, self._readable, tasks)

    def _readable(self, tasks: asyncio.TaskGroup) -> None:
        read = os.read(0, 1 << 16)
        if not read:
            raise SystemExit(EXIT_WITHOUT_PARENT)
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            tasks.create_task(self._obey(json.loads(line)))

    async def _obey(self, command: dict[str, Any]) -> None:
        number = command.pop("id")
        method = getattr(self, "do_" + command.pop("do"))
        try:
            answer = {"value": await method(**command)}
        except R2cclError as error:
            answer = {"error": {**describe(error), "at_s": time.monotonic()}}
        except Exception:  # noqa: BLE001 - whatever it is, the test has to hear of it
            answer = {"error": {"kind": "bug", "text": traceback.format_exc(), "at_s": time.monotonic()}}
        os.write(1, (json.dumps({"id": number, **answer}) + "\n").encode())

    # The communicator.

    async def do_connect(self, version: str = "", **arguments: Any) -> dict[str, Any]:
        """``version``: pretend to be that one."""
        if version:
            sys.modules[r2ccl.connect.__module__].__version__ = version  # type: ignore[attr-defined]
        self._comm = await r2ccl.connect(**arguments)
        return {"rank": self._comm.rank, "size": self._comm.size, "loop": type(asyncio.get_running_loop()).__module__}

    async def do_close(self) -> None:
        await self.comm.close()

    async def do_leave(self) -> None:
        """End with exit code 0."""
        self.left.set_result(None)

    async def do_stats(self) -> dict[str, Any]:
        return self.comm.stats()

    async def do_events(self, name: str = "") -> list[dict[str, object]]:
        return [event.as_json() for event in self.comm.events.since(0) if not name or event.name == name]

    async def do_record_arrivals(self) -> None:
        """From now on."""
        self.comm.counters.record_arrivals(ARRIVALS_CAPACITY)

    async def do_arrivals(self) -> list[tuple[float, int, int]]:
        arrivals = self.comm.counters.arrivals
        assert arrivals is not None
        taken = list(arrivals)
        arrivals.clear()
        return taken

    async def do_carrier(self, nic: int, up: bool) -> None:
        self.comm.report_carrier(nic, up)

    async def do_usage(self) -> dict[str, int]:
        """What the process holds."""
        return usage()

    # Collectives.

    async def do_collectives(self) -> int:
        """Every kind of collective once or more; returns the number of wrong elements."""
        comm, wrong = self.comm, 0
        for elements in (0, 1, 1000, 20_011, 1_000_003):
            payload, x = Payload(comm.rank, comm.size, elements), np.zeros(elements, np.float32)
            await payload.fill(x, elements)
            assert await comm.all_reduce(x) is x
            wrong += await payload.wrong_elements(x, elements)
        for root in range(comm.size):
            y = np.full(50_000, comm.rank, np.int64)
            await comm.broadcast(y, root)
            wrong += int(np.count_nonzero(y != root))
        z = np.array([comm.rank], np.int32)
        await comm.all_reduce(z, r2ccl.MAX)
        wrong += int(z[0] != comm.size - 1)
        await comm.barrier()
        return wrong

    async def do_surface(self, torch: bool = False, every: int = 1) -> int:
        """The grid of all collectives, with every so many dtypes; returns how many checks were made."""
        from tests.surface import Numpy, Surface, Torch, run_dtypes, run_sizes

        surface = Surface(self.comm, Torch() if torch else Numpy())
        return await run_sizes(surface) + await run_dtypes(surface, (101,), every)

    async def do_all_reduce(self, elements: int, dtype: str = "float32", limit_s: float | None = None) -> int:
        """One, of this rank's number plus one; returns the number of wrong elements."""
        x = np.full(elements, self.comm.rank + 1, dtype)
        await self.comm.all_reduce(x, timeout=limit_s)
        return int(np.count_nonzero(x != self.comm.size * (self.comm.size + 1) // 2))

    async def do_broadcast(self, elements: int, root: int) -> None:
        await self.comm.broadcast(np.zeros(elements, np.float32), root)

    async def do_barrier(self, limit_s: float | None = None) -> None:
        await self.comm.barrier(timeout=limit_s)

    async def do_shrink(self) -> list[int]:
        """Go on with whoever is left; returns the members."""
        self._comm = await self.comm.shrink()
        return list(self.comm.members)

    async def do_small_operations(self, count: int) -> int:
        """All-reduces of four bytes; returns how many were wrong."""
        wrong, x = 0, np.zeros(1, np.float32)
        for operation in range(count):
            x[0] = operation % 1000 + self.comm.rank
            await self.comm.all_reduce(x)
            wrong += int(x[0] != self.comm.size * (operation % 1000) + sum(range(self.comm.size)))
        return wrong

    async def do_connect_and_close(self, count: int) -> dict[str, int]:
        """Again and again, with an operation in between; what the process holds afterwards."""
        x = np.ones(1000, np.float32)
        for _ in range(count):
            async with r2ccl.connect() as comm:
                x[:] = 1
                await comm.all_reduce(x)
                assert (x == comm.size).all()
        # The timers of what was closed run out.
        await asyncio.sleep(1.5)
        return usage()

    async def do_stream(self, elements: int, in_flight: int = 2) -> dict[str, Any]:
        """Until some rank is told to stop."""
        self._stream = Stream(self.comm, elements, in_flight)
        await self._stream.run()
        return self._stream.report()

    async def do_progress(self) -> dict[str, Any]:
        return {"operations": 0} if self._stream is None else self._stream.report()

    async def do_completions(self) -> list[float]:
        """When each operation of the stream was complete."""
        assert self._stream is not None
        return self._stream.completions

    async def do_stop(self) -> None:
        assert self._stream is not None
        self._stream.stopping = True

    async def do_block(self, seconds: float) -> None:
        """Compute on the loop, which can do nothing else meanwhile."""
        block(seconds)

    async def do_all_reduce_and_rewrite(self, elements: int, limit_s: float) -> dict[str, Any]:
        """Write to the buffer in the moment that a time-out hands it back; does anybody else, a second long?"""
        x = np.full(elements, self.comm.rank + 1, np.float32)
        try:
            await self.comm.all_reduce(x, timeout=limit_s)
        except CollectiveTimeout as late:
            x[:] = -12345.0
            await asyncio.sleep(1.0)
            return {**describe(late), "overwritten": int(np.count_nonzero(x != -12345.0))}
        return {"kind": "none"}

    # Processes.

    async def do_fork_idle(self) -> list[int]:
        """Children as a DataLoader has them: by os.fork and by multiprocessing, doing nothing for long."""
        pid = fork_idle()
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        child.start()
        self._children.append(child)
        return [pid, child.pid or 0]

    async def do_fork_and_use(self) -> dict[str, str]:
        """What a forked child gets from each call on the communicator that it inherited."""
        return fork_and_use(self.comm)

    async def do_exit_with_operation_in_flight(self, code: int) -> None:
        """By the front door, while others still wait for the operation."""
        x = np.ones(1 << 20, np.float32)
        self._buffers["in flight"] = x
        self.comm.all_reduce(x)
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_soon(sys.exit, code)


def block(seconds: float) -> None:
    """As a computation that never lets go."""
    time.sleep(seconds)


def fork_idle() -> int:
    """A child that does nothing for long."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid


def fork_and_use(comm: r2ccl.Communicator) -> dict[str, str]:
    """What :func:`use_in_child` returns in a child."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, json.dumps(use_in_child(comm)).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end) as told:
        result: dict[str, str] = json.load(told)
        return result


def use_in_child(comm: r2ccl.Communicator) -> dict[str, str]:
    """Every call, and the error that it raises."""
    x = np.ones(10, np.float32)
    calls = {
        "all_reduce": lambda: comm.all_reduce(x),
        "broadcast": lambda: comm.broadcast(x, 0),
        "barrier": comm.barrier,
    }
    raised = {}
    for name, call in calls.items():
        try:
            call()
        except R2cclError as error:
            raised[name] = f"{type(error).__name__}: {error}"
    # Neither of these may reach the parent's peers.
    comm.abort()
    close = comm.close()
    try:
        close.send(None)
    except StopIteration:
        raised["close"] = "ended"
    raised["sockets"] = str(len(psutil.Process().net_connections("inet")))
    return raised


def usage() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {"rss": process.memory_info().rss, "descriptors": process.num_fds()}


def describe(error: R2cclError) -> dict[str, Any]:
    """An error as plain data; its kind is the public class that a caller would catch."""
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == R2cclError.__module__)
    described: dict[str, Any] = {"kind": kind, "text": str(error)}
    if isinstance(error, PeerLost):
        described |= {"ranks": error.ranks, "cause": error.cause, "verdict": error.verdict}
    elif isinstance(error, CollectiveMismatch):
        described |= {"operation": error.operation, "calls": error.calls}
    elif isinstance(error, CollectiveTimeout):
        described |= {"not_entered": error.not_entered, "entered": error.entered, "finished": error.finished}
    return described


async def main() -> None:
    worker = Worker()
    async with asyncio.TaskGroup() as tasks:
        worker.listen(tasks)
        await worker.left


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    if sys.argv[1:] == ["asyncio"]:
        asyncio.run(main())
    else:
        uvloop.run(main())
