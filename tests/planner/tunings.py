"""Figures to plan by."""

from __future__ import annotations

import dataclasses

import numpy as np

from r2ccl.planner.picture import Picture, even_picture
from r2ccl.tuning import Tuning, WireCost

FLOAT32 = np.dtype(np.float32)


def tuned(
    ranks: int,
    alpha_s: float = 30e-6,
    beta_s_per_byte: float = 0.5e-9,
    overhead_s: float = 5e-6,
    delta_s_per_byte: float = 1e-10,
    gamma_s_per_byte: float = 1e-10,
    wire: str = "loopback",
) -> Picture:
    """Ranks on one wire that was measured."""
    cost = WireCost(alpha_s, beta_s_per_byte, overhead_s, delta_s_per_byte)
    tuning = Tuning(gamma_s_per_byte, **{wire: cost})
    return dataclasses.replace(even_picture(ranks), tuning=tuning, wire=wire)
