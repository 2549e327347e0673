"""Cut a NIC in the middle of an all-reduce, and watch it finish. Two seconds, no privileges:

    .venv/bin/python examples/survive_a_nic.py

Two ranks run in this one process, each with two loopback addresses for NICs. The cable is pulled by the ``faulty``
wrapper around rank 0's first NIC; with real NICs the kernel reports the same, and nothing else differs.
"""

import asyncio
import sys

import numpy as np

import r2ccl
from r2ccl.clock import MonotonicClock
from r2ccl.transport.faulty import FaultyDevice
from r2ccl.transport.interface import Device

ELEMENTS = 8 << 20
RENDEZVOUS = "tcp://127.0.0.1:29540"


def expected(operation: int) -> np.ndarray:
    """What every element must be: 0 + i and 1 + i of two ranks, small integers, so that sums are exact."""
    return (np.arange(ELEMENTS) % 1000 * 2 + 1 + 2 * operation).astype(np.float32)


async def run_rank(rank: int, cables: list[FaultyDevice]) -> bool:
    """One rank's life. Returns whether every element was right."""

    def wrap(device: Device) -> Device:
        wrapped = FaultyDevice(device, asyncio.get_running_loop(), MonotonicClock())
        if rank == 0:
            cables.append(wrapped)
        return wrapped

    all_right = True
    nics = f"127.0.1.{rank + 1},127.0.2.{rank + 1}"
    job = r2ccl.connect(
        rank=rank,
        size=2,
        rendezvous=RENDEZVOUS,
        nics=nics,
        wrap_device=wrap,
        shared_memory="off",  # or both would notice that they are on one node, and use no NIC
    )
    async with job as comm:
        for operation in range(4):
            x = (np.arange(ELEMENTS) % 1000 + rank + operation).astype(np.float32)
            work = comm.all_reduce(x)
            if rank == 0 and operation == 1:
                await asyncio.sleep(0.005)
                print("  ... cutting rank 0's NIC 0 in the middle of operation 1")
                cables[0].cut()
                comm.report_carrier(0, up=False)
            await work
            right = bool(np.array_equal(x, expected(operation)))
            all_right = all_right and right
            print(f"rank {rank}: operation {operation} {'right' if right else 'WRONG'} in all {ELEMENTS:,} elements")
        for event in comm.events.since(0):
            if event.name in ("nic", "lane_dissolved"):
                print(f"rank {rank}: {event}")
        resent = comm.counters.snapshot()["total"]["resent_chunks"]
        print(f"rank {rank}: {resent} chunks were sent again, on the other NIC")
    return all_right


async def main() -> int:
    """Run both ranks side by side."""
    cables: list[FaultyDevice] = []
    results = await asyncio.gather(run_rank(0, cables), run_rank(1, cables))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
