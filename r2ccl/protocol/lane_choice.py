"""Which chunk goes where next: the rule that shares the work out over lanes of any speeds, without agreement.

The chunk at the head of the queue is what the peer waits for most, so it goes to the lane that is expected to have it
done first, *also if that lane is full and another has room*: on a lane of a tenth of the speed it would arrive last of
all. A slow lane that has room takes a chunk from further back: the first one that would be done there before the faster
lanes, working off the queue in order, have done it. So it is neither missed where it went nor where it was taken from,
and a slow lane carries its share as long as the queue is long enough to hide how long a chunk takes there. Where the
queue is shorter it carries nothing, since every chunk on it would be waited for.

In numbers, for a lane that would have a chunk done in t, with D bytes of the queue before the chunk, and O bytes
outstanding on the faster lanes that carry B bytes a second together: they would have it done in (O + D + size) / B, and
the slow lane takes it if that is not less than t. Between lanes of about one speed this makes no difference: a lane
with room is done first. Rates that differ by less than two fifths are taken for equal. Where operations are small,
measurements of equal lanes differ by nearly as much, and would leave one lane with nothing to do at the end of each;
where they are large, a lane of two thirds of the speed has room two thirds as often, and so carries its share all the
same.

A lane that is to be probed gets the last chunk of the queue: its estimate may be much too good as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice

from r2ccl.protocol.lanes import Lane, Parcel, Probe

#: No chunk further back than this is looked at: a lane so slow that it needs more adds less than a percent.
LOOK_AHEAD_MAX = 128
#: Lanes whose rates are at least this part of another's are as fast.
ALIKE = 0.6

#: Looked up once: an enum's member costs as much as the rest of a lane's turn.
_OVERDUE = Probe.OVERDUE


def even_out(lanes: Sequence[Lane]) -> None:
    """A lane of a peer was measured anew: the pace of each to reckon with.

    Of lanes that were not measured nothing is believed that goes beyond the best one that was. If they are faster, a
    chunk each will prove it.
    """
    leader_bytes_s = best_bytes_s = max((lane.rate.bytes_s for lane in lanes if lane.is_measured), default=math.inf)

    def believed(lane: Lane) -> float:
        # Anew each time: the first measurement of another may have been of a bad moment.
        return lane.rate.bytes_s if lane.is_measured else min(lane.rate.bytes_s, best_bytes_s)

    for lane in sorted(lanes, key=believed, reverse=True):
        rate = believed(lane)
        if rate < ALIKE * leader_bytes_s:
            leader_bytes_s = rate
        lane.pace = leader_bytes_s


def pick_lane(lanes: Sequence[Lane], size: int) -> Lane | None:
    """The bound lane that is expected to finish first, or that is overdue to be probed; None: the chunk waits, for
    that lane is full.

    A diverted lane is taken only where no other is in service: a late path is better than none.
    """
    best: Lane | None = None
    best_s = 0.0
    for lane in lanes:
        # A link may be out of service already while the news is on its way to whoever binds its lane anew.
        if lane.link is None or lane.is_diverted or lane.is_leaving or not lane.link.is_up:
            continue
        if lane.probe_due is _OVERDUE and not lane.outstanding:
            return lane
        finish_s = (lane.outstanding_bytes + size) / lane.pace
        if best is None or finish_s < best_s:
            best, best_s = lane, finish_s
    if best is None:
        return _pick_diverted(lanes, size)
    return best if best.has_room(size) else None


def take_next(lanes: Sequence[Lane], waiting: deque[Parcel]) -> tuple[Lane, Parcel] | None:
    """Take a chunk out of the queue, for a lane that has room: the head, or one that a slow lane may take out of turn.
    None: all wait."""
    while waiting and waiting[0].is_settled:
        waiting.popleft()
    if not waiting:
        return None
    lane = pick_lane(lanes, len(waiting[0].payload))
    if lane is not None:
        return lane, waiting.popleft()
    return _take_ahead(lanes, waiting) if len(waiting) > 1 else None


def _take_ahead(lanes: Sequence[Lane], waiting: deque[Parcel]) -> tuple[Lane, Parcel] | None:
    for lane in lanes:
        if lane.link is None or lane.is_diverted or lane.is_leaving or not lane.link.is_up or not lane.has_room(1):
            continue
        place = _last(waiting) if lane.probe_due else _hidden(lane, lanes, waiting)
        if place and lane.has_room(len(waiting[place].payload)):
            parcel = waiting[place]
            del waiting[place]
            return lane, parcel
    return None


def _last(waiting: deque[Parcel]) -> int:
    """The place of the last chunk that is looked at and still wanted; 0: there is none but the head."""
    place = min(len(waiting), LOOK_AHEAD_MAX) - 1
    while waiting[place].is_settled:
        place -= 1
    return place


def _hidden(lane: Lane, lanes: Sequence[Lane], waiting: deque[Parcel]) -> int:
    """The place of the first chunk whose turn on faster lanes comes no sooner than this lane would have it done; 0:
    there is none."""
    size = lane.chunk_bytes
    own_s = lane.finish_s(size)
    before_bytes = 0
    faster_bytes_s = 0.0
    for other in lanes:
        if other is lane or other.link is None or other.is_diverted or other.is_leaving or not other.link.is_up:
            continue
        if other.finish_s(size) < own_s:
            before_bytes += other.outstanding_bytes
            faster_bytes_s += other.pace
    ratio = faster_bytes_s / lane.pace
    own_bytes = lane.outstanding_bytes
    if ratio > LOOK_AHEAD_MAX:
        return 0
    for index, parcel in enumerate(islice(waiting, LOOK_AHEAD_MAX)):
        if parcel.is_settled:
            continue
        size = len(parcel.payload)
        before_bytes += size
        if index and before_bytes >= ratio * (own_bytes + size):
            return index
    return 0


def _pick_diverted(lanes: Sequence[Lane], size: int) -> Lane | None:
    usable = [
        lane
        for lane in lanes
        if lane.link is not None and lane.link.is_up and not lane.is_leaving and lane.has_room(size)
    ]
    return min(usable, key=lambda lane: lane.finish_s(size), default=None)
