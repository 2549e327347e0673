"""All-reduces without pause, every element of every result checked, until it is told to stop. See it lose a NIC.

    r2ccl run -n 4 examples/all_reduce_stream.py --seconds 5
    docker compose up                                 # in four containers with two NICs each: docs/docker.md

Each rank prints what it moved on each NIC, and what happened to NICs and links. A signal (Ctrl-C, `docker stop`) to any
one rank stops all of them after the same operation: the last element of each operation is no data but a vote. With
`--json` the same is told in lines of JSON, with the time of every completion on the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import deque

import numpy as np
import numpy.typing as npt
import uvloop

import r2ccl

Vector = npt.NDArray[np.float32]

#: Operations in flight: while one is checked the next is on the wires.
IN_FLIGHT = 2
#: An operation's data begins at one of so many places of the vectors.
OFFSETS = 4093
#: Integers up to here add up exactly in float32, in any order, for up to 128 ranks.
LIMIT = 1 << 17


class Payload:
    """What each rank gives to each operation, and the sum that must come out.

    A rank gives a stretch of its own vector of pseudo-random integers, which begins elsewhere for each operation. A
    chunk of another rank, place or operation, one added twice or not at all, changes the sum.
    """

    def __init__(self, rank: int, size: int, elements: int) -> None:
        self.elements = elements
        vectors = [
            np.random.default_rng(r).integers(0, LIMIT, elements + OFFSETS).astype(np.float32) for r in range(size)
        ]
        self._own = vectors[rank]
        self._sum: Vector = np.add.reduce(vectors)

    def fill(self, x: Vector, operation: int, vote: bool) -> None:
        """Write this rank's contribution, and whether it wants to stop."""
        offset = operation * 61 % OFFSETS
        x[:-1] = self._own[offset : offset + self.elements]
        x[-1] = vote

    def wrong_elements(self, x: Vector, operation: int, size: int) -> int:
        """How many elements of a result are not what they must be."""
        offset = operation * 61 % OFFSETS
        wrong = int(np.count_nonzero(x[:-1] != self._sum[offset : offset + self.elements]))
        return wrong + (float(x[-1]) not in range(size + 1))


class Stream:
    """One rank's stream, and what it has to tell."""

    def __init__(self, comm: r2ccl.Communicator, elements: int) -> None:
        self.comm = comm
        self.stopping = False
        self.operations = 0
        self.wrong_elements = 0
        #: When each operation ended, since the last report.
        self.completions: list[float] = []
        self._payload = Payload(comm.rank, comm.size, elements)

    def stop(self) -> None:
        """Vote for the end."""
        self.stopping = True

    async def run(self) -> None:
        """Until somebody's vote to stop has come back to everybody, in the same operation."""
        free = [np.empty(self._payload.elements + 1, np.float32) for _ in range(IN_FLIGHT)]
        running: deque[tuple[Vector, r2ccl.Work]] = deque()
        called, ended = 0, False
        while running or not ended:
            while free and not ended:
                x = free.pop()
                self._payload.fill(x, called, self.stopping)
                running.append((x, self.comm.all_reduce(x)))
                called += 1
            x, work = running.popleft()
            await work
            self.completions.append(time.monotonic())
            self.wrong_elements += self._payload.wrong_elements(x, self.operations, self.comm.size)
            self.operations += 1
            ended = ended or x[-1] != 0
            free.append(x)


class Reporter:
    """Tells what a stream does: in words, or in JSON."""

    def __init__(self, stream: Stream, as_json: bool, period_s: float) -> None:
        self._stream = stream
        self._as_json = as_json
        self._period_s = period_s
        self._told_s = time.monotonic()
        self._told_event = 0
        self._told_operations = 0
        self._told_bytes: dict[str, int] = {}

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            await asyncio.sleep(self._period_s)
            self.tell("sample")

    def tell(self, kind: str) -> None:
        """What happened since the last time."""
        stream, comm = self._stream, self._stream.comm
        events = comm.events.since(self._told_event)
        self._told_event += len(events)
        nics = comm.stats()["counters"]["nics"]
        completions, stream.completions = stream.completions, []
        if self._as_json:
            report = {
                "kind": kind,
                "rank": comm.rank,
                "time_s": time.monotonic(),
                "operations": stream.operations,
                "wrong_elements": stream.wrong_elements,
                "completions": completions,
                "nics": nics,
                "events": [[event.time_s, str(event)] for event in events],
            }
            print(json.dumps(report), flush=True)
        else:
            for event in events:
                print(f"rank {comm.rank}: {event}", flush=True)
            print(f"rank {comm.rank}: {'the end: ' if kind == 'done' else ''}{self._progress(nics)}", flush=True)

    def _progress(self, nics: dict[str, dict[str, int]]) -> str:
        now = time.monotonic()
        seconds, self._told_s = now - self._told_s, now
        moved = {nic: row["sent_bytes"] + row["received_bytes"] for nic, row in nics.items()}
        rates = ", ".join(
            f"{nic} {(total - self._told_bytes.get(nic, 0)) / seconds / 1e6:.0f} MB/s" for nic, total in moved.items()
        )
        operations, self._told_operations = self._stream.operations - self._told_operations, self._stream.operations
        self._told_bytes = moved
        return (
            f"{self._stream.operations} operations ({operations / seconds:.0f}/s), "
            f"{self._stream.wrong_elements} wrong elements; {rates}"
        )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elements", type=int, default=1 << 18, help="float32 per operation (default: 1 MiB of them)")
    parser.add_argument("--seconds", type=float, default=0.0, help="vote to stop after so long; 0: go on")
    parser.add_argument("--period", type=float, default=0.0, help="seconds between reports (2; 0.2 with --json)")
    parser.add_argument("--json", action="store_true", help="report in JSON")
    arguments = parser.parse_args()
    if arguments.elements < 1 or arguments.seconds < 0 or arguments.period < 0:
        parser.error("--elements takes a positive number, --seconds and --period none below 0")
    return arguments


async def main(arguments: argparse.Namespace) -> int:
    """Connect, stream, tell; the exit code says whether every element was right."""
    async with r2ccl.connect() as comm:
        stream = Stream(comm, arguments.elements)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stream.stop)
        if arguments.seconds:
            loop.call_later(arguments.seconds, stream.stop)
        reporter = Reporter(stream, arguments.json, arguments.period or (0.2 if arguments.json else 2.0))
        reporter.tell("ready")
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(reporter.run())
            await stream.run()
            telling.cancel()
        reporter.tell("done")
    return 1 if stream.wrong_elements else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main(parse_arguments())))
