"""What an operation may send at once goes out in slices, so that a large one leaves the loop its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.starting import SLICE_CHUNKS, Starting
from r2ccl.errors import PeerLost
from r2ccl.protocol.collective import Piece
from r2ccl.sim.world import World
from tests.simulated import simulate, together


class Turns:
    """A loop that is turned by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


class Stage:
    """A coordinator that only notes what is sent."""

    def __init__(self) -> None:
        self.loop = Turns()
        self.shared: Any = SimpleNamespace(loop=self.loop)
        self.running: dict[int, Any] = {}
        self.sent: list[tuple[int, int]] = []
        self.starting = Starting(self, self._send)

    def _send(self, operation: Any, piece: Piece) -> None:
        self.sent.append((operation.number, piece[1]))

    def begin(self, number: int, chunks: int) -> None:
        self.running[number] = SimpleNamespace(number=number)
        self.starting.begin(self.running[number], [(0, chunk) for chunk in range(chunks)])

    def of(self, number: int) -> list[int]:
        return [chunk for operation, chunk in self.sent if operation == number]


def test_what_fits_a_slice_goes_out_at_once_and_nobody_comes_again():
    stage = Stage()
    stage.begin(0, SLICE_CHUNKS)
    assert stage.of(0) == list(range(SLICE_CHUNKS))
    assert stage.loop.soon == []


def test_more_goes_out_a_slice_in_each_turn_in_order_and_once():
    stage = Stage()
    stage.begin(0, 2 * SLICE_CHUNKS + 5)
    counts = [len(stage.sent)]
    while stage.loop.soon:
        stage.loop.turn()
        counts.append(len(stage.sent))
    assert counts == [SLICE_CHUNKS, 2 * SLICE_CHUNKS, 2 * SLICE_CHUNKS + 5]
    assert stage.of(0) == list(range(2 * SLICE_CHUNKS + 5))


def test_several_large_operations_share_the_turns_and_the_oldest_goes_first():
    stage = Stage()
    stage.begin(0, 2 * SLICE_CHUNKS + 1)
    stage.begin(1, SLICE_CHUNKS + 1)
    assert len(stage.loop.soon) == 1
    stage.loop.turn()
    assert (len(stage.of(0)), len(stage.of(1))) == (2 * SLICE_CHUNKS, SLICE_CHUNKS)
    while stage.loop.soon:
        stage.loop.turn()
    assert stage.of(0) == list(range(2 * SLICE_CHUNKS + 1))
    assert stage.of(1) == list(range(SLICE_CHUNKS + 1))


def test_an_operation_that_is_over_sends_no_more_and_does_not_hold_up_the_next():
    stage = Stage()
    stage.begin(0, 3 * SLICE_CHUNKS)
    stage.begin(1, SLICE_CHUNKS + 1)
    del stage.running[0]
    stage.loop.turn()
    assert len(stage.of(0)) == SLICE_CHUNKS
    assert len(stage.of(1)) == SLICE_CHUNKS + 1
    assert stage.loop.soon == []


@pytest.mark.parametrize("one_sided", [False, True])
def test_an_all_reduce_of_many_slices_adds_up_on_every_rank_with_small_ones_beside_it(one_sided: bool):
    async def story(world: World) -> None:
        chunks = 5 * SLICE_CHUNKS
        large = [np.full(chunks * 32, rank + 1, np.float32) for rank in range(2)]
        small = [np.full(3, rank + 1, np.float32) for rank in range(2)]

        async def both(comm: Any) -> None:
            await asyncio.gather(comm.all_reduce(large[comm.rank]), comm.all_reduce(small[comm.rank]))

        await together(world, both)
        assert all((array == 3).all() for array in (*large, *small))

    simulate(story, one_sided=one_sided, chunk_bytes=64, eager_bytes=0)


def test_a_large_operation_that_loses_its_peer_in_the_first_turn_fails_and_sends_no_more():
    async def story(world: World) -> None:
        comm = world.communicators[0]
        work = comm.all_reduce(np.ones(5 * SLICE_CHUNKS * 32, np.float32))
        world.communicators[1].abort()
        with pytest.raises(PeerLost):
            await work
        counted = comm.stats()["counters"]["total"]["sent_chunks"]
        await asyncio.sleep(1.0)
        assert comm.stats()["counters"]["total"]["sent_chunks"] == counted

    simulate(story, chunk_bytes=64, eager_bytes=0)


def test_what_a_callback_raises_does_not_keep_those_that_wait_for_room():
    async def story(world: World) -> None:
        first, second = world.communicators
        raised: list[Any] = []
        world.loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        works = [comm.all_reduce(np.ones(3)) for comm in (first, second) for _ in range(4)]
        works[0].when_done(lambda: raised.append(1 // 0))
        for work in works:
            await work
        assert [type(error) for error in raised] == [ZeroDivisionError]

    simulate(story, running_max=1, timeout_s=5.0)
