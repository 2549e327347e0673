"""Worlds whose rails are networks of their own, in which two ranks may lose every direct link."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from r2ccl.actors.circuits import RelayConnection
from r2ccl.actors.link import Link
from r2ccl.ids import RELAY_NIC
from r2ccl.protocol.relay import RelayedFrame
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.memory_path import Model
from tests.simulated import together

Story = Callable[[World], Awaitable[None]]
#: Some 20 ms for an all-reduce of three ranks.
BYTES = 4 << 20
MODEL = Model(bandwidth_bytes_s=500e6)


def relayed_world(
    story: Story, ranks: int = 3, nics: int = 2, one_sided: bool = False, closes: bool = True, **settings: Any
) -> None:
    """Play in a world whose rails are networks of their own, so that there is no way from one to another."""

    async def main() -> None:
        shape = Shape(ranks, nics, one_sided=one_sided, model=MODEL)
        shape = Shape(ranks, nics, 0, one_sided, shape.settings.replace(**settings), MODEL)
        world = World(shape)
        names = [(rank, nic) for rank in range(ranks) for nic in range(nics)]
        for one, other in itertools.combinations(names, 2):
            if one[1] != other[1]:
                world.fabric.silent_drop_link(one, other)
        await world.start()
        await story(world)
        if closes:
            await world.close()
            assert [list(runtime.relays.device.circuits) for runtime in world.runtimes] == [[]] * ranks

    run(main())


async def all_reduce(world: World, size: int = BYTES) -> list[bytes]:
    """On all ranks; what each got, which must be the sum."""
    inputs = [np.arange(size // 4, dtype=np.uint32) * np.uint32(rank + 3) for rank in range(len(world.runtimes))]
    right = sum(inputs[1:], inputs[0].copy()).tobytes()
    results = [x.copy() for x in inputs]
    await together(world, lambda communicator: communicator.all_reduce(results[communicator.rank]))
    assert [x.tobytes() == right for x in results] == [True] * len(results)
    return [x.tobytes() for x in results]


def relayed(world: World, rank: int, peer: int) -> Link | None:
    return world.runtimes[rank]._relay_port.links.get((peer, RELAY_NIC))


def carrier(world: World, rank: int, peer: int) -> int:
    """Who carries between the two."""
    link = relayed(world, rank, peer)
    assert link is not None
    assert isinstance(link.bulk, RelayConnection)
    assert link.bulk.way is not None
    return link.bulk.way.carrier


def carried(world: World) -> list[int]:
    return [runtime.shared.counters.relayed_bytes for runtime in world.runtimes]


async def part(world: World) -> None:
    """Ranks 0 and 1 lose different NICs, in the middle of an operation, which ends well."""
    running = asyncio.ensure_future(all_reduce(world))
    await asyncio.sleep(0.002)
    world.fabric.cut((0, 0))
    await asyncio.sleep(0.002)
    world.fabric.cut((1, 1))
    await running


def listen(world: World, rank: int, passes: Callable[[RelayedFrame], bool]) -> None:
    """Let a rank hear only some of the relayed frames that are for it."""
    device = world.runtimes[rank].relays.device
    hear = device.heard

    def tapped(link: Link, frame: RelayedFrame, payload: Any) -> None:
        if passes(frame):
            hear(link, frame, payload)

    device.heard = tapped  # type: ignore[method-assign]


def bulk_of(world: World, rank: int, peer: int) -> Any:
    (link, *_) = world.runtimes[rank].courier.links_up(peer)
    return link.bulk
