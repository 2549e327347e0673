"""Which chunks go out a second time, on another path, before anybody knows whether the first is lost.

On suspicion alone nothing is moved: the suspect may answer in a moment. But whoever waits for its oldest chunks waits
for the verdict, too, so some of them also go out elsewhere. The receiver's ledger makes that safe: whichever copy is
whole first counts, the other is dropped by name (decisions 1 and 2). It costs bytes and nothing else, and bytes are
what a busy network lacks, so (decision 4):

* A chunk is hedged at most once on each connection. Whoever calls leaves out chunks that have a twin on its way
  already, so there are never more than two.
* They go before what waits, which is younger: a path has room for them also while its window is full.
* Only towards a path that makes progress: to put twins on a second silent path doubles the silence.
* Within a budget: a share of what was sent, and no more saved up than a burst. A slow network earns little budget, and
  that is right: there a hedge is dear.
* With back-off: the same suspect's chunks are hedged again only after a pause that doubles.
* Never what hardware writes into the peer's memory: a second writer is let in there only after the first is fenced
  (decision 3), which is what a repair does.

The oldest chunks come first: the operations that started first wait for them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from r2ccl.protocol.lanes import Parcel

#: A suspect's pause is forgotten when it was not suspected for so many of its longest pauses.
FORGIVE_PAUSES = 4.0


@dataclass(frozen=True, slots=True)
class Path:
    """A connection that may take twins, as it is at this moment."""

    #: Names the connection, not the link: a link that was lost and is back is another path.
    key: Hashable
    #: Bytes of twins that it still has room for.
    room_bytes: int
    #: Seconds until what is put on it now has left, and bytes per second.
    finish_s: float
    bandwidth: float
    #: When it last made progress: something put on it was settled; or, if it owes nothing, its peer last gave a sign.
    progressed_at_s: float


@dataclass(frozen=True, slots=True)
class Hedge:
    """Effect: this chunk also goes out there, now."""

    parcel: Parcel
    path: Hashable


@dataclass(frozen=True, slots=True)
class HedgingLimits:
    """See config for the reasons. Times in seconds."""

    #: Share of the bytes sent that may be sent again on suspicion.
    share: float
    #: Budget that can be saved up; also what there is at first.
    burst_bytes: int
    #: A path that made no progress for this long gets no twins.
    progress_s: float
    #: Between two rounds of hedging for the same suspect: at first, and at most.
    pause_s: float
    pause_max_s: float


@dataclass(slots=True)
class _Suspect:
    """A path whose chunks were hedged."""

    hedged_at_s: float
    pause_s: float


class Hedger:
    """The machine for one rank: the budget is one, whichever peer the bytes go to."""

    __slots__ = ("_limits", "_on", "_suspects", "_tokens", "hedged_bytes", "hedged_chunks")

    def __init__(self, limits: HedgingLimits) -> None:
        self._limits = limits
        self._tokens = float(limits.burst_bytes)
        #: All and only chunks that were hedged and are not settled: the connections that they went out on. Bounded by
        #: the lanes' windows.
        self._on: dict[Parcel, set[Hashable]] = {}
        #: Those hedged lately; the others are forgotten with the next round.
        self._suspects: dict[Hashable, _Suspect] = {}
        self.hedged_bytes = 0
        self.hedged_chunks = 0

    def sent(self, size: int) -> None:
        """Bytes went out that are no twin: they earn budget. Time earns none: only recent traffic counts, and of
        traffic long ago no more is left than a burst."""
        self._tokens = min(self._limits.burst_bytes, self._tokens + self._limits.share * size)

    def suspect(self, path: Hashable, outstanding: Iterable[Parcel], others: Sequence[Path], now: float) -> list[Hedge]:
        """Something speaks against a path. Which of its chunks, oldest first, also go out on which other one.

        To be called again while the suspicion lasts: the back-off is here. ``outstanding`` are chunks of which no twin
        is on its way; ``others`` must be in service.
        """
        pause_s = self._pause_s(path, now)
        if pause_s is None:
            return []
        moving = [other for other in others if now - other.progressed_at_s <= self._limits.progress_s]
        hedges = self._choose(path, outstanding, moving) if moving else []
        if hedges:
            for old in [key for key, suspect in self._suspects.items() if self._is_forgiven(suspect, now)]:
                del self._suspects[old]
            self._suspects[path] = _Suspect(now, pause_s)
        return hedges

    def settled(self, parcel: Parcel) -> None:
        """Acknowledged, or nobody wants it any more. To be told of every chunk, or at least of every one hedged."""
        self._on.pop(parcel, None)

    @property
    def budget_bytes(self) -> int:
        """What may be hedged now."""
        return int(self._tokens)

    @property
    def remembered(self) -> int:
        """How many chunks are known as hedged."""
        return len(self._on)

    def _pause_s(self, path: Hashable, now: float) -> float | None:
        """How long is to be waited after a round now; None: the last one was too short a while ago."""
        before = self._suspects.get(path)
        limits = self._limits
        if before is None or self._is_forgiven(before, now):
            return limits.pause_s
        if now - before.hedged_at_s < before.pause_s:
            return None
        return min(2 * before.pause_s, limits.pause_max_s)

    def _is_forgiven(self, suspect: _Suspect, now: float) -> bool:
        return now - suspect.hedged_at_s > FORGIVE_PAUSES * self._limits.pause_max_s

    def _choose(self, path: Hashable, outstanding: Iterable[Parcel], moving: Sequence[Path]) -> list[Hedge]:
        hedges: list[Hedge] = []
        put = {other.key: 0 for other in moving}
        for parcel in outstanding:
            if parcel.was_written or parcel.is_settled:
                continue
            size = len(parcel.payload)
            if size > self._tokens:
                break  # what comes after is younger, and must not be served first
            best = _soonest(moving, put, size, {path} | self._on.get(parcel, set()))
            if best is None:
                continue
            put[best] += size
            self._on.setdefault(parcel, set()).update((path, best))
            self._tokens -= size
            self.hedged_bytes += size
            self.hedged_chunks += 1
            hedges.append(Hedge(parcel, best))
        return hedges


def _soonest(paths: Sequence[Path], put: dict[Hashable, int], size: int, but: set[Hashable]) -> Hashable | None:
    """The path with room where a chunk put now is done first; the first of equals; None: there is none."""
    best: Path | None = None
    best_s = 0.0
    for path in paths:
        if path.key in but or put[path.key] + size > path.room_bytes:
            continue
        finish_s = path.finish_s + (put[path.key] + size) / path.bandwidth
        if best is None or finish_s < best_s:
            best, best_s = path, finish_s
    return None if best is None else best.key
