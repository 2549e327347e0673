"""The picture of a soak: what each process kept, over time; the lab on the left, the virtual hour on the right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from r2ccl.sim.gauges import ALLOWED, MIB, Series
from r2ccl.sim.soaked import Soaked

#: Points of one line.
POINTS_MAX: Final = 300
_UNITS: Final = {"memory": (MIB, "memory, MiB"), "objects": (1e3, "objects, thousands")}


def plot(file: Path, parts: Mapping[str, Soaked]) -> None:
    """One column for each part, one panel for each measure. The file's ending says the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(parts), 1.0 + 1.5 * len(ALLOWED)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(ALLOWED), len(parts), sharex="col", squeeze=False)
    for column, (title, soaked) in enumerate(parts.items()):
        panels[0][column].set_title(title, fontsize=9)
        for row, name in enumerate(ALLOWED):
            _measure(panels[row][column], name, soaked)
        panels[-1][column].set_xlabel("seconds")
        if len(soaked.tracks) > 1:
            panels[0][column].legend(loc="lower right", ncols=len(soaked.tracks), fontsize=7)
    figure.savefig(file)


def _measure(panel: Any, name: str, soaked: Soaked) -> None:
    unit, label = _UNITS.get(name, (1.0, name))
    for track in soaked.tracks:
        times, values = _thinned(track.measures[name])
        panel.plot(times, [value / unit for value in values], linewidth=0.8, label=track.name)
    panel.axvline(soaked.seconds / 2, color="tab:gray", linewidth=0.6, linestyle="dotted")
    panel.set_ylabel(label, fontsize=8)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)


def _thinned(series: Series) -> tuple[list[float], list[float]]:
    step = max(1, len(series.values) // POINTS_MAX)
    return list(series.times_s)[::step], list(series.values)[::step]
