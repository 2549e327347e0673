"""Lockstep and what ends badly, or is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace

import numpy as np
import pytest

from r2ccl.actors.inbox import Inbox
from r2ccl.actors.lockstep import CALLS_PER_TURN, LONGEST_S, MOVES_UNTIMED, Lockstep
from r2ccl.actors.operation import Move, Operation
from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.ids import SHARED_NIC
from r2ccl.protocol.ledger import Ledger
from r2ccl.protocol.outbox import Outbox
from r2ccl.protocol.wire import Ack, Flag, Kind, pack_header, unpack_header
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.telemetry.counters import Counters
from r2ccl.transport.interface import Loss
from r2ccl.transport.memory import MemoryDevice
from r2ccl.transport.memory_path import Model

#: What is posted lies unread for long.
MODEL = Model(latency_s=1e-6, completion_delay_s=0.02, rails_apart=True)
SETTINGS = Settings(redial_s=0.01, quiet_s=0.01, stable_s=0.1)


async def _world(ranks: int = 2) -> World:
    world = World(Shape(ranks, 1, one_node=True, settings=SETTINGS, model=MODEL), 1)
    await world.start()
    return world


def _lose_memory(world: World, rank: int) -> None:
    port = next(port for port in world.runtimes[rank].all_ports if port.nic.index == SHARED_NIC)
    assert isinstance(port.device, MemoryDevice)
    for connection in list(port.device.connections):
        connection.fail(Loss.BAD_FRAME, "so it was said")


async def _warm(comms: list[Communicator]) -> None:
    """Both ends know the way."""
    for _ in range(4):
        await asyncio.gather(*(_barrier(comm) for comm in comms))
        await asyncio.sleep(0.1)


async def _barrier(comm: Communicator) -> None:
    await comm.barrier()


async def _last_in_lockstep(comms: list[Communicator]) -> tuple[Awaitable[object], np.ndarray]:
    """Rank 0 ends an operation in the call; rank 1 has called it, and has not read what rank 0 posted."""
    late = np.ones(4, np.float32)
    work = comms[1].all_reduce(late)
    assert not work.done()
    await asyncio.sleep(1e-4)
    own = np.ones(4, np.float32)
    done = comms[0].all_reduce(own)
    assert done.done(), "in lockstep"
    assert not work.done()
    return work, late


def test_who_leaves_a_group_still_sends_what_was_not_read() -> None:
    async def main() -> None:
        world = await _world()
        groups = [await comm.new_group([0, 1]) for comm in world.communicators]
        await _warm(groups)
        work, late = await _last_in_lockstep(groups)
        leaving = asyncio.ensure_future(groups[0].close())
        await asyncio.sleep(0)
        _lose_memory(world, 1)
        async with asyncio.timeout(60):
            await work
        assert late.tolist() == [2.0] * 4
        await leaving
        await world.close()

    run(main())


def test_who_failed_a_later_operation_still_sends_what_was_not_read() -> None:
    async def main() -> None:
        world = await _world()
        comms = world.communicators
        await _warm(comms)
        work, late = await _last_in_lockstep(comms)
        comms[0].abort_alone("so it was said")
        _lose_memory(world, 1)
        async with asyncio.timeout(60):
            await work
        assert late.tolist() == [2.0] * 4
        await world.close()

    run(main())


def test_what_a_peer_has_entered_never_becomes_less() -> None:
    outbox = Outbox(1, 1 << 20)
    outbox.entered(7, 9)
    outbox.is_level(7, 8)
    assert outbox.entered_by_peer(7) == 10


def test_a_goodbye_that_is_said_again_leaves_nothing() -> None:
    outbox = Outbox(1, 1 << 20)
    outbox.entered(7, 9)
    outbox.dismiss(7)
    outbox.acknowledged(Ack(7, 10, ()))
    assert outbox.completed_by_peer(7) == 0


def test_a_chunk_that_came_spoiled_and_then_in_lockstep_is_not_asked_for() -> None:
    ledger = Ledger()
    ledger.offer(0, 0, 1, 0, "path")
    ledger.forsake(0, 0, 1, 0, "path")
    ledger.spoiled(0, 0, 1, 0, 1)
    ledger.finish(0)
    assert ledger.missing(1) == []


def test_a_second_copy_in_lockstep_does_not_take_back_what_the_first_is_owed() -> None:
    shared = SimpleNamespace(counters=Counters())
    inbox = Inbox(7, shared, None, None, None, Ledger())  # type: ignore[arg-type]
    ordinary = unpack_header(pack_header(Kind.CHUNK, 0, 4, 7, 0, 5, 1))
    posted = unpack_header(pack_header(Kind.CHUNK, Flag.LOCKSTEP, 4, 7, 0, 5, 1))
    inbox.ledger.accept(0, 5, 1, 0)
    inbox.duplicate(SimpleNamespace(local_nic=0), ordinary)
    inbox.duplicate(SimpleNamespace(local_nic=0), posted)
    assert inbox.ledger.acknowledge(1) != ()


def test_a_long_operation_does_not_wait_for_each_of_its_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    async def main() -> None:
        world = await _world(4)
        await _warm(world.communicators)
        lockstep = world.communicators[0]._coordinator._lockstep
        now = 0.0

        def waited(self: Lockstep, operation: Operation, move: Move) -> bool:
            nonlocal now
            now += 0.002
            return True

        monkeypatch.setattr(Lockstep, "_post", waited)
        monkeypatch.setattr(Lockstep, "_take", waited)
        monkeypatch.setattr(Lockstep, "_goes_on", lambda self, operation, moves: made.append(len(moves)))
        lockstep._clock = SimpleNamespace(now=lambda: now)
        world.communicators[0].all_reduce(np.ones(1 << 18, np.float32))  # by the ring: twelve moves
        for runtime in world.runtimes:
            runtime.abort()

    run(main())
    assert made == [MOVES_UNTIMED + LONGEST_S / 0.002 + 1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_who_is_always_late_keeps_nothing_of_what_has_ended(ranks: int) -> None:
    """What is posted is not acknowledged, so nothing is kept to be acknowledged."""

    async def main() -> None:
        world = World(Shape(ranks, 1, one_node=True, settings=SETTINGS, model=Model(rails_apart=True)), 1)
        await world.start()
        x = [np.ones(4, np.float32) for _ in range(ranks)]
        for _ in range(300):
            works = [world.communicators[rank].all_reduce(x[rank]) for rank in range(1, ranks)]
            await asyncio.sleep(0.001)
            await world.communicators[0].all_reduce(x[0])
            await asyncio.gather(*(_awaited(work) for work in works))
        await asyncio.sleep(1.0)
        for runtime in world.runtimes:
            for coordinator in runtime.coordinators.values():
                assert sum(map(len, coordinator.ledger._unacknowledged.values())) < 10
        await world.close()

    run(main())


async def _awaited(work: Awaitable[object]) -> None:
    await work


def test_the_loop_has_a_turn_after_some_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nobody awaits: who calls from the end of the call before would be ever deeper in calls."""

    async def main() -> None:
        world = await _world()
        await _warm(world.communicators)
        monkeypatch.setattr(Lockstep, "_post", lambda lockstep, operation, move: True)
        monkeypatch.setattr(Lockstep, "_take", lambda lockstep, operation, move: True)
        works = [world.communicators[0].all_reduce(np.ones(1, np.float32)) for _ in range(100)]
        assert 0 < sum(work.done() for work in works) <= CALLS_PER_TURN
        for runtime in world.runtimes:
            runtime.abort()

    run(main())
