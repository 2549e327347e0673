"""One rank of a training with DeepSpeed's ZeRO, stage 1: each rank has a part of the optimizer's state."""

from __future__ import annotations

import sys

import deepspeed
import torch
from torch.nn import functional

from tests.frameworks import task

CONFIGURATION = {
    "train_micro_batch_size_per_gpu": task.ROWS,
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "steps_per_print": 1_000_000,
}


#: Would be compiled when the process group is made, for minutes, and serves inference alone.
SHARED_MEMORY = "deepspeed_shm_comm"


def main(backend: str) -> None:
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY] = False
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    model = task.model()
    # torch's own optimizer: DeepSpeed's would be compiled first.
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIGURATION)
    losses = []
    for points, wanted in task.batches(torch.distributed.get_rank()):
        loss = functional.mse_loss(engine(points), wanted)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(float(mean) / torch.distributed.get_world_size())
    used = torch.distributed.get_backend()
    task.tell(losses, model.parameters(), backend=used, stage=engine.zero_optimization_stage())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
