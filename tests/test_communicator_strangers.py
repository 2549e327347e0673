"""Peers that are admitted and do not keep the rules: what they say costs them their connection, or the operation."""

from __future__ import annotations

import asyncio
import math

import msgpack
import numpy as np
import pytest

from r2ccl import calls
from r2ccl.errors import CommunicatorAborted, R2cclError
from r2ccl.planner.requests import CollectiveKind
from r2ccl.protocol.wire import Flag, Kind, checksum, pack_header
from r2ccl.sim.world import World
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Connection, Loss, Purpose
from tests.simulated import simulate, together


@pytest.mark.parametrize("details", [[math.inf], [[]], ["x"], [{}], [None]])
@pytest.mark.parametrize("cause", ["dead", "timeout", "mismatch", "nonsense"])
def test_an_abort_with_details_that_do_not_fit_is_an_abort_all_the_same(cause: str, details: list[object]) -> None:
    async def story(world: World) -> None:
        work = world.communicators[0].barrier()
        bad = world.runtimes[1]
        (communicator,) = bad.coordinators
        bad.courier.tell(0, Kind.ABORT, [communicator, 0, cause, "because", details])
        with pytest.raises(CommunicatorAborted, match="because"):
            await work

    simulate(story)


class Silent:
    """A receiver that only notes how its connections end."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def established(self, connection: Connection) -> None:
        """Nothing to do."""

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.losses.append(loss)

    def batch_ended(self, connection: Connection) -> None:
        """Nothing to do."""


def test_a_connection_from_a_nic_that_its_rank_never_announced_is_ended_and_no_link_is_made_of_it() -> None:
    async def story(world: World) -> None:
        nic = Nic(7, "nic7", Endpoint("memory", "rank1", 7))
        device, silent = world.fabric.device(nic, 1, 2), Silent()
        device.reserve()
        device.listen(silent)  # type: ignore[arg-type]
        device.dial(0, 0, world.members[0].nics[0].endpoint, Purpose.CONTROL)
        await asyncio.sleep(0.1)
        assert silent.losses
        assert (1, 7) not in world.runtimes[0].ports[0].links
        await together(world, lambda c: c.barrier())

    simulate(story)


def test_a_description_of_a_call_without_measure_ends_the_connection_and_not_the_operation() -> None:
    async def story(world: World) -> None:
        bad = world.runtimes[1]
        (communicator,) = bad.coordinators
        works = [world.communicators[0].barrier()]
        bad.courier.tell(0, Kind.ENTERED, [communicator, 0, 1, "x" * 60_000, False, []])
        await asyncio.sleep(0.5)
        works.append(world.communicators[1].barrier())
        await asyncio.gather(*works)

    simulate(story)


def chunk_for(world: World, payload: bytes, fingerprint: int, step: int = 0, chunk: int = 0) -> None:
    """Rank 1 sends rank 0 a chunk of operation 0."""
    bad = world.runtimes[1]
    (communicator,) = bad.coordinators
    link = bad.courier.links_up(0)[0]
    assert link.bulk is not None
    link.bulk.send(pack_header(Kind.CHUNK, 0, len(payload), communicator, 0, step, 1, 0, chunk, fingerprint), payload)


def test_a_chunk_that_came_before_its_call_and_does_not_fit_it_fails_the_operation_and_not_the_call() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        x = np.zeros(100, np.float32)
        fingerprint = fingerprint_of(world, x)
        chunk_for(world, b"far too little", fingerprint)
        await asyncio.sleep(0.1)
        work = first.broadcast(x, 1)
        with pytest.raises(R2cclError, match="does not fit"):
            await work

    simulate(story)


def fingerprint_of(world: World, x: np.ndarray) -> int:
    asked = calls.in_place(CollectiveKind.BROADCAST, x, None, 1, True)
    return world.communicators[1]._epochs.newest.plan(asked.call).fingerprint


def test_a_chunk_with_a_number_beyond_any_transfer_ends_the_connection() -> None:
    async def story(world: World) -> None:
        chunk_for(world, b"", 1, chunk=(1 << 32) - 1)
        await asyncio.sleep(0.1)
        assert world.runtimes[0].coordinators
        await together(world, lambda c: c.barrier())

    simulate(story)


def test_an_abort_that_cannot_be_told_again_ends_the_operation_all_the_same() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        work = first.barrier()
        bad = world.runtimes[1]
        (communicator,) = bad.coordinators
        body = msgpack.packb([communicator, 0, "dead", "because"])
        nested = b"\x91" * 800 + b"\x90"
        packed = b"\x95" + body[1:] + nested
        control = bad.courier.links_up(0)[0].control
        assert control is not None
        header = pack_header(
            Kind.ABORT, Flag.CHECKSUMMED, len(packed), source=1, target=0, payload_checksum=checksum(packed)
        )
        control.send(header, packed)
        async with asyncio.timeout(10):
            with pytest.raises(CommunicatorAborted):
                await work

    simulate(story)
