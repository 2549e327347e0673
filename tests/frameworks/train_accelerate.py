"""One rank of a training with Hugging Face accelerate."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn import functional

from tests.frameworks import task


def main(backend: str) -> None:
    # On CPUs accelerate makes a group of gloo, whatever it is told, and takes the one that it finds.
    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.RATE)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for points, wanted in task.batches(accelerator.process_index):
        with accelerator.accumulate(model):
            loss = functional.mse_loss(model(points), wanted)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(accelerator.gather(loss.detach()).mean()))
    accelerator.wait_for_everyone()
    used = dist.get_backend()
    task.tell(losses, model.parameters(), backend=used, wrapped=type(model).__name__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
