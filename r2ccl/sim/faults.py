"""What goes wrong in a scenario, drawn as data so that it keeps the scenario's promise. Nothing runs here.

The promise says what may be demanded of the subject:

    PATHS        every two ranks keep a link that has been whole for long enough to be used: no operation may fail
    OUTAGE       one rank, or one pair, has no path for less than the grace time: no operation may fail either
    UNREACHABLE  one rank, or one pair, has no path for good: every rank learns of it as PeerLost; but a pair that
                 others reach is relayed by them, and no operation may fail
    KILLED       a rank's process ends: as UNREACHABLE, and where paths are whole the cause is ``dead``
    SPLIT        the ranks fall into two parts that have no path to each other for good: as UNREACHABLE
    LATE         as PATHS, and a rank comes to a call later than the others wait for it: they raise CollectiveTimeout

After the last three the ranks that are left shrink what failed, and go on; see sim.aftermath.

A fault is an interval. All of them are over when the healed phase begins, but for a kill and for what is unreachable.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from r2ccl.sim.world import Shape

#: (rank, its NIC)
Nic = tuple[int, int]

#: How long a link needs from the end of a fault until it can be relied on, beyond one dial that began too early: the
#: wait until the next, an echo, and the time that a rank may be frozen meanwhile.
SETTLE_MARGIN_S = 0.8
FREEZE_S = 0.25
#: A NIC that is lost or slow for so long makes all ranks plan anew: what they agree on must have held for a second.
LASTING_S = (1.3, 2.5)
FOREVER = float("inf")


class Promise(enum.Enum):
    """See the module's docstring."""

    PATHS = "every pair keeps a path"
    OUTAGE = "no path for less than the grace time"
    UNREACHABLE = "no path for good"
    KILLED = "a rank is killed"
    SPLIT = "no path between two parts for good"
    LATE = "a rank comes too late"

    @property
    def loses_a_peer(self) -> bool:
        return self in (Promise.UNREACHABLE, Promise.KILLED, Promise.SPLIT)

    @property
    def ends_badly(self) -> bool:
        """Are there operations that fail?"""
        return self.loses_a_peer or self is Promise.LATE


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


def burst_bytes(piece_bytes: int, chunk_bytes: int, one_sided: bool) -> int:
    """What a connection may put on its NIC before another connection has its turn. The fabric's one-sided adapters
    take all that a lane holds, in order, where kernels take turns by piece."""
    return max(piece_bytes, 4 * chunk_bytes) if one_sided else piece_bytes


def slowest_bytes_s(piece_bytes: int, ranks: int) -> float:
    """Below this, a piece of every connection in turn would take so long that a whole NIC looked silent."""
    return piece_bytes * 2 * ranks / 0.020


def draw_faults(
    rng: random.Random, shape: Shape, promise: Promise, horizon_s: float, lasting: bool
) -> tuple[Fault, ...]:
    """Faults that keep the promise, in the order in which they begin. ``lasting``: one of a NIC lasts, if it may."""
    return tuple(sorted(_Faults(rng, shape, promise, horizon_s).draw(lasting), key=lambda fault: fault.at_s))


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

    def draw(self, lasting: bool) -> list[Fault]:
        """The promise's own faults, and others that fit it."""
        if lasting:
            self._faults += [fault for fault in self._lasting() if self._is_allowed(fault)]
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
        if self._promise in (Promise.PATHS, Promise.KILLED, Promise.LATE):
            return
        if self._promise is Promise.SPLIT:
            yield from self._split(at_s)
            return
        until_s = FOREVER
        if self._promise is Promise.OUTAGE:
            grace_s = shape.settings.unreachable_after_s
            until_s = at_s + rng.uniform(0.1, grace_s - self._settle_s - 0.3)
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

    def _split(self, at_s: float) -> Iterator[Fault]:
        rng, shape = self._rng, self._shape
        here = set(rng.sample(range(shape.ranks), rng.randint(1, shape.ranks - 1)))
        every = range(shape.nics + shape.spares)
        for one, other in itertools.product(sorted(here), sorted(set(range(shape.ranks)) - here)):
            for mine, theirs in itertools.product(every, every):
                kind = rng.choice((FaultKind.SILENT_LINK, FaultKind.SILENT_DIRECTION))
                yield Fault(kind, at_s + rng.uniform(0, 0.05), FOREVER, (one, mine), (other, theirs))

    def _lasting(self) -> Iterator[Fault]:
        kind = self._rng.choice((FaultKind.CUT, FaultKind.SILENT_NIC, FaultKind.BANDWIDTH))
        at_s = self._rng.uniform(0, self._horizon_s / 4)
        until_s = at_s + self._rng.uniform(*LASTING_S)
        yield Fault(kind, at_s, until_s, self._nic(), None, self._slowest() if kind is FaultKind.BANDWIDTH else 0.0)

    def _slowest(self) -> float:
        """The factor of a NIC's bandwidth that no look takes for silence."""
        burst = burst_bytes(self._shape.model.piece_bytes, self._shape.settings.chunk_bytes, self._shape.one_sided)
        return slowest_bytes_s(burst, self._shape.ranks) / self._shape.model.bandwidth_bytes_s

    def _candidate(self, at_s: float) -> Iterator[Fault]:
        rng = self._rng
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
            at_s *= rng.random()
            yield Fault(kind, at_s, at_s + self._horizon_s * rng.random(), one, None, rng.choice((0.05, 0.3)))
        elif kind is FaultKind.LATENCY:
            yield Fault(kind, at_s, at_s + for_s, one, None, rng.choice((0.001, 0.005, 0.012)))
        elif kind is FaultKind.BANDWIDTH:
            yield Fault(kind, at_s, at_s + for_s, one, None, self._slowest())
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
        relayed = self._relayed_pair(outage)
        if any(self._close(fault, new) for fault in (*long_freezes, *(() if relayed else outage))):
            return False
        faults = [fault for fault in (*self._breaking, new) if fault not in outage]
        for moment in {fault.at_s for fault in faults}:
            now = [fault for fault in faults if fault.at_s <= moment < fault.until_s + self._settle_s]
            for pair in itertools.combinations(range(self._shape.ranks), 2):
                if not (self._is_relayed(pair, now) if pair == relayed else self._is_whole(*pair, now)):
                    return False
        return True

    def _relayed_pair(self, outage: list[Fault]) -> tuple[int, int] | None:
        """The pair that an outage is of, if there are others to relay: where these fail, too, they are tried harder."""
        if not outage or outage[0].other is None or self._shape.ranks < 3:
            return None
        one, other = sorted((outage[0].one[0], outage[0].other[0]))
        return one, other

    def _is_whole(self, one: int, other: int, faults: list[Fault]) -> bool:
        links = self._shape.links(one, other)
        return not all(any(fault.breaks(*link) for fault in faults) for link in links)

    def _is_relayed(self, pair: tuple[int, int], faults: list[Fault]) -> bool:
        others = [rank for rank in range(self._shape.ranks) if rank not in pair]
        return any(all(self._is_whole(end, other, faults) for end in pair) for other in others)


def _overlap(one: Fault, other: Fault) -> bool:
    return one.at_s <= other.until_s and other.at_s <= one.until_s
