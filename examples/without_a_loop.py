"""A program without an event loop: calls wait. It survives the loss of a NIC as any other does, also while it computes.

    r2ccl run -n 4 examples/without_a_loop.py

Rank 0 says how many points to throw; each rank throws its share at a square and counts those within the circle; the
sum of all counts gives pi.
"""

from __future__ import annotations

import numpy as np

import r2ccl.blocking


def main() -> None:
    with r2ccl.blocking.connect() as comm:
        plan = {"points": 1_000_000, "seed": 7} if comm.rank == 0 else None
        plan = comm.broadcast_object(plan, root=0)

        random = np.random.default_rng((plan["seed"], comm.rank))
        points = random.random((plan["points"] // comm.size, 2))
        within = np.array([np.count_nonzero((points**2).sum(axis=1) < 1)])

        # Two in flight: what does not wait is asked of `futures`, and waited for afterwards.
        thrown = np.array([len(points)])
        works = [comm.futures.all_reduce(within), comm.futures.all_reduce(thrown)]
        for work in works:
            work.wait()

        pi = 4 * within[0] / thrown[0]
        if abs(pi - np.pi) > 0.01:
            raise SystemExit(f"rank {comm.rank}: {pi} is not pi")
        print(f"rank {comm.rank} of {comm.size}: pi is about {pi:.3f}, by {thrown[0]} points")


if __name__ == "__main__":
    main()
