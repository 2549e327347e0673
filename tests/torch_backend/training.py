"""One rank of trainings with what torch builds on its collectives, each with r2ccl and with gloo, which must agree.

Two ranks must agree to the bit; of more, the order in which gloo adds is its own affair. Each scenario is a function of
a group, and what it returns is compared. Prints the names of the scenarios that agreed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import r2ccl.torch_backend  # noqa: F401 - registers the backend

STEPS = 4
Results = list[Any]


def model() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 96), torch.nn.GELU(), torch.nn.Linear(96, 48), torch.nn.GELU(), torch.nn.Linear(48, 8)
    )


def batch(rank: int, step: int) -> Any:
    return torch.randn(6, 24, generator=torch.Generator().manual_seed(1000 * step + rank))


def steps(trained: Any, rank: int, no_sync: bool = False) -> Results:
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        if no_sync:
            with trained.no_sync():
                trained(batch(rank, 100 + step)).square().mean().backward()
        loss = trained(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in trained.parameters())]


def wrapped(group: Any, **options: Any) -> Any:
    # Buckets of a few kilobytes: several in each backward.
    return DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.01, **options)


def ddp_with_several_buckets(group: Any) -> Results:
    return steps(wrapped(group), group.rank())


def ddp_with_no_sync(group: Any) -> Results:
    return steps(wrapped(group, gradient_as_bucket_view=True), group.rank(), no_sync=True)


def ddp_with_unused_parameters(group: Any) -> Results:
    trained = model()
    trained.extend([torch.nn.Identity()])
    trained[-1].register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    parallel = DistributedDataParallel(trained, process_group=group, find_unused_parameters=True)
    return steps(parallel, group.rank())


def ddp_with_a_hook(group: Any) -> Results:
    """Halves on the wire, as the hook of torch does where it is allowed to."""

    def hook(_, bucket):  # torch refuses annotations of its own kind that are text
        halves = bucket.buffer().to(torch.bfloat16).div_(group.size())
        future = dist.all_reduce(halves, group=group, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    trained = wrapped(group)
    trained.register_comm_hook(None, hook)
    return steps(trained, group.rank())


def ddp_with_a_hook_that_waits(group: Any) -> Results:
    """PowerSGD waits for a collective in a callback of another. With several buckets their callbacks, and so their
    collectives, would come in the order in which the first ones end, which no two ranks share."""
    trained = DistributedDataParallel(model(), process_group=group)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=3)
    trained.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return steps(trained, group.rank())


def fsdp2(group: Any) -> Results:
    return sharded(group, MixedPrecisionPolicy())


def fsdp2_in_bfloat16(group: Any) -> Results:
    return sharded(group, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def sharded(group: Any, policy: Any) -> Results:
    mesh = DeviceMesh.from_group(group, "cpu")
    trained = model()
    for layer in trained:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(trained, mesh=mesh, mp_policy=policy)
    return [
        result.full_tensor() if hasattr(result, "full_tensor") else result for result in steps(trained, group.rank())
    ]


def tensor_parallel(group: Any) -> Results:
    mesh = DeviceMesh.from_group(group, "cpu")
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    trained = parallelize_module(model(), mesh, plan)
    results = steps(trained, rank=0)
    return [result.full_tensor() if hasattr(result, "full_tensor") else result for result in results]


def dtensors(group: Any) -> Results:
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = torch.arange(48.0).view(6, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    partly = columns.sum(dim=1)
    return [
        rows.to_local(),
        columns.to_local(),
        columns.redistribute(mesh, [Replicate()]).to_local(),
        partly.full_tensor(),
    ]


def distributed_checkpoint(group: Any) -> Results:
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = torch.arange(60.0).view(10, 6)
    kept = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "steps": torch.tensor(5)}
    where = [tempfile.mkdtemp() if group.rank() == 0 else None]
    dist.broadcast_object_list(where, group=group, group_src=0)
    checkpoint.save(kept, checkpoint_id=where[0], process_group=group)
    found = {"sharded": distribute_tensor(torch.zeros(10, 6), mesh, [Shard(1)]), "steps": torch.tensor(0)}
    checkpoint.load(found, checkpoint_id=where[0], process_group=group)
    dist.barrier(group=group)
    assert Path(str(where[0])).exists()
    assert torch.equal(found["sharded"].full_tensor(), whole)
    return [found["sharded"].to_local(), found["steps"]]


def functional_collectives(group: Any) -> Results:
    x = torch.arange(24.0).view(12, 2) + group.rank()
    size = group.size()
    made = [
        functional.all_reduce(x, "sum", group),
        functional.all_gather_tensor(x, 0, group),
        functional.reduce_scatter_tensor(x[: 12 // size * size].contiguous(), "sum", 0, group),
        functional.all_to_all_single(x[: 12 // size * size].contiguous(), None, None, group),
        functional.broadcast(x, 1, group),
        *functional.all_reduce_coalesced([x, x + 1], "max", group),
        *functional.all_gather_into_tensor_coalesced([x, x + 1], group),
        *functional.reduce_scatter_tensor_coalesced([x[: 12 // size * size].contiguous()], "sum", [0], group),
    ]
    return [one + 0 for one in made]


def compiled(group: Any) -> Results:
    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator, unused-ignore]
    def program(x: Any) -> Any:
        total = functional.all_reduce(x.cos(), "sum", group)
        return functional.all_gather_tensor(total.sin(), 0, group) * 2

    return [program(torch.arange(10.0) + group.rank() + turn) for turn in range(3)]


def compiled_ddp(group: Any) -> Results:
    trained = torch.compile(DistributedDataParallel(model(), process_group=group), backend="eager")
    return steps(trained, group.rank())


SCENARIOS: Final[tuple[Callable[[Any], Results], ...]] = (
    ddp_with_several_buckets,
    ddp_with_no_sync,
    ddp_with_unused_parameters,
    ddp_with_a_hook,
    ddp_with_a_hook_that_waits,
    fsdp2,
    fsdp2_in_bfloat16,
    tensor_parallel,
    dtensors,
    distributed_checkpoint,
    functional_collectives,
    compiled,
    compiled_ddp,
)


#: Of these, more ranks than two round to bfloat16 in an order of their own.
ROUNDED: Final = frozenset(("ddp_with_a_hook", "ddp_with_a_hook_that_waits", "fsdp2_in_bfloat16"))


def difference(ours: Results, theirs: Results) -> float:
    """The largest between two numbers that should be one; infinite if they are not of the same kind."""
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        return float("inf")
    pairs = zip(ours, theirs, strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs if one.numel())


def tolerance(name: str) -> float:
    if dist.get_world_size() == 2:
        return 0.0
    return 1e-2 if name in ROUNDED else 1e-6


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("r2ccl")
    gloo = dist.new_group(backend="gloo")
    agreed = []
    for scenario in SCENARIOS:
        if names and scenario.__name__ not in names:
            continue
        ours = scenario(dist.group.WORLD)
        theirs = scenario(gloo)
        name = scenario.__name__
        assert difference(ours, theirs) <= tolerance(name), (name, difference(ours, theirs))
        agreed.append(name)
    dist.barrier()
    rank = dist.get_rank()
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "agreed": agreed}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
