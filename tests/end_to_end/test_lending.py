"""Ranks of one machine that lend each other large chunks, as processes: what is taken back is in nobody's result."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2ccl.transport.cross_memory import others_may_read
from r2ccl.transport.shared_ring import rings_work_here
from tests.end_to_end.test_lockstep import played

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not rings_work_here(), reason="no shared memory on this kind of machine"),
    pytest.mark.skipif(not others_may_read(), reason="the kernel lets no process read another (ptrace_scope)"),
]

IMPORTED = """
from r2ccl.ids import SHARED_NIC
from r2ccl.protocol.wire import BadFrame
"""
COUNTED = """
from r2ccl.transport.shared_loans import Loans
lent, lend = 0, Loans.lend

def counted(loans, header, payload):
    global lent
    lent += 1
    lend(loans, header, payload)

Loans.lend = counted

"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_result_is_right_also_of_operations_side_by_side(tmp_path: Path, ranks: int) -> None:
    text = """
async def play(comm):
    for number in range(12):
        sizes = [(number * 1_000_003 + way * 700_001) % 5_000_000 for way in range(4)]
        x = [np.arange(size, dtype=np.float32) % 1024 + comm.rank for size in sizes]
        right = [comm.size * (np.arange(size, dtype=np.float32) % 1024) + sum(range(comm.size)) for size in sizes]
        works = [comm.all_reduce(one) for one in x]
        for work, got, wanted in zip(works, x, right):
            await work
            assert np.array_equal(got, wanted), number
            got[:] = -1  # it is ours again
    assert lent > 10
    print("right")
"""
    code, out, err = played(tmp_path, COUNTED + text, ranks)
    assert (code, out) == (0, [f"[{rank}] right" for rank in range(ranks)]), err


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.004])
def test_what_a_rank_that_gave_up_wrote_into_its_memory_is_in_nobodys_result(tmp_path: Path, after_s: float) -> None:
    """The other is stopped after so long, and goes on when the memory is another's again."""
    text = f"""
async def play(comm):
    x = np.ones(8_000_000, np.float32)
    await comm.all_reduce(x)
    x[:] = 1
    await comm.barrier()
    if comm.rank == 1 and os.fork() == 0:
        import time
        time.sleep({after_s})
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    works = []
    try:
        for _ in range(200):
            await comm.all_reduce(x, timeout=0.3 if comm.rank == 0 else None)
            assert (x == 2).all(), x
            x[:] = 1
    except r2ccl.R2cclError as error:
        x[:] = 1e9
        print(type(error).__name__)
    else:
        print("ended")
    assert lent > 2
    comm.abort()
    await asyncio.sleep(2)
    os._exit(0)
"""
    code, out, err = played(tmp_path, COUNTED + text)
    assert (code, out) == (0, ["[0] CollectiveTimeout", "[1] CollectiveTimeout"]), err


def test_a_rank_that_is_killed_in_the_middle_is_named(tmp_path: Path) -> None:
    text = """
async def play(comm):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, when it sees the other one end
    x = np.ones(8_000_000, np.float32)
    await comm.all_reduce(x)
    if comm.rank == 1 and os.fork() == 0:
        import time
        time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    try:
        while True:
            x[:] = 1
            await comm.all_reduce(x)
            assert (x == 2).all(), x
    except r2ccl.PeerLost as lost:
        print(lost.ranks)
    assert lent > 2
"""
    code, out, err = played(tmp_path, COUNTED + text)
    assert (code, out) == (128 + 9, ["[0] (1,)"]), err


@pytest.mark.parametrize("ranks", [2, 4])
def test_results_are_right_while_memory_between_ranks_is_lost_in_the_middle_of_loans(
    tmp_path: Path, ranks: int
) -> None:
    """What was lent goes out again by a NIC, or by new memory."""
    text = """
async def play(comm):
    (port,) = [port for port in comm._coordinator.courier._ports if port.nic.index == SHARED_NIC]
    lost, lend, loop = 0, Loans.lend, asyncio.get_running_loop()

    def lose(loans):
        nonlocal lost
        for connection in list(port.device._open):
            if getattr(connection, "_loans", None) is loans:
                connection.fail(BadFrame("so it was drawn"))
                lost += 1

    def losing(loans, header, payload):
        lend(loans, header, payload)
        if lent % 16 == 5 * comm.rank:
            loop.call_soon(lose, loans)

    Loans.lend = losing
    over = False
    while not over:
        x = np.arange(3_000_000, dtype=np.float32) % 1024 + comm.rank
        right = comm.size * (np.arange(x.size, dtype=np.float32) % 1024) + sum(range(comm.size))
        await comm.all_reduce(x)
        assert np.array_equal(x, right), (lent, lost)
        x[:] = -1
        losses = np.array([lost])
        await comm.all_reduce(losses, r2ccl.Op.MIN)
        over = losses[0] >= 5
    print("right")
"""
    # Memory that is lost again and again would be waited for twice as long each time, up to a minute.
    code, out, err = played(tmp_path, IMPORTED + COUNTED + text, ranks, R2CCL_QUIET_MAX="0.05")
    assert (code, out) == (0, [f"[{rank}] right" for rank in range(ranks)]), err[-3000:]
