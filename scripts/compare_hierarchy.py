"""What hierarchical schedules gain over flat ones where ranks share a node and its NICs, in the same processes.

    r2ccl lab up --hosts 2 --nics 2 --rate 2gbit
    r2ccl lab run --ranks-per-host 2 -- python scripts/compare_hierarchy.py

Each rank takes part in two jobs, one with R2CCL_HIERARCHY=on and one with off. For every size both get a number of
short rounds, one after the other, so that whatever else the machine does meets both. Rank 0 prints, for each collective
and size, of both: the bus bandwidth (as `r2ccl bench` has it, from the median of the rounds' median times); the bytes
that left its node's NICs (as the kernel counts them, headers and all) beside the least that have to, for all_reduce of
m bytes over h nodes 2 (h-1)/h m, and half of that for the others; and the processor time per rank. Then the ratio of a
round's two times (median, and the range between its quartiles): below 1 the hierarchical took less.

Give sizes in bytes as arguments for others than the default; `--only hierarchical` or `--only flat` runs one job alone.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import r2ccl
from r2ccl.communicator import Communicator
from r2ccl.config import environment

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
ROUNDS = 9
#: About this much time for a round.
ROUND_S = 0.4


def sent_bytes() -> int:
    """What this node's NICs have sent, by the kernel's count. ``/proc/net/dev`` is that of our network namespace."""
    wanted = environment()["R2CCL_NICS"].split(",")
    lines = (line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return sum(int(numbers.split()[8]) for name, numbers in lines if name.strip() in wanted)


class Collective:
    """One kind of call on data of ``size`` bytes, and what of it has to move."""

    def __init__(self, name: str, comm: Communicator, size: int) -> None:
        count = max(1, size // 4 // comm.size)
        self.name = name
        self._comm = comm
        self._whole = np.zeros(count * comm.size, np.float32)
        self._part = np.zeros(count, np.float32)

    @property
    def whole_bytes(self) -> int:
        return self._whole.nbytes

    async def call(self) -> None:
        match self.name:
            case "all_reduce":
                await self._comm.all_reduce(self._whole)
            case "all_gather":
                await self._comm.all_gather_into(self._whole, self._part)
            case _:
                await self._comm.reduce_scatter(self._part, self._whole)


class Taken(NamedTuple):
    """Of one operation."""

    seconds: float
    #: The mean over ranks.
    processor_s: float
    #: What left this node.
    sent_bytes: float


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def round_of(comm: Communicator, what: Collective, count: int) -> Taken:
    """Median time, and means of the rest."""
    await comm.barrier()
    before, used, times = sent_bytes(), processor_s(), []
    for _ in range(count):
        began = time.perf_counter()
        await what.call()
        times.append(time.perf_counter() - began)
    used = processor_s() - used
    await comm.barrier()
    sent = sent_bytes() - before
    of_all = np.array([used])
    await comm.all_reduce(of_all)
    return Taken(statistics.median(times), float(of_all[0]) / comm.size / count, sent / count)


async def operations_in_a_round(comm: Communicator, what: Collective) -> int:
    """The same on all ranks, from how long the slowest takes."""
    taken = np.array([(await round_of(comm, what, 3)).seconds])
    await comm.all_reduce(taken, r2ccl.Op.MAX)
    return min(200, max(2, int(ROUND_S / float(taken[0]))))


async def compare(jobs: list[Communicator], name: str, size: int, nodes: int, tell: Callable[[str], None]) -> None:
    calls = [Collective(name, comm, size) for comm in jobs]
    count = await operations_in_a_round(jobs[0], calls[0])
    rounds: list[list[Taken]] = [[] for _ in jobs]
    for number in range(ROUNDS + 1):
        for which, (comm, call) in enumerate(zip(jobs, calls, strict=True)):
            taken = await round_of(comm, call, count)
            if number:  # the first warms up
                rounds[which].append(taken)
    moved = calls[0].whole_bytes * (2 if name == "all_reduce" else 1)
    text = f"{name:<14} {size:>9} B  " + "  ".join(in_words(r, moved, jobs[0].size, nodes) for r in rounds)
    if len(jobs) == 2:
        ratios = [hierarchical.seconds / flat.seconds for hierarchical, flat in zip(*rounds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        text += f"  ratio {middle:.2f} ({low:.2f} to {high:.2f})"
    tell(text)


def in_words(rounds: list[Taken], moved: int, ranks: int, nodes: int) -> str:
    """``moved``: bytes that a rank would have to move if it had infinitely many peers."""
    bandwidth = moved * (ranks - 1) / ranks * 8e-9 / statistics.median(taken.seconds for taken in rounds)
    sent = statistics.median(taken.sent_bytes for taken in rounds) / (moved * (nodes - 1) / nodes)
    used_ms = statistics.median(taken.processor_s for taken in rounds) * 1e3
    return f"{bandwidth:6.2f} Gbit/s {sent:6.3f} x least {used_ms:7.2f} ms cpu"


async def main() -> None:
    told = environment()
    rank, host, port = int(told["RANK"]), told["MASTER_ADDR"], int(told["MASTER_PORT"])
    nodes = int(told["WORLD_SIZE"]) // int(told["LOCAL_WORLD_SIZE"])
    arguments = sys.argv[1:]
    hierarchies = ["on", "off"]
    if arguments[:1] == ["--only"]:
        hierarchies = ["on" if arguments[1] == "hierarchical" else "off"]
        arguments = arguments[2:]
    connections: list[Awaitable[Communicator]] = [
        r2ccl.connect(rendezvous=f"tcp://{host}:{port + offset}", hierarchy=hierarchy)
        for offset, hierarchy in enumerate(hierarchies)
    ]
    jobs = [await connection for connection in connections]
    tell: Callable[[str], None] = print if rank == 0 else lambda _: None
    tell(f"{'':<29}" + "  ".join(f"{'hierarchical' if h == 'on' else 'flat':<44}" for h in hierarchies))
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        for size in [int(argument) for argument in arguments] or SIZES:
            await compare(jobs, name, size, nodes, tell)
    for comm in jobs:
        await comm.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
