"""How scripts end while operations are under way: soon, with the exit code they asked for, and without noise."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from r2ccl.config import environment
from tests.end_to_end.ranks import PATIENCE_S, job_environment

pytestmark = pytest.mark.end_to_end

#: Promised are 2 s, which a busy machine may exceed; the figure is printed. A hang would take for ever.
END_S = 10.0

LOOP = """
import asyncio, sys, time
import numpy as np
import r2ccl

async def main():
    comm = await r2ccl.connect()
    if comm.rank == 1:
        await asyncio.sleep(600)
    {call}
    await asyncio.sleep(0.05)
    print(time.monotonic(), flush=True)
    {ending}

asyncio.run(main())
"""
THREAD = """
import asyncio, sys, time
import numpy as np
import r2ccl

async def main():
    comm = await r2ccl.connect(progress="thread")
    if comm.rank == 1:
        await asyncio.sleep(600)
    {call}
    await asyncio.sleep(0.05)
    print(time.monotonic(), flush=True)
    {ending}

asyncio.run(main())
"""
BLOCKING = """
import sys, threading, time
import numpy as np
import r2ccl.blocking

def main():
    waiting = r2ccl.blocking.connect()
    comm = waiting.futures
    if comm.rank == 1:
        time.sleep(600)
    {call}
    threading.Thread(target=waiting.barrier, daemon=True).start()
    time.sleep(0.05)
    print(time.monotonic(), flush=True)
    {ending}

main()
"""
SCRIPTS = {"loop": LOOP, "thread": THREAD, "blocking": BLOCKING}
#: The script's last line -> its exit code.
ENDINGS = {"return": 0, "raise RuntimeError('a bug of the user')": 1, "sys.exit(3)": 3}
CALLS = {
    "all_reduce": "work = comm.all_reduce(np.ones(1 << 20, np.float32))",
    "several": (
        "works = [comm.recv(np.ones(3)), comm.barrier(), comm.broadcast_object(1, 1), comm.split(0), "
        "comm.send(np.ones(1 << 20), 1)]"
    ),
}


def start(source: str, rank: int, shared: dict[str, str], directory: Path) -> subprocess.Popen[str]:
    script = directory / "script.py"
    script.write_text(source)
    own = {"RANK": str(rank), "R2CCL_NICS": f"127.0.1.{rank + 1}"}
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**environment(), **shared, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ending", ENDINGS, ids=["the end of main", "an exception", "sys.exit"])
@pytest.mark.parametrize("progress", SCRIPTS)
def test_a_script_ends_soon_as_it_says_though_its_peers_live_on(
    progress: str, ending: str, call: str, tmp_path: Path
) -> None:
    source = SCRIPTS[progress].format(call=CALLS[call], ending=ending)
    shared = job_environment(2)
    processes = [start(source, rank, shared, tmp_path) for rank in range(2)]
    try:
        said, complaints = processes[0].communicate(timeout=PATIENCE_S)
        took_s = time.monotonic() - float(said)
        print(f"{progress}: ended after {took_s:.2f} s")
        assert processes[0].returncode == ENDINGS[ending], complaints
        assert took_s < END_S
        expected = [line for line in complaints.splitlines() if line.startswith("RuntimeError: a bug")]
        assert len(expected) == ("bug" in ending), complaints
        assert complaints.count("Traceback") == len(expected), complaints
        assert "Exception ignored" not in complaints
        assert "never retrieved" not in complaints
        assert processes[1].poll() is None
    finally:
        end(processes)


FORKING = """
import os, sys, threading, time
import numpy as np
import r2ccl, r2ccl.blocking

comm = r2ccl.blocking.connect()
group = comm.split(0)
pending = [
    comm.futures.recv(np.ones(3), tag=9), comm.futures.recv(np.ones(3), 1 - comm.rank, tag=8),
    group.futures.recv(np.ones(3), tag=7),
]
if comm.rank == 0:
    pending += [comm.futures.barrier(), comm.futures.broadcast_object(None, 1), group.futures.barrier()]
    pid = os.fork()
    if pid == 0:
        wrong = []
        for one in (comm, group):
            for call in (one.barrier, lambda: one.all_reduce(np.ones(3)), lambda: one.send(np.ones(3), 1),
                         lambda: one.recv(np.ones(3)), lambda: one.split(0), lambda: one.broadcast_object(1, 0),
                         lambda: one.new_group([0]), lambda: one.gather(np.ones(3), 0), one.batch):
                try:
                    call()
                    wrong.append("was not refused")
                except r2ccl.CommunicatorClosed as closed:
                    if "fork" not in str(closed):
                        wrong.append(str(closed))
        for work in pending:
            try:
                work.wait(5.0)
                wrong.append(f"{work} ended well")
            except r2ccl.CommunicatorClosed:
                pass
            except TimeoutError as endless:
                wrong.append(str(endless))
        comm.abort()
        comm.close()
        print(wrong, flush=True)
        os._exit(5 if wrong else 0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
else:
    time.sleep(0.5)
    pending += [comm.futures.barrier(), comm.futures.broadcast_object([1, 2], 1), group.futures.barrier()]
for work in pending[3:]:
    work.wait(20.0)
assert pending[4].wait() == [1, 2]
other = 1 - comm.rank
for tag, one in ((9, comm), (8, comm), (7, group)):
    one.send(np.zeros(3), other, tag)
for work in pending[:3]:
    work.wait(20.0)
x = np.ones(100_000, np.float32)
comm.all_reduce(x)
assert (x == 2).all()
comm.close()
"""


def test_a_forked_child_of_a_progress_thread_is_refused_and_the_parent_unharmed(tmp_path: Path) -> None:
    shared = job_environment(2)
    processes = [start(FORKING, rank, shared, tmp_path) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        assert outputs[0][0].strip() == "[]"
        assert "nobody awaited" not in outputs[0][1]
    finally:
        end(processes)
