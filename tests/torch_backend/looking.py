"""One rank of what can be seen of calls: ``python -m tests.torch_backend.looking STORY DIRECTORY``.

Flight-recorder files and a profile, written into the directory. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any, Final

import torch
import torch.autograd
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import r2ccl
import r2ccl.torch_backend
from tests.torch_backend.failures import error_of, start, tell, told_of


def every_kind_of_call(group: Any) -> None:
    """Each collective and message, as the flight recorder is to have them."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x, many = torch.ones(6), [torch.empty(6) for _ in range(size)]
    dist.all_reduce(x, group=group)
    dist.broadcast(x, group_src=1, group=group)
    dist.reduce(x, group_dst=1, group=group)
    dist.all_gather(many, x, group=group)
    dist.all_gather_into_tensor(torch.empty(6 * size), x, group=group)
    dist.gather(x, many if rank == 1 else None, group_dst=1, group=group)
    dist.scatter(x, many if rank == 1 else None, group_src=1, group=group)
    dist.reduce_scatter(x, many, group=group)
    dist.reduce_scatter_tensor(x, torch.ones(6 * size), group=group)
    dist.all_to_all_single(
        torch.empty(size * (rank + 1)), torch.ones(sum(range(1, size + 1))), [rank + 1] * size,
        list(range(1, size + 1)), group=group,
    )  # fmt: skip
    dist.all_to_all(many, [x] * size, group=group)
    dist.barrier(group=group)
    with dist.distributed_c10d._coalescing_manager(group=group):
        dist.all_reduce(x, group=group)
        dist.all_reduce(torch.ones(3), group=group)
    following, before = (rank + 1) % size, (rank - 1) % size
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, group=group, group_peer=following),
            dist.P2POp(dist.irecv, many[0], group=group, group_peer=before),
        ]
    )
    for work in works:
        work.wait()
    if rank == 0:
        dist.send(x, group_dst=1, group=group, tag=5)
    elif rank == 1:
        group.recv_anysource([x], 5).wait()


def all_is_well(directory: Path) -> None:
    start()
    every_kind_of_call(dist.group.WORLD)
    part = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        every_kind_of_call(part)
    dist.barrier()
    file = r2ccl.torch_backend.dump_flight_recorder(directory / "trace_")
    refused = error_of(r2ccl.torch_backend.dump_flight_recorder)
    dist.destroy_process_group()
    tell(file=file.name, refused=told_of(refused))


def one_calls_something_else(directory: Path) -> None:
    """The files are written when the error is raised, for the environment says so."""
    rank = start()
    dist.all_reduce(torch.ones(5))
    error = error_of(lambda: dist.all_reduce(torch.ones(100_000 + (rank == 1))))
    dist.destroy_process_group()
    tell(error=told_of(error), files=len(list(directory.iterdir())))


def one_does_not_come(directory: Path) -> None:
    """Rank 2 stays away from a collective, until the others have been told so."""
    rank = start(timeout_s=2.0)
    come = threading.Event()
    if rank == 2:
        come.wait(4.0)
    error = error_of(lambda: dist.all_reduce(torch.ones(300_000)))
    dist.destroy_process_group()
    tell(error=told_of(error), files=len(list(directory.iterdir())))


def it_is_profiled(directory: Path) -> None:
    """Others call when rank 0 has and lets them go on: so its work ends after that, long after its call."""
    rank = start()
    go_on = dist.new_group()
    x = torch.ones(30, 40)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            dist.barrier(group=go_on)
        else:
            dist.barrier(group=go_on)
            work = dist.all_reduce(x, async_op=True)
        dist.all_gather([torch.empty(7) for _ in range(dist.get_world_size())], torch.ones(7))
        work.wait()
        wrong = error_of(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
    trace = directory / f"profile{rank}.json"
    seen.export_chrome_trace(str(trace))
    events = [
        {
            "name": event["name"],
            "kind": event["cat"],
            "began": event["ts"],
            "ended": event["ts"] + event["dur"],
            "shapes": event["args"].get("Input Dims"),
        }
        for event in json.loads(trace.read_text())["traceEvents"]
        if event.get("name", "").startswith("r2ccl:") and event["ph"] == "X"
    ]
    assert not torch.autograd._profiler_enabled()
    dist.destroy_process_group()
    tell(events=sorted(events, key=lambda event: float(event["began"])), wrong=told_of(wrong))


STORIES: Final = (all_is_well, one_calls_something_else, one_does_not_come, it_is_profiled)


if __name__ == "__main__":
    {story.__name__: story for story in STORIES}[sys.argv[1]](Path(sys.argv[2]))
