"""The virtual-time loop: time jumps, order is fixed, a hang is an error."""

from __future__ import annotations

import asyncio
import time

import pytest

from r2ccl.sim.loop import Deadlock, SimClock, SimLoop, run


def test_an_hour_of_virtual_time_takes_no_real_time() -> None:
    async def main() -> float:
        clock = SimClock(asyncio.get_running_loop())
        for _ in range(1000):
            await asyncio.sleep(3.6)
        return clock.now()

    began = time.process_time()
    assert run(main()) == pytest.approx(3600.0)
    assert time.process_time() - began < 1.0


def test_a_timeout_fires_at_its_virtual_moment() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(3600.0)


def test_a_wait_that_nobody_can_end_is_a_deadlock_that_names_the_waiting() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait(), name="the one that waits")

    with pytest.raises(Deadlock, match="the one that waits"):
        run(main())


def test_time_that_stands_still_is_a_deadlock_too() -> None:
    loop = SimLoop(turns_per_instant_max=100)

    def again() -> None:
        loop.call_soon(again)

    again()
    try:
        with pytest.raises(Deadlock, match="time has not moved"):
            loop.run_forever()
    finally:
        loop.close()


def test_a_cancelled_timer_does_not_hide_a_deadlock() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(10, lambda: None).cancel()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"at 0\.000000 s"):
        run(main())


def test_timers_run_in_the_order_of_their_moments_and_alike_every_time() -> None:
    async def main() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        story: list[tuple[float, int]] = []

        async def worker(number: int) -> None:
            for turn in range(5):
                await asyncio.sleep(((number * 7 + turn * 3) % 5) / 10)
                story.append((loop.time(), number))

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(worker(number))
        return story

    first = run(main())
    assert first == run(main())
    assert [moment for moment, _ in first] == sorted(moment for moment, _ in first)


def test_two_worlds_in_one_process_have_their_own_time() -> None:
    one, other = SimLoop(), SimLoop()
    try:
        one.run_until_complete(asyncio.sleep(5))
        assert one.time() == pytest.approx(5.0)
        assert other.time() == 0.0
    finally:
        one.close()
        other.close()


def test_an_exception_in_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: [][0])
        await asyncio.sleep(2)

    with pytest.raises(IndexError):
        run(main())


def test_an_exception_in_a_callback_is_told_rather_than_the_deadlock_it_causes() -> None:
    async def main() -> None:
        woken = asyncio.Event()

        def wake() -> None:
            raise ZeroDivisionError("before it could wake anyone")

        asyncio.get_running_loop().call_later(1, wake)
        await woken.wait()

    with pytest.raises(ZeroDivisionError):
        run(main())
