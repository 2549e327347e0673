"""What one seed means: a world, what its ranks call, and what goes wrong (sim.faults). Data; nothing runs here."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from r2ccl.config import Settings
from r2ccl.ids import SHARED_NIC
from r2ccl.sim.aftermath import Aftermath, draw_aftermath
from r2ccl.sim.calls import Call, Kind, item_bytes, moved_elements
from r2ccl.sim.faults import (
    BREAKING,
    FOREVER,
    Fault,
    FaultKind,
    Nic,
    Promise,
    burst_bytes,
    draw_faults,
    slowest_bytes_s,
)
from r2ccl.sim.programs import Programs
from r2ccl.sim.world import Shape
from r2ccl.transport.memory_path import Model
from r2ccl.tuning import Tuning, WireCost

#: Chunks x ranks of all calls together: what bounds the real time that a world takes.
WORK_MAX = 3600
#: No call takes more virtual time than this on one NIC.
CALL_S_MAX = 1.0
#: A limit of calls that no fault makes them reach: more than all that a world may take.
TIMEOUT_S = 120.0
#: Of the worlds in which every pair keeps a path, so many live for longer, with a NIC that is lost or slow for long
#: enough that all ranks plan anew; and for how much longer.
LASTING_SHARE = 0.7
LASTING_S = 2.0
#: Every so many seeds the NICs write into the peer's memory.
ONE_SIDED_EVERY = 3
#: Of the others, as far as their ranks reach one another: in so many all ranks share memory.
ONE_NODE_SHARE = 0.3
#: Of the rest, also of one-sided ones, so many have several nodes with several ranks.
NODES_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Part:
    """How one rank calls one communicator's collectives: when it begins, its pause before each, how many in flight."""

    begins_s: float
    pauses_s: tuple[float, ...]
    in_flight: int


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator: who is in it, how it is made, and what is called in it. The first is that of all ranks."""

    #: Ranks in the job, in the order of their ranks here.
    members: tuple[int, ...]
    calls: tuple[Call, ...] = ()
    #: By rank here.
    parts: tuple[Part, ...] = ()
    #: The communicator that it is made from; None: the job's own.
    parent: int | None = None
    #: By a split that the parent's program calls; else by ``new_group``, which each member calls when it likes.
    by_split: bool = False
    #: Its members close it in the end, while the job goes on.
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """In the communicator of all ranks one comes to a call when the others, who wait so long, have given up."""

    rank: int
    call: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a seed draws."""

    seed: int
    promise: Promise
    shape: Shape
    groups: tuple[Group, ...]
    faults: tuple[Fault, ...]
    #: When the safety phase ends and everything is whole again, as far as the promise goes.
    heals_s: float
    #: How survivors go on, where ranks were lost or came too late.
    aftermath: Aftermath | None = None
    late: Late | None = None

    def unharmed(self) -> Scenario:
        """The same without any fault."""
        groups = tuple(
            dataclasses.replace(group, calls=tuple(_patient(call) for call in group.calls)) for group in self.groups
        )
        return dataclasses.replace(self, faults=(), promise=Promise.PATHS, groups=groups, aftermath=None, late=None)

    def loses_a_member(self, group: int) -> bool:
        """Is there a pair in the communicator that ends without a path of any kind for good?"""
        return any(True for _ in self.lost_pairs(self.groups[group].members))

    def lost_pairs(self, members: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Pairs of these ranks that end without a path of any kind for good."""
        for_good = [fault for fault in self.faults if fault.until_s == FOREVER]
        killed = {fault.one[0] for fault in for_good if fault.kind is FaultKind.KILL}
        broken = [fault for fault in for_good if fault.kind in BREAKING]
        no_nics = {fault.one for fault in broken if fault.other is None}
        no_links = {frozenset((fault.one, fault.other)) for fault in broken if fault.other is not None}
        ranks = [rank for rank in range(self.shape.ranks) if rank not in killed]
        pairs = itertools.combinations(ranks, 2)
        joined = {frozenset(pair) for pair in pairs if self._reaches(*pair, no_nics, no_links)}
        for one, other in itertools.combinations(members, 2):
            ways = [{frozenset((one, relay)), frozenset((relay, other))} for relay in ranks]
            if frozenset((one, other)) not in joined and not any(way <= joined for way in ways):
                yield one, other

    def _reaches(self, one: int, other: int, no_nics: set[Nic], no_links: set[frozenset[Nic]]) -> bool:
        """Is there a direct link between two ranks that is not broken?"""
        links = self.shape.links(one, other)
        return not all(no_nics & {*link} or frozenset(link) in no_links for link in links)

    def may_fail(self, group: int) -> bool:
        """A communicator with such a pair fails, or where a rank comes too late; one that a failed split would have
        made may."""
        if not self.promise.loses_a_peer and self.late is None:
            return False
        parent = self.groups[group].parent
        return self._fails(group) or (parent is not None and self._may_not_be_made(group))

    def _fails(self, group: int) -> bool:
        return self.loses_a_member(group) or (group == 0 and self.late is not None)

    def _may_not_be_made(self, group: int) -> bool:
        made = self.groups[group]
        if made.parent is None:
            return False
        return (made.by_split and self._fails(made.parent)) or self._may_not_be_made(made.parent)

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
            + (", one-sided" if shape.one_sided else "")
            + (", rails apart" if shape.model.rails_apart else "")
            + (", all on one node" if shape.one_node else "")
            + (" and planned for it" if shape.tuning is not None else "")
            + (f", nodes {shape.nodes}" if shape.nodes else ""),
            f"  settings: {', '.join(changed)}",
            f"  model: {shape.model}",
        ]
        for number, group in enumerate(self.groups):
            made = "" if group.parent is None else f" {'split' if group.by_split else 'made'} from {group.parent}"
            lines.append(f"  communicator {number}, ranks {list(group.members)}{made}:")
            lines.extend(f"    {index}: {call}" for index, call in enumerate(group.calls))
        lines.extend(f"  fault: {fault}" for fault in self.faults)
        lines.extend(f"  {part}" for part in (self.late, self.aftermath) if part is not None)
        return "\n".join(lines)


def draw(seed: int, one_sided: bool = False) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    promise = _promise(rng, seed)
    shape = _with_paths(seed, _shape(rng, one_sided or seed % ONE_SIDED_EVERY == ONE_SIDED_EVERY - 1))
    shape = dataclasses.replace(shape, settings=_relays(random.Random(f"relays of {seed}"), shape.settings))
    groups = _with_timeouts(seed, _with_programs(rng, shape, _groups(rng, shape.ranks)))
    horizon_s = 0.05 + _busy_s(shape, groups) * rng.uniform(0.5, 1.5) + rng.choice((0.0, 0.3, 1.5))
    lasting = promise is Promise.PATHS and rng.random() < LASTING_SHARE
    if lasting:
        horizon_s += LASTING_S
    groups = [
        dataclasses.replace(
            group, parts=tuple(_part(rng, len(group.calls), horizon_s, group.parent is not None) for _ in group.members)
        )
        for group in groups
    ]
    late = None
    if promise is Promise.LATE:
        late, groups[0] = _late(seed, groups[0])
    faults = draw_faults(rng, shape, promise, horizon_s, lasting)
    shape, faults = _on_nodes(seed, shape, promise, faults, horizon_s)
    ends = [fault.until_s for fault in faults if fault.until_s != FOREVER]
    scenario = Scenario(seed, promise, shape, tuple(groups), faults, max([horizon_s, *ends]), late=late)
    return dataclasses.replace(scenario, aftermath=draw_aftermath(seed, shape)) if promise.ends_badly else scenario


def _promise(rng: random.Random, seed: int) -> Promise:
    drawn = rng.choices((Promise.PATHS, Promise.OUTAGE, Promise.UNREACHABLE, Promise.KILLED), (62, 13, 9, 16))[0]
    others = {Promise.PATHS: (Promise.LATE, 0.08), Promise.UNREACHABLE: (Promise.SPLIT, 0.5)}
    other, share = others.get(drawn, (drawn, 0.0))
    return other if random.Random(f"promise of {seed}").random() < share else drawn


# Calls with a limit.


def _patient(call: Call) -> Call:
    return call if call.timeout_s is None else dataclasses.replace(call, timeout_s=TIMEOUT_S)


def _with_timeouts(seed: int, groups: list[Group]) -> list[Group]:
    """Some calls have a limit that no fault makes them reach."""
    rng = random.Random(f"timeouts of {seed}")
    return [
        dataclasses.replace(
            group,
            calls=tuple(
                dataclasses.replace(call, timeout_s=TIMEOUT_S) if rng.random() < 0.2 else call for call in group.calls
            ),
        )
        for group in groups
    ]


def _late(seed: int, group: Group) -> tuple[Late, Group]:
    """One of the calls that all ranks make together gets a limit, and one of the ranks waits longer before it."""
    rng = random.Random(f"who is late of {seed}")
    together = [n for n, call in enumerate(group.calls) if call.kind not in (Kind.MESSAGES, Kind.BROADCAST_OBJECT)]
    calls, parts = list(group.calls), list(group.parts)
    if not together:
        together, calls = [0], [Call(Kind.BARRIER), *calls]
        parts = [dataclasses.replace(part, pauses_s=(0.0, *part.pauses_s)) for part in parts]
    late = Late(rng.choice(group.members), rng.choice(together), rng.uniform(0.2, 0.6))
    calls[late.call] = dataclasses.replace(calls[late.call], timeout_s=late.timeout_s)
    pauses = list(parts[late.rank].pauses_s)
    pauses[late.call] = late.timeout_s + rng.uniform(0.5, 2.0)
    parts[late.rank] = dataclasses.replace(parts[late.rank], pauses_s=tuple(pauses))
    return late, dataclasses.replace(group, calls=tuple(calls), parts=tuple(parts))


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


def _with_paths(seed: int, shape: Shape) -> Shape:
    """Whether the rails are joined, and how many backups are kept. Drawn apart, so that all else stays as it is."""
    rng = random.Random(f"paths of {seed}")
    backup_paths = rng.choice((0, 1, 2, 2))
    return dataclasses.replace(
        shape,
        settings=dataclasses.replace(shape.settings, backup_paths=backup_paths),
        model=dataclasses.replace(shape.model, rails_apart=rng.random() < 0.4),
    )


def _on_nodes(
    seed: int, shape: Shape, promise: Promise, faults: tuple[Fault, ...], horizon_s: float
) -> tuple[Shape, tuple[Fault, ...]]:
    """In some worlds all ranks share memory, in others those of each node, and lose it now and then. What is promised
    holds all the same, but where it is that ranks do not reach each other. Drawn apart: all else stays as it is."""
    rng = random.Random(f"node of {seed}")
    if promise in (Promise.UNREACHABLE, Promise.SPLIT):
        return shape, faults
    if shape.one_sided or rng.random() >= ONE_NODE_SHARE:
        rng = random.Random(f"nodes of {seed}")
        if shape.ranks < 3 or rng.random() >= NODES_SHARE:
            return shape, faults
        nodes = [rng.randrange(rng.randint(2, 3)) for _ in range(shape.ranks)]
        settings = shape.settings.replace(hierarchy=rng.choice(("on", "auto")))
        shape = dataclasses.replace(
            shape, nodes=tuple(sorted(nodes) if rng.random() < 0.5 else nodes), settings=settings
        )
    else:
        shape = dataclasses.replace(shape, one_node=True, tuning=_tuning(seed))
    # How long what arrives by memory lies there, where calls find it that move in lockstep, before the loop looks.
    unseen_s = random.Random(f"unseen of {seed}").choice((10e-6, 500e-6, 5e-3))
    shape = dataclasses.replace(shape, model=dataclasses.replace(shape.model, completion_delay_s=unseen_s))
    pairs = [(a, b) for a, b in itertools.combinations(range(shape.ranks), 2) if shape.node(a) == shape.node(b)]
    lost: list[Fault] = []
    for one, other in rng.sample(pairs, rng.randint(0, min(4, len(pairs)))) if shape.shares_memory else []:
        kind = rng.choice((FaultKind.SILENT_LINK, FaultKind.SILENT_DIRECTION))
        at_s = rng.uniform(0, horizon_s)
        lost.append(Fault(kind, at_s, at_s + 10 ** rng.uniform(-2.5, 0.4), (one, SHARED_NIC), (other, SHARED_NIC)))
    if any(fault.kind is FaultKind.CORRUPT for fault in faults):
        # A node's own wires, which are memory, are trusted otherwise.
        shape = dataclasses.replace(shape, settings=shape.settings.replace(checksum="on"))
    return shape, tuple(sorted((*faults, *lost), key=lambda fault: fault.at_s))


def _tuning(seed: int) -> Tuning | None:
    """Half of the worlds of one node plan for its memory: with larger chunks, and from copies up to a larger size."""
    rng = random.Random(f"tuning of {seed}")
    memory = WireCost(alpha_s=rng.choice((5e-6, 50e-6)), beta_s_per_byte=1e-10, overhead_s=2e-6, delta_s_per_byte=1e-10)
    return Tuning(gamma_s_per_byte=1e-10, shared_memory=memory) if rng.random() < 0.5 else None


def _relays(rng: random.Random, settings: Settings) -> Settings:
    """Some relays are full at once, and some peers soon impatient."""
    return settings.replace(
        relay_queue_bytes=rng.choice((0, 4 * settings.chunk_bytes, 1 << 24)), relay_patience_s=rng.choice((0.02, 0.2))
    )


# The communicators.


def _groups(rng: random.Random, ranks: int) -> list[Group]:
    """That of all ranks, and some made from it or from one another; without their programs, but for the splits."""
    groups = [Group(tuple(range(ranks)))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        parent = rng.randrange(len(groups))
        members = groups[parent].members
        if rng.random() < 0.5:
            chosen = tuple(rng.sample(members, rng.randint(1, len(members))))
            if rng.random() < 0.4:
                chosen = members
            if not any(group.parent == parent and group.members == chosen for group in groups):
                groups.append(Group(chosen, (), (), parent, False, rng.random() < 0.3))
            continue
        colors = tuple(rng.choice((0, 0, 1, 1, None)) for _ in members)
        keys = tuple(rng.randint(-2, 2) for _ in members)
        makes = []
        for color in sorted({color for color in colors if color is not None}):
            order = sorted((key, rank) for rank, key in enumerate(keys) if colors[rank] == color)
            makes.append((color, len(groups)))
            groups.append(Group(tuple(members[rank] for _, rank in order), (), (), parent, True, rng.random() < 0.3))
        split = Call(Kind.SPLIT, count=2, colors=colors, keys=keys, makes=tuple(makes))
        groups[parent] = dataclasses.replace(groups[parent], calls=(*groups[parent].calls, split))
    return groups


def _with_programs(rng: random.Random, shape: Shape, groups: list[Group]) -> list[Group]:
    """Splits come somewhere between the other calls."""
    bytes_max = int(CALL_S_MAX * shape.model.bandwidth_bytes_s)
    drawn = []
    for group in groups:
        ranks = len(group.members)
        programs = Programs(rng, ranks, shape.settings.chunk_bytes, WORK_MAX // len(groups), bytes_max)
        calls = list(programs.program())
        for split in group.calls:
            calls.insert(rng.randint(0, len(calls)), split)
        drawn.append(dataclasses.replace(group, calls=tuple(calls)))
    return drawn


def _busy_s(shape: Shape, groups: list[Group]) -> float:
    """About how long the calls take one after another where nothing goes wrong: faults should meet them."""
    every = [(call, len(group.members)) for group in groups for call in group.calls]
    total_bytes = sum(2 * moved_elements(call, ranks) * item_bytes(call.dtype) for call, ranks in every)
    steps_s = len(every) * 2 * shape.ranks * shape.model.latency_s
    return min(4.0, total_bytes / (shape.model.bandwidth_bytes_s * shape.nics) + steps_s)


def _part(rng: random.Random, calls: int, horizon_s: float, late: bool) -> Part:
    haste = rng.choice((0.3, 1.0))  # how much of the horizon this rank fills
    kinds = rng.choices((0.0, 0.002, 2 * horizon_s / max(1, calls)), (60, 20, 20), k=calls)
    pauses = tuple(rng.uniform(0, longest * haste) for longest in kinds)
    return Part(rng.uniform(0, horizon_s / 3) if late else 0.0, pauses, rng.choice((1, 2, 3, 8)))
