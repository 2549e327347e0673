"""One rank of the demo: a stream of all-reduces, each checked to the last element, and reports of how it goes.

    python -m r2ccl.cli.demo_worker OPTIONS      (JSON, see demo_worker_options)

Reports go as JSON lines to the descriptor that the options name, twenty times a second: one ``ready``, then ``sample``,
then one ``done``, or one ``lost`` where a peer is. Commands come as lines on standard input: ``stop``, and where the
NICs are emulated by the faulty transport ``cut RANK NIC`` and ``restore RANK NIC``. Its end means that the parent is
gone, and so ends the rank.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque

import uvloop

import r2ccl
from r2ccl.cli.demo_faults import EmulatedNics
from r2ccl.cli.demo_payload import Payload, Vector
from r2ccl.cli.demo_report import IN_FLIGHT
from r2ccl.cli.demo_worker_options import Options
from r2ccl.clock import MonotonicClock
from r2ccl.communicator import Communicator
from r2ccl.telemetry.event_log import Event

SAMPLE_S = 0.05
#: More than arrive between two samples at ten times the demo's rate.
ARRIVALS_CAPACITY = 1 << 14
#: At least this many operations are done before a rank calls itself ready: the streams are at full speed then.
WARM_UP_OPERATIONS = 8


class Worker:
    """The stream of one rank."""

    def __init__(self, comm: Communicator, options: Options, nics: EmulatedNics | None) -> None:
        self._comm = comm
        self._nics = nics
        self._payload = Payload(options.seed, comm.rank, comm.size, options.elements)
        self._sizes_vary = options.sizes_vary
        self._report_descriptor = options.report_descriptor
        self._stop = asyncio.Event()
        self._ready = False
        self._operations = 0
        self._completions: list[float] = []
        self._wrong_elements = 0
        self._last_event = 0
        self._unread = b""

    async def run(self) -> None:
        """From the first operation to the last report."""
        self._comm.counters.record_arrivals(ARRIVALS_CAPACITY)
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._read_commands)
        try:
            async with asyncio.TaskGroup() as tasks:
                sampler = tasks.create_task(self._sample_for_ever())
                await self._stream_or_say_who_is_lost()
                sampler.cancel()
        finally:
            loop.remove_reader(sys.stdin.fileno())
        self._sample()
        self._report({"kind": "done"})

    async def _stream_or_say_who_is_lost(self) -> None:
        try:
            await self._stream()
        except r2ccl.PeerLost as lost:
            now = MonotonicClock.now()
            self._sample()
            self._report({"kind": "lost", "time_s": now, "error": f"PeerLost({lost.cause}): {lost}"})
            raise

    async def _stream(self) -> None:
        free = [self._payload.new_buffer() for _ in range(IN_FLIGHT)]
        running: deque[tuple[int, Vector, Vector, r2ccl.Work]] = deque()
        stopping = False
        while running or not stopping:
            while free and not stopping:
                buffer = free.pop()
                x = buffer[: self._payload.size_of(self._operations) + 1] if self._sizes_vary else buffer
                await self._fill(x, self._operations)
                running.append((self._operations, buffer, x, self._comm.all_reduce(x)))
                self._operations += 1
            operation, buffer, x, work = running.popleft()
            await work
            self._completions.append(MonotonicClock.now())
            stopping = await self._check(x, operation) or stopping
            free.append(buffer)
            self._say_when_ready(operation)

    async def _fill(self, buffer: Vector, operation: int) -> None:
        for piece in self._payload.pieces(len(buffer) - 1):
            self._payload.fill(buffer, operation, piece)
            await asyncio.sleep(0)
        self._payload.set_stop(buffer, self._stop.is_set())

    async def _check(self, buffer: Vector, operation: int) -> bool:
        """Count what is wrong; whether anybody wants to stop, which all ranks learn from the same operation."""
        for piece in self._payload.pieces(len(buffer) - 1):
            self._wrong_elements += self._payload.wrong_elements(buffer, operation, piece)
            await asyncio.sleep(0)
        votes = self._payload.stop_votes(buffer)
        if votes is None:
            self._wrong_elements += 1
        return votes != 0

    def _say_when_ready(self, operation: int) -> None:
        if not self._ready and operation + 1 >= WARM_UP_OPERATIONS:
            self._ready = True
            self._report({"kind": "ready"})

    def _read_commands(self) -> None:
        read = os.read(sys.stdin.fileno(), 4096)
        if not read:
            raise SystemExit("the demo is gone")
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            match line.decode().split():
                case ["stop"]:
                    self._stop.set()
                case ["cut", rank, nic] if self._nics is not None and int(rank) == self._comm.rank:
                    self._nics.cut_own(int(rank), int(nic))
                case ["cut", rank, nic] if self._nics is not None:
                    self._nics.cut_other(int(rank), int(nic))
                case ["restore", rank, nic] if self._nics is not None:
                    self._nics.restore(int(rank), int(nic))
                case unknown:
                    raise SystemExit(f"no such command: {unknown}")

    async def _sample_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._sample()

    def _sample(self) -> None:
        counters = self._comm.counters
        assert counters.arrivals is not None
        arrivals = list(counters.arrivals)
        counters.arrivals.clear()
        completions, self._completions = self._completions, []
        events = self._comm.events.since(self._last_event)
        self._last_event += len(events)
        self._report(
            {
                "kind": "sample",
                "time_s": MonotonicClock.now(),
                "counters": counters.snapshot(),
                "arrivals": arrivals,
                "completions": completions,
                "wrong_elements": self._wrong_elements,
                "events": [[event.time_s, event.name, in_words(event)] for event in events],
                **self._more(),
            }
        )

    def _more(self) -> dict[str, object]:
        """What else a sample says; of the demo's ranks nothing."""
        return {}

    def _report(self, what: dict[str, object]) -> None:
        line = json.dumps(what).encode() + b"\n"
        while line:
            line = line[os.write(self._report_descriptor, line) :]


def in_words(event: Event) -> str:
    """An event as the demo shows it: its line, and of an incident the report alone."""
    return f"incident {event.fields['incident']}: {event.fields['report']}" if event.name == "incident" else str(event)


async def work(options: Options) -> None:
    """Connect, stream, close."""
    nics = EmulatedNics(options.emulate_mbit_s, options.fault) if options.emulate_mbit_s else None
    comm = await r2ccl.connect(wrap_device=nics.wrap) if nics else await r2ccl.connect()
    async with comm:
        if nics is not None:
            # No kernel speaks for these NICs; this is where its link events would come in.
            nics.tell_carriers_to(lambda nic, up: comm.report_carrier(nic, up))
        await Worker(comm, options, nics).run()


def main() -> None:
    """The program."""
    uvloop.run(work(Options.parse(sys.argv[1])))


if __name__ == "__main__":
    main()
