"""How many links of one NIC are dialled for the first time at once. Pure; ``actors/links`` asks.

When a job starts every rank dials half of the others. All at once, where many ranks share few cores, no dial is
answered in its time: each is given up just before it would have been, begun anew, and the half that stood at the other
end is torn down, found missing, and looked for by relays. 64 ranks on two cores did that for ever. So only some dials
are under way, and the next begins when one is over, well or not. Whoever needs a link at once does not ask.
"""

from __future__ import annotations

from collections import deque

#: (peer, its NIC)
Way = tuple[int, int]

#: A dial is mostly waiting for two processes to get a core. Enough to have others to do meanwhile.
DIALS_MAX = 16


class DialWindow:
    """Of one NIC."""

    __slots__ = ("_under_way", "_waiting")

    def __init__(self) -> None:
        self._under_way: set[Way] = set()
        #: In the order in which they were wanted; no more than there are links.
        self._waiting: deque[Way] = deque()

    def admit(self, way: Way) -> bool:
        """May this first dial begin? If not it is kept, and handed back by a later :meth:`following`."""
        if len(self._under_way) < DIALS_MAX:
            self._under_way.add(way)
            return True
        if way not in self._waiting:
            self._waiting.append(way)
        return False

    def over(self, way: Way) -> bool:
        """A dial has ended, be it one of ours or not. Does another wait that may begin?"""
        self._under_way.discard(way)
        return bool(self._waiting) and len(self._under_way) < DIALS_MAX

    def following(self) -> Way | None:
        """Whose turn it is, if there is room. Whether it still wants to is for the caller to see."""
        if not self._waiting or len(self._under_way) >= DIALS_MAX:
            return None
        return self._waiting.popleft()
