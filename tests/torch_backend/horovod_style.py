"""One rank of a program that uses Horovod's names: every call, what it refuses, and trainings beside plain DDP.

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
from torch.nn.parallel import DistributedDataParallel

import r2ccl.horovod_style as hvd
from r2ccl.errors import UsageError

STEPS = 4


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


def what_an_optimizer_refuses() -> None:
    network = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(network.parameters(), lr=0.1)
    named = list(network.named_parameters())
    wrap = hvd.DistributedOptimizer
    assert "Average or Sum" in refused(wrap, plain, op=hvd.Max)
    assert "divides an average" in refused(wrap, plain, op=hvd.Sum, gradient_predivide_factor=2.0)
    assert "stand(s) there twice" in refused(wrap, plain, named + named)
    assert "not among them" in refused(wrap, plain, named[:1])
    assert "which has names" in refused(wrap, plain, network.parameters())
    optimizer = wrap(plain, named)
    assert isinstance(optimizer, torch.optim.SGD)
    assert "distributed already" in refused(wrap, optimizer)
    assert "before DistributedOptimizer()" in refused(optimizer.add_param_group, {"params": [torch.ones(1)]})
    network(torch.ones(1, 2)).sum().backward()
    assert "under way" in refused(optimizer.zero_grad)
    optimizer.synchronize()
    network(torch.ones(1, 2)).sum().backward()
    assert "came between" in refused(optimizer.step)
    assert "more than 1 time(s)" in refused(network(torch.ones(1, 2)).sum().backward)
    optimizer.synchronize()
    torch.optim.lr_scheduler.StepLR(scheduled := torch.optim.SGD(network.parameters(), lr=0.1), 1)
    assert "schedulers after" in refused(wrap, scheduled)


# Trainings, beside plain DDP.


def model() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 96), torch.nn.GELU(), torch.nn.Linear(96, 48), torch.nn.GELU(), torch.nn.Linear(48, 8)
    )


def batch(rank: int, step: int) -> Any:
    return torch.randn(6, 24, generator=torch.Generator().manual_seed(1000 * step + rank))


def trained(optimizer_of: Callable[[Any], Any], passes: int = 1) -> tuple[list[Any], Any]:
    """The parameters after some steps, and the optimizer."""
    network = model()
    optimizer = optimizer_of(network)
    for step in range(STEPS):
        for number in range(passes):
            network(batch(hvd.rank(), passes * step + number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach() for one in network.parameters()], optimizer


def beside_ddp(passes: int = 1) -> list[Any]:
    network = model()
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        for number in range(passes - 1):
            with parallel.no_sync():
                parallel(batch(hvd.rank(), passes * step + number)).square().mean().backward()
        parallel(batch(hvd.rank(), passes * step + passes - 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach() for one in network.parameters()]


def close(ours: list[Any], theirs: list[Any], tolerance: float = 1e-6) -> None:
    assert all(torch.allclose(one, other, rtol=0, atol=tolerance) for one, other in zip(ours, theirs, strict=True))


def distributed(network: Any, **options: Any) -> Any:
    plain = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(plain, network.named_parameters(), **options)


def training_is_that_of_ddp() -> None:
    expected = beside_ddp()
    several: tuple[dict[str, Any], ...] = (
        {},
        {"bucket_bytes": 4096},
        {"bucket_bytes": 1},
        {"gradient_predivide_factor": 2.0},
    )
    for options in several:
        ours, _ = trained(partial(distributed, **options))
        close(ours, expected)
    ours, _ = trained(lambda network: distributed(network, compression=hvd.Compression.fp16))
    close(ours, expected, 1e-2)
    assert not all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


def gradients_are_accumulated() -> None:
    expected = beside_ddp(passes=3)
    ours, optimizer = trained(
        lambda network: distributed(network, backward_passes_per_step=3, bucket_bytes=4096), passes=3
    )
    close(ours, expected)
    optimizer.set_backward_passes_per_step(1)
    ours, _ = trained(lambda network: distributed(network, op=hvd.Sum))
    assert not torch.allclose(ours[0], beside_ddp()[0])


def gradients_are_clipped_between() -> None:
    for skips in (False, True):
        network = model()
        optimizer = distributed(network)
        network(batch(hvd.rank(), 0) * 100).square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        clipped = network[0].weight.grad.clone()
        if skips:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        assert torch.equal(network[0].weight.grad, clipped)
        assert len(set(hvd.allgather_object(float(clipped.sum())))) == 1


def ranks_reach_other_parameters() -> None:
    """Some ranks use one layer, some the other; none uses the third, and nobody waits for ever."""
    torch.manual_seed(1)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 1) for _ in range(3)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=1.0), layers.named_parameters(), bucket_bytes=1
    )
    before = [layer.weight.detach().clone() for layer in layers]
    users = [len(range(first, hvd.size(), 2)) for first in (0, 1)]
    layers[hvd.rank() % 2](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    for number, used in enumerate([*users, 0]):
        moved = before[number] - layers[number].weight.detach()
        assert torch.allclose(moved, torch.full((1, 4), used / hvd.size())), (number, moved)


def what_is_frozen_stays() -> None:
    network = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(network.parameters(), lr=0.1, weight_decay=0.5))
    network[0].weight.requires_grad_(False)
    before = network[0].weight.clone()
    network(batch(hvd.rank(), 0)).square().mean().backward()
    optimizer.step()
    assert torch.equal(network[0].weight, before)


def sparse_gradients() -> None:
    for dense in (False, True):
        table = torch.nn.Embedding(5, 2, sparse=True)
        with torch.no_grad():
            table.weight.fill_(1.0)
        plain = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, table.named_parameters(), sparse_as_dense=dense)
        loss = table(torch.tensor([hvd.rank()])).sum()
        if dense:
            loss.backward()
            optimizer.step()
            moved = 1 - table.weight.detach()[: hvd.size(), 0]
            assert torch.allclose(moved, torch.full((hvd.size(),), 1 / hvd.size()))
        else:
            assert "sparse_as_dense" in refused(loss.backward)


def closures_and_hooks() -> None:
    network = model()
    plain = torch.optim.LBFGS(network.parameters(), max_iter=3)
    optimizer = hvd.DistributedOptimizer(plain, network.named_parameters())
    calls: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    optimizer.load_state_dict(optimizer.state_dict())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = network(batch(hvd.rank(), 0)).square().mean()
        loss.backward()
        return hvd.allreduce(loss.detach())

    first = float(optimizer.step(closure))
    assert float(closure()) < first
    optimizer.synchronize()
    assert len(calls) == 1
    assert len(set(hvd.allgather_object(float(network[0].weight.detach().sum())))) == 1


def schedules() -> None:
    network = model()
    optimizer = distributed(network)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    network(batch(hvd.rank(), 0)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert len(set(hvd.allgather_object(float(network[0].weight.detach().sum())))) == 1


CHECKS: Final[tuple[Callable[[], None], ...]] = (
    who_takes_part,
    sums_and_averages,
    handles,
    gradients_flow_through_an_all_reduce,
    rows_of_all,
    what_one_rank_has,
    the_state_of_an_optimizer,
    what_is_refused,
    what_an_optimizer_refuses,
    training_is_that_of_ddp,
    gradients_are_accumulated,
    gradients_are_clipped_between,
    ranks_reach_other_parameters,
    what_is_frozen_stays,
    sparse_gradients,
    closures_and_hooks,
    schedules,
)


def main(names: list[str]) -> None:
    assert "init()" in refused(hvd.rank)
    hvd.init()
    held = []
    for check in CHECKS:
        if names and check.__name__ not in names:
            continue
        check()
        held.append(check.__name__)
    rank = hvd.rank()
    hvd.shutdown()
    assert not hvd.is_initialized()
    print(json.dumps({"rank": rank, "held": held}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
