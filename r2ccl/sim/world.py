"""A job in a box: the real actors of all ranks, on the virtual-time loop, over the memory transport's fabric.

A world does what ``connect`` does in real life, without rendezvous and sockets. Faults are made on ``world.fabric``.
Each rank runs on a loop of its own kind, so that a frozen or killed one does nothing at all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import cast

from r2ccl.actors.runtime import Runtime
from r2ccl.actors.shared import Shared
from r2ccl.communicator import Communicator, world
from r2ccl.config import Settings
from r2ccl.ids import SHARED_NIC
from r2ccl.sim.loop import SimClock
from r2ccl.sim.rank_loop import RankLoop
from r2ccl.telemetry.event_log import EventLog
from r2ccl.topology import Endpoint, Member, Nic
from r2ccl.transport.interface import Device
from r2ccl.transport.memory import Fabric
from r2ccl.transport.memory_path import Model, PortName
from r2ccl.tuning import Tuning


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What a world is made of."""

    ranks: int = 2
    #: NICs of each rank that carry, and spares beyond them.
    nics: int = 2
    spares: int = 0
    one_sided: bool = False
    settings: Settings = dataclasses.field(default_factory=Settings)
    model: Model = dataclasses.field(default_factory=Model)
    #: All ranks are on one node, and share memory.
    one_node: bool = False
    #: By rank its node, where some share one: also memory, unless their NICs are one-sided. Empty: nobody does.
    nodes: tuple[int, ...] = ()
    #: What rank 0 announces; with figures of shared memory, ranks of one node plan for that.
    tuning: Tuning | None = None

    @property
    def shares_memory(self) -> bool:
        return self.one_node or (bool(self.nodes) and not self.one_sided)

    def node(self, rank: int) -> str:
        """The name of its node."""
        if self.one_node:
            return "node"
        return f"node{self.nodes[rank] if self.nodes else rank}"

    def joins(self, own_nic: int, peers_nic: int) -> bool:
        """Is there a route between two NICs with these indices?"""
        return own_nic == peers_nic or not self.model.rails_apart

    def links(self, one: int, other: int) -> Iterator[tuple[PortName, PortName]]:
        """All direct links of two ranks, also those that stand by: the NIC at either end."""
        nics = range(self.nics + self.spares)
        pairs = itertools.product(nics, nics)
        return (((one, near), (other, far)) for near, far in pairs if self.joins(near, far))


class World:
    """All ranks of one job. Make it inside the simulated loop. ``make_log`` makes the event log of a rank."""

    def __init__(self, shape: Shape, seed: int = 0, make_log: Callable[[int], EventLog] | None = None) -> None:
        self.shape = shape
        self.loop = asyncio.get_running_loop()
        self.clock = SimClock(self.loop)
        self.random = random.Random(seed)
        self.fabric = Fabric(self.loop, self.random.random, shape.model)
        self._make_log = make_log or (lambda _: EventLog(self.clock))
        devices = [self._devices(rank) for rank in range(shape.ranks)]
        self._memories = [self._memory(rank) for rank in range(shape.ranks)] if shape.shares_memory else []
        self._memory_endpoints = {(rank, SHARED_NIC): device.reserve() for rank, device in enumerate(self._memories)}
        self.members = tuple(
            Member(
                rank,
                rank + 1,
                shape.node(rank),
                tuple(self._announced(device) for device in devices[rank]),
                tuning=None if rank else shape.tuning,
            )
            for rank in range(shape.ranks)
        )
        self.runtimes = [self._runtime(rank, devices[rank]) for rank in range(shape.ranks)]
        self.communicators: list[Communicator] = [world(runtime) for runtime in self.runtimes]

    def _devices(self, rank: int) -> list[Device]:
        shape = self.shape
        nics = [
            Nic(index, f"nic{index}", Endpoint("memory", f"rank{rank}", index), spare=index >= shape.nics)
            for index in range(shape.nics + shape.spares)
        ]
        return [self.fabric.device(nic, rank, rank + 1, shape.one_sided) for nic in nics]

    def _memory(self, rank: int) -> Device:
        nic = Nic(SHARED_NIC, "memory", Endpoint("memory", f"rank{rank}", SHARED_NIC))
        return self.fabric.device(nic, rank, rank + 1, shares_memory=True)

    @staticmethod
    def _announced(device: Device) -> Nic:
        return dataclasses.replace(device.nic, endpoint=device.reserve())

    def _runtime(self, rank: int, devices: list[Device]) -> Runtime:
        loop = cast(asyncio.AbstractEventLoop, RankLoop(self.loop, self.fabric.process(rank)))
        shared = Shared(
            rank,
            self.members,
            self.shape.settings,
            self.clock,
            loop,
            self._make_log(rank),
            one_sided=self.shape.one_sided,
        )
        shared.moved.update(self._memory_endpoints)
        runtime = Runtime(shared, devices, self._memories[rank] if self._memories else None)

        def carrier(nic: int, up: bool) -> None:
            if not runtime.is_closed:
                runtime.nic_changed(nic, up, "carrier")

        self.fabric.watch_carrier(rank, carrier)
        return runtime

    async def start(self) -> None:
        """Connect all ranks."""
        for runtime in self.runtimes:
            runtime.start()
        for runtime in self.runtimes:
            await runtime.connected()
        for runtime in self.runtimes:
            runtime.first_dials.follow()

    async def close(self) -> None:
        """Close all communicators together."""
        await asyncio.gather(*(communicator.close() for communicator in self.communicators))
