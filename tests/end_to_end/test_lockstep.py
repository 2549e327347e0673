"""Ranks of one machine in lockstep, as processes: what breaks one in the middle, the others hear of as always."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from r2ccl.cli.launcher import launch
from r2ccl.transport.shared_ring import rings_work_here

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not rings_work_here(), reason="no shared memory on this kind of machine"),
]

BEGINNING = """
import asyncio, os, signal, sys
import numpy as np
import r2ccl
from r2ccl.actors.lockstep import Lockstep

done_within_a_call = 0
start = Lockstep.start

def counted(lockstep, operation):
    global done_within_a_call
    started = start(lockstep, operation)
    done_within_a_call += started and operation.work.done()
    return started

Lockstep.start = counted

async def main():
    async with r2ccl.connect() as comm:
        await play(comm)

"""
END = """
asyncio.run(main())
"""


def played(tmp_path: Path, text: str, ranks: int = 2, **settings: str) -> tuple[int, list[str], str]:
    """Exit code, lines of all ranks, and what was told beside. ``settings``: by their variables."""
    script = tmp_path / "script.py"
    script.write_text(BEGINNING + text + END)
    out, err = io.BytesIO(), io.BytesIO()
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    code = launch([str(script)], ranks, environ={**inherited, "R2CCL_TUNING": "off", **settings}, out=out, err=err)
    return code, sorted(out.getvalue().decode().splitlines()), err.getvalue().decode()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_every_result_is_right_also_with_more_ranks_than_cores(tmp_path: Path, ranks: int) -> None:
    text = """
async def play(comm):
    for number in range(2000):
        x = np.arange(number % 7, dtype=np.float32) + comm.rank
        await comm.all_reduce(x)
        right = comm.size * np.arange(number % 7) + sum(range(comm.size))
        assert x.tolist() == right.tolist(), (number, x, right)
        if number % 10 == 0:
            await comm.barrier()
    assert done_within_a_call > 0 or comm.size > 2
    print("right")
"""
    code, out, err = played(tmp_path, text, ranks)
    assert (code, out) == (0, [f"[{rank}] right" for rank in range(ranks)]), err


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_size_is_right_up_to_chunks_that_fill_half_of_a_ring(tmp_path: Path, ranks: int) -> None:
    text = """
async def play(comm):
    for number in range(300):
        x = np.arange((number * number * 37) % 1_200_001, dtype=np.float32) % 1024 + comm.rank
        right = comm.size * (np.arange(x.size, dtype=np.float32) % 1024) + sum(range(comm.size))
        await comm.all_reduce(x)
        assert np.array_equal(x, right), (number, x.size)
    assert done_within_a_call > 0 or comm.size > 2
    print("right")
"""
    code, out, err = played(tmp_path, text, ranks)
    assert (code, out) == (0, [f"[{rank}] right" for rank in range(ranks)]), err


def test_what_calls_on_when_the_last_is_over_does_not_go_deeper_each_time(tmp_path: Path) -> None:
    text = """
async def play(comm):
    x, left, over = np.zeros(1), 5000, asyncio.get_running_loop().create_future()

    def again():
        nonlocal left
        left -= 1
        if left:
            comm.all_reduce(x).when_done(again)
        else:
            over.set_result(None)

    again()
    await over
    await comm.barrier()
    print("well")
"""
    code, out, err = played(tmp_path, text)
    assert (code, out) == (0, ["[0] well", "[1] well"]), err


def test_the_loop_has_its_turns(tmp_path: Path) -> None:
    text = """
async def play(comm):
    turns, loop, x = 0, asyncio.get_running_loop(), np.zeros(1)

    def turn():
        nonlocal turns
        turns += 1
        handle = loop.call_soon(turn)

    turn()
    for number in range(2000):
        await comm.all_reduce(x)
    assert turns > 2000 // 32, turns
    print("turns")
    os._exit(0) if comm.rank == 1 else await asyncio.sleep(0.2)
    os._exit(0)
"""
    code, out, err = played(tmp_path, text)
    assert (code, out) == (0, ["[0] turns", "[1] turns"]), err


def test_a_rank_that_is_killed_in_the_middle_is_named(tmp_path: Path) -> None:
    text = """
async def play(comm):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, when it sees the other one end
    x = np.zeros(1)
    try:
        for number in range(100_000):
            if comm.rank == 1 and number == 3000:
                os.kill(os.getpid(), signal.SIGKILL)
            await comm.all_reduce(x)
    except r2ccl.PeerLost as lost:
        print(lost.ranks, number)
"""
    code, out, err = played(tmp_path, text)
    assert code == 128 + 9
    assert out in (["[0] (1,) 3000"], ["[0] (1,) 3001"]), err


def test_a_rank_that_is_stopped_for_a_while_is_waited_for(tmp_path: Path) -> None:
    text = """
async def play(comm):
    for number in range(3000):
        if comm.rank == 1 and number in (1000, 2000):
            if os.fork() == 0:
                import time
                os.kill(os.getppid(), signal.SIGSTOP)
                time.sleep(1.0)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
        x = np.full(3, number + comm.rank)
        await comm.all_reduce(x)
        assert x.tolist() == [2 * number + 1] * 3
    print("right")
"""
    code, out, err = played(tmp_path, text)
    assert (code, out) == (0, ["[0] right", "[1] right"]), err


def test_calls_that_differ_are_named_on_both(tmp_path: Path) -> None:
    text = """
async def play(comm):
    x = np.zeros(3, np.float32)
    for _ in range(1000):
        await comm.all_reduce(x)
    try:
        await comm.all_reduce(x, r2ccl.Op.MAX if comm.rank else r2ccl.Op.SUM)
    except r2ccl.CollectiveMismatch as mismatch:
        print(mismatch.calls)
"""
    code, out, err = played(tmp_path, text)
    calls = "{0: 'all_reduce(float32[3], sum)', 1: 'all_reduce(float32[3], max)'}"
    assert (code, out) == (0, [f"[0] {calls}", f"[1] {calls}"]), err


@pytest.mark.parametrize("memory", ["auto", "off"])
def test_who_is_gone_when_its_operation_is_over_leaves_nobody_waiting(tmp_path: Path, memory: str) -> None:
    """Also where chunks are acknowledged, in lockstep or not."""
    text = f"""
async def play(comm):
    x = np.ones(70_000, np.float32)
    for number in range(50):
        await comm.all_reduce(x)
    x[:] = 1
    work = comm.all_reduce(x)
    if comm.rank == 0:
        work.when_done(lambda: os._exit(0))
        await asyncio.sleep(60)
    await work
    assert x.tolist() == [2.0] * 70_000
    print("right", flush=True)
    comm.abort()
    os._exit(0)

os.environ["R2CCL_SHARED_MEMORY"] = {memory!r}
"""
    code, out, err = played(tmp_path, text)
    assert (code, out) == (0, ["[1] right"]), err


def test_the_last_word_is_heard_though_its_sender_has_gone(tmp_path: Path) -> None:
    text = """
async def play(comm):
    for number in range(1000):
        x = np.ones(1)
        await comm.all_reduce(x)
        assert x[0] == 2
    print("right", flush=True)
    if comm.rank == 0:
        os._exit(0)
    comm.abort()
    os._exit(0)
"""
    code, out, err = played(tmp_path, text)
    assert (code, out) == (0, ["[0] right", "[1] right"]), err
