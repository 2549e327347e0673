"""One rank of a program that uses Horovod's names: every call, and what it refuses.

Each check is a function; prints the names of those that held.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

import r2ccl.horovod_style as hvd
from r2ccl.errors import UsageError

Check = Callable[[], None]


def refused(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """What the refusal says."""
    try:
        call(*arguments, **options)
    except UsageError as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


def same(found: Any, wanted: Sequence[Any] | int) -> None:
    assert torch.equal(found, torch.tensor(wanted)), (found, wanted)


def who_takes_part() -> None:
    size = dist.get_world_size()
    assert (hvd.rank(), hvd.size()) == (dist.get_rank(), size)
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    hvd.init()  # once more does nothing
    assert hvd.size() == size


def sums_and_averages() -> None:
    rank, size = hvd.rank(), hvd.size()
    given = torch.tensor([1.0, 2.0]) * (rank + 1)
    total = sum(range(1, size + 1))
    same(hvd.allreduce(given), [total / size, 2 * total / size])
    same(hvd.allreduce(given, average=False), [1.0 * total, 2.0 * total])
    same(hvd.allreduce(given, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), [2.0 * total, 4.0 * total])
    same(hvd.allreduce(given, compression=hvd.Compression.fp16), [total / size, 2 * total / size])
    same(given, [rank + 1.0, 2.0 * rank + 2.0])
    same(hvd.allreduce(torch.tensor([rank, -rank]), op=hvd.Max), [size - 1, 0])
    same(hvd.allreduce(torch.tensor([rank, -rank]), op=hvd.Min), [0, 1 - size])
    same(hvd.allreduce(torch.tensor([2]), op=hvd.Product), [2**size])
    in_place = given.clone()
    assert hvd.allreduce_(in_place, op=hvd.Sum) is in_place
    same(in_place, [1.0 * total, 2.0 * total])
    column = torch.ones(3, 2)[:, 0]
    same(hvd.allreduce_(column, op=hvd.Sum, postscale_factor=2.0), [2.0 * size] * 3)
    first, second = hvd.grouped_allreduce([given, given * 2], op=hvd.Sum)
    same(first, [1.0 * total, 2.0 * total])
    same(second, [2.0 * total, 4.0 * total])
    assert hvd.grouped_allreduce_([in_place], op=hvd.Max)[0] is in_place


def handles() -> None:
    size = hvd.size()
    handle = hvd.allreduce_async_(torch.ones(1000), op=hvd.Sum)
    others = [hvd.broadcast_async(torch.full((2,), float(hvd.rank())), root) for root in range(size)]
    same(hvd.synchronize(handle), [1.0 * size] * 1000)
    assert hvd.poll(handle)
    assert hvd.synchronize(handle) is hvd.synchronize(handle)
    for root, other in enumerate(others):
        same(hvd.synchronize(other), [1.0 * root] * 2)


def gradients_flow_through_an_all_reduce() -> None:
    size = hvd.size()
    weight = torch.tensor([2.0], requires_grad=True)
    for op, factor in ((hvd.Average, 1.0 / size), (hvd.Sum, 1.0)):
        weight.grad = None
        # Each rank's loss is its number times the sum of all weights.
        (hvd.allreduce(weight, op=op) * (hvd.rank() + 1)).sum().backward()
        assert torch.allclose(weight.grad, torch.tensor([factor * sum(range(1, size + 1))]))


def rows_of_all() -> None:
    rank, size = hvd.rank(), hvd.size()
    gathered = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    same(gathered[:, 1], [float(one) for one in range(size) for _ in range(one + 1)])
    same(hvd.allgather(torch.empty(3 if rank else 0, dtype=torch.int32).fill_(rank)).sum(), 3 * sum(range(size)))
    rows = torch.arange(2.0 * size + 1)
    mine = torch.tensor_split(rows, size)[rank]
    same(hvd.reducescatter(rows), mine.tolist())
    same(hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), (mine * 2 * size).tolist())
    same(hvd.alltoall(torch.arange(size) * 10 + rank), [10 * rank + one for one in range(size)])
    # Rank r sends s + 1 rows to rank s.
    splits = [one + 1 for one in range(size)]
    received, counts = hvd.alltoall(torch.full((sum(splits), 2), float(rank)), splits=torch.tensor(splits))
    same(counts, [rank + 1] * size)
    same(received[:, 0], [float(one) for one in range(size) for _ in range(rank + 1)])


def what_one_rank_has() -> None:
    rank, size = hvd.rank(), hvd.size()
    last = size - 1
    given = torch.full((3,), float(rank))
    same(hvd.broadcast(given, last), [1.0 * last] * 3)
    same(given, [1.0 * rank] * 3)
    assert hvd.broadcast_(given, 0) is given
    same(given, [0.0] * 3)
    assert hvd.broadcast_object({"rank": rank}, last) == {"rank": last}
    assert hvd.allgather_object(rank) == list(range(size))
    torch.manual_seed(rank)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    network[1].num_batches_tracked += rank
    hvd.broadcast_parameters(network.state_dict(), root_rank=last)
    expected = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.manual_seed(last)
    expected[0].reset_parameters()
    assert torch.equal(network[0].weight, expected[0].weight)
    assert int(network[1].num_batches_tracked) == last
    hvd.broadcast_parameters(network.named_parameters(), root_rank=0)
    hvd.barrier()


def the_state_of_an_optimizer() -> None:
    for kind in (torch.optim.AdamW, torch.optim.LBFGS):
        torch.manual_seed(3)
        network = torch.nn.Linear(24, 2)
        optimizer = kind(network.parameters(), lr=0.5 / (1 + hvd.rank()))
        if hvd.rank() == 0:  # as the one that has read a checkpoint
            optimizer.step(partial(loss_of, network, 0, 0))
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state = optimizer.state_dict()
        assert state["param_groups"][0]["lr"] == 0.5
        theirs = hvd.broadcast_object(state, 0)
        assert repr(state) == repr(theirs)
        assert state["state"]


def model() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 96), torch.nn.GELU(), torch.nn.Linear(96, 48), torch.nn.GELU(), torch.nn.Linear(48, 8)
    )


def batch(rank: int, step: int) -> Any:
    return torch.randn(6, 24, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(network: Any, rank: int, step: int) -> Any:
    network.zero_grad()
    loss = network(batch(rank, step)).square().mean()
    loss.backward()
    return loss


def what_is_refused() -> None:
    ones, scalar = torch.ones(2), torch.tensor(1.0)
    assert "op=Sum" in refused(hvd.allreduce, torch.ones(2, dtype=torch.int64))
    assert "op=Sum" in refused(hvd.reducescatter, torch.ones(2, dtype=torch.int64))
    assert "pass one" in refused(hvd.allreduce, ones, average=True, op=hvd.Sum)
    assert "none of Average" in refused(hvd.allreduce, ones, op="sum")
    assert "no gradient" in refused(hvd.allreduce, torch.ones(2, requires_grad=True), op=hvd.Max)
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.allreduce_async):
        assert "detach()" in refused(call, torch.ones(2, requires_grad=True))
    assert "detach()" in refused(hvd.broadcast, torch.ones(2, requires_grad=True), 0)
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        assert "scalar" in refused(call, scalar)
    assert "Average or Sum" in refused(hvd.reducescatter, ones, op=hvd.Max)
    assert "pass splits" in refused(hvd.alltoall, torch.ones(hvd.size() + 1))
    assert "sum up to" in refused(hvd.alltoall, ones, splits=[5] * hvd.size())
    assert "drop_last" in refused(hvd.join)
    assert "named_parameters()" in refused(hvd.broadcast_parameters, [ones], 0)
    assert "neither" in refused(hvd.broadcast_parameters, 3, 0)


CHECKS: Final[tuple[Check, ...]] = (
    who_takes_part,
    sums_and_averages,
    handles,
    gradients_flow_through_an_all_reduce,
    rows_of_all,
    what_one_rank_has,
    the_state_of_an_optimizer,
    what_is_refused,
)


def perform(checks: Sequence[Check], names: list[str]) -> None:
    """Run the checks, or those of these names, in a job, and tell which held."""
    assert "init()" in refused(hvd.rank)
    hvd.init()
    held = []
    for check in checks:
        if names and check.__name__ not in names:
            continue
        check()
        held.append(check.__name__)
    rank = hvd.rank()
    hvd.shutdown()
    assert not hvd.is_initialized()
    print(json.dumps({"rank": rank, "held": held}), flush=True)


if __name__ == "__main__":
    perform(CHECKS, sys.argv[1:])
