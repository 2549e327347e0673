"""What each framework trains here: a small network on data that each rank draws for itself, and how it tells."""

from __future__ import annotations

import json
from typing import Any

import torch

import r2ccl.torch_backend  # noqa: F401 - registers the backend

STEPS = 12
ROWS = 16
WIDTH = 24
RATE = 0.05


def model() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)
    )


def batch(rank: int, step: int) -> tuple[Any, Any]:
    """Points, and a sum of some of their coordinates."""
    points = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
    return points, points[:, ::3].sum(dim=1, keepdim=True)


def batches(rank: int) -> list[tuple[Any, Any]]:
    return [batch(rank, step) for step in range(STEPS)]


def tell(losses: list[float], parameters: Any, **more: Any) -> None:
    """For the test: this rank's losses, and a number that stands for its parameters."""
    print(json.dumps({"losses": losses, "sum": checked_sum(parameters), **more}), flush=True)


def checked_sum(parameters: Any) -> str:
    """Equal where all parameters are, to the bit."""
    flat = torch.cat([one.detach().reshape(-1).double() for one in parameters])
    return float((flat * torch.arange(1, len(flat) + 1)).sum()).hex()
