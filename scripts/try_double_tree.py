"""Would a double binary tree beat the all-reduces that there are? By the flow timing, on an ideal network.

    python scripts/try_double_tree.py                        where no node is shared, 10 Gbit/s
    python scripts/try_double_tree.py --alpha-us 10 --gbit-s 50 --chunk-us 2

Each rank is an inner node of one tree and a leaf of the other; each tree reduces half of the buffer upwards and spreads
it downwards, chunk by chunk (Sanders, Speck, Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35, 2009). The size of its chunks is the best of some; the others have the planner's. Of the
others the fastest is taken, without what is not allowed above the eager limit. --chunk-us is how long a rank is busy
with one more chunk, as `r2ccl tune` measures it.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from r2ccl.planner.choose import choose
from r2ccl.planner.cost import Wires, cost_s
from r2ccl.planner.picture import even_picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.schedule.algorithms import algorithm
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Program, Receive, Send, Shape
from r2ccl.schedule.semantics import all_reduce
from r2ccl.sim.flow import flow

KIB = 1 << 10
RANKS = (8, 12, 16, 24, 48, 64, 96, 128, 192, 256)
SIZES = (64 * KIB, 256 * KIB, 1 << 20, 4 << 20, 16 << 20)
CHUNKS = (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
#: Finer chunks of a large buffer are many events, and no better.
CHUNKS_EACH_MAX = 256


def relatives(ranks: int, place: int) -> tuple[int | None, list[int]]:
    """The parent and the children of a place in the first tree: places stand in order, and the odd ones are inner."""
    bit = 1
    while bit < ranks and not place & bit:
        bit <<= 1
    if place == 0:
        return None, [bit >> 1] if ranks > 1 else []
    parent = (place ^ bit) | bit << 1
    parent = place ^ bit if parent >= ranks else parent
    low = bit >> 1
    children = [place - low] if low else []
    while low and place + low >= ranks:
        low >>= 1
    return parent, [*children, place + low] if low else children


def program(ranks: int, rank: int, count: int) -> Program:
    """Of one rank."""
    sends: list[Send] = []
    receives: list[Receive] = []
    middle = count // 2
    for tree, (start, stop) in enumerate(((0, middle), (middle, count))):
        # The second tree: mirrored, or moved by one, so that who is inner in one is a leaf in the other.
        places = [ranks - 1 - r if ranks % 2 == 0 else (r + 1) % ranks for r in range(ranks)]
        of = list(range(ranks)) if tree == 0 else places
        at = {place: other for other, place in enumerate(of)}
        parent, children = relatives(ranks, of[rank])
        last: tuple[int, ...] = ()
        for child in children:
            receives.append(
                Receive(tree, at[child], start, stop, reduce=True, received_first=child < of[rank], after=last)
            )
            last = (len(receives) - 1,)
        if parent is not None:
            sends.append(Send(tree, at[parent], start, stop, last))
            last = (len(receives),)
            receives.append(Receive(2 + tree, at[parent], start, stop))
        sends += [Send(2 + tree, at[child], start, stop, last, needs_ack=True) for child in children]
    return Program(rank, count, tuple(sends), tuple(receives))


def trees_s(programs: Sequence[Program], size: int, wires: Wires, chunk_s: float) -> tuple[float, int]:
    """With the best of the chunks, and how long those are."""
    chunks = [chunk for chunk in CHUNKS if size <= 2 * chunk * CHUNKS_EACH_MAX]
    return min(
        (flow(programs, 4, dataclasses.replace(wires, chunk_bytes=chunk), chunk_s).seconds, chunk) for chunk in chunks
    )


def others_s(ranks: int, size: int, wires: Wires, chunk_s: float) -> tuple[float, str]:
    """The fastest of those that there are. The ring by its formula, which the flow agrees with; of its chunks all but
    the first of each message keep a rank busy."""
    picture = even_picture(ranks, bandwidth_bytes_s=1 / wires.beta_s_per_byte, latency_s=wires.alpha_s)
    request = Request(CollectiveKind.ALL_REDUCE, size // 4, 4)
    wires = dataclasses.replace(wires, chunk_bytes=choose(request, ranks, picture).chunk_bytes)
    halving = algorithm("all_reduce", "halving_doubling").all_programs([Shape(size // 4)] * ranks)
    further = 2 * (ranks - 1) * (-(-size // ranks // wires.chunk_bytes) - 1)
    found = [
        (flow(halving, 4, wires, chunk_s).seconds, "halving_doubling"),
        (cost_s("all_reduce", "ring", ranks, size, wires) + further * chunk_s, "ring"),
    ]
    if size <= picture.eager_bytes:
        found.append((cost_s("all_reduce", "recursive_doubling", ranks, size, wires), "recursive_doubling"))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpha-us", type=float, default=30.0)
    parser.add_argument("--gbit-s", type=float, default=10.0)
    parser.add_argument("--reduce-gb-s", type=float, default=10.0)
    parser.add_argument("--chunk-us", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    asked = parser.parse_args()
    wires = Wires(asked.alpha_us * 1e-6, 8e-9 / asked.gbit_s, CHUNKS[0], 1e-9 / asked.reduce_gb_s, 0.0)
    chunk_s = asked.chunk_us * 1e-6
    print("ranks     bytes   two trees (chunks)       the best other            other / trees")
    for ranks in asked.ranks:
        check([program(ranks, rank, 64) for rank in range(ranks)], all_reduce(ranks, 64))
        for size in SIZES:
            programs = [program(ranks, rank, size // 4) for rank in range(ranks)]
            trees, chunk = trees_s(programs, size, wires, chunk_s)
            other, name = others_s(ranks, size, wires, chunk_s)
            told = f"{trees * 1e3:8.3f} ms ({chunk // KIB:>3} KiB)   {other * 1e3:8.3f} ms {name:<18}"
            print(f"{ranks:>5}  {size:>8}  {told}  {other / trees:.2f}", flush=True)


if __name__ == "__main__":
    main()
