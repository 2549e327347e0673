"""The measurements of ``r2ccl tune``: times of operations among some ranks, and what a rank does by itself.

All that one wire is asked is measured in turns, one short burst each, so that whatever else the machine does meets all
of it; the median of the turns is taken. Every rank makes the same calls; only the first one's clock counts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from r2ccl.communicator import Communicator
from r2ccl.config import KIB, MIB
from r2ccl.planner.fit import Sample, fit, slope
from r2ccl.reduction import Op, reducer
from r2ccl.tuning import SECONDS_LIMITS, SECONDS_PER_BYTE_LIMITS, WireCost

#: A burst is as many operations as take about this long, within these numbers.
BURST_S: Final = 0.01
BURST_MIN, BURST_MAX = 2, 50
#: Largest message that goes out from a copy, which is the largest that recursive doubling is allowed.
EAGER_BYTES: Final = 64 * KIB
#: All-reduces: by which algorithms, of how many bytes. The first has fewer steps than the second, and the third differs
#: from the second by what it reads from memory anew.
COMPARED: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "recursive_doubling": (4, 256, 4 * KIB, 16 * KIB, EAGER_BYTES),
        "ring": (4, 256, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB),
        "halving_doubling": (256 * KIB, MIB, 4 * MIB),
    }
)
#: One broadcast in so many chunks: what one more message costs.
CHUNKED_BYTES: Final = 64 * KIB
CHUNK_COUNTS: Final = (4, 16, 64)
#: Of what a rank does by itself.
PIECE_BYTES: Final = 256 * KIB


def variants() -> dict[str, dict[str, Any]]:
    """By name the settings that a communicator is connected with."""
    whole = {name: {"algorithms": f"all_reduce={name}", "eager_bytes": EAGER_BYTES} for name in COMPARED}
    chunked = {f"in {count} chunks": {"chunk_bytes": CHUNKED_BYTES // count} for count in CHUNK_COUNTS}
    return {**whole, **chunked}


@dataclass(frozen=True, slots=True)
class _Point:
    """One thing to measure again and again."""

    variant: str
    payload_bytes: int
    call: Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One wire's."""

    cost: WireCost
    #: Of one call, however it is done.
    start_s: float
    error: float
    samples: tuple[Sample, ...]


#: Which variant, the bytes of a call, and what it usually took by this rank's clock.
Times = list[tuple[str, int, float]]


async def measure_wire(communicators: Mapping[str, Communicator], turns: int, tell: Callable[[], None]) -> Times:
    """``communicators``: of the same ranks, one for each variant. ``tell``: another turn is done."""
    points = _points(communicators)
    one = next(iter(communicators.values()))
    repeats = await _repeats(one, points)
    times: list[list[float]] = [[] for _ in points]
    for _ in range(turns):
        for index, point in enumerate(points):
            await one.barrier()
            began_s = time.perf_counter()
            for _ in range(repeats[index]):
                await point.call()
            times[index].append((time.perf_counter() - began_s) / repeats[index])
        tell()
    return [(point.variant, point.payload_bytes, median(taken)) for point, taken in zip(points, times, strict=True)]


def _points(communicators: Mapping[str, Communicator]) -> list[_Point]:
    points = []
    for variant, comm in communicators.items():
        if variant in COMPARED:
            points += [_Point(variant, size, _all_reduce(comm, size)) for size in COMPARED[variant]]
        else:
            points.append(_Point(variant, CHUNKED_BYTES, _broadcast(comm)))
    return points


def _all_reduce(comm: Communicator, size_bytes: int) -> Callable[[], Awaitable[Any]]:
    values = np.zeros(size_bytes // 4, np.float32)
    return lambda: comm.all_reduce(values)


def _broadcast(comm: Communicator) -> Callable[[], Awaitable[Any]]:
    """There and back, so that the root is not ahead."""
    values = np.zeros(CHUNKED_BYTES, np.uint8)

    async def there_and_back() -> None:
        await comm.broadcast(values, 0)
        await comm.broadcast(values, comm.size - 1)

    return there_and_back


async def _repeats(comm: Communicator, points: Sequence[_Point]) -> list[int]:
    """How often in a burst, the same on all ranks; what is found by doing it also warms up."""
    wanted = np.zeros(len(points), np.int64)
    for index, point in enumerate(points):
        took_s = []
        for _ in range(3):
            began_s = time.perf_counter()
            await point.call()
            took_s.append(time.perf_counter() - began_s)
        wanted[index] = max(BURST_MIN, min(BURST_MAX, round(BURST_S / max(1e-9, min(took_s)))))
    await comm.broadcast(wanted, 0)
    return [int(count) for count in wanted]


def digest(ranks: int, times: Times, gamma_s_per_byte: float) -> Measured:
    """From times to what a message costs. Raises ``ValueError`` if they do not say."""
    samples = tuple(
        Sample("all_reduce", variant, ranks, size, PIECE_BYTES, seconds)
        for variant, size, seconds in times
        if variant in COMPARED
    )
    # Two broadcasts; the frames of one follow one another.
    chunked = [
        (float(count), seconds / 2)
        for count in CHUNK_COUNTS
        for variant, _, seconds in times
        if variant == f"in {count} chunks"
    ]
    found = fit(samples, gamma_s_per_byte)
    alpha_s = _within(found.alpha_s, SECONDS_LIMITS)
    # Nobody is busier with a message than it takes to arrive.
    overhead_s = min(alpha_s, _within(slope(chunked), SECONDS_LIMITS))
    beta, delta = (
        _within(figure, SECONDS_PER_BYTE_LIMITS) for figure in (found.beta_s_per_byte, found.delta_s_per_byte)
    )
    cost = WireCost(alpha_s, beta, overhead_s, delta)
    return Measured(cost, found.start_s, found.error, samples)


def _within(value: float, limits: tuple[float, float]) -> float:
    return max(limits[0], min(limits[1], value))


def reduction_s_per_byte(turns: int) -> float:
    """gamma, on this rank: a piece that is in the cache, as it is when it has just been received."""
    own, received = (np.ones(PIECE_BYTES // 4, np.float32) for _ in range(2))
    combine = reducer(np.dtype(np.float32), Op.SUM)
    return _within(_usual_s(lambda: combine(own, received, True), turns) / PIECE_BYTES, SECONDS_PER_BYTE_LIMITS)


def _usual_s(work: Callable[[], object], turns: int) -> float:
    times = []
    for _ in range(turns + 1):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return median(times[1:])
