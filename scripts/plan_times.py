"""How long a plan takes, in milliseconds of processor time: for every collective, small and large.

    python scripts/plan_times.py                1,024 ranks
    python scripts/plan_times.py --ranks 64

It prints the longest of the rounds' shortest: what else the machine does makes times longer, never shorter.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from r2ccl.actors.planning import Call, Plans
from r2ccl.planner.picture import Picture, even_picture
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.schedule.algorithms import IN_PARTS

FLOAT32 = np.dtype(np.float32)
#: Elements of a rank's part, or of the buffer that all have.
PARTS = (1, 1 << 10, 1 << 14, 1 << 20)
ROUNDS = 5


def plan_s(kind: CollectiveKind, part: int, rank: int, picture: Picture) -> tuple[float, str]:
    """The least of some rounds, and which algorithm it was."""
    ranks = len(picture.nics)
    parts = (part,) * ranks if kind.value in IN_PARTS else ()
    out_parts = parts if kind is CollectiveKind.ALL_TO_ALL else ()
    count = 0 if kind is CollectiveKind.BARRIER else sum(parts) or part
    op = Op.SUM if "reduce" in kind.value else None
    call = Call(kind, FLOAT32, "float32", count, op, 0, parts, out_parts)
    times, reason = [], ""
    for _ in range(ROUNDS):
        plans = Plans(rank, picture, range(ranks))
        began_s = time.process_time()
        reason = plans.plan(call).reason
        times.append(time.process_time() - began_s)
    return min(times), reason.partition(":")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    ranks = parser.parse_args().ranks
    picture = even_picture(ranks)
    longest = 0.0
    for kind in CollectiveKind:
        for part in PARTS:
            took_s, name = max(plan_s(kind, part, rank, picture) for rank in (0, ranks // 3))
            longest = max(longest, took_s)
            print(f"{kind.value:<15}{part * FLOAT32.itemsize:>9} B  {name:<20}{took_s * 1e3:7.1f} ms", flush=True)
    print(f"longest, {ranks} ranks: {longest * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
