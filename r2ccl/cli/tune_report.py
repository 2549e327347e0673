"""What ``r2ccl tune`` tells: figures, how well they explain the times, and at which sizes algorithms change by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from r2ccl.cli.plain_table import aligned
from r2ccl.cli.tune_job import Outcome
from r2ccl.planner.picture import Picture, even_picture
from r2ccl.planner.requests import CollectiveKind
from r2ccl.planner.switches import Reach, switches
from r2ccl.tuning import Tuning

#: For jobs of how many ranks the sizes are told, besides that of the measurement.
EXAMPLE_RANKS: Final = (8, 64)
SHOWN: Final = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER)
#: The model misses half of the times by more than this: something else had the machine, or it is another kind of wire.
ERROR_MAX: Final = 0.25
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def merged(outcome: Outcome, before: Tuning | None) -> Tuning:
    """The new figures, and those of wires that were not measured this time."""
    kept = {} if before is None else before.wires()
    costs = {**kept, **{wire: measured.cost for wire, measured in outcome.wires.items()}}
    return Tuning(outcome.gamma_s_per_byte, **costs)


def pictured(tuning: Tuning, wire: str, ranks: int) -> Picture:
    """So many ranks on one wire. NICs are as fast as they need be."""
    return dataclasses.replace(even_picture(ranks, bandwidth_bytes_s=1e15), tuning=tuning, wire=wire)


def as_object(outcome: Outcome, tuning: Tuning, path: Path | None) -> dict[str, Any]:
    """For scripts."""
    return {
        "file": None if path is None else str(path),
        "ranks": outcome.ranks,
        "nodes": outcome.nodes,
        "gamma_s_per_byte": tuning.gamma_s_per_byte,
        "wires": {
            wire: {
                **dataclasses.asdict(measured.cost),
                "start_s": measured.start_s,
                "error": measured.error,
                "samples": [dataclasses.asdict(sample) for sample in measured.samples],
            }
            for wire, measured in outcome.wires.items()
        },
        "kept": sorted(set(tuning.wires()) - set(outcome.wires)),
        "switches": {
            wire: {str(ranks): as_dicts(pictured(tuning, wire, ranks)) for ranks in (outcome.ranks, *EXAMPLE_RANKS)}
            for wire in outcome.wires
        },
    }


def as_dicts(picture: Picture) -> dict[str, list[dict[str, Any]]]:
    """By collective which algorithm is chosen up to which size."""
    return {kind.value: [dataclasses.asdict(reach) for reach in switches(kind, picture)] for kind in SHOWN}


def lines(outcome: Outcome, tuning: Tuning) -> list[str]:
    """For a person."""
    told = [*cost_lines(tuning), ""]
    for wire, measured in outcome.wires.items():
        told.append(f"{wire.replace('_', ' ')}: half of the times are within {measured.error:.0%} of the model")
        if measured.error > ERROR_MAX:
            told.append("  that is much: something else has the machine? Measure again when it is idle")
    for wire in outcome.wires:
        for ranks in sorted({outcome.ranks, *EXAMPLE_RANKS}):
            picture = pictured(tuning, wire, ranks)
            told += ["", f"{ranks} ranks on {wire.replace('_', ' ')}:"]
            told += [f"  {kind.value:<12}{in_words(switches(kind, picture))}" for kind in SHOWN]
    return told


def cost_lines(tuning: Tuning) -> list[str]:
    """The figures as a table."""
    rows = [
        (
            wire.replace("_", " "), f"{cost.alpha_s * 1e6:.1f} us", f"{1e-9 / cost.beta_s_per_byte:.2f} GB/s",
            f"{cost.overhead_s * 1e6:.1f} us", f"{1e-9 / cost.delta_s_per_byte:.3g} GB/s",
        )
        for wire, cost in tuning.wires().items()
    ]  # fmt: skip
    table = aligned(("wire", "alpha", "1/beta", "one more message", "1/delta"), rows)
    return [*table, f"reduction, 1/gamma: {1e-9 / tuning.gamma_s_per_byte:.3g} GB/s"]


def in_words(reaches: list[Reach]) -> str:
    """Such as ``recursive_doubling to 64 KiB, ring above``."""
    if len(reaches) == 1:
        return f"{reaches[0].algorithm} always"
    below = [
        f"{reach.algorithm} to {size(reach.largest_bytes)}" for reach in reaches if reach.largest_bytes is not None
    ]
    return ", ".join([*below, f"{reaches[-1].algorithm} above"])


def size(size_bytes: int) -> str:
    """In the largest unit that leaves a number from 1 on."""
    for factor, unit in _UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes} B"


def told_of(tuning: Tuning) -> Mapping[str, Any]:
    """The figures for ``r2ccl info --json``."""
    return {
        "gamma_s_per_byte": tuning.gamma_s_per_byte,
        "wires": {wire: dataclasses.asdict(cost) for wire, cost in tuning.wires().items()},
    }
