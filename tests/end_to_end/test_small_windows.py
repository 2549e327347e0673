"""Windows of small operations over real sockets: right, and never left unsent by a rank that goes on to compute."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

import r2ccl
from r2ccl.communicator import Communicator
from r2ccl.rendezvous.free_port import free_port

WINDOW = 64


async def pair(**settings: Any) -> list[Communicator]:
    """Both ranks of a job, on this loop."""
    place = f"tcp://127.0.0.1:{free_port()}"

    async def join(rank: int) -> Communicator:
        return await r2ccl.connect(rank=rank, size=2, rendezvous=place, nics="lo", **settings)

    return [*await asyncio.gather(join(0), join(1))]


def unsent(communicator: Communicator, peer: int) -> int:
    """Frames that wait in connections to a peer."""
    lanes = communicator._runtime.courier.lanes[peer]
    return sum(len(lane.link.bulk._queue) for lane in lanes if lane.link is not None)


def test_an_await_of_what_has_ended_sends_what_was_joined() -> None:
    async def scenario() -> None:
        first, second = await pair(shared_memory="off")
        ours, theirs = ([np.full(3, rank + 1.0) for _ in range(WINDOW)] for rank in range(2))
        waiting = [second.all_reduce(x) for x in theirs]
        async with asyncio.timeout(60):
            while len(first._coordinator.inbox.parked) < WINDOW:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            works = [first.all_reduce(x) for x in ours]
            assert all(work.done() for work in works)
            assert unsent(first, 1) > 0
            # No turn of the loop between here and there, as where a program computes.
            await works[0]
            assert unsent(first, 1) == 0
            for work in waiting:
                await work
        assert all(x.tolist() == [3.0] * 3 for x in (*ours, *theirs))
        await asyncio.gather(first.close(), second.close())

    asyncio.run(scenario())


def test_windows_of_both_ranks_end_right_by_tcp_and_by_memory() -> None:
    async def scenario(**settings: Any) -> None:
        communicators = await pair(**settings)

        async def operate(rank: int) -> None:
            for number in range(20):
                values = [np.full(1 + index, rank + number, np.int64) for index in range(WINDOW)]
                for work in [communicators[rank].all_reduce(x) for x in values]:
                    await work
                assert all(x.tolist() == [2 * number + 1] * (1 + index) for index, x in enumerate(values))

        async with asyncio.timeout(120):
            await asyncio.gather(operate(0), operate(1))
        await asyncio.gather(*(communicator.close() for communicator in communicators))

    asyncio.run(scenario(shared_memory="off"))
    asyncio.run(scenario())
