"""The picture of a training through a cut: loss and step time, with and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r2ccl.cli.training_figures import Training
from r2ccl.cli.training_page import Results
from r2ccl.errors import UsageError


def require_matplotlib() -> None:
    """Say so before anything runs, not after. Raises :class:`UsageError`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise UsageError("--plot needs matplotlib: pip install 'r2ccl[plot]'") from missing


def plot(file: Path, results: Results) -> None:
    """The first pair, and gloo where it died. The file's ending says the format."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    unharmed, harmed = results.unharmed[0], results.harmed[0]
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, time = figure.subplots(2, 1, sharex=True)
    _line(loss, unharmed, "loss", "unharmed", "tab:gray", linewidth=2.5)
    _line(loss, harmed, "loss", "with the cut", "tab:blue", linewidth=1)
    _line(time, unharmed, "ms", "unharmed", "tab:gray", linewidth=0.8)
    _line(time, harmed, "ms", "with the cut", "tab:blue", linewidth=0.8)
    died = results.gloo_cut
    if died is not None and died.steps:
        _line(loss, died, "loss", "gloo, on the NIC that is cut", "tab:red", linewidth=1, linestyle="--")
        if died.trouble:
            loss.plot([died.steps[-1].number], [died.steps[-1].loss], "x", color="tab:red", markersize=9)
    for panel in (loss, time):
        assert harmed.cut_s is not None
        assert harmed.restored_s is not None
        begin, end = (harmed.steps[harmed.step_at(at)].number for at in (harmed.cut_s, harmed.restored_s))
        panel.axvspan(begin, end, color="tab:red", alpha=0.1, label="a NIC of host 1 is cut")
        panel.grid(alpha=0.3)
    loss.set_ylabel("loss")
    time.set_ylabel("step, ms")
    time.set_xlabel("step")
    time.set_ylim(bottom=0)
    loss.legend(loc="upper right", fontsize=8)
    # So that a run with the same figures writes the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "r2ccl"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _line(panel: Any, training: Training, what: str, label: str, color: str, **style: Any) -> None:
    numbers = [step.number for step in training.steps]
    panel.plot(numbers, [getattr(step, what) for step in training.steps], label=label, color=color, **style)
