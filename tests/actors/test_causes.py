"""However much there is to say of a failure, it fits the frame that tells the others."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.actors.causes import CUT, TEXT_CHARACTERS_MAX, Loss, error_of, fitting, naming_all_lost
from r2ccl.errors import CollectiveMismatch, CommunicatorAborted, PeerLost
from r2ccl.protocol.wire import CONTROL_BYTES_MAX, Abort, Kind, pack_control
from r2ccl.sim.world import World
from tests.simulated import simulate


def test_a_loss_of_a_thousand_ranks_names_them_all_and_fits_a_frame() -> None:
    lost = {
        rank: Loss("unreachable", f"no path for 10 s; our NIC (nic0) and the path to rank {rank}")
        for rank in range(2000)
    }
    abort = fitting(naming_all_lost(Abort(1, 5, "dead", "it died", (7,)), range(2000), lost))
    error = error_of(abort, 0)
    assert isinstance(error, PeerLost)
    assert error.ranks == tuple(range(2000))
    assert abort.text.startswith("rank 7: it died; rank 0: no path")
    assert len(abort.text) == TEXT_CHARACTERS_MAX
    _, body = pack_control(Kind.ABORT, 0, 1, abort.body())
    assert len(body) < CONTROL_BYTES_MAX


@pytest.mark.parametrize("why", ["enough", "x" * 100_000, "\u00e4" * 100_000], ids=["short", "long", "wide"])
def test_a_reason_of_any_length_reaches_the_others(why: str) -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        waiting = second.all_reduce(np.ones(3))
        own = first.all_reduce(np.ones(5))
        first.abort_alone(why)
        for failure in await asyncio.gather(waiting, own, return_exceptions=True):
            assert isinstance(failure, CommunicatorAborted)
            assert str(failure).endswith(why if len(why) < TEXT_CHARACTERS_MAX else CUT)

    simulate(story, timeout_s=2.0)


def test_what_a_callback_raises_keeps_nobody_from_hearing_of_a_failure() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        raised: list[BaseException] = []
        world.loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        theirs = [second.all_reduce(np.ones(3)) for _ in range(3)]
        receives = [first.recv(np.ones(3)) for _ in range(2)]
        works = [first.all_reduce(np.ones(5)) for _ in range(3)]
        for work in (works[1], receives[0]):
            work.when_done(lambda: [][0])
        async with asyncio.timeout(60):
            failures = await asyncio.gather(*works, *theirs, *receives, return_exceptions=True)
        assert all(isinstance(failure, CollectiveMismatch) for failure in failures)
        assert [type(error) for error in raised] == [IndexError] * 2

    simulate(story, timeout_s=20.0)
