"""The demo's throughput per NIC over time as a picture, with cuts and returns marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2ccl.cli.demo_ranks import Rank
from r2ccl.cli.demo_report import Cut
from r2ccl.cli.demo_screen import rates_mbit_s
from r2ccl.errors import UsageError


def require_matplotlib() -> None:
    """Say so before the demo runs, not after. Raises :class:`UsageError`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise UsageError("--plot needs matplotlib: pip install 'r2ccl[plot]'") from missing


def plot(file: Path, ranks: Sequence[Rank], cuts: Sequence[Cut], begin_s: float, nics: int, title: str) -> None:
    """Draw one panel per rank. The file's ending says the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.2 + 1.6 * len(ranks)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(ranks), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for rank, panel in zip(ranks, panels, strict=True):
        for nic in range(nics):
            samples = rank.samples.get(nic, [])
            times = [sample.time_s - begin_s for sample in samples[1:]]
            panel.plot(times, rates_mbit_s(samples), linewidth=1, label=f"NIC {nic}")
        for cut in cuts:
            if cut.rank == rank.number:
                cut_s, restored_s = cut.cut_s - begin_s, cut.restored_s - begin_s
                panel.axvspan(cut_s, restored_s, color="tab:red", alpha=0.12)
                panel.axvline(cut_s, color="tab:red", linewidth=1)
                panel.axvline(restored_s, color="tab:green", linewidth=1)
                panel.annotate(
                    f"NIC {cut.nic} cut", (cut_s, 1.0), xycoords=("data", "axes fraction"), va="top", fontsize=7
                )
        panel.set_ylabel(f"rank {rank.number}\nMbit/s")
        panel.set_ylim(bottom=0)
    panels[0].legend(loc="upper right", ncols=nics, fontsize=7)
    panels[-1].set_xlabel("seconds")
    figure.suptitle(title)
    figure.savefig(file)
