"""The checks that hold for all tests can themselves fail."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import leaves_no_task


async def test_a_test_that_leaves_a_task_behind_fails() -> None:
    left: list[asyncio.Task[object]] = []

    async def leaky() -> None:
        left.append(asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="forgotten"))

    with pytest.raises(AssertionError, match="left tasks behind: forgotten"):
        await leaves_no_task(leaky)()
    left[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await left[0]


async def test_a_test_whose_tasks_end_with_it_passes() -> None:
    ended: list[str] = []

    async def tidy() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        ended.append("tidy")

    await leaves_no_task(tidy)()
    assert ended == ["tidy"]


async def test_a_task_that_is_just_being_cancelled_is_not_left_behind() -> None:
    cancelled: list[asyncio.Task[None]] = []

    async def cancelling() -> None:
        task = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
        cancelled.append(task)
        await asyncio.sleep(0)
        task.cancel()

    await leaves_no_task(cancelling)()
    assert cancelled[0].cancelled()


async def test_the_check_is_around_every_coroutine_test(request: pytest.FixtureRequest) -> None:
    assert hasattr(request.node.obj, "__wrapped__")
