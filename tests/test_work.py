"""What a call returns: waited for from any thread, awaited from any loop, and left without a trace."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from r2ccl.actors.work import Work
from r2ccl.errors import PeerLost, UsageError

ELSEWHERE = -1


def on_threads(count: int, call: Callable[[], Any]) -> tuple[list[threading.Thread], list[Any]]:
    """Start them; what each got or raised is appended."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(call())
        except (UsageError, PeerLost, TimeoutError) as error:
            got.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, got


def run(wait: Callable[[float], Coroutine[Any, Any, Any]], limit_s: float) -> Any:
    """On a loop of its own."""
    return asyncio.run(wait(limit_s))


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()


def test_many_threads_may_wait_for_one_work() -> None:
    work = Work("barrier()", "result", ELSEWHERE)
    threads, got = on_threads(20, lambda: work.wait(20.0))
    work.finish(None)
    joined(threads)
    assert got == ["result"] * 20
    assert work.wait() == "result"


def test_who_wants_to_be_told_is_told_once_before_or_after_the_end() -> None:
    work = Work("barrier()", None, ELSEWHERE)
    told: list[str] = []
    work.when_done(lambda: told.append("early" if work.done() else "too early"))
    assert told == []
    work.finish(None)
    assert told == ["early"]
    work.when_done(lambda: told.append("late"))
    assert told == ["early", "late"]


def test_whoever_comes_while_it_ends_is_told_once() -> None:
    for _ in range(200):
        work = Work("barrier()", None, ELSEWHERE)
        told: list[int] = []
        threads, _ = on_threads(4, lambda work=work, told=told: work.when_done(lambda: told.append(1)))  # type: ignore[misc]
        work.finish(None)
        joined(threads)
        assert told == [1] * 4


def test_all_who_wait_get_the_error() -> None:
    work = Work("barrier()", None, ELSEWHERE)
    threads, got = on_threads(5, lambda: work.wait(20.0))
    lost = PeerLost([3], "dead")
    work.finish(lost)
    joined(threads)
    assert got == [lost] * 5
    assert work.exception() is lost


def test_a_wait_whose_time_is_over_leaves_the_work_under_way_and_nothing_behind() -> None:
    work = Work("all_reduce(float32[3], sum)", 7, ELSEWHERE)
    for _ in range(100):
        with pytest.raises(TimeoutError, match=r"all_reduce\(float32\[3\], sum\): still under way after 0.0001 s"):
            work.wait(0.0001)
    assert work._sleepers == []
    assert not work.done()
    work.finish(None)
    assert work.wait(0) == 7


def test_waiting_on_the_thread_that_would_have_to_end_it_is_refused() -> None:
    work = Work("barrier()", None, threading.get_ident())
    with pytest.raises(UsageError, match=r"barrier\(\): wait\(\) would block the loop .* await it"):
        work.wait()
    with pytest.raises(UsageError, match="await it"):
        work.wait(1.0)
    work.finish(None)
    assert work.wait() is None


def test_it_may_be_awaited_from_several_loops_at_once() -> None:
    work = Work("barrier()", 5, ELSEWHERE)

    async def wait() -> Any:
        return await work

    threads, got = on_threads(8, lambda: asyncio.run(wait()))
    work.finish(None)
    joined(threads)
    assert got == [5] * 8


async def test_a_cancelled_await_is_not_told_and_the_others_are() -> None:
    work = Work("barrier()", 5, ELSEWHERE)

    async def wait() -> Any:
        return await work

    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        await asyncio.to_thread(work.finish, None)
    assert [task.result() for task in (waiting[0], waiting[2])] == [5, 5]
    assert waiting[1].cancelled()


def test_an_awaiting_loop_that_is_gone_does_not_matter() -> None:
    work = Work("barrier()", 5, ELSEWHERE)

    async def give_up() -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        work._waiters.append((waiter, threading.get_ident()))

    asyncio.run(give_up())
    work.finish(None)
    assert work.wait() == 5


def test_leaving_and_ending_at_the_same_moment_hang_nobody() -> None:
    for _ in range(200):
        work = Work("barrier()", 5, ELSEWHERE)
        ready = threading.Barrier(3)

        async def wait(limit_s: float, work: Work = work, ready: threading.Barrier = ready) -> Any:
            ready.wait()
            async with asyncio.timeout(limit_s):
                return await work

        leaving, left = on_threads(1, functools.partial(run, wait, 0.0))
        staying, stayed = on_threads(1, functools.partial(run, wait, 20.0))
        ready.wait()
        work.finish(None)
        joined([*leaving, *staying])
        assert stayed == [5]
        assert left == [5] or isinstance(left[0], TimeoutError)


def test_who_is_told_of_its_end_is_told_first_and_may_set_the_result() -> None:
    seen: list[bool] = []

    def ended(work: Work) -> None:
        seen.append(work.done())
        work.returns("another")

    work = Work("split", None, ELSEWHERE, ended)
    work.finish(None)
    assert seen == [False]
    assert work.wait() == "another"


def test_an_error_that_many_ask_for_does_not_grow() -> None:
    work = Work("all_reduce()", None, threading.get_ident())
    work.finish(PeerLost([1], "dead", "killed"))
    depths = []
    for _ in range(3):
        with pytest.raises(PeerLost) as lost:
            work.wait()
        depths.append(len(lost.traceback))
    assert depths[0] == depths[1] == depths[2]


def test_who_awaits_it_on_its_own_thread_looks_first_and_does_not_sleep_if_that_ends_it() -> None:
    work = Work("barrier()", "result", threading.get_ident())
    looked: list[bool] = []

    def look(is_over: Callable[[], bool]) -> None:
        looked.append(is_over())
        work.finish(None)
        looked.append(is_over())

    work.look_with(look)
    with pytest.raises(StopIteration) as ended:
        work.__await__().send(None)
    assert ended.value.value == "result"
    assert looked == [False, True]


def test_a_look_that_finds_nothing_is_followed_by_sleep() -> None:
    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        work = Work("barrier()", "result", threading.get_ident())
        work.look_with(lambda is_over: None)
        loop.call_soon(work.finish, None)
        result: str = await work
        return result

    assert asyncio.run(scenario()) == "result"


def test_on_another_thread_nobody_looks() -> None:
    async def scenario() -> str:
        work = Work("barrier()", "result", ELSEWHERE)
        work.look_with(lambda is_over: work.finish(PeerLost((1,), "dead", "looked")))
        asyncio.get_running_loop().call_soon(work.finish, None)
        result: str = await work
        return result

    assert asyncio.run(scenario()) == "result"


def test_a_wait_for_no_time_at_all_gives_up_at_once() -> None:
    for limit_s in (0.0, -1.0, -5.0):
        with pytest.raises(TimeoutError):
            Work("barrier()", None, ELSEWHERE).wait(limit_s)


def test_also_who_awaits_one_that_has_ended_looks_for_it_may_compute_next() -> None:
    work = Work("barrier()", "result", threading.get_ident())
    work.finish(None)
    looked: list[bool] = []
    work.look_with(lambda is_over: looked.append(is_over()))
    with pytest.raises(StopIteration):
        work.__await__().send(None)
    assert looked == [True]


def test_a_callback_that_raises_keeps_nobody_waiting_and_no_other_from_being_called() -> None:
    async def main() -> None:
        raised: list[type] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(type(context["exception"])))
        work = Work("barrier()", 7, threading.get_ident())
        told: list[int] = []
        work.when_done(lambda: told.append(1 // 0))
        work.when_done(lambda: told.append(2))
        work.when_done(lambda: told.append([][0]))
        work.when_done(lambda: told.append(4))
        waiting = asyncio.ensure_future(asyncio.wait_for(work, 5))
        await asyncio.sleep(0)
        work.finish(None)
        assert told == [2, 4]
        assert raised == [ZeroDivisionError, IndexError]
        assert await waiting == 7
        work.when_done(lambda: told.append(5 // 0))
        assert raised == [ZeroDivisionError, IndexError, ZeroDivisionError]

    asyncio.run(main())


def test_without_a_loop_what_a_callback_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    work = Work("barrier()", 7, ELSEWHERE)
    work.finish(None)
    work.when_done(lambda: print(1 // 0))
    assert "when barrier() was over" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_that_ends_the_program_keeps_no_other_from_being_called() -> None:
    work = Work("barrier()", 7, ELSEWHERE)
    told: list[int] = []
    work.when_done(sys.exit)
    work.when_done(lambda: told.append(2))
    with pytest.raises(SystemExit):
        work.finish(None)
    assert told == [2]
