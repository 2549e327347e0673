"""The smallest program: every rank adds its numbers to everybody's, and checks the sum.

    r2ccl run -n 4 examples/hello_all_reduce.py

Rank r contributes r + 1 in every element, so the sum is known: 1 + 2 + ... + n.
"""

from __future__ import annotations

import asyncio

import numpy as np

import r2ccl


async def main() -> None:
    async with r2ccl.connect() as comm:  # RANK, WORLD_SIZE, MASTER_ADDR ... or arguments
        gradients = np.full(1 << 20, comm.rank + 1, np.float32)
        await comm.all_reduce(gradients)  # in place; survives the loss of a NIC
        expected = comm.size * (comm.size + 1) // 2
        wrong = np.count_nonzero(gradients != expected)
        if wrong:
            raise SystemExit(f"rank {comm.rank}: {wrong} of {gradients.size} elements are not {expected}")
        print(f"rank {comm.rank} of {comm.size}: {gradients.size} elements, each {gradients[0]:.0f}, as it should be")


asyncio.run(main())
