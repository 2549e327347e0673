"""Who awaits something from a neighbour looks for it before the loop has its turn, and gives way all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from r2ccl.transport import shared_memory
from r2ccl.transport.interface import Connection
from r2ccl.transport.shared_memory import ANSWERS_PER_TURN, LOCKSTEP_SKIP_MAX, SharedMemoryDevice
from r2ccl.transport.shared_spin import SpinBudget
from tests.transport.harness import World, chunk_header
from tests.transport.test_shared_memory import device_of, play

WORDS = b"12345678"


@pytest.fixture(autouse=True)
def _nobody_else_wants_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_preemptions", lambda: 0)


def test_what_a_neighbour_has_written_is_delivered_without_a_turn_of_the_loop() -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        there.send(chunk_header(WORDS, 0), WORDS)  # who has spoken looks for the answer
        here.send(chunk_header(WORDS, 1), WORDS)
        device_of(other).look_for(lambda: bool(other.hears.payloads()))
        assert other.hears.payloads() == [WORDS]

    play(story)


def test_the_loop_has_its_turn_after_so_many_answers() -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        there.send(chunk_header(WORDS, 0), WORDS)
        for number in range(ANSWERS_PER_TURN + 5):
            here.send(chunk_header(WORDS, number), WORDS)
            device_of(other).look_for(lambda number=number: len(other.hears.payloads()) > number)  # type: ignore[misc]
        assert len(other.hears.payloads()) == ANSWERS_PER_TURN
        await world.until(lambda: len(other.hears.payloads()) == ANSWERS_PER_TURN + 5)
        device_of(other).spin = SpinBudget(True)
        device_of(other).spin.begin()
        there.send(chunk_header(WORDS, 1), WORDS)
        here.send(chunk_header(WORDS, ANSWERS_PER_TURN + 5), WORDS)
        device_of(other).look_for(lambda: len(other.hears.payloads()) > ANSWERS_PER_TURN + 5)
        assert len(other.hears.payloads()) == ANSWERS_PER_TURN + 6

    play(story)


@pytest.mark.parametrize("may_spin", [True, False])
def test_who_cannot_go_on_waits_for_a_while_but_not_each_time(monkeypatch: pytest.MonkeyPatch, may_spin: bool) -> None:
    looked: list[bool] = []
    look = SharedMemoryDevice._looks_in_vain

    def counted(device: SharedMemoryDevice, lacks: Callable[[], bool]) -> bool:
        looked.append(look(device, lacks))
        return looked[-1]

    async def story(world: World) -> None:
        _, _, here, there = await world.pair()
        posts = there.posts
        assert posts is not None
        for _ in range(100):
            assert posts.next_frame(False) is None  # that is no occasion
            assert posts.next_frame(True) is None
        assert 100 // LOCKSTEP_SKIP_MAX <= len(looked) < 20
        assert all(looked)
        assert here.posts is not None
        assert here.posts.post(chunk_header(WORDS, 0), memoryview(WORDS), ("whose",))
        frame = posts.next_frame(True)
        assert frame is not None
        assert bytes(frame[1]) == WORDS
        posts.take(frame)

    monkeypatch.setattr(SharedMemoryDevice, "_looks_in_vain", counted)
    play(story, may_spin=may_spin)


def test_it_gives_up_soon_if_nothing_comes() -> None:
    async def story(world: World) -> None:
        _, other, _, there = await world.pair()
        there.send(chunk_header(WORDS, 0), WORDS)
        asked: list[int] = []

        def is_over() -> bool:
            asked.append(1)
            return False

        device_of(other).look_for(is_over)
        assert asked == []

    play(story)


def test_without_a_core_for_every_rank_nobody_looks() -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        there.send(chunk_header(WORDS, 0), WORDS)
        here.send(chunk_header(WORDS, 1), WORDS)
        device_of(other).look_for(lambda: True)
        assert other.hears.payloads() == []
        await world.until(lambda: other.hears.payloads() == [WORDS])

    play(story, may_spin=False)


def test_who_is_called_back_meanwhile_does_not_look_again() -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        there.send(chunk_header(WORDS, 0), WORDS)
        here.send(chunk_header(WORDS, 1), WORDS)

        def is_over() -> bool:
            here.send(chunk_header(WORDS, 2), WORDS)
            device_of(other).look_for(lambda: False)
            return True

        device_of(other).look_for(is_over)
        assert other.hears.payloads() == [WORDS]
        await world.until(lambda: other.hears.payloads() == [WORDS] * 2)

    play(story)


@pytest.mark.parametrize("by_hand", [False, True])
def test_who_is_called_back_in_the_loops_own_turn_does_not_read_the_same_frame_again(by_hand: bool) -> None:
    async def story(world: World) -> None:
        _, other, here, there = await world.pair()
        there.send(chunk_header(WORDS, 0), WORDS)
        told = lambda: [event.header.chunk for event in other.hears.of("chunk") if event.header]  # noqa: E731

        def answer(_: Connection) -> None:
            # An eager task, for instance, that goes on with what has come and awaits the next.
            if len(told()) == 1:
                here.send(chunk_header(WORDS, 2), WORDS)
                if by_hand:
                    there.read()  # type: ignore[attr-defined]
                else:
                    device_of(other).look_for(lambda: len(told()) > 1)

        other.hears.reactions["chunk"] = answer
        here.send(chunk_header(WORDS, 1), WORDS)
        await world.until(lambda: len(told()) >= 2)
        assert told() == [1, 2]
        here.send(chunk_header(WORDS, 3), WORDS)
        await world.until(lambda: len(told()) >= 3)
        assert told() == [1, 2, 3]

    play(story)
