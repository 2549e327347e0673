"""The least that two ranks need for so many bytes through a ring: one copies in and the other out, both ways at once.

    python scripts/copy_floor.py
    python scripts/copy_floor.py --mib 4
    python scripts/copy_floor.py --lent

Two processes on a core each copy by memoryviews, as the shared memory transport does, and do nothing else; no sum is
made. With ``--lent`` each reads from where it lies in the other's process. Prints the least of some rounds for rings
and pieces of several sizes: how long an all-reduce of that size would take if it were nothing but the copies of
everything that it must send.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time

import numpy as np

from r2ccl.transport.cross_memory import address_of, read_from

KIB = 1 << 10
RINGS = (512 * KIB, 1 << 20, 2 << 20, 4 << 20)
PIECES = (64 * KIB, 128 * KIB, 256 * KIB)
LENT_PIECES = (256 * KIB, 1 << 20)
ROUNDS = 5
#: One after the other in a round, as operations follow one another.
PASSES = 5
#: Where each way's head and tail lie, in words of eight bytes; each has cache lines of its own.
HEAD, TAIL, READY = (0, 64), (128, 192), (256, 320)
CONTROL_BYTES = 4096
#: One for each process.
CORES = sorted(os.sched_getaffinity(0))[:2]


def seconds(total: int, ring: int, piece: int) -> float:
    """Of one round."""
    memory = memoryview(mmap.mmap(-1, CONTROL_BYTES + 2 * ring))
    words = memory[:CONTROL_BYTES].cast("Q")
    rings = [memory[CONTROL_BYTES + way * ring :][:ring] for way in range(2)]
    child = os.fork()
    own = 0 if child else 1
    os.sched_setaffinity(0, {CORES[own]})
    source, target = np.ones(total, np.uint8).data, np.ones(total, np.uint8).data  # written to: no page is new
    words[READY[own]] = 1
    while not words[READY[1 - own]]:
        pass
    began = time.perf_counter()
    written = read = 0
    end = PASSES * total
    while written < end or read < end:
        if written < end and written - words[TAIL[own]] <= ring - piece:
            at, begin = written % ring, written % total
            rings[own][at : at + piece] = source[begin : begin + piece]
            written += piece
            words[HEAD[own]] = written
        if read < end and words[HEAD[1 - own]] - read >= piece:
            at, begin = read % ring, read % total
            target[begin : begin + piece] = rings[1 - own][at : at + piece]
            read += piece
            words[TAIL[1 - own]] = read
    took = time.perf_counter() - began
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return took / PASSES


def lent_seconds(total: int, piece: int) -> float:
    """As :func:`seconds`, through no ring: they only tell each other where it lies, and when a pass is over."""
    words = memoryview(mmap.mmap(-1, CONTROL_BYTES)).cast("Q")
    parent = os.getpid()
    child = os.fork()
    own, peer = (0, child) if child else (1, parent)
    os.sched_setaffinity(0, {CORES[own]})
    source, target = np.ones(total, np.uint8), np.ones(total, np.uint8).data
    words[HEAD[own]] = address_of(source.data)
    while not (address := words[HEAD[1 - own]]):
        pass
    began = time.perf_counter()
    for number in range(1, PASSES + 1):
        for begin in range(0, total, piece):
            assert read_from(peer, address + begin, target[begin : begin + piece]), "the kernel forbids it"
        words[TAIL[own]] = number
        while words[TAIL[1 - own]] < number:
            pass
    took = time.perf_counter() - began
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return took / PASSES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=16, help="how many MiB go each way (16)")
    parser.add_argument("--lent", action="store_true", help="by reading the other process's memory")
    given = parser.parse_args()
    total = given.mib << 20
    if len(CORES) < 2:
        parser.error("it takes two cores")
    for piece in LENT_PIECES if given.lent else ():
        took = min(lent_seconds(total, piece) for _ in range(ROUNDS))
        print(f"pieces of {piece // KIB:4} KiB {1e3 * took:6.2f} ms", flush=True)
    for ring in () if given.lent else RINGS:
        found = [min(seconds(total, ring, piece) for _ in range(ROUNDS)) for piece in PIECES]
        pieces = zip(PIECES, found, strict=True)
        told = "   ".join(f"pieces of {piece // KIB:3} KiB {1e3 * took:6.2f} ms" for piece, took in pieces)
        print(f"ring of {ring // KIB:4} KiB   {told}", flush=True)


if __name__ == "__main__":
    main()
