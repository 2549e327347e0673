"""What one seed means: a world, what its ranks call, and what goes wrong (sim.faults). Data; nothing runs here."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from r2ccl.config import Settings
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.sim.faults import FOREVER, Fault, Promise, burst_bytes, draw_faults, slowest_bytes_s
from r2ccl.sim.world import Shape
from r2ccl.transport.memory_path import Model

#: Chunks x ranks of all calls together: what bounds the real time that a world takes.
WORK_MAX = 9000
#: Every so many seeds the NICs write into the peer's memory.
ONE_SIDED_EVERY = 3
DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call, the same on all ranks. ``exact``: its payload is integers whose partial sums are exact."""

    kind: CollectiveKind
    dtype: str = "uint8"
    op: Op | None = None
    count: int = 0
    root: int = 0
    exact: bool = True

    def __str__(self) -> str:
        last = f"root={self.root}" if self.op is None else self.op.value
        return f"{self.kind.value}({self.dtype}[{self.count}], {last})"


@dataclass(frozen=True, slots=True)
class Part:
    """How one rank calls one communicator's collectives: when it begins, its pause before each, how many in flight."""

    begins_s: float
    pauses_s: tuple[float, ...]
    in_flight: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a seed draws."""

    seed: int
    promise: Promise
    shape: Shape
    #: By communicator.
    calls: tuple[tuple[Call, ...], ...]
    #: By communicator and rank.
    parts: tuple[tuple[Part, ...], ...]
    faults: tuple[Fault, ...]
    #: When the safety phase ends and everything is whole again, as far as the promise goes.
    heals_s: float

    def unharmed(self) -> Scenario:
        """The same without any fault."""
        return dataclasses.replace(self, faults=(), promise=Promise.PATHS)

    def describe(self) -> str:
        """For a person, in a few lines."""
        shape, settings = self.shape, self.shape.settings
        changed = [
            f"{field.name}={getattr(settings, field.name)}"
            for field in dataclasses.fields(settings)
            if getattr(settings, field.name) != field.default
        ]
        lines = [
            f"seed {self.seed}: {self.promise.value}; {shape.ranks} ranks x {shape.nics} NICs + {shape.spares} spares"
            + (", one-sided" if shape.one_sided else ""),
            f"  settings: {', '.join(changed)}",
            f"  model: {shape.model}",
        ]
        for number, calls in enumerate(self.calls):
            lines.append(f"  communicator {number}: " + "; ".join(map(str, calls)))
        lines.extend(f"  fault: {fault}" for fault in self.faults)
        return "\n".join(lines)


def draw(seed: int, one_sided: bool = False) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    promise = rng.choices(list(Promise), (62, 13, 9, 16))[0]
    shape = _shape(rng, one_sided or seed % ONE_SIDED_EVERY == ONE_SIDED_EVERY - 1)
    communicators = rng.choice((1, 2))
    calls = tuple(_calls(rng, shape, communicators) for _ in range(communicators))
    horizon_s = 0.05 + _busy_s(shape, calls) * rng.uniform(0.5, 1.5) + rng.choice((0.0, 0.3, 1.5))
    parts = tuple(
        tuple(_part(rng, len(calls[number]), horizon_s, late=number > 0) for _ in range(shape.ranks))
        for number in range(communicators)
    )
    faults = draw_faults(rng, shape, promise, horizon_s)
    ends = [fault.until_s for fault in faults if fault.until_s != FOREVER]
    return Scenario(seed, promise, shape, calls, parts, faults, max([horizon_s, *ends]))


# The world.


def _shape(rng: random.Random, one_sided: bool) -> Shape:
    ranks = rng.choices(range(2, 9), (28, 22, 18, 10, 8, 5, 5))[0]
    nics = rng.choices(range(1, 5), (12, 50, 22, 16))[0]
    spares = rng.choice((0, 0, 1))
    chunk_bytes = rng.choice((128, 512, 1000, 4096, 16384))
    dial_timeout_s = rng.choice((0.3, 0.6, 1.0))
    settings = Settings(
        chunk_bytes=chunk_bytes,
        eager_bytes=rng.choice((0, 256, 4096, 65536)),
        credit_bytes=rng.choice((1, 3, 10, 100)) * chunk_bytes,
        running_max=rng.choice((1, 2, 5, 64)),
        dial_timeout_s=dial_timeout_s,
        redial_s=rng.choice((0.05, 0.2)),
        quiet_s=rng.choice((0.05, 0.25)),
        quiet_max_s=rng.choice((0.5, 2.0, 8.0)),
        stable_s=rng.choice((0.3, 2.0, 10.0)),
        unreachable_after_s=rng.choice((3.5, 5.0)),
    )
    piece_bytes = rng.choice((1024, 4096, 16384))
    slowest = slowest_bytes_s(burst_bytes(piece_bytes, chunk_bytes, one_sided), ranks)
    model = Model(
        latency_s=rng.choice((10e-6, 50e-6, 500e-6, 2e-3)),
        bandwidth_bytes_s=slowest * rng.choice((1, 2, 5, 20)),
        piece_bytes=piece_bytes,
        socket_buffer_bytes=piece_bytes * rng.choice((1, 4, 16)),
        window_bytes=(piece_bytes + 64) * rng.choice((2, 4, 16)),
        small_bytes=rng.choice((0, 64, 1000, 16384)),
        resend_after_s=rng.choice((0.05, 0.2)),
        dial_timeout_s=dial_timeout_s,
    )
    return Shape(ranks, nics, spares, one_sided, settings, model)


# The calls.


def _calls(rng: random.Random, shape: Shape, communicators: int) -> tuple[Call, ...]:
    wanted = rng.randint(4, 20)
    work = WORK_MAX // communicators
    calls: list[Call] = []
    while len(calls) < wanted and work > 0:
        call = _call(rng, shape)
        calls.append(call)
        chunk = max(1, shape.settings.chunk_bytes // item_bytes(call.dtype))
        work -= shape.ranks * (2 * shape.ranks + call.count // chunk)
    return tuple(calls)


def item_bytes(dtype: str) -> int:
    """Of one of :data:`DTYPES`."""
    return {"bool": 1}.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8


def _call(rng: random.Random, shape: Shape) -> Call:
    kinds = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.BARRIER)
    kind = rng.choices(kinds, (70, 20, 10))[0]
    if kind is CollectiveKind.BARRIER:
        return Call(kind)
    dtype = rng.choice(DTYPES)
    count = _count(rng, shape, max(1, shape.settings.chunk_bytes // item_bytes(dtype)))
    if kind is CollectiveKind.BROADCAST:
        return Call(kind, dtype, None, count, rng.randrange(shape.ranks), exact=False)
    op = rng.choice(list(Op))
    inexact = dtype.startswith("float") and rng.random() < 0.4
    return Call(kind, dtype, op, count, exact=not inexact)


def _count(rng: random.Random, shape: Shape, chunk: int) -> int:
    ranks = shape.ranks
    around = rng.choice((1, ranks, 2 * ranks)) * chunk + rng.choice((-1, 0, 1))
    big = chunk * rng.randint(4, 24) + rng.randrange(chunk)
    many = chunk * rng.randint(2, 12) * ranks + rng.randrange(chunk)
    return rng.choice((0, 1, 2 * rng.randrange(40) + 1, around, around, big, big, many))


def _busy_s(shape: Shape, calls: Sequence[Sequence[Call]]) -> float:
    """About how long the calls take one after another where nothing goes wrong: faults should meet them."""
    every = list(itertools.chain.from_iterable(calls))
    total_bytes = sum(2 * call.count * item_bytes(call.dtype) for call in every)
    steps_s = len(every) * 2 * shape.ranks * shape.model.latency_s
    return min(4.0, total_bytes / (shape.model.bandwidth_bytes_s * shape.nics) + steps_s)


def _part(rng: random.Random, calls: int, horizon_s: float, late: bool) -> Part:
    haste = rng.choice((0.3, 1.0))  # how much of the horizon this rank fills
    kinds = rng.choices((0.0, 0.002, 2 * horizon_s / max(1, calls)), (60, 20, 20), k=calls)
    pauses = tuple(rng.uniform(0, longest * haste) for longest in kinds)
    return Part(rng.uniform(0, horizon_s / 3) if late else 0.0, pauses, rng.choice((1, 2, 3, 8)))
