"""A world over a fabric of the memory transport that the test can reach, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from r2ccl.sim.loop import run
from r2ccl.topology import Endpoint
from r2ccl.transport.memory import Fabric
from r2ccl.transport.memory_path import Model
from tests.transport.harness import World

MIB = 1 << 20
MODEL = Model(latency_s=1e-3, bandwidth_bytes_s=100e6)


class Lab(World):
    """A world on a fabric that the test can reach."""

    fabric: Fabric


def lab(one_sided: bool = False, model: Model = MODEL, seed: int = 3) -> Lab:
    fabric = Fabric(asyncio.get_running_loop(), random.Random(seed).random, model)
    made = Lab(
        lambda rank, nic: fabric.device(nic, rank, 1000 + rank, one_sided),
        lambda rank, nic: Endpoint("memory", f"rank{rank}.nic{nic}", 0),
    )
    made.fabric = fabric
    return made


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def on_the_virtual_loop() -> None:
        run(test())

    on_the_virtual_loop.__name__ = test.__name__
    return on_the_virtual_loop
