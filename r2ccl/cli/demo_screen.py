"""What the demo shows while it runs: throughput of each NIC as it happens, cuts, returns, and what the ranks say.

On a terminal it is drawn anew ten times a second; elsewhere (a pipe, a log) only the event lines are printed, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from r2ccl.cli.demo_ranks import NicSample, Rank

SPARK = " ▁▂▃▄▅▆▇█"
#: Samples in a sparkline; with twenty a second, the last three seconds.
SPARK_SAMPLES = 60
#: Payload may exceed the shaped rate a little, by the buckets' bursts.
SPARK_HEADROOM = 1.05
#: Rates that are told as a number are averages over this many samples.
RATE_SAMPLES = 6
EVENT_LINES = 12
REFRESHES_S = 10


def rates_mbit_s(samples: Sequence[NicSample]) -> list[float]:
    """What a NIC sent or received, whichever is more, between one sample and the next."""
    rates = []
    for earlier, later in zip(samples, samples[1:], strict=False):
        moved = max(later.sent_bytes - earlier.sent_bytes, later.received_bytes - earlier.received_bytes)
        rates.append(moved * 8 / 1e6 / (later.time_s - earlier.time_s))
    return rates


def sparkline(rates: Sequence[float], full: float) -> str:
    """One character for each rate, from empty to full."""
    top = len(SPARK) - 1
    return "".join(SPARK[min(top, max(0, round(rate / full * top)))] for rate in rates)


def digest(rank: Rank) -> list[tuple[float, str]]:
    """What is worth showing of the events that a rank reported: no links, and lanes that fared alike only once."""
    lines: list[tuple[float, str]] = []
    lanes: dict[str, list[tuple[float, str]]] = {}
    while rank.events:
        time_s, name, text = rank.events.popleft()
        if name.startswith("lane"):
            lanes.setdefault(name, []).append((time_s, text))
        elif name != "link":
            lines.append((time_s, f"rank {rank.number}: {text}"))
    for alike in lanes.values():
        time_s, text = alike[0]
        others = f" (and {len(alike) - 1} alike)" if len(alike) > 1 else ""
        lines.append((time_s, f"rank {rank.number}: {text}{others}"))
    return lines


@dataclass(slots=True)
class Screen:
    """The view of one demo. A context manager, for a terminal has to be put back in order."""

    console: Console
    title: str
    rate_mbit_s: float
    nics: int
    spares: int
    cut: set[tuple[int, int]] = field(default_factory=set)
    _events: deque[Text] = field(default_factory=lambda: deque(maxlen=EVENT_LINES))
    _live: Live | None = None
    _begin_s: float | None = None

    def __enter__(self) -> Screen:
        self.console.print(self.title, markup=False, soft_wrap=True)
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, now: float) -> None:
        """Times are shown from here."""
        self._begin_s = now

    def say(self, time_s: float, text: str, style: str = "") -> None:
        """An event line."""
        since_s = 0.0 if self._begin_s is None else time_s - self._begin_s
        line = Text(f"{since_s:8.3f} s  {text}", style)
        self._events.append(line)
        if self._live is None:
            self.console.print(line, soft_wrap=True)

    def draw(self, ranks: Sequence[Rank], operations: int, wrong_elements: int) -> None:
        """Show the state of things; also says what the ranks have reported meanwhile."""
        for time_s, line in sorted(line for rank in ranks for line in digest(rank)):
            self.say(time_s, line, "dim")
        if self._live is not None:
            self._live.update(Group(self._table(ranks), self._counts(operations, wrong_elements), *self._events))
            self._live.refresh()

    def _table(self, ranks: Sequence[Rank]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        for heading in ("rank", "NIC"):
            table.add_column(heading, justify="right")
        table.add_column(f"last {SPARK_SAMPLES // 20} s", min_width=SPARK_SAMPLES, no_wrap=True)
        table.add_column("Mbit/s", justify="right", min_width=6)
        table.add_column("")
        for rank in ranks:
            for nic in range(self.nics):
                table.add_row(*self._row(rank, nic))
        return table

    def _row(self, rank: Rank, nic: int) -> tuple[Text, ...]:
        rates = rates_mbit_s(rank.samples.get(nic, [])[-SPARK_SAMPLES - 1 :])
        latest = rates[-RATE_SAMPLES:]
        average = sum(latest) / len(latest) if latest else 0.0
        is_cut = (rank.number, nic) in self.cut
        state, style = ("CUT", "bold red") if is_cut else ("", "green")
        if not is_cut and nic >= self.nics - self.spares:
            state, style = "spare", "cyan"
        spark = sparkline(rates, self.rate_mbit_s * SPARK_HEADROOM).rjust(SPARK_SAMPLES)
        number = str(rank.number) if nic == 0 else ""
        return Text(number), Text(str(nic)), Text(spark, style), Text(f"{average:.0f}"), Text(state, style)

    def _counts(self, operations: int, wrong_elements: int) -> Text:
        style = "bold red" if wrong_elements else ""
        return Text(f"{operations} all-reduces, every element checked on every rank: {wrong_elements} wrong", style)
