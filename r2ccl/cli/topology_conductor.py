"""Rank 0 of ``r2ccl topology-check``: asks all ranks, step by step, and puts the picture together.

Every step has a deadline that grows with what is asked for, and whoever has not answered by then, or left, is named: a
check that cannot be finished says so and judges nothing. Rates are measured in rounds, so that no two share a wire; the
other steps are light and run on all ranks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from r2ccl.cli.topology_codec import pack_pairs, unpack_mtus, unpack_reaches, unpack_view
from r2ccl.cli.topology_wire import Ended, Messages
from r2ccl.cli.topology_worker import Worker
from r2ccl.clock import Clock, wall_clock_s
from r2ccl.errors import R2cclError
from r2ccl.planner.network_picture import (
    ClockOffset,
    HostView,
    Outcome,
    Pair,
    PathMtu,
    Picture,
    Rate,
    Reach,
    needs_the_network,
)
from r2ccl.planner.rate_rounds import rate_rounds
from r2ccl.protocol.paths import backups, rails

#: Of a step, besides what it is known to need. Hosts may be busy.
STEP_WAIT_S = 30.0
#: A connect to a NIC that is silent, and a path whose every size is searched for; 64 of each run at once.
_REACH_S = 15.0
_MTU_S = 30.0
_PROBES_AT_ONCE = 64
#: How often a step that takes long says so.
SAY_SO_EVERY_S = 5.0
#: Clock samples for each rank; the one with the shortest round trip counts.
CLOCK_SAMPLES = 8


class CheckFailed(R2cclError):
    """The network could not be checked: a rank did not come, left, or did not answer in time. Everything is closed."""

    definite = True


class Conductor:
    """Asks all ranks. ``guests``: every rank but 0."""

    def __init__(
        self, worker: Worker, guests: Mapping[int, Messages], clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._worker = worker
        self._guests = guests
        self._clock = clock
        self._say = say
        self._size = 1 + len(guests)

    async def picture(self, backup_paths: int, rate_s: float) -> Picture:
        """Everything. ``rate_s`` 0: no rates. Raises :class:`CheckFailed`."""
        answers = await self._ask_all("looking at NICs", {rank: ["look"] for rank in range(self._size)}, STEP_WAIT_S)
        hosts = tuple(self._read(rank, answer, "view", unpack_view) for rank, answer in sorted(answers.items()))
        clocks = await self._clocks()
        reaches = await self._reaches(hosts)
        picture = Picture(hosts, reaches, links_of(hosts, backup_paths), clocks=clocks)
        mtus = await self._mtus(picture)
        rates = await self._rates(picture, rate_s) if rate_s else ()
        return Picture(hosts, reaches, picture.links, mtus, rates, clocks)

    async def end(self, code: int) -> None:
        """Tell all how it ended; whoever is gone does not matter any more."""
        for guest in self._guests.values():
            try:
                async with asyncio.timeout(1.0):
                    await guest.send(["end", code])
            except (Ended, TimeoutError):
                continue

    async def _reaches(self, hosts: tuple[HostView, ...]) -> tuple[Reach, ...]:
        pairs = pairs_to_try(hosts)
        wait_s = STEP_WAIT_S + _REACH_S * _batches(pairs)
        found: list[Reach] = []
        for rank, answer in sorted((await self._ask_pairs("reaching", "reach", pairs, wait_s)).items()):
            found += self._read(rank, answer, "reaches", unpack_reaches)
        return tuple(found)

    async def _mtus(self, picture: Picture) -> tuple[PathMtu, ...]:
        pairs: dict[int, list[Pair]] = {}
        for reach in picture.reaches:
            if reach.outcome is Outcome.REACHED:
                pairs.setdefault(reach.pair.source, []).append(reach.pair)
        wait_s = STEP_WAIT_S + _MTU_S * _batches(pairs)
        found: list[PathMtu] = []
        for rank, answer in sorted((await self._ask_pairs("finding MTUs", "mtu", pairs, wait_s)).items()):
            found += self._read(rank, answer, "mtus", unpack_mtus)
        return tuple(found)

    async def _rates(self, picture: Picture, rate_s: float) -> tuple[Rate, ...]:
        rates = []
        for pairs in rate_rounds(picture):
            orders = {pair.source: ["rate", *pack_pairs([pair]), rate_s] for pair in pairs}
            answers = await self._ask_all(f"measuring nic{pairs[0].source_nic}", orders, STEP_WAIT_S + rate_s)
            rates += [Rate(pair, self._read(pair.source, answers[pair.source], "rate", float)) for pair in pairs]
        return tuple(rates)

    async def _clocks(self) -> tuple[ClockOffset, ...]:
        self._say("comparing clocks")
        clocks = []
        for rank, guest in sorted(self._guests.items()):
            try:
                async with asyncio.timeout(STEP_WAIT_S):
                    samples = [await self._clock_sample(rank, guest) for _ in range(CLOCK_SAMPLES)]
            except TimeoutError:
                raise CheckFailed(
                    f"rank {rank} did not answer within {STEP_WAIT_S:g} s while comparing clocks"
                ) from None
            except Ended as ended:
                raise CheckFailed(f"rank {rank}, while comparing clocks: {ended}") from ended
            trip_s, offset_s = min(samples)
            clocks.append(ClockOffset(rank, offset_s, trip_s / 2, trip_s, median(trip for trip, _ in samples)))
        return tuple(clocks)

    async def _clock_sample(self, rank: int, guest: Messages) -> tuple[float, float]:
        """(round trip, how far the other is ahead, if both ways took the same)."""
        wall_s, started_s = wall_clock_s(), self._clock.now()
        await guest.send(["clock"])
        theirs_s = self._read(rank, await guest.receive(), "clock", float)
        trip_s = self._clock.now() - started_s
        return trip_s, theirs_s - (wall_s + trip_s / 2)

    async def _ask_pairs(
        self, title: str, order: str, pairs: Mapping[int, list[Pair]], wait_s: float
    ) -> dict[int, list[Any]]:
        return await self._ask_all(title, {rank: [order, pack_pairs(own)] for rank, own in pairs.items()}, wait_s)

    async def _ask_all(self, title: str, orders: Mapping[int, list[Any]], wait_s: float) -> dict[int, list[Any]]:
        """Each rank's answer to its order. Raises :class:`CheckFailed`."""
        answers: dict[int, list[Any]] = {}
        self._say(f"{title}: {len(orders)} ranks")
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(self._ask(rank, order)): rank for rank, order in orders.items()}
            pending, until_s = set(tasks), self._clock.now() + wait_s
            trouble = ""
            while pending and not trouble and (left_s := until_s - self._clock.now()) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=min(left_s, SAY_SO_EVERY_S), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    result = task.result()
                    if isinstance(result, Ended):
                        trouble = f"rank {tasks[task]}, while {title}: {result}"
                    else:
                        answers[tasks[task]] = result
                if not done:
                    self._say(f"{title}: {len(answers)} of {len(orders)} ranks done, not yet {_names(tasks, pending)}")
            if pending and not trouble:
                trouble = f"{_names(tasks, pending)} did not answer within {wait_s:g} s while {title}"
            for task in pending:
                task.cancel()
        if trouble:
            raise CheckFailed(trouble)
        return answers

    async def _ask(self, rank: int, order: list[Any]) -> list[Any] | Ended:
        try:
            if rank == 0:
                return await self._worker.perform(order)
            await self._guests[rank].send(order)
            return await self._guests[rank].receive()
        except Ended as ended:
            return ended

    def _read(self, rank: int, answer: list[Any], kind: str, unpack: Callable[[Any], Any]) -> Any:
        try:
            got, packed = answer
            if got != kind:
                raise Ended(f"it answered {got!r} where {kind!r} was asked for")
            return unpack(packed)
        except (TypeError, ValueError, Ended) as bad:
            raise CheckFailed(f"rank {rank}: {bad}") from bad


def pairs_to_try(hosts: Sequence[HostView]) -> dict[int, list[Pair]]:
    """Every (NIC, NIC) pair of ranks that have a network between them, by the rank that tries. Each begins with the
    rank behind it, so that they do not all come to the same one at once."""
    return {
        source.rank: [
            Pair(source.rank, ours.index, target.rank, theirs.index)
            for target in (*hosts[source.rank + 1 :], *hosts[: source.rank])
            if needs_the_network(source, target)
            for ours in source.nics
            for theirs in target.nics
        ]
        for source in hosts
    }


def links_of(hosts: Sequence[HostView], backup_paths: int) -> tuple[Pair, ...]:
    """The links over the network that r2ccl would make, as it computes them itself."""
    links: list[Pair] = []
    for one, other in combinations(hosts, 2):
        if not needs_the_network(one, other):
            continue
        addresses = [nic.address for nic in one.nics], [nic.address for nic in other.nics]
        nics = [
            *rails(len(one.nics), len(other.nics)),
            *backups(*addresses, backup_paths, we_are_first=True),
        ]
        links += [Pair(one.rank, ours, other.rank, theirs) for ours, theirs in nics]
    return tuple(links)


def _batches(pairs: Mapping[int, list[Pair]]) -> int:
    return -(-max((len(own) for own in pairs.values()), default=0) // _PROBES_AT_ONCE)


def _names(tasks: Mapping[Any, int], pending: set[Any]) -> str:
    ranks = sorted(tasks[task] for task in pending)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
