"""One rank of a training with Lightning, whose trainer loads the data, too."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks import task


class Module(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """The network, and what Lightning wants to know of it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = task.model()
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Any, Any], _: int) -> Any:
        points, wanted = batch
        loss = functional.mse_loss(self.model(points), wanted)
        self.losses.append(float(self.all_gather(loss.detach()).mean()))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=task.RATE)


def main(backend: str) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=backend), max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    # Lightning gives each rank every second row; whose they are there makes no difference here.
    of_rank = [task.batches(rank) for rank in range(2)]
    points = torch.cat([torch.stack([a[0], b[0]], 1).flatten(0, 1) for a, b in zip(*of_rank, strict=True)])
    wanted = torch.cat([torch.stack([a[1], b[1]], 1).flatten(0, 1) for a, b in zip(*of_rank, strict=True)])
    module = Module()
    trainer.fit(module, DataLoader(TensorDataset(points, wanted), batch_size=task.ROWS, shuffle=False))
    used = torch.distributed.get_backend()
    task.tell(module.losses, module.parameters(), backend=used)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
