"""Circuits: how they begin, what is lost on them, and what others may send."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.relaying import CONTROL_QUEUE_BYTES_MAX
from r2ccl.ids import RELAY_NIC
from r2ccl.protocol.relay import RelayedFrame, Word, pack_relayed
from r2ccl.protocol.wire import HEADER_BYTES, Kind, pack_control, pack_header
from r2ccl.sim.world import World
from r2ccl.transport.interface import Connection, Loss, Purpose
from tests.actors.relayed_worlds import (
    all_reduce,
    bulk_of,
    listen,
    part,
    relayed,
    relayed_world,
)


def test_a_circuit_that_lost_a_frame_ends_and_the_next_one_carries_on() -> None:
    async def story(world: World) -> None:
        await part(world)
        number = itertools.count()
        listen(world, 1, lambda frame: frame.word is not Word.FRAME or next(number) != 9)
        await all_reduce(world)
        events = [event for event in world.runtimes[1].shared.events.since(0) if event.name == "relayed"]
        assert len(events) == 2

    relayed_world(story)


def test_circuits_that_end_as_soon_as_they_are_made_are_not_made_a_thousand_times_a_second() -> None:
    async def story(world: World) -> None:
        port = world.runtimes[1]._relay_port
        established = port.established

        def tapped(connection: Connection) -> None:
            established(connection)
            world.loop.call_later(0.005, connection.abort)

        port.established = tapped  # type: ignore[method-assign]
        world.fabric.cut((0, 0))
        world.fabric.cut((1, 1))
        await asyncio.sleep(2.0)
        made = [event for event in world.runtimes[0].shared.events.since(0) if event.name == "relayed"]
        assert 2 < len(made) <= 2.0 / world.shape.settings.redial_s + 1
        port.established = established  # type: ignore[method-assign]
        await all_reduce(world)

    relayed_world(story)


def test_a_frame_that_overtakes_the_answer_is_an_answer() -> None:
    async def story(world: World) -> None:
        listen(world, 0, lambda frame: frame.word is not Word.ANSWER)
        world.fabric.cut((0, 0))
        world.fabric.cut((1, 1))
        received = np.zeros(1000, np.uint8)
        sent = np.arange(1000, dtype=np.uint32).astype(np.uint8)
        await asyncio.gather(world.communicators[1].send(sent, 0), world.communicators[0].recv(received, 1))
        assert received.tolist() == sent.tolist()
        await all_reduce(world)

    relayed_world(story)


def test_a_dial_that_comes_late_by_a_slow_rank_makes_no_circuit() -> None:
    async def story(world: World) -> None:
        await part(world)
        device = world.runtimes[1].relays.device
        circuits = dict(device.circuits)
        for circuit in circuits.values():
            for number in range(circuit.number + 1):
                bulk_of(world, 2, 1).send(pack_relayed(Word.DIAL, 0, 1, number, purpose=circuit.purpose), b"")
        await asyncio.sleep(0.001)
        assert device.circuits == circuits

    relayed_world(story)


def test_a_circuit_that_is_being_made_ends_with_the_last_link_to_those_who_were_asked() -> None:
    async def story(world: World) -> None:
        device = world.runtimes[0].relays.device
        world.fabric.freeze(2)
        circuit = device.dial(1, RELAY_NIC, device.nic.endpoint, Purpose.PROBE)
        assert list(circuit.asked) == [2]
        world.fabric.cut((0, 0))
        world.fabric.cut((0, 1))
        await asyncio.sleep(0.001)
        assert circuit.is_over
        world.fabric.thaw(2)
        for nic in range(2):
            world.fabric.restore((0, nic))
        await all_reduce(world)

    relayed_world(story)


def test_a_circuit_that_nobody_can_carry_ends_at_once() -> None:
    async def story(world: World) -> None:
        device = world.runtimes[0].relays.device
        for nic in range(2):
            world.fabric.cut((1, nic))
        await asyncio.sleep(0.2)
        circuit = device.dial(1, RELAY_NIC, device.nic.endpoint, Purpose.PROBE)
        await asyncio.sleep(0.001)
        assert circuit.is_over
        for nic in range(2):
            world.fabric.restore((1, nic))
        await all_reduce(world)

    relayed_world(story)


# What others may send.


@pytest.mark.parametrize(
    "header",
    [
        pack_relayed(Word.FRAME, 1, 3, 9),  # for another: two hops
        pack_relayed(Word.FRAME, 0, 2, 9),  # to us, who are linked
        pack_relayed(Word.FRAME, 0, 7, 9),  # to nobody
        pack_header(Kind.RELAYED, 0, 0, step=77, source=0, target=1),
    ],
    ids=["for another", "to a neighbour", "to nobody", "no such word"],
)
def test_a_frame_that_no_rank_would_send_ends_the_link_that_brought_it(header: bytes) -> None:
    async def story(world: World) -> None:
        bulk = bulk_of(world, 0, 2)
        bulk.send(header, b"")
        await asyncio.sleep(0.001)
        events = world.runtimes[2].shared.events.since(0)
        assert [event.fields["cause"] for event in events if event.fields.get("change") == "UP->DOWN"] == ["bad frame"]
        await all_reduce(world)

    relayed_world(story, ranks=4)


def test_a_frame_of_a_circuit_that_is_not_known_is_answered_with_its_end() -> None:
    async def story(world: World) -> None:
        heard: list[Word] = []

        def passes(frame: RelayedFrame) -> bool:
            heard.append(frame.word)
            return True

        listen(world, 0, passes)
        bulk_of(world, 0, 2).send(pack_relayed(Word.FRAME, 0, 1, 99, number=1, payload_bytes=3), b"abc")
        await asyncio.sleep(0.001)
        assert heard == [Word.END]

    relayed_world(story)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        pack_header(Kind.CHUNK, 0, 100),  # says more than there is
        pack_relayed(Word.FRAME, 0, 1, 2),  # a relay within a relay
        pack_header(Kind.NOTICE, 1, 1, payload_checksum=5) + b"x",
        b"".join(pack_control(Kind.NOTICE, 0, 1, ["nonsense"])),
        bytes(HEADER_BYTES),
    ],
    ids=["nothing", "too short", "a relay within", "a wrong checksum", "a notice that is none", "no header"],
)
def test_nonsense_on_a_circuit_ends_the_circuit_and_not_the_link_that_brought_it(frame: bytes) -> None:
    async def story(world: World) -> None:
        await part(world)
        link = relayed(world, 0, 1)
        assert link is not None
        circuit: Any = link.bulk
        losses: list[Loss] = []
        port = world.runtimes[1]._relay_port
        lost = port.lost

        def tapped(connection: Connection, loss: Loss, detail: str) -> None:
            losses.append(loss)
            lost(connection, loss, detail)

        port.lost = tapped  # type: ignore[method-assign]
        number = circuit.circuit.send(len(frame), world.clock.now())
        world.runtimes[0].relays.device.say(circuit.way, circuit.way.bulk, Word.FRAME, circuit, number, frame)
        await asyncio.sleep(0.5)
        assert losses[0] is Loss.BAD_FRAME
        assert len(world.runtimes[1].courier.links_up(2)) == 1, "rank 2's link was not touched"
        await all_reduce(world)

    relayed_world(story)


def test_a_relay_whose_control_connection_is_stuck_says_that_there_is_no_way() -> None:
    async def story(world: World) -> None:
        await part(world)
        link = relayed(world, 0, 1)
        assert link is not None
        way = world.runtimes[2].relays.way_to(1)
        assert way is not None
        world.fabric.freeze(1)
        for _ in range(2 + CONTROL_QUEUE_BYTES_MAX // 60_000):
            way.control.send(*pack_control(Kind.BEAT, 2, 1, ["x" * 60_000]))
        assert link.is_up
        assert link.control is not None
        link.control.send(*pack_control(Kind.BEAT, 0, 1, []))
        await asyncio.sleep(0.001)
        assert not link.is_up
        world.fabric.thaw(1)
        await all_reduce(world)

    relayed_world(story)
