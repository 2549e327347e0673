"""Worlds in which two ranks have no direct link left: others carry what they say, and nobody notices but the log."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.circuits import RelayConnection
from r2ccl.actors.links import Link
from r2ccl.actors.relaying import CONTROL_QUEUE_BYTES_MAX
from r2ccl.errors import PeerLost
from r2ccl.ids import RELAY_NIC
from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.relay import RelayedFrame, Word, pack_relayed
from r2ccl.protocol.wire import HEADER_BYTES, Kind, pack_control, pack_header
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.interface import Connection, Loss, Purpose
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


@pytest.mark.parametrize("one_sided", [False, True], ids=["frames", "one-sided"])
def test_two_ranks_that_lost_different_nics_are_joined_by_a_third(one_sided: bool) -> None:
    async def story(world: World) -> None:
        await part(world)
        assert [relayed(world, *pair).is_up for pair in ((0, 1), (1, 0))] == [True, True]  # type: ignore[union-attr]
        assert carried(world)[:2] == [0, 0]
        assert carried(world)[2] > 100_000
        before = carried(world)[2]
        await all_reduce(world)
        assert carried(world)[2] - before > BYTES
        assert world.runtimes[0].relays.way_to(1) is None

    relayed_world(story, one_sided=one_sided)


@pytest.mark.parametrize("one_sided", [False, True], ids=["frames", "one-sided"])
@pytest.mark.parametrize("nic", [(0, 0), (1, 1)])
def test_with_the_first_direct_link_lanes_go_back_and_the_relayed_link_is_dismissed(
    nic: tuple[int, int], one_sided: bool
) -> None:
    async def story(world: World) -> None:
        await part(world)
        running = asyncio.gather(*(all_reduce(world) for _ in range(40)))
        await asyncio.sleep(0.01)
        world.fabric.restore(nic)
        await running
        await asyncio.sleep(2.0)
        for rank, peer in ((0, 1), (1, 0)):
            link = relayed(world, rank, peer)
            assert link is not None
            assert link.session.state is LinkState.DOWN
            bound = [lane.link.id.is_relayed for lane in world.runtimes[rank].courier.lanes[peer] if lane.link]
            assert bound == [False]
        before = carried(world)
        await all_reduce(world)
        await asyncio.sleep(2.0)
        assert carried(world) == before

    relayed_world(story, one_sided=one_sided)


def test_a_small_operation_and_a_message_go_by_a_relay_too() -> None:
    async def story(world: World) -> None:
        await part(world)
        await all_reduce(world, 8)
        received = np.zeros(1000, np.uint8)
        sent = np.arange(1000, dtype=np.uint32).astype(np.uint8)
        await asyncio.gather(world.communicators[0].send(sent, 1), world.communicators[1].recv(received, 0))
        assert received.tolist() == sent.tolist()

    relayed_world(story)


def test_the_end_that_does_not_dial_asks_the_other_to() -> None:
    """Rank 1 knows that its NIC is gone, rank 0, who dials, does not: nothing is in flight."""

    async def story(world: World) -> None:
        world.fabric.cut((0, 0))
        await asyncio.sleep(1.5)
        assert relayed(world, 1, 0) is None
        world.fabric.cut((1, 1))
        await asyncio.sleep(0.01)
        assert relayed(world, 1, 0).is_up  # type: ignore[union-attr]

    relayed_world(story)


@pytest.mark.parametrize("one_sided", [False, True], ids=["frames", "one-sided"])
def test_when_the_relay_loses_a_leg_another_rank_takes_over(one_sided: bool) -> None:
    async def story(world: World) -> None:
        await part(world)
        first = carrier(world, 0, 1)
        running = asyncio.ensure_future(all_reduce(world))
        await asyncio.sleep(0.004)
        world.fabric.silent_drop_link((first, 0), (1, 0))
        await running
        assert carrier(world, 0, 1) == carrier(world, 1, 0) == 5 - first

    relayed_world(story, ranks=4, one_sided=one_sided)


def test_a_relay_that_stands_still_is_left_for_one_that_does_not() -> None:
    async def story(world: World) -> None:
        await part(world)
        first = carrier(world, 0, 1)
        world.fabric.freeze(first)
        running = asyncio.ensure_future(all_reduce(world, 1 << 10))
        await asyncio.sleep(2.0)
        assert carrier(world, 0, 1) == carrier(world, 1, 0) == 5 - first
        world.fabric.thaw(first)
        await running
        assert carrier(world, 0, 1) == 5 - first, "what it said late is nothing to anybody"

    relayed_world(story, ranks=4)


def test_a_peer_that_stands_still_behind_a_relay_is_not_accused() -> None:
    async def story(world: World) -> None:
        await part(world)
        circuits = [list(runtime.relays.device.circuits.values()) for runtime in world.runtimes]
        running = asyncio.ensure_future(all_reduce(world))
        await asyncio.sleep(0.004)
        world.fabric.freeze(1)
        await asyncio.sleep(30.0)
        world.fabric.thaw(1)
        await running
        assert [list(runtime.relays.device.circuits.values()) for runtime in world.runtimes] == circuits

    relayed_world(story, ranks=4)


def test_when_the_only_relay_dies_the_others_are_unreachable_after_the_grace_time_and_not_before() -> None:
    async def story(world: World) -> None:
        await part(world)
        group = [communicator.new_group([0, 1]) for communicator in world.communicators[:2]]
        members = [await made for made in group]
        x = [np.ones(1 << 18, np.float32) for _ in range(2)]
        works = [member.all_reduce(part) for member, part in zip(members, x, strict=True)]
        died_s = world.clock.now()
        world.fabric.kill(2)
        for work in works:
            with pytest.raises(PeerLost, match="unreachable"):
                await work
            assert 5.0 <= world.clock.now() - died_s < 5.5
        for communicator in world.communicators[:2]:
            await communicator.close()

    relayed_world(story, closes=False)


def test_when_a_relay_is_full_the_operation_ends_well_all_the_same() -> None:
    async def story(world: World) -> None:
        world.fabric.path((2, 0), (1, 0)).bandwidth_bytes_s = 20e6
        await part(world)
        await all_reduce(world)
        assert world.runtimes[2].shared.counters.relay_dropped_frames > 0
        counted = world.runtimes[1].shared.counters.snapshot()["nics"]["relay"]
        assert counted["spoiled_chunks"] == 0, "nobody spoiled anything"
        events = [event for event in world.runtimes[0].shared.events.since(0) if event.name == "relayed"]
        assert len(events) == 1, "nothing ended"

    relayed_world(story, relay_queue_bytes=0)


def test_spoiled_chunks_are_asked_for_again_through_a_relay() -> None:
    async def story(world: World) -> None:
        await part(world)
        number = itertools.count()
        undo = world.fabric.corrupt(
            lambda source, target, header: (
                header.kind == Kind.RELAYED and header.payload_bytes > 10_000 and next(number) % 5 == 0
            )
        )
        await all_reduce(world)
        undo()
        assert next(number) > 5

    relayed_world(story)


def test_many_pairs_are_relayed_at_once() -> None:
    async def story(world: World) -> None:
        running = asyncio.ensure_future(all_reduce(world))
        await asyncio.sleep(0.001)
        for rank in (0, 2, 4):
            world.fabric.cut((rank, 0))
        for rank in (1, 3):
            world.fabric.cut((rank, 1))
        await running
        await all_reduce(world)
        assert carried(world)[:5] == [0] * 5
        assert carried(world)[5] > 0
        await all_reduce(world)

    relayed_world(story, ranks=6)


def test_with_two_ranks_there_is_nobody_to_ask() -> None:
    async def story(world: World) -> None:
        assert world.runtimes[0].all_ports == world.runtimes[0].ports

    relayed_world(story, ranks=2)


def listen(world: World, rank: int, passes: Callable[[RelayedFrame], bool]) -> None:
    """Let a rank hear only some of the relayed frames that are for it."""
    device = world.runtimes[rank].relays.device
    hear = device.heard

    def tapped(link: Link, frame: RelayedFrame, payload: Any) -> None:
        if passes(frame):
            hear(link, frame, payload)

    device.heard = tapped  # type: ignore[method-assign]


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


def bulk_of(world: World, rank: int, peer: int) -> Any:
    (link, *_) = world.runtimes[rank].courier.links_up(peer)
    return link.bulk


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
