"""Worlds in which links become slow, and what is asked of them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from r2ccl.actors.link import Link
from r2ccl.config import Settings
from r2ccl.protocol.evidence import Kind
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.memory_path import Model
from tests.simulated import together

#: So many looks make a history: with a margin for the first, which only begin to count.
HISTORY = 40
#: So many make one in which no more than the least confirmations are needed.
LONG_HISTORY = 700
#: A fault is found within so many looks: all of the window while the history is short, after one in which the slow
#: answer is still awaited.
WINDOW = 6
USUAL_S = Model().latency_s
SLOW_S = 0.005


def play(story: Callable[[World], Awaitable[None]], model: Model | None = None, **shape: Any) -> None:
    """A world that is connected, plays, and closes."""
    settings = Settings(**{"backup_paths": 0, **shape.pop("settings", {})})

    async def main() -> None:
        world = World(Shape(settings=settings, model=model or Model(), **shape))
        await world.start()
        await story(world)
        await world.close()

    run(main())


async def looks(world: World, count: int) -> None:
    await asyncio.sleep(count * world.shape.settings.evidence_s)


def slow_down(world: World, one: tuple[int, int], other: tuple[int, int], latency_s: float = SLOW_S) -> None:
    world.fabric.path(one, other).latency_s = world.fabric.path(other, one).latency_s = latency_s


def told(world: World, rank: int, name: str) -> list[str]:
    """Events of a rank with this name: about what, and what changed."""
    return [
        " ".join(str(event.fields[key]) for key in ("nic", "link", "kind", "change") if key in event.fields)
        for event in world.communicators[rank].events.since(0)
        if event.name == name
    ]


def link_stats(world: World, name: str, rank: int = 0) -> dict[str, Any]:
    stats: dict[str, Any] = world.communicators[rank].stats()["links"][name]
    return stats


def link_between(world: World, nic: int, rank: int = 0) -> Link:
    """Of two ranks."""
    return world.runtimes[rank].ports[nic].link(1 - rank, nic)


def sent_chunks(world: World, nic: int, rank: int = 0) -> int:
    return world.communicators[rank].counters.link(nic, 1 - rank).sent_chunks


async def all_reduce(world: World, elements: int = 1 << 19) -> None:
    arrays = [np.full(elements, rank, np.int32) for rank in range(world.shape.ranks)]
    await together(world, lambda comm: comm.all_reduce(arrays[comm.rank]))
    assert all((array == sum(range(world.shape.ranks))).all() for array in arrays)


#: A network slow enough to be kept full for seconds: 20 MB/s for each NIC, in pieces like those of a real one.
SLOW_NETWORK = Model(bandwidth_bytes_s=20e6, piece_bytes=8192, resend_after_s=0.002)
FAST_LOOKS = {"evidence_s": 0.1, "chunk_bytes": 16384}


async def kept_full(world: World, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """All-reduces back to back; ``meanwhile`` is called every 20 ms."""
    until_s = world.loop.time() + seconds

    async def reduce() -> None:
        while world.loop.time() < until_s:
            await all_reduce(world, 1 << 18)

    load = asyncio.ensure_future(reduce())
    while not load.done():
        meanwhile()
        await asyncio.sleep(0.02)
    await load


def standing(world: World, kind: Kind, rank: int = 0) -> list[str]:
    return [
        str(link.id)
        for port in world.runtimes[rank].ports
        for link in port.links.values()
        if kind in link.evidence.standing
    ]
