"""The thread that actors run on ends, and nobody is left waiting for it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from r2ccl.progress import ProgressThread

#: Far more than it takes: a hang is found, and a busy machine is none.
PATIENCE_S = 60.0


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_who_waits_for_a_coroutine_hears_when_the_thread_ends_before_it() -> None:
    thread = ProgressThread()
    begun = threading.Event()

    async def begins() -> None:
        begun.set()
        await never()

    running = thread.run(begins())
    assert begun.wait(PATIENCE_S)
    thread.stop()
    with pytest.raises(CancelledError):
        running.result(PATIENCE_S)


def test_what_comes_when_the_thread_is_told_to_end_is_cancelled() -> None:
    thread = ProgressThread()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(PATIENCE_S)

    thread.loop.call_soon_threadsafe(hold)
    assert held.wait(PATIENCE_S)
    thread.stop(timeout_s=0.0)
    late = [thread.run(never()) for _ in range(3)]
    go_on.set()
    for one in late:
        with pytest.raises(CancelledError):
            one.result(PATIENCE_S)
    thread.stop(PATIENCE_S)


def test_what_comes_after_the_end_is_cancelled_at_once() -> None:
    thread = ProgressThread()
    thread.stop()
    with pytest.raises(CancelledError):
        thread.run(never()).result(PATIENCE_S)


def test_several_may_stop_it_at_once() -> None:
    thread = ProgressThread()
    running = thread.run(never())
    stopping = [threading.Thread(target=thread.stop, args=(PATIENCE_S,)) for _ in range(8)]
    for one in stopping:
        one.start()
    for one in stopping:
        one.join(PATIENCE_S)
    assert not any(one.is_alive() for one in stopping)
    with pytest.raises(CancelledError):
        running.result(PATIENCE_S)
    assert thread.loop.is_closed()


def test_a_coroutine_that_ends_slowly_when_cancelled_still_ends() -> None:
    thread = ProgressThread()
    begun = threading.Event()
    ended = []

    async def tidies_up() -> None:
        begun.set()
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    running = thread.run(tidies_up())
    assert begun.wait(PATIENCE_S)
    thread.stop(PATIENCE_S)
    with pytest.raises(CancelledError):
        running.result(PATIENCE_S)
    assert ended == [True]
