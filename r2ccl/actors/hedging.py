"""What hedging needs to know of lanes and links as they are at this moment; the machine is ``protocol.hedging``."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from r2ccl.actors.link import Link
from r2ccl.actors.shared import Shared
from r2ccl.config import Settings
from r2ccl.protocol.hedging import Hedger, HedgingLimits, Path
from r2ccl.protocol.lanes import Lane, Parcel


def make_hedger(settings: Settings) -> Hedger:
    """One for each rank. A path that made no progress for half of bulk's silence gets no twins."""
    return Hedger(
        HedgingLimits(
            settings.hedge_share,
            settings.hedge_burst_bytes,
            settings.bulk_silence_s / 2,
            settings.hedge_pause_s,
            settings.hedge_pause_max_s,
        )
    )


def choose_twins(
    hedger: Hedger, suspect: Lane, lanes: Sequence[Lane], shared: Shared, now: float
) -> Iterator[tuple[Lane, Parcel]]:
    """Which of a suspect's chunks also go out on which other of the peer's lanes, now."""
    link = suspect.link
    if link is None or link.bulk is None:
        return
    others = {
        _path_key(other.link): other
        for other in lanes
        if other is not suspect and not (other.is_diverted or other.is_leaving) and _may_take_twins(other.link, link)
    }
    paths = [
        Path(key, other.twin_room_bytes, other.finish_s(0), other.bandwidth, _progressed_at_s(other, shared, now))
        for key, other in others.items()
    ]
    alone = [parcel for parcel in suspect.outstanding if parcel.twin is None]
    for hedge in hedger.suspect(_path_key(link), alone, paths, now):
        yield others[hedge.path], hedge.parcel


def _progressed_at_s(lane: Lane, shared: Shared, now: float) -> float:
    """When the lane's chunks last got on; where none is on its way, when its link last gave any sign."""
    if lane.outstanding:
        return lane.progressed_at_s
    control = lane.link.control
    # An idle link beats rarely, and does well if it answered the latest beat.
    heard = control is not None and control.sample().silence_s < 2 * shared.settings.idle_beat_s
    return now if heard else lane.progressed_at_s


def _path_key(link: Link) -> Hashable:
    """Names the link's connections: those after a loss have another name."""
    return link.id, link.session.incident


def _may_take_twins(link: Link | None, suspect: Link) -> bool:
    """In service, and no one-sided writer of what the suspect sends as frames: that would need a fence."""
    if link is None or not link.is_up or link.bulk is None or suspect.bulk is None:
        return False
    return link.bulk.one_sided == suspect.bulk.one_sided
