"""The pictures beside the tables: time and bus bandwidth over size, on logarithmic axes, with the limit drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from r2ccl.cli import performance_parts as parts
from r2ccl.cli.performance_figures import Measured, Part

#: Parts that have a picture.
DRAWN: Final = (parts.TCP_2, parts.TCP_4, parts.MEMORY_2, parts.MEMORY_4, parts.LAB)
#: Sides that only move bytes. Dashed.
LIMITS: Final = (parts.EXCHANGE, parts.MEMCPY, parts.STREAMS)
COLOURS: Final = MappingProxyType(
    {
        parts.OURS: "tab:blue", parts.SHARED: "tab:blue", parts.THREAD: "tab:cyan", parts.SHARED_THREAD: "tab:cyan",
        parts.GLOO: "tab:gray", parts.OPENMPI: "tab:orange", parts.MPTCP: "tab:green", parts.EXCHANGE: "black",
        parts.MEMCPY: "black", parts.STREAMS: "black",
    }
)  # fmt: skip


def is_possible() -> bool:
    """Whether there is matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def file_name(key: str) -> str:
    """Of a part's picture."""
    return f"performance-{key}.svg"


def plot(file: Path, part: Part, names: MappingProxyType[str, str]) -> None:
    """Two panels; bands are from the least to the most of the rounds. The file's ending says the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    time_panel, bandwidth_panel = figure.subplots(1, 2)
    for side in part.sides:
        measured = list(part.of(side))
        _line(time_panel, side, names[side], measured, [_times_us(one) for one in measured])
        _line(bandwidth_panel, side, names[side], measured, [_bandwidths(part, one) for one in measured])
    for panel, label in ((time_panel, "us, an all-reduce"), (bandwidth_panel, "GB/s, bus bandwidth")):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("bytes")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    time_panel.legend(loc="upper left", fontsize=8)
    figure.savefig(file)


def _times_us(one: Measured) -> tuple[float, float, float]:
    spread = one.time_s
    return spread.median * 1e6, spread.smallest * 1e6, spread.largest * 1e6


def _bandwidths(part: Part, one: Measured) -> tuple[float, float, float]:
    moved, spread = part.moved_bytes(one.size_bytes) / 1e9, one.time_s
    return moved / spread.median, moved / spread.largest, moved / spread.smallest


def _line(
    panel: Any, side: str, name: str, measured: Sequence[Measured], values: Sequence[tuple[float, float, float]]
) -> None:
    sizes = [one.size_bytes for one in measured]
    medians, least, most = zip(*values, strict=True)
    style = "dashed" if side in LIMITS else "solid"
    panel.plot(sizes, medians, linestyle=style, marker=".", linewidth=1.2, color=COLOURS[side], label=name)
    panel.fill_between(sizes, least, most, color=COLOURS[side], alpha=0.12, linewidth=0)
