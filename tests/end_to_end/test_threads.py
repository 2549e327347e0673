"""Ranks that run on threads of their own, two in one process: called from loops, from threads, and by waiting calls."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import r2ccl
import r2ccl.blocking
from r2ccl.errors import CommunicatorClosed, PeerLost, RendezvousError, UsageError
from r2ccl.rendezvous.free_port import free_port

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 30.0


def arguments(rank: int, size: int, port: int, secret: str, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "size": size,
        "rendezvous": f"tcp://127.0.0.1:{port}",
        "nics": f"127.0.2.{rank + 1}",
        "secret": secret,
        "timeout": PATIENCE_S,
        **more,
    }


def job(size: int, **more: Any) -> list[dict[str, Any]]:
    port, secret = free_port(), secrets.token_hex(8)
    return [arguments(rank, size, port, secret, **more) for rank in range(size)]


def side_by_side(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Each on a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        futures: list[Future[Any]] = [threads.submit(call, index) for index in range(count)]
        return [future.result(PATIENCE_S) for future in futures]


def progress_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "r2ccl"]


@contextmanager
def waiting(size: int) -> Iterator[list[r2ccl.blocking.Communicator]]:
    """Ranks with waiting calls; afterwards no thread is left, and the interpreter switches as before."""
    interval_s = sys.getswitchinterval()
    given = job(size)
    ranks = side_by_side(size, lambda rank: r2ccl.blocking.connect(**given[rank]))
    assert len(progress_threads()) == size
    assert sys.getswitchinterval() < interval_s
    try:
        yield ranks
    except BaseException:
        for rank in ranks:
            rank.abort()
        raise
    side_by_side(size, lambda rank: ranks[rank].close())
    assert progress_threads() == []
    assert sys.getswitchinterval() == pytest.approx(interval_s)


# Waiting calls.


def test_every_waiting_call_returns_what_awaiting_its_work_would() -> None:
    with waiting(3) as ranks:

        def use(rank: int) -> None:
            comm = ranks[rank]
            assert (comm.rank, comm.size, comm.members) == (rank, 3, (0, 1, 2))
            x = np.full(70_001, rank + 1, np.float32)
            assert comm.all_reduce(x) is x
            assert (x == 6).all()
            assert comm.broadcast(np.full(3, rank), 1).tolist() == [1, 1, 1]
            reduced = comm.reduce(np.full(3, rank), 2, r2ccl.MAX)
            assert (reduced is None) == (rank != 2)
            assert [int(part[0]) for part in comm.all_gather(np.array([rank]))] == [0, 1, 2]
            assert comm.all_gather_into(np.zeros(3, np.int64), np.array([rank])).tolist() == [0, 1, 2]
            assert comm.reduce_scatter(np.zeros(1, np.int64), np.array([1, 2, 3])).tolist() == [3 * (rank + 1)]
            assert (comm.gather(np.array([rank]), 0) is None) == (rank != 0)
            assert comm.scatter(np.zeros(1, np.int64), np.array([4, 5, 6]) if rank == 1 else None, 1)[0] == 4 + rank
            assert comm.all_to_all(np.zeros(3, np.int64), np.full(3, rank)).tolist() == [0, 1, 2]
            comm.barrier()
            assert comm.broadcast_object({"a": [1]} if rank == 0 else None, 0) == {"a": [1]}
            work = comm.futures.send(np.array([rank]), (rank + 1) % 3, tag=4)
            assert comm.recv(np.zeros(1, np.int64), tag=4) == (rank - 1) % 3
            work.wait(PATIENCE_S)
            y = [np.ones(5), np.ones(6)]
            with comm.batch() as batch:
                for one in y:
                    batch.all_reduce(one)
            assert all((one == 3).all() for one in y)
            group = comm.split(rank % 2)
            assert group is not None
            assert group.all_reduce(np.ones(1))[0] == group.size
            group.close()
            outsiders = comm.new_group([1, 0])
            assert (outsiders is None) == (rank == 2)
            assert "rank" in comm.stats()

        side_by_side(3, use)


def test_the_end_of_a_with_block_closes_and_an_exception_aborts() -> None:
    given = job(2)

    def use(rank: int) -> str:
        try:
            with r2ccl.blocking.connect(**given[rank]) as comm:
                comm.barrier()
                if rank == 0:
                    raise ZeroDivisionError
                comm.barrier()
        except (ZeroDivisionError, PeerLost) as error:
            return type(error).__name__
        return "closed"

    assert side_by_side(2, use) == ["ZeroDivisionError", "PeerLost"]
    assert progress_threads() == []


# From many threads, and from loops.


def test_calls_from_many_threads_are_numbered_in_their_order_and_each_is_right() -> None:
    with waiting(2) as ranks:

        def use(index: int) -> None:
            rank, tag = index % 2, index // 2
            comm, room = ranks[rank], np.zeros(1000)
            for k in range(20):
                sending = comm.futures.send(np.full(1000, k + 100.0 * tag), 1 - rank, tag)
                comm.recv(room, 1 - rank, tag)
                assert (room == k + 100 * tag).all()
                sending.wait(PATIENCE_S)

        side_by_side(12, use)
        # Of one thread the works have rising numbers.
        works = [[rank.futures.all_reduce(np.full(10, k)) for k in range(200)] for rank in ranks]
        for row in works:
            for k, work in enumerate(row):
                assert (work.wait(PATIENCE_S) == 2 * k).all()
            assert [work.operation for work in row] == list(range(200))


def test_a_loop_may_await_what_runs_on_another_thread() -> None:
    given = job(2, progress="thread")

    async def rank(number: int) -> None:
        async with r2ccl.connect(**given[number]) as comm:
            x = np.ones(300_000, np.float32)
            first, second = comm.all_reduce(x), comm.barrier()
            await asyncio.gather(_await(first), _await(first), _await(second))
            assert (x == 2).all()
            # Waiting is allowed here: it is not the loop that carries the operation.
            assert comm.all_reduce(np.ones(3)).wait(PATIENCE_S)[0] == 2
            group = await comm.split(0)
            assert await group.broadcast_object("x" if number == 0 else None, 0) == "x"

    # One loop for both would block itself where they wait.
    side_by_side(2, lambda number: asyncio.run(rank(number)))
    assert progress_threads() == []


async def _await(work: r2ccl.Work) -> Any:
    return await work


async def test_calls_from_another_thread_than_the_loops_are_refused_with_the_remedy() -> None:
    given = job(1)[0]
    async with r2ccl.connect(**given) as comm:
        for call in (
            lambda: comm.all_reduce(np.ones(3)),
            comm.barrier,
            lambda: comm.split(0),
            lambda: comm.broadcast_object(1, 0),
            lambda: comm.new_group([0]),
        ):
            with pytest.raises(UsageError, match=r'another thread than that of its loop; connect\(progress="thread"\)'):
                await asyncio.to_thread(call)
        work = comm.barrier()
        await work
        assert await comm.all_reduce(np.ones(1)) == 1
        with pytest.raises(UsageError, match="await close"):
            comm.close_and_wait()


async def test_waiting_on_the_loops_own_thread_is_refused_and_on_others_allowed() -> None:
    given = job(2)
    first, second = await asyncio.gather(*(_connected(one) for one in given))
    work = first.barrier()
    with pytest.raises(UsageError, match="wait.. would block the loop"):
        work.wait(1.0)
    waiting_elsewhere = asyncio.create_task(asyncio.to_thread(work.wait, PATIENCE_S))
    await second.barrier()
    assert await waiting_elsewhere is None
    await asyncio.gather(first.close(), second.close())


async def _connected(given: dict[str, Any]) -> r2ccl.Communicator:
    return await r2ccl.connect(**given)


# What leaves no thread behind.


def test_a_connect_that_fails_leaves_no_thread() -> None:
    interval_s = sys.getswitchinterval()
    given = job(2)[0] | {"timeout": 0.3}
    with pytest.raises(RendezvousError):
        r2ccl.blocking.connect(**given)
    assert progress_threads() == []
    assert sys.getswitchinterval() == pytest.approx(interval_s)


async def test_a_connect_that_is_cancelled_leaves_no_thread() -> None:
    interval_s = sys.getswitchinterval()
    given = job(2, progress="thread")[0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await r2ccl.connect(**given)
    assert progress_threads() == []
    assert sys.getswitchinterval() == pytest.approx(interval_s)


def test_closing_while_other_threads_call_ends_every_call() -> None:
    given = job(1)[0]
    for _ in range(5):
        comm = r2ccl.blocking.connect(**given)
        begun = threading.Barrier(4)

        def use(comm: r2ccl.blocking.Communicator = comm, begun: threading.Barrier = begun) -> str:
            begun.wait()
            try:
                while True:
                    comm.barrier()
            except CommunicatorClosed:
                return "closed"

        with ThreadPoolExecutor(3) as threads:
            using = [threads.submit(use) for _ in range(3)]
            begun.wait()
            time.sleep(0.02)
            comm.close()
            assert [one.result(PATIENCE_S) for one in using] == ["closed"] * 3
    assert progress_threads() == []


def test_closing_twice_from_two_threads_is_closing_once() -> None:
    given = job(1)[0]
    comm = r2ccl.blocking.connect(**given)
    side_by_side(2, lambda _: comm.close())
    comm.close()
    comm.abort()
    assert progress_threads() == []
