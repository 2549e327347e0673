"""From times of operations to alpha, beta and delta: a robust regression by the cost model's own formulas.

An operation takes start + steps x alpha + bytes x beta + bytes that left the cache x delta, besides its reductions,
which are measured apart and taken off. *start* is what a call costs however it is done, and no concern of the planner.
It can be told from alpha only if some samples have more steps than others, and delta from beta only if the same bytes
stay in the cache in some: so the same all-reduce is measured by several algorithms. How many steps and bytes an
algorithm has is asked of ``planner.cost``, which is linear in its figures; so what is fitted is what is used, whatever
the number of ranks.

Times span six decades and their errors grow with them, so residuals are relative: a sample that took twice as long as
the model says, because something else had the core, is off by a half, and by one at most. Tukey's biweight then leaves
out what is far from the rest ("The fitting of power series, meaning polynomials, illustrated on band-spectroscopic
data", Technometrics 16, 1974). None of the four can be negative: of all choices of what is nought the best is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from r2ccl.planner.cost import Wires, cost_s

_Numbers = npt.NDArray[np.float64]

#: Residuals beyond so many robust sigmas have no say: the usual figure, 95 % efficient where errors are normal.
TUKEY = 4.685
SIGMA_OF_MEDIAN = 1.4826
#: By then weights have long settled.
ROUNDS = 30
#: No clock and no model is better than this; without it a perfect fit would leave out all that is not perfect.
SIGMA_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """One operation, as fast as it usually is."""

    collective: str
    algorithm: str
    ranks: int
    payload_bytes: int
    chunk_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What explains the samples."""

    start_s: float
    alpha_s: float
    beta_s_per_byte: float
    delta_s_per_byte: float
    #: The median of how far a sample is from the model, as a part of its time.
    error: float


def fit(samples: Sequence[Sample], gamma_s_per_byte: float) -> Fit:
    """Raises ``ValueError`` if the samples cannot tell the four apart."""
    times = np.array([one.seconds for one in samples])
    if not len(samples) or not np.all(times > 0):
        raise ValueError("there is nothing to fit: no samples, or some that took no time")
    # Divided by its time, every row says "one".
    rows = np.array([_row(one) for one in samples]) / times[:, None]
    reduced = [_seconds(one, Wires(0.0, 0.0, one.chunk_bytes, gamma_s_per_byte, 0.0, 0.0)) for one in samples]
    wanted = 1.0 - np.array(reduced) / times
    if np.linalg.matrix_rank(rows / np.maximum(np.linalg.norm(rows, axis=0), np.finfo(float).tiny)) < rows.shape[1]:
        raise ValueError("the samples do not tell alpha, beta and delta apart: more algorithms and sizes are needed")
    found = _not_negative(rows, wanted, np.ones(len(samples)))
    for _ in range(ROUNDS):
        residuals = np.abs(wanted - rows @ found)
        sigma = max(SIGMA_LEAST, SIGMA_OF_MEDIAN * float(np.median(residuals)))
        weights = np.clip(1.0 - (residuals / (TUKEY * sigma)) ** 2, 0.0, None) ** 2
        found = _not_negative(rows, wanted, weights)
    start_s, alpha_s, beta, delta = (float(figure) for figure in found)
    return Fit(start_s, alpha_s, beta, delta, float(np.median(np.abs(wanted - rows @ found))))


def _row(one: Sample) -> tuple[float, float, float, float]:
    """How often a sample pays start, alpha, beta and delta."""
    chunk_bytes = one.chunk_bytes
    return (
        1.0,
        _seconds(one, Wires(1.0, 0.0, chunk_bytes, 0.0, 0.0, 0.0)),
        _seconds(one, Wires(0.0, 1.0, chunk_bytes, 0.0, 0.0, 0.0)),
        _seconds(one, Wires(0.0, 0.0, chunk_bytes, 0.0, 1.0, 0.0)),
    )


def _seconds(one: Sample, wires: Wires) -> float:
    return cost_s(one.collective, one.algorithm, one.ranks, one.payload_bytes, wires)


def _not_negative(rows: _Numbers, wanted: _Numbers, weights: _Numbers) -> _Numbers:
    """The least squares among figures of which none is negative."""
    roots = np.sqrt(weights)
    best, least = np.zeros(rows.shape[1]), float(np.sum(weights * wanted**2))
    for size in range(1, rows.shape[1] + 1):
        for kept in itertools.combinations(range(rows.shape[1]), size):
            columns = rows[:, kept] * roots[:, None]
            lengths = np.linalg.norm(columns, axis=0)
            if not np.all(lengths > 0):
                continue
            # The columns differ by many decades, which is no matter of rank.
            solved = np.linalg.lstsq(columns / lengths, wanted * roots, rcond=None)[0] / lengths
            candidate = np.zeros(rows.shape[1])
            candidate[list(kept)] = solved
            rest = float(np.sum(weights * (wanted - rows @ candidate) ** 2))
            if np.all(solved >= 0) and rest < least:
                best, least = candidate, rest
    return best


def slope(points: Sequence[tuple[float, float]]) -> float:
    """What one more of x costs: the median of the slopes of all pairs (Theil and Sen), which a third of wrong points
    does not move far. Raises ``ValueError`` if all x are equal."""
    slopes = [
        (other_y - y) / (other_x - x)
        for (x, y), (other_x, other_y) in itertools.combinations(points, 2)
        if other_x != x
    ]
    if not slopes:
        raise ValueError("points of one x have no slope")
    return median(slopes)
