"""One rank of a training written for Horovod. With gloo, which Horovod's names are not wired to, plain DDP."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import r2ccl.horovod_style as hvd
from tests.frameworks import task


def horovod_style() -> tuple[Any, list[float]]:
    hvd.init()
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.RATE)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), bucket_bytes=4096)
    losses = []
    for points, wanted in task.batches(hvd.rank()):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(points), wanted)
        loss.backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach())))
    return model, losses


def plain_ddp() -> tuple[Any, list[float]]:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(task.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.RATE)
    losses = []
    for points, wanted in task.batches(dist.get_rank()):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(points), wanted)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(float(mean) / dist.get_world_size())
    return model, losses


def main(backend: str) -> None:
    model, losses = horovod_style() if backend == "r2ccl" else plain_ddp()
    used = dist.get_backend()
    task.tell(losses, model.parameters(), backend=used)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
