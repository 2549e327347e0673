"""One rank of what a process group of r2ccl does besides the calls of the grid, all of it in good health.

Every function below whose name begins with ``check_`` is run in its order, on all ranks. Prints their names.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

import r2ccl
import r2ccl.torch_backend
from r2ccl.torch_backend import communicator
from r2ccl.torch_backend.backend import within
from r2ccl.torch_backend.registration import HAS_PYTHON_BACKENDS
from r2ccl.torch_backend.rendezvous import Place, find_company
from r2ccl.torch_backend.works import CALLBACK_THREADS_MAX

#: torch 2.14 and later let users wait for what a backend in Python returns, and get its future, and see nothing else.
HIDES_WORKS = HAS_PYTHON_BACKENDS


def rank() -> int:
    return int(dist.get_rank())


def size() -> int:
    return int(dist.get_world_size())


def refused(call: Callable[[], Any], kind: type[BaseException], words: str) -> None:
    """The call raises that, and its text says so."""
    said = None
    try:
        call()
    except kind as error:
        said = str(error)
    assert said is not None, f"{kind.__name__} was not raised"
    assert words in said, said


def check_objects() -> None:
    mine = {"rank": rank(), "text": "x" * 100 * rank()}
    every: list[Any] = [None] * size()
    dist.all_gather_object(every, mine)
    assert [one["rank"] for one in every] == list(range(size()))
    told = [mine] if rank() == 1 else [None]
    dist.broadcast_object_list(told, src=1)
    assert told[0] == {"rank": 1, "text": "x" * 100}
    at_root: list[Any] | None = [None] * size() if rank() == 0 else None
    dist.gather_object(mine, at_root, dst=0)
    assert at_root is None or [one["rank"] for one in at_root] == list(range(size()))
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"for {to}" for to in range(size())] if rank() == 0 else None, src=0)
    assert got == [f"for {rank()}"]
    if rank() == 0:
        dist.send_object_list([mine, 5], dst=1)
    elif rank() == 1:
        letters: list[Any] = [None, None]
        dist.recv_object_list(letters, src=0)
        assert letters == [{"rank": 0, "text": ""}, 5]


def check_messages_from_anybody_and_by_tag() -> None:
    if rank() == 0:
        sources = []
        for _ in range(1, size()):
            room = torch.zeros(3)
            if HIDES_WORKS:
                dist.irecv(room, tag=9).wait()
                source = int(room[0])
            else:
                source = dist.recv(room, tag=9)
            assert room.tolist() == [source] * 3
            sources.append(source)
        assert sorted(sources) == list(range(1, size()))
    else:
        dist.send(torch.full((3,), float(rank())), dst=0, tag=9)
    rooms: dict[int, Any] = {}
    if rank() == 0:
        works = [dist.isend(torch.tensor([tag]), dst=1, tag=tag) for tag in (1, 2, 3)]
    elif rank() == 1:
        rooms = {tag: torch.zeros(1, dtype=torch.int64) for tag in (3, 1, 2)}
        works = [dist.irecv(room, src=0, tag=tag) for tag, room in rooms.items()]
    else:
        works = []
    for work in works:
        work.wait()
    assert all(room.item() == tag for tag, room in rooms.items())


def check_messages_to_oneself() -> None:
    first, second = torch.zeros(4), torch.zeros(4)
    early = dist.irecv(first, src=rank(), tag=1)
    assert not early.is_completed()
    dist.isend(torch.arange(4.0), dst=rank(), tag=1).wait()
    dist.isend(torch.arange(4.0) + 1, dst=rank(), tag=1)
    dist.irecv(second, src=rank(), tag=1).wait()
    early.wait()
    assert HIDES_WORKS or early.source_rank() == rank()
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])
    room = torch.zeros(3)
    unlike = dist.irecv(room, src=rank())
    dist.isend(torch.zeros(4), dst=rank()).wait()
    refused(unlike.wait, r2ccl.CollectiveMismatch, "[4]")


def check_views_of_torch() -> None:
    """A conjugated view, a negative one, one of a leaf, and a tensor without dimensions."""
    numbers = torch.complex(torch.arange(4.0), torch.ones(4))
    group = dist.group.WORLD
    turned = numbers.clone().conj()
    group.broadcast([turned]).wait()
    assert torch.equal(turned.resolve_conj(), numbers.conj().resolve_conj())
    imaginary = numbers.clone().conj().imag
    assert imaginary.is_neg()
    if not HIDES_WORKS:  # torch hands a backend a copy of it, and lets that go
        dist.all_reduce(imaginary)
        assert imaginary.tolist() == [-size()] * 4
    leaf = torch.ones(6, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.tolist() == [size()] * 6
    wide = torch.ones(4, 6, requires_grad=True)
    dist.broadcast(wide[:, ::2], src=0)
    single = torch.tensor(float(rank()))
    dist.all_reduce(single, dist.ReduceOp.MAX)
    assert single.item() == size() - 1


def check_futures_and_their_callbacks() -> None:
    """A callback may compute, and may wait for another collective; that keeps nobody from ending."""
    x = torch.full((5,), float(rank()))
    future = dist.all_reduce(x, async_op=True).get_future()

    def again(done: Any) -> Any:
        assert threading.current_thread().name != "r2ccl"
        total = done.value()[0]
        return dist.all_reduce(total.clone(), async_op=True).get_future().wait()[0]

    total = sum(range(size()))
    assert future.then(again).wait().tolist() == [total * size()] * 5
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(50)]
    everyone = torch.futures.collect_all([work.get_future() for work in works]).wait()
    assert [one.value()[0].tolist() for one in everyone] == [[size()] * 3] * 50
    assert HIDES_WORKS or works[0].get_future() is works[0].get_future()
    assert sum(thread.name == "r2ccl callbacks" for thread in threading.enumerate()) <= CALLBACK_THREADS_MAX


def check_waits_with_a_limit_and_awaits() -> None:
    """The end of the waiting is not that of the call."""
    go_on = dist.new_group()
    x = torch.full((70_000,), 1.0)
    if rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        refused(lambda: work.wait(timedelta(milliseconds=20)), TimeoutError, "still under way")
        assert not work.is_completed()
        assert HIDES_WORKS or work.exception() is None
        dist.barrier(group=go_on)
        work.wait(timedelta(minutes=5))
    else:
        dist.barrier(group=go_on)
        dist.all_reduce(x)
    assert x[0] == size()

    async def awaits() -> Any:
        return await dist.all_reduce(torch.ones(2), async_op=True)

    if HIDES_WORKS:
        dist.barrier()
    else:
        assert asyncio.run(awaits())[0].tolist() == [size()] * 2


def check_wrong_calls_change_nothing() -> None:
    usage = r2ccl.UsageError
    if not HIDES_WORKS:  # these it answers itself
        elsewhere = torch.empty(3, device="meta")
        refused(lambda: dist.all_reduce(elsewhere), usage, "pass tensor.cpu() and copy the result back")
        refused(lambda: dist.all_reduce(torch.eye(3).to_sparse()), usage, "pass tensor.to_dense()")
    refused(lambda: dist.all_reduce(torch.empty(3, dtype=torch.float8_e5m2)), usage, "cannot be reduced")
    refused(
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), usage, "not defined for int32"
    )
    refused(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), usage, "not defined for float32")
    premultiplied = dist._make_nccl_premul_sum(0.5)
    refused(lambda: dist.all_reduce(torch.ones(3), premultiplied), usage, "multiply the tensor before")
    refused(lambda: dist.all_gather([torch.ones(3)], torch.ones(3)), usage, f"a list of 1 tensors for {size()} ranks")
    refused(lambda: dist.all_gather_single(torch.ones(4), torch.ones(3)), usage, "the output has 4 elements")
    refused(lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7), [1], [7]), usage, "output_split_sizes")
    refused(lambda: dist.send(torch.ones(2), dst=1 - min(rank(), 1), tag=-1), usage, "tag=-1")
    assert r2ccl.torch_backend.failure() is None
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [size()] * 3


def check_monitored_barrier() -> None:
    r2ccl.torch_backend.monitored_barrier(timeout=timedelta(minutes=1))
    gloo = dist.new_group(backend="gloo")
    refused(lambda: r2ccl.torch_backend.monitored_barrier(gloo), r2ccl.UsageError, "its backend is gloo")
    r2ccl.torch_backend.monitored_barrier(dist.new_group(), timedelta(minutes=1), wait_all_ranks=True)


def check_every_public_call_is_accounted_for() -> None:
    """So that a torch with more of them is noticed; docs/torch.md has the table."""
    functions = {name for name in dist.distributed_c10d.__all__ if callable(getattr(dist, name, None))}
    known = {
        *("all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single"),
        *("barrier", "broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_single", "scatter"),
        *("reduce_scatter_tensor", "all_reduce_coalesced", "all_gather_coalesced", "batch_isend_irecv", "irecv"),
        *("isend", "recv", "send", "all_gather_object", "broadcast_object_list", "gather_object", "shrink_group"),
        *("recv_object_list", "scatter_object_list", "send_object_list", "monitored_barrier", "split_group"),
        *("new_group", "new_subgroups", "new_subgroups_by_enumeration", "destroy_process_group", "init_process_group"),
        *("gather_single", "gather_into_tensor", "record_comm", "set_timeout", "supports_complex"),
    }
    asked = {name for name in functions if name.startswith(("get_", "is_")) or name[0].isupper()}
    unknown = functions - known - asked - {"reduce_op", "group"}
    assert not unknown, unknown


def check_calls_that_only_some_torches_have() -> None:
    total = torch.full((3,), float(size()))
    many = [torch.ones(3), torch.ones(3)]
    dist.all_reduce_coalesced(many)
    assert all(torch.equal(one, total) for one in many)
    rooms = [[torch.empty(3)] for _ in range(size())]
    dist.all_gather_coalesced(rooms, [torch.full((3,), float(rank()))])
    assert [room[0].tolist() for room in rooms] == [[float(one)] * 3 for one in range(size())]
    wide = torch.empty(3 * size())
    dist.all_gather_into_tensor(wide, torch.ones(3))
    assert wide.tolist() == [1] * 3 * size()
    part = torch.empty(3)
    dist.reduce_scatter_tensor(part, torch.ones(3 * size()))
    assert torch.equal(part, total)
    with dist.record_comm("of mine"):
        dist.barrier()
    alone, every = dist.new_subgroups(group_size=1)
    assert (alone.size(), len(every)) == (1, size())
    dist.all_reduce(part, group=alone)
    mine, _ = dist.new_subgroups_by_enumeration([list(range(size()))])
    dist.barrier(group=mine)
    if HIDES_WORKS:
        dist.monitored_barrier(timeout=timedelta(minutes=1))
        dist.set_timeout(timedelta(minutes=7), mine)
        held = within(mine)
        assert held is not None
        assert held._group.timeout == timedelta(minutes=7)
        refused(lambda: dist.gather_single(torch.ones(3), wide if rank() == 0 else None), RuntimeError, "support")
    else:
        refused(dist.monitored_barrier, ValueError, "GLOO")
    refused(lambda: dist.split_group(split_ranks=[list(range(size()))]), RuntimeError, "")


def check_many_groups_share_one_thread() -> None:
    groups = [dist.new_group(list(range(size()))) for _ in range(10)]
    works = [(dist.all_reduce(x, group=group, async_op=True), x) for group in groups for x in [torch.ones(1000)]]
    for work, x in reversed(works):
        work.wait()
        assert x[0] == size()
    assert sum(thread.name == "r2ccl" for thread in threading.enumerate()) == 1
    for group in groups:
        assert communicator(group).counters is communicator().counters
        dist.destroy_process_group(group)
    refused(lambda: groups[0].allreduce([torch.ones(1)]), r2ccl.CommunicatorClosed, "closed")
    dist.barrier()


def check_a_group_aborts_alone() -> None:
    """Its members learn of it, whoever aborts, and nobody else does."""
    group = dist.new_group()
    left = dist.new_group()
    if rank() == 0:
        dist.distributed_c10d._abort_process_group(group)
    else:
        # It may have heard already.
        refused(
            lambda: dist.all_reduce(torch.ones(100_000), group=group),
            r2ccl.CommunicatorAborted,
            "rank 0 called abort() of",
        )
        failure = r2ccl.torch_backend.failure(group)
        assert failure is not None
        assert isinstance(failure.error, r2ccl.CommunicatorAborted)
        assert any("refuses further work" in note for note in failure.error.__notes__)
        assert failure.call.startswith("all")
        refused(group.barrier, r2ccl.CommunicatorAborted, "rank 0 called abort() of")
        dist.destroy_process_group(group)
    assert r2ccl.torch_backend.failure(left) is None
    dist.barrier(group=left)
    dist.barrier()


def check_names_and_sizes() -> None:
    group = dist.new_group(group_desc="of all")
    assert dist.get_backend(group) == "r2ccl"
    assert HIDES_WORKS or group.name() == "r2ccl"
    assert (group.rank(), group.size()) == (rank(), size())
    dist.barrier(group=group)
    assert HIDES_WORKS or group._get_sequence_number_for_group() == 1
    assert dist.get_process_group_ranks(group) == list(range(size()))
    assert group.group_desc == "of all"
    assert dist.distributed_c10d._resolve_process_group(group.group_name) is group
    assert "cpu" in dist.distributed_c10d._device_capability(group)


def check_who_does_not_come_is_named() -> None:
    """In a store of this rank's own, where nobody else comes."""
    store = dist.HashStore()
    alone = [Place.of(store, here, 3) for here in (0, 1, 1)]
    kind = r2ccl.RendezvousError
    refused(lambda: find_company(alone[0], "node", False, 0.3), kind, "rank(s) 1, 2 did not come to torch's store")
    refused(lambda: find_company(alone[1], "node", False, 0.3), kind, "rank 0 did not gather all ranks")
    store.set("r2ccl/2/hello/all", b"\x81\xa1")
    refused(lambda: find_company(alone[2], "node", False, 0.3), kind, "no list of ours")


def check_anew_after_the_end() -> None:
    """The default group ends, and with it all; another is made, under another backend, with a group of r2ccl in it."""
    old = dist.new_group()
    dist.destroy_process_group()
    refused(lambda: old.allreduce([torch.ones(1)]), r2ccl.CommunicatorClosed, "closed")
    dist.init_process_group("gloo")
    group = dist.new_group(backend="r2ccl")
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [size()] * 3
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    dist.init_process_group("r2ccl")
    dist.barrier()


CHECKS: Final = tuple(value for name, value in globals().items() if name.startswith("check_"))


def main() -> None:
    dist.init_process_group("r2ccl")
    done = []
    for check in CHECKS:
        check()
        dist.barrier()
        done.append(check.__name__)
    me = rank()
    dist.destroy_process_group()
    # As one write: torchrun's interpreters buffer nothing, and its ranks have one pipe.
    print(json.dumps({"rank": me, "done": done}) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
