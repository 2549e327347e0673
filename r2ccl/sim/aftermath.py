"""What survivors do after a communicator failed: they shrink it, go on in what they get, and shrink again if they must.

Data (drawn here), and what must be true of the end whoever was lost and whoever gave up:

    one goes on     of one communicator at most one membership goes on; all its members that are alive agree on it
    a quorum        more than half of the members less the dead, or half of them with the lowest rank
    nobody lost     no member was dead when it began, and no two of them lack a path
    truth           what is said to have ended well on all members did, and on any on one at least
    the rest        NoQuorum to whoever reaches nobody who goes on, Evicted to whoever does
    right sums      whatever ends well in the new communicator is the sum over exactly its members

Where nobody dies and nobody gives up meanwhile it is known who has to go on, and that they succeed. How ranks come to
all this is in ``sim.survivors``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from r2ccl.errors import CollectiveTimeout, Evicted, NoQuorum, R2cclError
from r2ccl.protocol.membership import Decide
from r2ccl.sim.world import Shape

#: Everybody begins to shrink within so long, and whoever dies in the middle dies within so long.
BEGINS_WITHIN_S = 0.5
#: Who has little patience waits so long at most.
IMPATIENCE_S = 0.3
#: Others have a limit that they do not reach.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What survivors do, by rank of the job; times count from its beginning."""

    pauses_s: tuple[float, ...]
    #: Of ``shrink``; None: none.
    timeouts_s: tuple[float | None, ...]
    #: Who dies in the middle of it, and when.
    killed: tuple[tuple[int, float], ...]
    #: (rank, NIC, from, to): links go and come back meanwhile, one at a time.
    cuts: tuple[tuple[int, int, float, float], ...]
    #: Calls in each new communicator.
    calls: int

    @property
    def is_quiet(self) -> bool:
        """Nobody dies, and nobody gives up."""
        return not self.killed and not any(limit is not None and limit < PATIENCE_S for limit in self.timeouts_s)


def draw_aftermath(seed: int, shape: Shape) -> Aftermath:
    """Of a seed; with its own chance."""
    rng = random.Random(f"aftermath of {seed}")
    ranks = range(shape.ranks)
    pauses_s = tuple(rng.choice((0.0, rng.uniform(0, 0.01), rng.uniform(0, BEGINS_WITHIN_S))) for _ in ranks)
    limits: list[float | None] = [rng.choice((None, None, PATIENCE_S)) for _ in ranks]
    if rng.random() < 0.25:
        limits[rng.randrange(shape.ranks)] = rng.choice((rng.uniform(0.0001, 0.01), rng.uniform(0.001, IMPATIENCE_S)))
    killed = ((rng.randrange(shape.ranks), rng.uniform(0, BEGINS_WITHIN_S)),) if rng.random() < 0.3 else ()
    cuts: list[tuple[int, int, float, float]] = []
    at_s = rng.uniform(0, 0.1)
    # Of one rank, so that every pair keeps a path.
    rank = rng.randrange(shape.ranks)
    for _ in range(rng.choice((0, 0, 1, 3)) if shape.nics > 1 else 0):
        until_s = at_s + rng.uniform(0.001, 0.2)
        cuts.append((rank, 0, at_s, until_s))
        at_s = until_s + rng.uniform(0.001, 0.1)
    return Aftermath(pauses_s, tuple(limits), killed, tuple(cuts), rng.randint(1, 4))


# What must be true.


@dataclass(frozen=True, slots=True)
class WentOn:
    """A rank has a new communicator."""

    members: tuple[int, ...]
    recovery: Decide


#: How ``shrink`` ended for a rank.
End = WentOn | R2cclError


@dataclass(frozen=True, slots=True)
class Shrunken:
    """One communicator, and what came of its shrinking."""

    name: str
    members: tuple[int, ...]
    #: By rank of the job, of those that lived to see it.
    ends: Mapping[int, End]
    #: Operations that ended well, by rank; None: not known.
    ended_well: Mapping[int, frozenset[int]] | None
    #: Pairs of members without a path for good.
    lost_pairs: frozenset[tuple[int, int]]
    #: Ranks that were dead before, and those that died until the end.
    dead_before: frozenset[int]
    dead_after: frozenset[int]
    is_quiet: bool


def complaints(shrunken: Shrunken) -> list[str]:
    """What is wrong with how it ended."""
    went_on = {rank: end for rank, end in sorted(shrunken.ends.items()) if isinstance(end, WentOn)}
    found = [*_whole(shrunken, went_on), *_fair(shrunken, went_on), *_true(shrunken, went_on)]
    if shrunken.is_quiet:
        found += _expected(shrunken, went_on)
    return [f"{shrunken.name} of {list(shrunken.members)}: {text}" for text in found]


def _whole(shrunken: Shrunken, went_on: Mapping[int, WentOn]) -> list[str]:
    """Does at most one membership go on?"""
    whole = {
        end.members
        for end in went_on.values()
        if all(
            rank in shrunken.dead_after or (rank in went_on and went_on[rank].members == end.members)
            for rank in end.members
        )
    }
    found = [f"several memberships go on: {sorted(whole)}"] if len(whole) > 1 else []
    outcomes = {(end.members, end.recovery) for end in went_on.values() if end.members in whole}
    if len(outcomes) > len(whole):
        found.append(f"members were told different things: {sorted(outcomes, key=str)}")
    return found


def _fair(shrunken: Shrunken, went_on: Mapping[int, WentOn]) -> list[str]:
    """Are all memberships such that they may go on?"""
    found = []
    for rank, end in went_on.items():
        chosen = set(end.members)
        if rank not in chosen or not chosen <= set(shrunken.members) - shrunken.dead_before:
            found.append(f"rank {rank} goes on with {end.members}, dead were {sorted(shrunken.dead_before)}")
        if apart := [pair for pair in sorted(shrunken.lost_pairs) if chosen >= set(pair)]:
            found.append(f"rank {rank} goes on with {end.members}, of whom {apart} have no path")
        alive = set(shrunken.members) - shrunken.dead_after
        if not _is_quorum(chosen, alive):
            found.append(f"rank {rank} goes on with {end.members}, no quorum of {sorted(alive)}")
    return found


def _is_quorum(chosen: Collection[int], alive: Collection[int]) -> bool:
    return 2 * len(chosen) > len(alive) or (2 * len(chosen) == len(alive) and min(alive) in chosen)


def _true(shrunken: Shrunken, went_on: Mapping[int, WentOn]) -> list[str]:
    """Is it true how far the old communicator is said to have come?"""
    if shrunken.ended_well is None:
        return []
    found = []
    for rank, end in went_on.items():
        by_all, by_any = end.recovery.completed_by_all, end.recovery.completed_by_any
        known = {one: _first_missing(shrunken.ended_well[one]) for one in end.members if one in went_on}
        lacking = sorted(one for one, first in known.items() if first < by_all)
        if lacking:
            found.append(f"rank {rank} was told that all have ended {by_all} operations, and {lacking} have not")
        beyond = sorted(one for one, first in known.items() if first > by_any)
        if beyond or by_all > by_any:
            found.append(f"rank {rank} was told that the first had ended {by_any} of {by_all}, and {beyond} had more")
        if len(known) == len(end.members) and (min(known.values()), max(known.values())) != (by_all, by_any):
            found.append(f"rank {rank} was told {by_all} to {by_any} operations, where {known} are true")
    return found


def _first_missing(numbers: Collection[int]) -> int:
    return next(number for number in itertools.count() if number not in numbers)


def _expected(shrunken: Shrunken, went_on: Mapping[int, WentOn]) -> list[str]:
    """Do those go on who have to?"""
    alive = [rank for rank in shrunken.members if rank not in shrunken.dead_before]
    largest = _largest_whole(alive, shrunken.lost_pairs)
    unsure = len(shrunken.members) == 2 and bool(shrunken.dead_before)  # it may not be proven that the other is dead
    due = set(largest) if _is_quorum(largest, alive) else set()
    if set(went_on) != due and not (unsure and not went_on):
        return [f"{sorted(went_on)} go on, where {sorted(due)} have to: {dict(shrunken.ends)}"]
    found = []
    for rank in sorted(set(alive) - set(went_on)):
        reaches = any(tuple(sorted((rank, one))) not in shrunken.lost_pairs for one in went_on)
        wanted = Evicted if reaches and went_on else NoQuorum
        if not isinstance(shrunken.ends.get(rank), wanted):
            found.append(f"rank {rank} has {shrunken.ends.get(rank)!r} instead of {wanted.__name__}")
    return found


def _largest_whole(alive: Iterable[int], apart: Collection[tuple[int, int]]) -> tuple[int, ...]:
    """The largest set in which every two have a path; of several that with the lowest ranks."""
    ranks = sorted(alive)
    for size in range(len(ranks), 0, -1):
        for chosen in itertools.combinations(ranks, size):
            if not any(pair in apart for pair in itertools.combinations(chosen, 2)):
                return chosen
    return ()


def may_end_with(error: R2cclError, limit_s: float | None) -> bool:
    """Is this how ``shrink`` may end?"""
    if isinstance(error, CollectiveTimeout):
        return limit_s is not None and limit_s < PATIENCE_S
    return isinstance(error, NoQuorum | Evicted)
