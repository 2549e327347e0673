"""Neighbours exchange messages, and halves of the ranks work as groups of their own.

    r2ccl run -n 4 examples/messages_and_groups.py

A rod is hot at one place. Each rank has a piece of it, and sends the temperatures at its borders to its neighbours for
every step of time. Then each half of the ranks finds its own hottest place. The whole rod, computed by one rank alone,
must come out the same, to the bit.
"""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt

import r2ccl

Rod = npt.NDArray[np.float64]
#: Places on a rank's piece, and steps of time.
PLACES, STEPS = 100, 50
TO_THE_LEFT, TO_THE_RIGHT = 0, 1


def next_step(rod: Rod, left: float, right: float) -> Rod:
    """The rod a moment later: each place becomes a little like its neighbours."""
    around = np.concatenate(([left], rod, [right]))
    return rod + 0.25 * (around[:-2] - 2 * rod + around[2:])


async def exchange_borders(comm: r2ccl.Communicator, piece: Rod) -> tuple[float, float]:
    """The temperatures next to the piece; beyond the ends of the rod it is cold."""
    left, right = np.zeros(1), np.zeros(1)
    works = []
    if comm.rank > 0:
        works += [comm.send(piece[:1], comm.rank - 1, TO_THE_LEFT), comm.recv(left, comm.rank - 1, TO_THE_RIGHT)]
    if comm.rank < comm.size - 1:
        works += [comm.send(piece[-1:], comm.rank + 1, TO_THE_RIGHT), comm.recv(right, comm.rank + 1, TO_THE_LEFT)]
    for work in works:
        await work
    return float(left[0]), float(right[0])


async def main() -> None:
    async with r2ccl.connect() as comm:
        whole = np.zeros(comm.size * PLACES)
        whole[PLACES - 1] = 1000.0  # next to the second piece, so that heat crosses over
        piece = whole[comm.rank * PLACES : (comm.rank + 1) * PLACES].copy()
        for _ in range(STEPS):
            piece = next_step(piece, *await exchange_borders(comm, piece))
            whole = next_step(whole, 0.0, 0.0)

        pieces = await comm.all_gather(piece)
        if not np.array_equal(np.concatenate(pieces), whole):
            raise SystemExit(f"rank {comm.rank}: the pieces do not make up the rod")

        half = await comm.split(color=2 * comm.rank // comm.size)
        hottest = np.array([piece.max()])
        await half.all_reduce(hottest, r2ccl.MAX)
        print(f"rank {comm.rank}, {half.rank} of {half.size} in its half: at most {hottest[0]:.1f} there")


if __name__ == "__main__":
    asyncio.run(main())
