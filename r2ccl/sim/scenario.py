"""What one seed means: a world, what its ranks call, and what goes wrong. Drawn as data; nothing runs here.

The faults of a scenario keep its promise, which says what may be demanded of the subject:

    PATHS        every two ranks keep a link that has been whole for long enough to be used: no operation may fail
    OUTAGE       one rank, or one pair, has no path for less than the grace time: no operation may fail either
    UNREACHABLE  one rank, or one pair, has no path for good: every rank learns of it as PeerLost
    KILLED       a rank's process ends: as UNREACHABLE, and where paths are whole the cause is ``dead``

A fault is an interval. All of them are over when the healed phase begins, but for a kill and for what is unreachable.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from r2ccl.config import Settings
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.sim.world import Shape
from r2ccl.transport.memory_path import Model

#: (rank, its NIC)
Nic = tuple[int, int]

#: How long a link needs from the end of a fault until it can be relied on, beyond one dial that began too early: the
#: wait until the next, an echo, and the time that a rank may be frozen meanwhile.
SETTLE_MARGIN_S = 0.8
FREEZE_S = 0.25
FOREVER = float("inf")
#: Chunks x ranks of all calls together: what bounds the real time that a world takes.
WORK_MAX = 9000
DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")


class Promise(enum.Enum):
    """See the module's docstring."""

    PATHS = "every pair keeps a path"
    OUTAGE = "no path for less than the grace time"
    UNREACHABLE = "no path for good"
    KILLED = "a rank is killed"

    @property
    def loses_a_peer(self) -> bool:
        return self in (Promise.UNREACHABLE, Promise.KILLED)


class FaultKind(enum.Enum):
    """What can go wrong."""

    CUT = "cut"
    SILENT_NIC = "silent nic"
    SILENT_LINK = "silent link"
    SILENT_DIRECTION = "silent direction"
    FREEZE = "freeze"
    CORRUPT = "corrupt"
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    KILL = "kill"


#: Kinds that make a path unusable.
BREAKING = (FaultKind.CUT, FaultKind.SILENT_NIC, FaultKind.SILENT_LINK, FaultKind.SILENT_DIRECTION)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong between two moments, counted from the start of the safety phase."""

    kind: FaultKind
    at_s: float
    until_s: float
    #: The NIC, or one end of the link, or the rank (its index is 0 then).
    one: Nic
    #: The other end of a link.
    other: Nic | None = None
    #: Probability, seconds, or a factor; by kind.
    amount: float = 0.0

    def __str__(self) -> str:
        ends = "rank{}.nic{}".format(*self.one) + ("" if self.other is None else "-rank{}.nic{}".format(*self.other))
        return f"{self.kind.value} {ends} {self.at_s:.4f}..{self.until_s:.4f} {self.amount:g}"

    def breaks(self, one: Nic, other: Nic) -> bool:
        """Is the link between these two NICs unusable meanwhile?"""
        if self.kind in (FaultKind.CUT, FaultKind.SILENT_NIC):
            return self.one in (one, other)
        return self.kind in BREAKING and {self.one, self.other} == {one, other}


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
    shape = _shape(rng, one_sided)
    communicators = rng.choice((1, 2))
    calls = tuple(_calls(rng, shape, communicators) for _ in range(communicators))
    horizon_s = 0.05 + _busy_s(shape, calls) * rng.uniform(0.5, 1.5) + rng.choice((0.0, 0.3, 1.5))
    parts = tuple(
        tuple(_part(rng, len(calls[number]), horizon_s, late=number > 0) for _ in range(shape.ranks))
        for number in range(communicators)
    )
    faults = tuple(sorted(_Faults(rng, shape, promise, horizon_s).draw(), key=lambda fault: fault.at_s))
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
    slowest = _slowest_bytes_s(piece_bytes, ranks)
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


def _slowest_bytes_s(piece_bytes: int, ranks: int) -> float:
    """Below this, a piece of every connection in turn would take so long that a whole NIC looked silent."""
    return piece_bytes * 2 * ranks / 0.020


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
    kind = rng.choices(list(CollectiveKind), (70, 20, 10))[0]
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


# The faults.


class _Faults:
    """Draws faults that keep a promise."""

    def __init__(self, rng: random.Random, shape: Shape, promise: Promise, horizon_s: float) -> None:
        self._rng = rng
        self._shape = shape
        self._promise = promise
        self._horizon_s = horizon_s
        self._settle_s = shape.settings.dial_timeout_s + shape.settings.redial_s + SETTLE_MARGIN_S
        self._promised = list(self._keep_promise())
        self._faults = list(self._promised)

    def draw(self) -> list[Fault]:
        """The promise's own faults, and others that fit it."""
        at_s = self._rng.uniform(0, self._horizon_s)
        for _ in range(self._rng.choice((2, 4, 8, 14))):
            if self._rng.random() < 0.5:
                at_s = self._rng.uniform(0, self._horizon_s)
            else:  # soon after the one before, in the middle of what that led to
                at_s = min(at_s + self._rng.choice((0.0, 0.001, 0.08, 0.3)) * self._rng.random(), self._horizon_s)
            for fault in self._candidate(at_s):
                if self._is_allowed(fault):
                    self._faults.append(fault)
        return self._faults

    def _keep_promise(self) -> Iterator[Fault]:
        """The faults that the promise speaks of."""
        rng, shape = self._rng, self._shape
        at_s = rng.uniform(0, self._horizon_s)
        victim = rng.randrange(shape.ranks)
        if self._promise is Promise.KILLED:
            yield Fault(FaultKind.KILL, at_s, FOREVER, (victim, 0))
        if self._promise in (Promise.PATHS, Promise.KILLED):
            return
        until_s = FOREVER
        if self._promise is Promise.OUTAGE:
            grace_s = shape.settings.unreachable_after_s
            until_s = at_s + rng.uniform(0.02, grace_s - self._settle_s - 0.3)
        every = range(shape.nics + shape.spares)
        if rng.random() < 0.5:
            kind = rng.choice((FaultKind.CUT, FaultKind.SILENT_NIC))
            for nic in every:
                yield Fault(kind, at_s + rng.uniform(0, 0.05), until_s, (victim, nic))
            return
        peer = rng.choice([rank for rank in range(shape.ranks) if rank != victim])
        for one, other in itertools.product(every, every):
            kind = rng.choice((FaultKind.SILENT_LINK, FaultKind.SILENT_DIRECTION))
            yield Fault(kind, at_s + rng.uniform(0, 0.05), until_s, (victim, one), (peer, other))

    def _candidate(self, at_s: float) -> Iterator[Fault]:
        rng, shape = self._rng, self._shape
        kind = rng.choices([kind for kind in FaultKind if kind is not FaultKind.KILL], (30, 20, 10, 10, 10, 8, 6, 6))[0]
        one, other = self._nic(), self._nic()
        for_s = 10 ** rng.uniform(-2.5, 0.4)
        if kind is FaultKind.FREEZE:
            for_s = rng.uniform(0.01, FREEZE_S) if rng.random() < 0.7 else rng.uniform(1, 8)
            yield Fault(kind, at_s, at_s + for_s, (one[0], 0))
        elif kind in (FaultKind.SILENT_LINK, FaultKind.SILENT_DIRECTION):
            if one[0] != other[0]:
                same_rail = rng.random() < 0.8
                yield Fault(kind, at_s, at_s + for_s, one, (other[0], one[1] if same_rail else other[1]))
        elif kind is FaultKind.CORRUPT:
            yield Fault(kind, at_s, at_s + for_s, one, None, rng.choice((0.05, 0.3)))
        elif kind is FaultKind.LATENCY:
            yield Fault(kind, at_s, at_s + for_s, one, None, rng.choice((0.001, 0.005, 0.012)))
        elif kind is FaultKind.BANDWIDTH:
            slowest = _slowest_bytes_s(shape.model.piece_bytes, shape.ranks)
            yield Fault(kind, at_s, at_s + for_s, one, None, slowest / shape.model.bandwidth_bytes_s)
        elif rng.random() < 0.3:  # a flap
            for _ in range(rng.randint(2, 5)):
                down_s, up_s = rng.uniform(0.001, 0.2), rng.uniform(0.001, 0.5)
                yield Fault(kind, at_s, at_s + down_s, one)
                at_s += down_s + up_s
        else:
            yield Fault(kind, at_s, at_s + for_s, one)

    def _nic(self) -> Nic:
        return self._rng.randrange(self._shape.ranks), self._rng.randrange(self._shape.nics + self._shape.spares)

    # What is allowed.

    def _is_allowed(self, new: Fault) -> bool:
        same = [fault for fault in self._faults if {fault.one, fault.other} == {new.one, new.other}]
        if any(_overlap(fault, new) and (fault.kind in BREAKING) is (new.kind in BREAKING) for fault in same):
            return False  # restoring one would restore the other
        if new.kind is FaultKind.FREEZE:
            return self._may_freeze(new)
        return new.kind not in BREAKING or self._keeps_paths(new)

    def _may_freeze(self, new: Fault) -> bool:
        """Freezes are seldom, as no connection is made during one; a long one only where none needs to be made."""
        frozen = [fault for fault in self._faults if fault.kind is FaultKind.FREEZE]
        if any(fault.at_s - 3 < new.until_s and new.at_s < fault.until_s + 3 for fault in frozen):
            return False
        if new.until_s - new.at_s <= FREEZE_S:
            return True
        return self._promise is Promise.PATHS and not any(self._close(fault, new) for fault in self._breaking)

    @property
    def _breaking(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.kind in BREAKING]

    def _close(self, one: Fault, other: Fault) -> bool:
        """Does one happen while the other does, or its consequences?"""
        return one.at_s <= other.until_s + self._settle_s and other.at_s <= one.until_s + self._settle_s

    def _keeps_paths(self, new: Fault) -> bool:
        """Has each pair, at every moment, a link that has been whole for the settling time?"""
        long_freezes = [f for f in self._faults if f.kind is FaultKind.FREEZE and f.until_s - f.at_s > FREEZE_S]
        outage = [fault for fault in self._promised if fault.kind in BREAKING]
        if any(self._close(fault, new) for fault in (*long_freezes, *outage)):
            return False
        faults = [fault for fault in (*self._breaking, new) if fault not in outage]
        nics = range(self._shape.nics + self._shape.spares)
        for moment in {fault.at_s for fault in faults}:
            now = [fault for fault in faults if fault.at_s <= moment < fault.until_s + self._settle_s]
            for one, other in itertools.combinations(range(self._shape.ranks), 2):
                links = itertools.product(((one, nic) for nic in nics), ((other, nic) for nic in nics))
                if all(any(fault.breaks(*link) for fault in now) for link in links):
                    return False
        return True


def _overlap(one: Fault, other: Fault) -> bool:
    return one.at_s <= other.until_s and other.at_s <= one.until_s
