"""Worlds of one node in which every operation is for lockstep: some calls find everything there and end at once, others
go on like any other, and the memory between two ranks is lost in the middle, also in the middle of a chunk."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import numpy as np
import pytest

from r2ccl.actors.lockstep import Lockstep
from r2ccl.actors.operation import Move, Operation, Planned
from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.ids import SHARED_NIC
from r2ccl.sim.checkers import kept
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.interface import Loss
from r2ccl.transport.memory import MemoryDevice
from r2ccl.transport.memory_path import Model

CALLS = 60


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was done in lockstep."""
    counted: Counter[str] = Counter()
    take, goes_on, again = Lockstep._take, Lockstep._goes_on, Lockstep._send_again

    def counted_take(lockstep: Lockstep, operation: Operation, move: Move) -> bool:
        taken = take(lockstep, operation, move)
        counted["taken"] += taken
        return taken

    def counted_goes_on(lockstep: Lockstep, operation: Operation, made: tuple[Move, ...]) -> None:
        counted["went on"] += 1
        counted["with something taken"] += any(not move.is_send for move in made)
        goes_on(lockstep, operation, made)

    def counted_again(lockstep: Lockstep, number: int, move: Move, planned: Planned, payload: bytes) -> None:
        counted["again"] += 1
        again(lockstep, number, move, planned, payload)

    monkeypatch.setattr(Lockstep, "_take", counted_take)
    monkeypatch.setattr(Lockstep, "_goes_on", counted_goes_on)
    monkeypatch.setattr(Lockstep, "_send_again", counted_again)
    return counted


async def _call(comm: Communicator, ranks: int, seed: int, group: int) -> None:
    """The same calls on every rank, each in its own time."""
    same, own = random.Random(f"{seed} {group}"), random.Random(f"{seed} {group} {comm.rank}")
    haste = own.choice((0.0, 1e-4, 1e-3))
    window: list[tuple[asyncio.Future[None], np.ndarray, np.ndarray]] = []
    for number in range(CALLS):
        elements, kind = same.choice((0, 1, 5, 200, 200, 9000)), same.random()
        if own.random() < 0.5:
            await asyncio.sleep(own.uniform(0, haste))
        if kind < 0.1:
            await comm.barrier()
            continue
        x = np.arange(elements, dtype=np.float32) + comm.rank * number
        right = ranks * np.arange(elements, dtype=np.float32) + number * sum(range(ranks))
        work = asyncio.ensure_future(_awaited(comm.all_reduce(x)))
        window.append((work, x, right))
        if same.random() < 0.8:
            for one, got, wanted in window:
                await one
                assert got.tolist() == wanted.tolist()
            window.clear()
    for one, got, wanted in window:
        await one
        assert got.tolist() == wanted.tolist()


async def _awaited(work: object) -> None:
    await work  # type: ignore[misc]


async def _lose_memory(world: World, rng: random.Random) -> None:
    """Now and then a connection between two ranks ends, or is silent for a while."""
    while True:
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        one, other = rng.sample(range(world.shape.ranks), 2)
        if rng.random() < 0.3:
            world.fabric.silent_drop_link((one, SHARED_NIC), (other, SHARED_NIC))
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            world.fabric.restore_link((one, SHARED_NIC), (other, SHARED_NIC))
            continue
        port = next(port for port in world.runtimes[one].all_ports if port.nic.index == SHARED_NIC)
        assert isinstance(port.device, MemoryDevice)
        for connection in rng.sample(port.device.connections, min(1, len(port.device.connections))):
            connection.fail(Loss.BAD_FRAME, "so it was drawn")


def _play(seed: int) -> None:
    rng = random.Random(seed)
    ranks = rng.choice((2, 2, 3, 4, 5))
    settings = Settings(
        eager_bytes=rng.choice((256, 65536)),
        credit_bytes=rng.choice((4096, 1 << 20)),
        running_max=rng.choice((1, 5, 64)),
        redial_s=0.01,
        quiet_s=0.01,
        stable_s=0.1,
    )
    model = Model(
        latency_s=rng.choice((1e-6, 50e-6)), completion_delay_s=rng.choice((1e-6, 1e-4, 2e-3)), rails_apart=True
    )

    async def main() -> None:
        world = World(Shape(ranks, rng.choice((1, 2)), one_node=True, settings=settings, model=model), seed)
        await world.start()
        groups = [world.communicators]
        if rng.random() < 0.5:
            groups.append([await comm.new_group(list(range(ranks))) for comm in world.communicators])
        loser = asyncio.ensure_future(_lose_memory(world, rng)) if rng.random() < 0.7 else None
        async with asyncio.timeout(60.0):
            await asyncio.gather(
                *(_call(comm, ranks, seed, number) for number, group in enumerate(groups) for comm in group)
            )
        if loser is not None:
            loser.cancel()
        await asyncio.sleep(5.0)
        for runtime in world.runtimes:
            assert kept(runtime) == []
        await world.close()

    run(main())


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_every_result_is_right_and_nothing_is_left(first: int, moves: Counter[str]) -> None:
    for seed in range(first, first + 20):
        _play(seed)
    assert min(moves["taken"], moves["went on"], moves["with something taken"], moves["again"]) > 0, moves
