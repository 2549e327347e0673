"""What the memory transport models beyond the laws of all transports: time, shared bandwidth, processes and faults."""

from __future__ import annotations

import asyncio
import random

import pytest

from r2ccl.sim.loop import run
from r2ccl.transport.interface import Loss
from tests.transport.harness import LARGE, chunk_header, is_held, landing_of, pattern
from tests.transport.memory_lab import MIB, MODEL, in_virtual_time, lab, now


@in_virtual_time
async def test_a_chunk_takes_the_latency_and_its_bytes_over_the_bandwidth() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    payload = pattern(10 * LARGE)
    began = now()
    here.send(chunk_header(payload), payload)
    await world.until(lambda: bool(other.hears.of("landed")))
    assert now() - began == pytest.approx(1e-3 + len(payload) / 100e6, rel=0.05)


@in_virtual_time
async def test_two_peers_share_a_receiving_nic() -> None:
    world = lab()
    target, one, other = world.side(0), world.side(1), world.side(2)
    first, _ = await world.connect(one, target)
    second, _ = await world.connect(other, target)
    began = now()
    for connection in (first, second):
        connection.send(chunk_header(pattern(4 * MIB)), pattern(4 * MIB))
    await world.until(lambda: len(target.hears.of("landed")) == 2)
    assert now() - began == pytest.approx(8 * MIB / 100e6, rel=0.1)


@in_virtual_time
async def test_two_nics_of_one_rank_do_not_share() -> None:
    world = lab()
    lanes = [await world.connect(world.side(0, nic), world.side(1, nic)) for nic in range(2)]
    targets = [world._sides[1], world._sides[3]]
    began = now()
    for here, _ in lanes:
        here.send(chunk_header(pattern(4 * MIB)), pattern(4 * MIB))
    await world.until(lambda: all(target.hears.of("landed") for target in targets))
    assert now() - began == pytest.approx(4 * MIB / 100e6, rel=0.1)


@in_virtual_time
async def test_a_path_may_be_slower_than_its_ports() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.fabric.path((0, 0), (1, 0)).bandwidth_bytes_s = 10e6
    began = now()
    here.send(chunk_header(pattern(MIB)), pattern(MIB))
    await world.until(lambda: bool(other.hears.of("landed")))
    assert now() - began == pytest.approx(MIB / 10e6, rel=0.1)


@in_virtual_time
async def test_what_a_sender_writes_into_memory_that_is_still_held_goes_out() -> None:
    """The danger that decision 7 is about: the kernel copies the rest of a frame when it has room."""
    world = lab()
    _, other, here, _ = await world.pair()
    memory = bytearray(4 * MIB)
    here.send(chunk_header(memory), memoryview(memory))
    await asyncio.sleep(1e-3)
    memory[:] = b"\xff" * len(memory)
    await world.until(lambda: bool(other.hears.of("spoiled")))
    assert {0x00, 0xFF} == set(other.hears.places[0])


@in_virtual_time
async def test_a_cut_is_told_to_the_owner_and_to_nobody_else() -> None:
    world = lab()
    one, other, here, _ = await world.pair()
    told: list[tuple[int, int, bool]] = []
    for rank in (0, 1):
        world.fabric.watch_carrier(rank, lambda nic, up, rank=rank: told.append((rank, nic, up)))  # type: ignore[misc]
    world.fabric.cut((0, 0))
    here.send(chunk_header(b"x"), b"x")
    await asyncio.sleep(60)
    assert told == [(0, 0, False)]
    assert one.hears.of("lost") == other.hears.of("lost", "chunk") == []
    world.fabric.restore((0, 0))
    await world.until(lambda: bool(other.hears.of("chunk")))
    assert told == [(0, 0, False), (0, 0, True)]


@in_virtual_time
async def test_what_was_in_flight_at_a_cut_is_sent_again_when_the_path_is_back() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    payloads = [pattern(LARGE, number) for number in range(8)]
    for number, payload in enumerate(payloads):
        here.send(chunk_header(payload, number), payload)
    await world.until(lambda: len(other.hears.payloads()) == 3)
    world.fabric.silent_drop((1, 0))
    await asyncio.sleep(5)
    assert len(other.hears.payloads()) == 3
    assert here.sample().silence_s > 4.9
    assert 0 < here.sample().in_flight_bytes <= MODEL.socket_buffer_bytes
    world.fabric.restore((1, 0))
    began = now()
    await world.until(lambda: len(other.hears.payloads()) == 8)
    assert other.hears.payloads() == payloads
    assert now() - began >= MODEL.resend_after_s
    assert here.sample().resent_segments > 0


@in_virtual_time
async def test_many_short_outages_lose_and_double_nothing() -> None:
    world = lab()
    one, other, here, there = await world.pair()
    draw = random.Random(11)
    payloads = [pattern(draw.choice((10, 5000, LARGE)), number) for number in range(60)]
    for number, payload in enumerate(payloads):
        here.send(chunk_header(payload, number), payload)
        there.send(chunk_header(payload, number), payload)
    for _ in range(40):
        await asyncio.sleep(draw.uniform(0.0, 0.004))
        fault = draw.choice((world.fabric.silent_drop, world.fabric.cut))
        fault((draw.choice((0, 1)), 0))
        await asyncio.sleep(draw.uniform(0.0, 0.004))
        world.fabric.restore((0, 0))
        world.fabric.restore((1, 0))
    await world.until(lambda: len(one.hears.payloads()) == len(other.hears.payloads()) == 60)
    assert one.hears.payloads() == other.hears.payloads() == payloads


@in_virtual_time
async def test_when_only_acknowledgements_are_lost_data_arrives_once_and_the_sender_sees_silence() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.fabric.silent_drop_direction((1, 0), (0, 0))
    here.send(chunk_header(b"x"), b"x")
    await asyncio.sleep(1)
    assert other.hears.payloads() == [b"x"]
    assert here.sample().in_flight_bytes > 0
    assert here.sample().silence_s >= 1
    world.fabric.restore_link((0, 0), (1, 0))
    await asyncio.sleep(1)
    assert here.sample().in_flight_bytes == 0
    assert other.hears.payloads() == [b"x"]


@in_virtual_time
async def test_one_dead_link_leaves_the_others_of_the_nic_alone() -> None:
    world = lab()
    one, other, third = world.side(0), world.side(1), world.side(2)
    dead, _ = await world.connect(one, other)
    alive, _ = await world.connect(one, third)
    world.fabric.silent_drop_link((0, 0), (1, 0))
    for connection in (dead, alive):
        connection.send(chunk_header(b"x"), b"x")
    await asyncio.sleep(1)
    assert (other.hears.payloads(), third.hears.payloads()) == ([], [b"x"])


@in_virtual_time
async def test_a_connection_aborted_on_a_dead_path_resets_the_peer_only_when_it_speaks_again() -> None:
    world = lab()
    _, other, here, there = await world.pair()
    world.fabric.silent_drop((0, 0))
    here.abort()
    await asyncio.sleep(10)
    world.fabric.restore((0, 0))
    await asyncio.sleep(10)
    assert other.hears.of("lost") == []
    there.send(chunk_header(b"x"), b"x")
    await world.until(lambda: bool(other.hears.of("lost")))
    assert other.hears.of("lost")[0].loss is Loss.RESET


@in_virtual_time
async def test_a_killed_rank_ends_its_connections_and_refuses_dials() -> None:
    world = lab()
    one, other, here, _ = await world.pair()
    world.fabric.kill(1)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert one.hears.of("lost")[0].loss is Loss.END_OF_FILE
    world.dial(one, other)
    await world.until(lambda: len(one.hears.of("lost")) == 2)
    assert one.hears.of("lost")[1].loss is Loss.REFUSED
    assert other.hears.of("lost") == []
    here.send(chunk_header(b"x"), b"x")


@in_virtual_time
async def test_what_is_done_on_behalf_of_a_killed_rank_has_no_effect() -> None:
    world = lab()
    one, other, _, there = await world.pair()
    heard = len(other.hears.events)
    world.fabric.kill(1)
    there.send(chunk_header(b"x"), b"x")
    world.dial(other, one).send(chunk_header(b"x"), b"x")
    await asyncio.sleep(10)
    assert len(other.hears.events) == heard
    assert one.hears.payloads() == []
    assert len(one.hears.of("established")) == 1


@in_virtual_time
async def test_a_killed_rank_behind_a_dead_path_is_silent_and_then_resets() -> None:
    world = lab()
    one, other, here, _ = await world.pair()
    world.fabric.silent_drop((1, 0))
    world.fabric.kill(1)
    here.send(chunk_header(b"x"), b"x")
    world.dial(one, other)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert one.hears.of("lost")[0].loss is Loss.UNREACHABLE
    assert one.hears.of("lost", connection=here) == []
    world.fabric.restore((1, 0))
    await world.until(lambda: bool(one.hears.of("lost", connection=here)))


@in_virtual_time
async def test_what_a_killed_rank_had_handed_to_its_kernel_still_arrives() -> None:
    world = lab()
    one, _, _, there = await world.pair()
    there.send(chunk_header(pattern(100_000)), pattern(100_000))
    await asyncio.sleep(0)
    world.fabric.kill(1)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert one.hears.payloads() == [pattern(100_000)]


@in_virtual_time
async def test_a_rank_that_comes_back_has_another_incarnation() -> None:
    world = lab()
    one = world.side(0)
    world.side(1)
    world.fabric.kill(1)
    world.open_device = lambda rank, nic: world.fabric.device(nic, rank, incarnation=5)
    here, _ = await world.connect(one, world.side(1))
    assert here.peer_incarnation == 5


@in_virtual_time
async def test_a_frozen_rank_acknowledges_until_its_window_is_full_and_is_then_limited() -> None:
    world = lab()
    one, other, here, there = await world.pair()
    world.fabric.freeze(1)
    heard = len(other.hears.events)
    payloads = [pattern(LARGE, number) for number in range(4)]
    for number, payload in enumerate(payloads):
        here.send(chunk_header(payload, number), payload)
    await asyncio.sleep(0.05)
    world.dial(one, other)
    await asyncio.sleep(30)
    sample = here.sample()
    assert (sample.in_flight_bytes, sample.limited) == (0, True)
    assert sample.unsent_bytes >= 4 * LARGE - MODEL.window_bytes
    assert len(other.hears.events) == heard
    assert [event.loss for event in one.hears.of("lost")] == [Loss.UNREACHABLE]
    world.fabric.thaw(1)
    await world.until(lambda: len(other.hears.payloads(there)) == 4)
    assert other.hears.payloads(there) == payloads
    assert one.hears.of("lost", connection=here) == []


@in_virtual_time
async def test_a_window_that_opened_on_a_dead_path_is_asked_for_when_the_path_is_back() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.fabric.freeze(1)
    here.send(chunk_header(pattern(4 * MIB)), pattern(4 * MIB))
    await asyncio.sleep(1)
    world.fabric.silent_drop((0, 0))
    world.fabric.thaw(1)
    await asyncio.sleep(1)
    assert other.hears.of("landed") == []
    world.fabric.restore((0, 0))
    await world.until(lambda: bool(other.hears.of("landed")))


@in_virtual_time
async def test_a_frozen_rank_answers_whether_its_window_is_open_and_a_dead_path_does_not() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.fabric.freeze(1)
    here.send(chunk_header(pattern(4 * MIB)), pattern(4 * MIB))
    asked = 0
    for _ in range(600):
        await asyncio.sleep(0.01)
        sample = here.sample()
        assert not sample.probing or sample.silence_s > 0.1
        asked += sample.silence_s < 0.01
    assert asked > 2
    world.fabric.silent_drop((0, 0))
    world.fabric.thaw(1)
    await asyncio.sleep(30)
    sample = here.sample()
    assert (sample.in_flight_bytes, sample.limited, sample.probing) == (0, True, True)
    world.fabric.restore((0, 0))
    await world.until(lambda: bool(other.hears.of("landed")))
    assert not here.sample().probing


@in_virtual_time
async def test_who_asks_a_dead_process_whether_its_window_is_open_hears_that_it_is_gone() -> None:
    world = lab()
    one, other, here, there = await world.pair()
    world.fabric.freeze(1)
    here.send(chunk_header(pattern(4 * MIB)), pattern(4 * MIB))
    await asyncio.sleep(0.05)
    world.fabric.silent_drop((0, 0))
    world.fabric.thaw(1)
    there.abort()
    await asyncio.sleep(5)
    assert one.hears.of("lost", connection=here) == []
    world.fabric.restore((0, 0))
    await world.until(lambda: bool(one.hears.of("lost", connection=here)))
    assert other.hears.of("landed") == []


@in_virtual_time
async def test_a_frozen_sender_copies_nothing_more_to_its_kernel() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    here.send(chunk_header(pattern(4 * MIB)), pattern(4 * MIB))
    await asyncio.sleep(1e-3)
    world.fabric.freeze(0)
    await asyncio.sleep(10)
    assert other.hears.of("landed") == []
    world.fabric.thaw(0)
    await world.until(lambda: bool(other.hears.of("landed")))


@in_virtual_time
async def test_a_corruption_rule_flips_a_bit_of_what_it_picks_until_it_is_taken_out() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    remove = world.fabric.corrupt(lambda source, target, header: source == (0, 0) and header.chunk % 2 == 1)
    for number, size in enumerate((10, 10, LARGE, LARGE)):
        here.send(chunk_header(pattern(size), number), pattern(size))
    await world.until(lambda: len(other.hears.of("spoiled")) == 2)
    assert other.hears.chunk_numbers() == [0, 2]
    remove()
    here.send(chunk_header(b"x", 5), b"x")
    await world.until(lambda: other.hears.chunk_numbers() == [0, 2, 5])


@in_virtual_time
async def test_a_frame_sent_before_the_connection_is_established_is_a_bug_that_shows() -> None:
    world = lab()
    dialled = world.dial(world.side(0), world.side(1))
    with pytest.raises(ValueError, match="not established"):
        dialled.send(chunk_header(b"x"), b"x")


def test_a_world_repeats_itself_exactly() -> None:
    async def story() -> list[tuple[str, int, float]]:
        world = lab(one_sided=True, seed=5)
        sides = [world.side(rank) for rank in range(3)]
        heard: list[tuple[str, int, float]] = []
        ends = [await world.connect(sides[a], sides[b]) for a, b in ((0, 1), (1, 2), (2, 0))]
        key = [side.device.register(memoryview(bytearray(MIB))).key for side in sides]
        for number, (here, there) in enumerate(ends):
            here.write(chunk_header(pattern(MIB)), memoryview(pattern(MIB)), landing_of(key[here.peer], MIB), 0)
            there.send(chunk_header(pattern(70_000), number), pattern(70_000))
        await asyncio.sleep(2e-3)
        world.fabric.cut((1, 0))
        await asyncio.sleep(2)
        for side in sides:
            heard += [(event.kind, side.rank, event.connection.peer) for event in side.hears.events]
        heard.append((world.fabric.describe(), 0, now()))
        return heard

    assert run(story()) == run(story())


@in_virtual_time
async def test_nothing_is_left_when_all_connections_have_ended() -> None:
    world = lab()
    one, other, here, _ = await world.pair()
    memory = bytearray(LARGE)
    here.send(chunk_header(memory), memoryview(memory))
    await world.until(lambda: bool(other.hears.of("landed")))
    await asyncio.sleep(1)
    assert not is_held(memory)
    here.abort()
    await world.until(lambda: bool(other.hears.of("lost")))
    assert world.fabric.describe() == ""
    assert all(not path._users for path in world.fabric._paths.values())
    assert one.hears.of("lost") == []
