"""One rank of what goes wrong, one story for each run: ``python -m tests.torch_backend.failures STORY``.

Whoever lives to tell prints one JSON line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import r2ccl
import r2ccl.torch_backend


def tell(**words: Any) -> None:
    print(json.dumps({"rank": int(os.environ["RANK"]), **words}), flush=True)


def start(timeout_s: float = 600.0) -> int:
    dist.init_process_group("r2ccl", timeout=timedelta(seconds=timeout_s))
    dist.barrier()
    return int(dist.get_rank())


def error_of(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what kind it is, is what is asked
        return error
    raise AssertionError("it ended well")


def told_of(error: BaseException) -> dict[str, Any]:
    about: dict[str, Any] = {
        "kind": type(error).__name__,
        "text": str(error),
        "notes": getattr(error, "__notes__", []),
    }
    for name in ("ranks", "cause", "not_entered", "entered", "finished", "calls"):
        if hasattr(error, name):
            about[name] = getattr(error, name)
    return about


def a_rank_is_killed() -> None:
    """In the middle of a stream of all-reduces."""
    rank = start()
    if rank == 1:
        dist.all_reduce(torch.ones(1000))
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.ones(1000)
    error = error_of(lambda: [dist.all_reduce(x) for _ in range(100_000)])
    failure = r2ccl.torch_backend.failure()
    assert failure is not None
    again = error_of(lambda: dist.all_reduce(x))
    future = error_of(lambda: dist.barrier(async_op=True))
    made = error_of(lambda: dist.all_reduce(x, group=dist.distributed_c10d._get_default_group()))
    dist.destroy_process_group()
    tell(error=told_of(error), again=told_of(again), call=failure.call, nics=dict(failure.nics), ended=True,
         others=[type(future).__name__, type(made).__name__])  # fmt: skip


def a_rank_is_killed_in_a_backward() -> None:
    """DDP gets a RuntimeError with our words, and does not crash."""
    rank = start()
    torch.manual_seed(0)
    trained = DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(4))), bucket_cap_mb=0.1
    )

    def step() -> bool:
        trained(torch.randn(8, 200)).sum().backward()
        return True

    step()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: [step() for _ in range(1000)])
    dist.destroy_process_group()
    tell(error=told_of(error), ended=True)


def a_rank_does_not_come() -> None:
    rank = start(timeout_s=2.0)
    come = threading.Event()
    if rank == 1:
        # It learns of the others' failure with its next call.
        come.wait(4.0)
    error = error_of(lambda: dist.all_reduce(torch.ones(300_000)))
    tell(error=told_of(error))
    dist.destroy_process_group()


def a_rank_does_not_come_to_the_monitored_barrier() -> None:
    rank = start()
    come = threading.Event()
    if rank == 2:
        come.wait(4.0)
        error = error_of(lambda: dist.barrier())
    else:
        error = error_of(lambda: r2ccl.torch_backend.monitored_barrier(timeout=timedelta(seconds=2)))
    tell(error=told_of(error))
    dist.destroy_process_group()


def ranks_call_differently() -> None:
    rank = start()
    count = 100_000 + rank
    error = error_of(lambda: dist.all_reduce(torch.ones(count)))
    tell(error=told_of(error))
    dist.destroy_process_group()


def the_job_is_aborted_by_one() -> None:
    rank = start()
    if rank == 0:
        dist.distributed_c10d._abort_process_group()
        tell(aborted=True)
        return
    error = error_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(100_000)])
    dist.destroy_process_group()
    tell(error=told_of(error))


def the_end_with_a_call_in_flight() -> None:
    """Rank 0 ends without a word, with calls that nobody else makes, a Future among them."""
    rank = start()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
        work.get_future().then(lambda done: done.value())
        dist.isend(torch.ones(1_000_000), dst=1)
        tell(ended=True)
        return
    error = error_of(lambda: [dist.barrier() for _ in range(3)])
    tell(error=told_of(error))


def it_is_destroyed_with_a_call_in_flight() -> None:
    rank = start()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
        dist.destroy_process_group()
        tell(error=told_of(error_of(work.wait)))
        return
    error = error_of(lambda: [dist.barrier() for _ in range(3)])
    tell(error=told_of(error))
    dist.destroy_process_group()


def workers_load_the_data() -> None:
    """Forked and spawned, while a collective is in flight; they end, and it goes on."""
    rank = start()
    data = TensorDataset(torch.arange(40.0))
    seen = []
    for method in ("fork", "spawn"):
        x = torch.ones(100_000)
        work = dist.all_reduce(x, async_op=True)
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method)
        seen.append(sum(float(batch.sum()) for (batch,) in loader))
        work.wait()
        assert x[0] == dist.get_world_size()
        dist.barrier()
    assert r2ccl.torch_backend.failure() is None
    dist.destroy_process_group()
    tell(seen=seen, ended=rank >= 0)


def some_have_a_secret() -> None:
    error = error_of(lambda: dist.init_process_group("r2ccl"))
    tell(error=told_of(error))


STORIES: Final = (
    a_rank_is_killed,
    a_rank_is_killed_in_a_backward,
    a_rank_does_not_come,
    a_rank_does_not_come_to_the_monitored_barrier,
    ranks_call_differently,
    the_job_is_aborted_by_one,
    the_end_with_a_call_in_flight,
    it_is_destroyed_with_a_call_in_flight,
    workers_load_the_data,
    some_have_a_secret,
)


if __name__ == "__main__":
    {story.__name__: story for story in STORIES}[sys.argv[1]]()
