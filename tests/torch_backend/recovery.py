"""One rank of what comes after a loss, one story for each run: ``python -m tests.torch_backend.recovery STORY``.

Whoever lives to tell prints one JSON line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import r2ccl
import r2ccl.torch_backend
from r2ccl.torch_backend.registration import HAS_PYTHON_BACKENDS
from tests.torch_backend.failures import error_of, start, tell, told_of

#: Whoever has not ended by then hangs: far more than the 5 seconds that ending may take.
PATIENCE_S = 60.0


def total(group: Any = None) -> float:
    x = torch.ones(70_000)
    dist.all_reduce(x, group=group)
    assert x.min() == x.max()
    return float(x[0])


def what_works(group: Any) -> dict[str, Any]:
    """In a shrunk default group: calls, groups, objects, training, and the ranks in them."""
    assert group is dist.group.WORLD
    size = dist.get_world_size()
    every: list[Any] = [None] * size
    dist.all_gather_object(every, dist.get_rank())
    assert every == list(range(size))
    part = dist.new_group(list(range(size))[-2:])
    in_part = total(part) if dist.get_rank() >= size - 2 else 2.0
    told = torch.tensor([float(dist.get_rank())])
    dist.broadcast(told, src=size - 1)
    return {
        "size": size, "new_rank": dist.get_rank(), "total": total(), "in_part": in_part, "told": float(told),
        "backend": dist.get_backend(), "name": dist.group.WORLD.group_desc,
        "ok": r2ccl.torch_backend.failure() is None,
    }  # fmt: skip


def the_default_group_is_shrunk_after_losses() -> None:
    """Twice: rank 1 of 4 is killed, then what was rank 3. A group made before ends with the default group."""
    rank = start()
    before = dist.new_group()
    dist.barrier(group=before)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    first = error_of(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(100_000)])
    once = what_works(r2ccl.torch_backend.shrink())
    ended = error_of(lambda: before.allreduce([torch.ones(1)]))
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    second = error_of(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(100_000)])
    twice = what_works(r2ccl.torch_backend.shrink())
    recovery = r2ccl.torch_backend.communicator().recovery
    assert recovery is not None
    dist.destroy_process_group()
    tell(errors=[told_of(first), told_of(second), told_of(ended)], once=once, twice=twice,
         members=list(recovery.members), ended=not dist.is_initialized())  # fmt: skip


def a_group_is_shrunk_alone() -> None:
    """Of four ranks 1, 2 and 3 have a group; 2 dies, and the group of 1 and 3 goes on. The default group can't."""
    rank = start()
    group = dist.new_group([1, 2, 3])
    if rank == 2:
        dist.barrier(group=group)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        error = error_of(lambda: [dist.barrier() for _ in range(100)])
        sizes = [1]
    else:
        dist.barrier(group=group)
        error = error_of(lambda: [dist.barrier(group=group) for _ in range(100_000)])
        left = r2ccl.torch_backend.shrink(group)
        sizes = [int(total(left)), dist.get_world_size(left), *dist.get_process_group_ranks(left)]
        assert r2ccl.torch_backend.failure(left) is None
    dist.destroy_process_group()
    tell(error=told_of(error), sizes=sizes)


def some_are_left_out() -> None:
    """Nobody is lost: 3 of 4 ranks go on, by torch's own call where it can, and the fourth ends."""
    rank = start()
    torchs_own = HAS_PYTHON_BACKENDS
    wrong = error_of(lambda: r2ccl.torch_backend.shrink(exclude=[rank]))
    if rank == 2:
        tell(wrong=told_of(wrong), sizes=[])
        return
    if torchs_own:
        left = dist.shrink_group([2])
    else:
        refused = error_of(lambda: dist.shrink_group([2]))
        assert "does not support shrinking" in str(refused), refused
        left = r2ccl.torch_backend.shrink(exclude=[2])
    assert left is dist.group.WORLD
    sizes = [dist.get_world_size(), int(total())]
    part = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        sizes.append(int(total(part)))
    dist.destroy_process_group()
    tell(wrong=told_of(wrong), sizes=sizes)


def torchs_own_call_agrees_after_a_loss() -> None:
    """Whoever names others than the members agree on is refused, and whoever names the dead goes on: from 2.14 on."""
    rank = start()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: [dist.barrier() for _ in range(100_000)])
    refused = error_of(lambda: dist.shrink_group([1 if rank == 0 else 0, 3]) if rank != 2 else dist.shrink_group([0]))
    left = dist.shrink_group([3], shrink_flags=1) if HAS_PYTHON_BACKENDS else r2ccl.torch_backend.shrink(exclude=[3])
    sizes = [dist.get_world_size(left), int(total())]
    dist.destroy_process_group()
    tell(error=told_of(error), refused=told_of(refused), sizes=sizes, torchs_own=HAS_PYTHON_BACKENDS)


def it_is_reconfigured() -> None:
    """2.14: with all, in another order, and after a loss, as the survivors agree. Before, survivors() shrinks alike."""
    rank = start()
    sizes: list[int] = []
    if HAS_PYTHON_BACKENDS:
        assert dist.distributed_c10d._supports_reconfigure()
        handles: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(handles, dist.distributed_c10d._get_reconfigure_handle())
        dist.distributed_c10d._reconfigure(1, set(handles)).wait()
        foreign = error_of(lambda: dist.distributed_c10d._reconfigure(2, [*handles, handles[0][:-1] + "x"]))
        assert "has to meet all others first" in str(foreign), foreign
        sizes += [dist.get_world_size(), int(total())]
        dist.distributed_c10d._reconfigure(3, handles[::-1]).wait()
        sizes += [dist.get_rank(), int(total())]
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: [dist.barrier() for _ in range(100_000)])
    uuid, left = r2ccl.torch_backend.survivors()
    if HAS_PYTHON_BACKENDS:
        more = error_of(lambda: dist.distributed_c10d._reconfigure(4, [*left, handles[0]]))
        assert "its members agreed to go on with" in str(more), more
        dist.distributed_c10d._reconfigure(uuid, left).wait()
    else:
        r2ccl.torch_backend.shrink()
    sizes += [dist.get_world_size(), dist.get_rank(), int(total())]
    part = dist.new_group()
    sizes += [int(total(part))]
    dist.destroy_process_group()
    tell(error=told_of(error), uuid=uuid, left=left, sizes=sizes)


def one_does_not_shrink() -> None:
    """Rank 2 does not call it: the others hear who it is, and rank 2 what became of the group."""
    rank = start()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    first = error_of(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(100_000)])
    error = None if rank == 2 else error_of(lambda: r2ccl.torch_backend.shrink(timeout=timedelta(seconds=3)))
    dist.destroy_process_group()
    tell(first=told_of(first), error=None if error is None else told_of(error))


def ended(calls: list[Callable[[], Any]]) -> list[str]:
    """All of them at once, each on a thread of its own: what each raised, once all have ended."""
    raised = ["it hangs"] * len(calls)

    def run(number: int) -> None:
        try:
            calls[number]()
            raised[number] = ""
        except Exception as error:  # noqa: BLE001 - what kind it is, is what is asked
            raised[number] = type(error).__name__

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return raised


def it_is_destroyed_from_several_threads() -> None:
    """With calls in flight that others wait for; and once more, when it is gone."""
    rank = start()
    group = dist.group.WORLD
    assert group is not None
    ready = dist.new_group()
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True) if rank == 0 else None
    room = dist.irecv(torch.ones(1_000_000), src=(rank + 1) % dist.get_world_size())
    # The first that has come may be gone again when others hear that all have.
    ended([lambda: dist.barrier(group=ready)])
    waits = [room.wait] if work is None else [room.wait, work.wait]
    raised = ended([dist.destroy_process_group, group.shutdown, group.shutdown, group.abort, group.shutdown, *waits])
    again = [type(error_of(dist.destroy_process_group)).__name__]
    group.shutdown()
    group.abort()
    tell(raised=raised, again=again, works=[type(error_of(lambda: group.allreduce([torch.ones(1)]))).__name__])


def a_rank_is_stopped_and_the_others_destroy() -> None:
    """Rank 1 is stopped as by SIGSTOP, in the middle of their calls. They end, and it ends when it goes on."""
    rank = start()
    pids: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        dist.all_reduce(torch.ones(1000))
        os.kill(os.getpid(), signal.SIGSTOP)
        error = error_of(lambda: [dist.barrier() for _ in range(3)])
        raised = ended([dist.destroy_process_group])
        tell(error=told_of(error), raised=raised)
        return
    dist.all_reduce(torch.ones(1000))
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    raised = ended([dist.destroy_process_group, work.wait])
    if rank == 0:
        os.kill(pids[1], signal.SIGCONT)
    tell(raised=raised)


def a_killed_rank_leaves_workers_behind() -> None:
    """Rank 1 is killed while its forked workers, which inherited what it had open, live on: the others hear of it."""
    rank = start()
    data = TensorDataset(torch.arange(64.0))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    batches = iter(loader)
    next(batches)
    workers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(workers, [worker.pid for worker in batches._workers])  # type: ignore[attr-defined, unused-ignore]
    if rank == 1:
        for worker in workers[1]:
            os.kill(worker, signal.SIGSTOP)  # or they would see that their parent is gone, and end
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(100_000)])
    alive = sum(Path(f"/proc/{worker}").exists() for worker in workers[1])
    left = r2ccl.torch_backend.shrink()
    sizes = [dist.get_world_size(left), int(total())]
    more = sum(1 for _ in batches)
    if rank == 0:
        for worker in workers[1]:
            os.kill(worker, signal.SIGKILL)
    dist.destroy_process_group()
    tell(error=told_of(error), alive=alive, sizes=sizes, more=more)


STORIES: Final = (
    the_default_group_is_shrunk_after_losses,
    a_group_is_shrunk_alone,
    some_are_left_out,
    torchs_own_call_agrees_after_a_loss,
    it_is_reconfigured,
    one_does_not_shrink,
    it_is_destroyed_from_several_threads,
    a_rank_is_stopped_and_the_others_destroy,
    a_killed_rank_leaves_workers_behind,
)


if __name__ == "__main__":
    {story.__name__: story for story in STORIES}[sys.argv[1]]()
