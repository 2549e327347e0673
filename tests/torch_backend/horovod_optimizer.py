"""One rank of trainings with Horovod's distributed optimizer, beside plain DDP, and what the optimizer refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

import r2ccl.horovod_style as hvd
from tests.torch_backend.horovod_style import Check, batch, model, perform, refused

STEPS = 4


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
        optimizer = distributed(network, op=hvd.Sum)  # to reduce twice would double it
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


CHECKS: Final[tuple[Check, ...]] = (
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


if __name__ == "__main__":
    perform(CHECKS, sys.argv[1:])
