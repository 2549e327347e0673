"""A connected world in a simulated loop, for tests of what a user sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World

Story = Callable[[World], Awaitable[None]]


def simulate(story: Story, ranks: int = 2, nics: int = 2, one_sided: bool = False, **settings: Any) -> None:
    """Connect a world, play, and close whoever is still there. Rails only, unless the settings say otherwise."""

    async def main() -> None:
        chosen = Settings(**{"backup_paths": 0, **settings})
        world = World(Shape(ranks, nics, one_sided=one_sided, settings=chosen))
        await world.start()
        await story(world)
        await world.close()

    run(main())


async def together(world: World, call: Callable[[Communicator], Awaitable[Any]]) -> list[Any]:
    """The same call on every rank."""
    return await asyncio.gather(*(call(communicator) for communicator in world.communicators))


def called(communicator: Communicator) -> int:
    operations: dict[str, int] = communicator.stats()["operations"]
    return operations["called"]
