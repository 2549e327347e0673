"""How long a link that came back must be quiet before it carries again.

The time doubles with each loss that comes soon after the return of the link, up to a limit, for ever: a link that flaps
costs little, and is never given up. What it serves in between counts for it. After ``stable_s`` all is forgotten; and
for each service of several times its quiet time one doubling is, so that who is lost once in a while does not wait as
long as who is lost all the time."""

from __future__ import annotations

#: A link has earned its quiet time when it served so many times as long.
EARNED = 3
#: Doublings beyond any limit: a float holds that many, and of more it would not.
_DOUBLINGS_MAX = 30


class Flaps:
    """One link's. Times in seconds."""

    __slots__ = ("_quiet_max_s", "_quiet_s", "_stable_s", "count")

    def __init__(self, quiet_s: float, quiet_max_s: float, stable_s: float) -> None:
        self._quiet_s = quiet_s
        self._quiet_max_s = quiet_max_s
        self._stable_s = stable_s
        #: Losses in a row, each soon after the link had come back.
        self.count = 0

    @property
    def quiet_s(self) -> float:
        """How long the link must behave, after so many losses."""
        doubled: float = self._quiet_s * 2.0 ** max(0, min(self.count, _DOUBLINGS_MAX) - 1)
        return min(doubled, self._quiet_max_s)

    def served(self, served_s: float) -> None:
        """The link was in service for so long, and is lost."""
        if served_s > self._stable_s:
            self.count = 0
        elif self.count and served_s > EARNED * self.quiet_s:
            self.count -= 1
