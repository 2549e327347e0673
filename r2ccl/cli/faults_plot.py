"""The picture beside the table of faults: the longest time without data, by fault, of r2ccl and of its peers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from r2ccl.cli.faults_figures import Figures, trials_of
from r2ccl.cli.faults_kinds import FAULTS
from r2ccl.cli.faults_options import GLOO, MPTCP, R2CCL
from r2ccl.cli.faults_run import Results

_BAR: Final = 0.26


def is_possible() -> bool:
    """Whether there is matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def plot(file: Path, results: Results) -> None:
    """Bars on a logarithmic scale; where gloo died, until it did. The file's ending says the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    faults = [fault for key, fault in FAULTS.items() if fault.is_of_the_network and f"{key}/{R2CCL}" in results.trials]
    figure = Figure(figsize=(10, 1.5 + 0.6 * len(faults)), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for place, (who, name, colour) in enumerate(
        ((R2CCL, "r2ccl", "tab:blue"), (MPTCP, "kernel MPTCP", "tab:orange"), (GLOO, "gloo", "tab:gray"))
    ):
        gaps = [_gap_ms(results, f"{fault.key}/{who}") for fault in faults]
        there = [(row + (place - 1) * _BAR, gap) for row, gap in enumerate(gaps) if gap]
        if there:
            panel.barh([row for row, _ in there], [gap for _, gap in there], _BAR, label=name, color=colour)
    panel.set_yticks(range(len(faults)), [fault.title for fault in faults])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlabel("ms without data, median (gloo: or until it died)")
    panel.grid(axis="x", alpha=0.3)
    panel.legend(loc="lower right")
    figure.savefig(file)


def _gap_ms(results: Results, name: str) -> float | None:
    if name not in results.trials:
        return None
    figures = Figures.of(trials_of(results.trials[name]))
    spread = figures.gap_ms or (figures.repair_ms if figures.errors else None)
    return None if spread is None else spread.median
