"""The device for shared memory, where the conformance suite does not reach: strangers, forks, descriptors, sleep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable

import pytest

from r2ccl.clock import MonotonicClock
from r2ccl.protocol.handshake import Identity
from r2ccl.protocol.wire import Kind, pack_control
from r2ccl.telemetry.event_log import EventLog
from r2ccl.telemetry.strangers import Strangers
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport import shared_memory
from r2ccl.transport.interface import Device, Loss, Purpose
from r2ccl.transport.shared_connection import SharedConnection
from r2ccl.transport.shared_handshake import address, new_socket
from r2ccl.transport.shared_memory import SPIN_TURNS, SharedMemoryDevice
from r2ccl.transport.tcp import Admission
from tests.transport.harness import COMMUNICATOR, HUGE, LARGE, Side, World, chunk_header, pattern

Story = Callable[[World], Awaitable[None]]


def play(story: Story, may_spin: bool = True) -> None:
    """A story among devices that share memory. What the loop complains of fails it."""
    complaints: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        mark = secrets.token_hex(8)

        def open_device(rank: int, nic: Nic) -> Device:
            identity = Identity("job", b"secret", rank, 1000 + rank, "0")
            strangers = Strangers(loop, EventLog(MonotonicClock()))
            admission = Admission(identity, {peer: 1000 + peer for peer in range(4)}, strangers)
            return SharedMemoryDevice(nic, admission, loop, may_spin)

        world = World(open_device, lambda rank, nic: Endpoint("shared", f"r2ccl-{mark}-{rank}.{nic}", 0))
        try:
            await story(world)
        finally:
            world.close()
            await asyncio.sleep(0)

    asyncio.run(main())
    assert complaints == []


@pytest.fixture(autouse=True)
def _nobody_else_wants_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_preemptions", lambda: 0)


def device_of(side: Side) -> SharedMemoryDevice:
    assert isinstance(side.device, SharedMemoryDevice)
    return side.device


def turned_away(side: Side) -> dict[str, int]:
    strangers = device_of(side)._admission.strangers
    assert strangers is not None
    return strangers.refused


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def held() -> set[str]:
    """What the descriptors of this process are of; each socket and pipe has a number of its own."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def mapped() -> int:
    """Mappings of ours in this process."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:r2ccl" in line for line in maps)


def test_what_a_peer_published_before_it_ended_is_read_before_its_end() -> None:
    async def story(world: World) -> None:
        _, other, here, _ = await world.pair()
        words = pattern(LARGE)  # several turns' worth
        for number in range(7):
            here.send(chunk_header(words, number), words)
        assert here.sample().unsent_bytes == 0
        here.abort()
        await world.until(lambda: bool(other.hears.of("lost")))
        assert other.hears.payloads() == [words] * 7
        assert other.hears.of("lost")[0].loss is Loss.END_OF_FILE

    play(story)


def test_the_last_word_on_control_is_heard_before_bulk_is_lost() -> None:
    async def story(world: World) -> None:
        one, other = world.side(0), world.side(1)
        bulk, _ = await world.connect(one, other, Purpose.BULK)
        control, _ = await world.connect(one, other, Purpose.CONTROL)
        control.send(*pack_control(Kind.GOODBYE, 0, 1, [1]))
        bulk.abort()
        control.abort()
        await world.until(lambda: len(other.hears.of("lost")) == 2)
        assert [event.kind for event in other.hears.of("control", "lost")][0] == "control"

    play(story)


def test_closed_devices_leave_neither_descriptors_nor_memory() -> None:
    async def story(world: World) -> None:
        before = descriptors(), mapped()
        one, other = world.side(0), world.side(1)
        ends = [await world.connect(one, other, purpose) for purpose in (Purpose.BULK, Purpose.CONTROL) * 3]
        for near, far in ends:
            near.send(chunk_header(pattern(LARGE)), pattern(LARGE))
            far.send(chunk_header(b"x"), b"x")
        assert mapped() > before[1]
        await world.until(lambda: len(one.hears.payloads()) == len(other.hears.payloads()) == 6)
        one.device.close()
        await world.until(lambda: len(other.hears.of("lost")) == 6)
        other.device.close()
        ends.clear()
        one.hears.events.clear()
        other.hears.events.clear()
        await asyncio.sleep(0)
        assert (descriptors(), mapped()) == before

    play(story)


def test_no_memory_has_a_name_in_dev_shm() -> None:
    async def story(world: World) -> None:
        await world.pair()
        assert not [name for name in os.listdir("/dev/shm") if "r2ccl" in name]

    play(story)


def test_a_process_of_another_user_is_not_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        one, other = world.side(0), world.side(1)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        world.dial(one, other)
        await world.until(lambda: bool(one.hears.of("lost")))
        assert [event.loss for event in one.hears.of("lost")] == [Loss.NOT_ADMITTED]
        assert other.hears.of("established") == []

    play(story)


def test_a_process_without_the_secret_is_not_admitted() -> None:
    async def story(world: World) -> None:
        one, other = world.side(0), world.side(1)
        device_of(one)._admission = Admission(Identity("job", b"guessed", 0, 1000, "0"), {1: 1001})
        world.dial(one, other)
        await world.until(lambda: bool(one.hears.of("lost")))
        assert [event.loss for event in one.hears.of("lost")] == [Loss.NOT_ADMITTED]
        assert other.hears.of("established") == []

    play(story)


def test_descriptors_that_a_stranger_sends_are_not_taken() -> None:
    async def story(world: World) -> None:
        other = world.side(1)
        before = descriptors()
        with new_socket() as stranger:
            stranger.connect(address(other.endpoint))
            socket.send_fds(stranger, [b"hello"], [0, 1, 2])
            await world.until_true(lambda: turned_away(other) == {"garbage": 1})
        await world.until_true(lambda: descriptors() == before)

    play(story)


def test_a_stranger_who_says_nothing_holds_nothing_for_long() -> None:
    async def story(world: World) -> None:
        other = world.side(1)
        with new_socket() as stranger:
            stranger.connect(address(other.endpoint))
            await world.until_true(lambda: device_of(other)._half_open == 1)
        await world.until_true(lambda: device_of(other)._half_open == 0)
        assert device_of(other)._open == set()

    play(story)


@pytest.mark.parametrize("word", [0, 16])
def test_a_head_or_tail_that_cannot_be_ends_the_connection(word: int) -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        assert isinstance(here, SharedConnection)
        assert isinstance(there, SharedConnection)
        assert here._writer is not None
        assert here.reader is not None
        there.send(chunk_header(b"x"), b"x")
        if word:
            here.reader.words[word] = 1 << 40
            there.send(chunk_header(b"y"), b"y")
        else:
            here._writer.words[word] = 1 << 40
        await world.until(lambda: bool(other.hears.of("lost")))
        assert [event.loss for event in other.hears.of("lost", connection=there)] == [Loss.BAD_FRAME]

    play(story)


def test_a_word_on_the_socket_ends_the_connection() -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        assert isinstance(here, SharedConnection)
        assert here._sock is not None
        here._sock.send(b"x")
        await world.until(lambda: bool(other.hears.of("lost")))
        assert [event.loss for event in other.hears.of("lost", connection=there)] == [Loss.BAD_FRAME]

    play(story)


@pytest.mark.parametrize("may_spin", [True, False])
def test_connections_that_are_not_used_are_asleep_and_wake_by_a_bell(may_spin: bool) -> None:
    async def story(world: World) -> None:
        one, other, here, there = await world.pair()
        for _ in range(3):
            for _ in range(2 * SPIN_TURNS + 4):
                await asyncio.sleep(0)
            assert device_of(one)._hot == device_of(other)._hot == []
            assert not device_of(one)._turn_is_due
            here.send(chunk_header(pattern(HUGE)), pattern(HUGE))
            there.send(chunk_header(b"x"), b"x")
            await world.until(lambda: bool(one.hears.of("chunk") and other.hears.of("landed")))
            one.hears.events.clear()
            other.hears.events.clear()

    play(story, may_spin)


def test_a_bell_about_nothing_does_not_make_the_next_frame_unheard() -> None:
    """Whoever rings may be held up in between, while we woke and lay down again."""

    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        assert isinstance(there, SharedConnection)
        assert there.reader is not None
        for _ in range(2 * SPIN_TURNS + 4):
            await asyncio.sleep(0)
        assert there.reader.is_asleep()
        there.reader.unpark()  # as the peer does, late, before it rings
        os.eventfd_write(device_of(other).bell, 1)
        await world.until_true(there.reader.is_asleep)
        here.send(chunk_header(b"x"), b"x")
        await world.until(lambda: bool(other.hears.of("chunk")))

    play(story)


def test_who_looked_in_vain_lets_the_next_occasions_pass() -> None:
    async def story(world: World) -> None:
        one, _, here, _ = await world.pair()
        spin = device_of(one).spin
        for passed in (0, 0, 2):
            for occasion in range(passed + 1):
                here.send(chunk_header(b"x"), b"x")
                assert spin.is_on is (occasion == passed)
                for _ in range(2 * SPIN_TURNS + 4):
                    await asyncio.sleep(0)
                assert device_of(one)._hot == []

    play(story)


def test_a_sender_that_sleeps_over_a_full_ring_goes_on_when_there_is_room() -> None:
    async def story(world: World) -> None:
        one, other, here, there = await world.pair()
        assert isinstance(there, SharedConnection)
        device_of(other)._hot.clear()
        there.is_hot = True  # nobody looks, and nobody rings
        here.send(chunk_header(pattern(HUGE)), pattern(HUGE))
        for _ in range(2 * SPIN_TURNS + 4):
            await asyncio.sleep(0)
        assert device_of(one)._hot == []
        assert here.sample().unsent_bytes > HUGE // 2
        there.is_hot = False
        device_of(other).is_busy(there)
        await world.until(lambda: bool(other.hears.of("landed")))

    play(story)


def test_a_forked_child_keeps_no_connection_of_its_parent_open() -> None:
    async def story(world: World) -> None:
        one, other, here, _ = await world.pair()
        ends_with_parent, held = os.pipe()
        child = os.fork()
        if not child:
            os.close(held)
            for side in (one, other):
                side.device.close_in_child()
            os.read(ends_with_parent, 1)
            os._exit(0)
        try:
            one.device.close()
            await world.until(lambda: bool(other.hears.of("lost")))
            assert here.sample().in_flight_bytes == 0
        finally:
            os.close(held)
            os.close(ends_with_parent)
            assert exit_code(child) == 0

    play(story)


def test_a_child_that_lets_go_has_no_descriptor_and_no_memory_of_ours() -> None:
    async def story(world: World) -> None:
        before = held()
        one, other, here, there = await world.pair()
        here.send(chunk_header(pattern(HUGE)), pattern(HUGE))
        await world.until(lambda: bool(other.hears.of("destination")))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            for side in (one, other):
                side.device.close_in_child()
            # Pipes are the test's own, and of those who run it.
            left = {one for one in held() - before if not one.startswith("pipe:")}
            os.write(writing, f"{mapped()} {' '.join(left)}".encode())
            os._exit(0)
        os.close(writing)
        assert exit_code(child) == 0
        assert os.read(reading, 1000) == b"0 "
        os.close(reading)
        assert there.withdraw(COMMUNICATOR, 0)

    play(story)
