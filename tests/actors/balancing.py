"""A job whose NICs change their speed while all-reduces run, in virtual time: how fast it goes, and over which NICs.

What the network could carry is known here, so a throughput is told as the share of it that was reached: the bytes that
a ring's rank must send, at the rates of the slowest rank's NICs together, which is what plain streams between the same
ranks would carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.memory_path import Model

MBIT_S = 125_000.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """What a while of all-reduces came to."""

    #: Of what the network could carry.
    reached: float
    #: For each NIC of the rank that was watched: its share of what the rank sent.
    shares: tuple[float, ...]
    operations: int


class Job:
    """All ranks, and an all-reduce that can be repeated. ``mbit_s``: of each NIC of every rank."""

    def __init__(self, world: World, mbit_s: Sequence[float], size_bytes: int, in_flight: int) -> None:
        self.world = world
        self.loop = world.loop
        self._in_flight = in_flight
        self._arrays = [[np.ones(size_bytes // 4, np.int32) for _ in range(in_flight)] for _ in world.communicators]
        self._size_bytes = size_bytes
        for member in world.members:
            for nic, rate in enumerate(mbit_s):
                self.set_rate(member.rank, nic, rate)

    def set_rate(self, rank: int, nic: int, mbit_s: float) -> None:
        """From now on, in both directions."""
        self.world.fabric.port((rank, nic)).bandwidth_bytes_s = mbit_s * MBIT_S

    def possible_bytes_s(self) -> float:
        """What the slowest rank's NICs carry together."""
        ports = [[self.world.fabric.port((m.rank, nic.index)) for nic in m.nics] for m in self.world.members]
        return min(sum(port.bandwidth_bytes_s for port in of_rank) for of_rank in ports)

    async def run_for(self, seconds: float, watched: int = 1) -> Measured:
        """All-reduces, again and again."""
        return await self._run(lambda done: self.loop.time() < self._started_s + seconds, watched)

    async def run_times(self, operations: int, watched: int = 1) -> Measured:
        """So many all-reduces."""
        return await self._run(lambda done: done < operations, watched)

    async def _run(self, goes_on: Callable[[int], bool], watched: int) -> Measured:
        comms = self.world.communicators
        self._started_s = self.loop.time()
        counters = comms[watched].counters
        before = self._sent_bytes(watched)
        del counters
        done = 0
        begun = 0

        async def lane(slot: int) -> None:
            nonlocal done, begun
            while goes_on(begun):
                begun += 1
                calls: list[Awaitable[object]] = [
                    comm.all_reduce(arrays[slot]) for comm, arrays in zip(comms, self._arrays, strict=True)
                ]
                await asyncio.gather(*calls)
                done += 1

        await asyncio.gather(*(lane(slot) for slot in range(self._in_flight)))
        took_s = self.loop.time() - self._started_s
        sent = [after - earlier for after, earlier in zip(self._sent_bytes(watched), before, strict=True)]
        size = len(comms)
        wire_bytes = done * self._size_bytes * 2 * (size - 1) / size
        return Measured(wire_bytes / self.possible_bytes_s() / took_s, tuple(nic / sum(sent) for nic in sent), done)

    def _sent_bytes(self, rank: int) -> list[int]:
        counters = self.world.communicators[rank].counters
        nics = [nic.index for nic in self.world.members[rank].nics]
        peers = [peer for peer in range(len(self.world.members)) if peer != rank]
        return [sum(counters.link(nic, peer).sent_bytes for peer in peers) for nic in nics]

    @property
    def failovers(self) -> int:
        return sum(comm.counters.failovers for comm in self.world.communicators)


Story = Callable[[Job], Awaitable[None]]


def play(
    story: Story,
    ranks: int = 3,
    mbit_s: Sequence[float] = (500, 500),
    size_bytes: int = 4 * MIB,
    in_flight: int = 1,
    latency_s: float = 100e-6,
) -> None:
    """Connect a job, play, close."""

    async def main() -> None:
        model = Model(latency_s=latency_s, bandwidth_bytes_s=max(mbit_s) * MBIT_S)
        world = World(
            Shape(
                ranks,
                len(mbit_s),
                settings=Settings(
                    backup_paths=0,
                ),
                model=model,
            )
        )
        await world.start()
        await story(Job(world, mbit_s, size_bytes, in_flight))
        await world.close()

    run(main())


__all__ = ["Communicator", "Job", "Measured", "play"]
