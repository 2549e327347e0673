"""How long a dial of a link may take, and how long to wait before the next. Pure; ``nic_session`` asks.

*A link that was never in service* is dialled while all ranks dial one another, and where many share few cores what is
slow is the crowd, not the path. Giving up after a second and starting over then makes the crowd denser: 64 ranks on two
cores dialled for ever. So in a large job such a dial may take longer, and longer after each that failed, up to a limit.
*A backup that was never in service* may have no route: the period between its dials doubles with each that fails, up
to a limit. *A link that is needed at once*, because no other is left, is hurried: where a network has several ways
(ECMP), each socket takes the one that its ports hash to, so many fresh sockets find a way that is whole sooner than one
that waits. *A dial of which one connection stands* tries the other with fresh sockets, for the same reason.
"""

from __future__ import annotations

#: How often a dial of which one connection stands tries the other with a fresh socket before it gives both up: nobody
#: watches the one that stands meanwhile.
FRESH_SOCKETS = 6
#: How many dials in a row are hurried: 0.2, 0.4 and 0.8 s long in turn, with the defaults, together somewhat longer
#: than the grace time. The long ones are for paths whose handshake takes more than 0.2 s.
HURRIED_DIALS = 15
HURRY_DOUBLINGS = 3
#: A job of so many ranks has no crowd; one of four times as many gives its first dials four times as long.
RANKS_WITHOUT_CROWD = 16
#: With a dial of 1 s, a few of them fit into the time in which ranks have to find one another.
CROWD_MAX = 15.0


def crowd(ranks: int) -> float:
    """How many times longer than others the first dials of a job may take."""
    return min(CROWD_MAX, max(1.0, ranks / RANKS_WITHOUT_CROWD))


class DialPatience:
    """Of one link. Times in seconds."""

    __slots__ = ("_dial_timeout_s", "_failed", "_fresh_sockets", "_hurried", "_redial_max_s", "_redial_s")

    def __init__(self, dial_timeout_s: float, redial_s: float, redial_max_s: float) -> None:
        self._dial_timeout_s = dial_timeout_s
        self._redial_s = redial_s
        self._redial_max_s = max(redial_s, redial_max_s)
        #: Dials that failed in a row.
        self._failed = 0
        self._fresh_sockets = 0
        self._hurried = 0

    @property
    def is_hurried(self) -> bool:
        """The next dial follows at once."""
        return self._hurried > 0

    def begin(self) -> float:
        """A dial of both connections begins: how long it may take."""
        self._fresh_sockets = FRESH_SOCKETS
        return self._timeout_s()

    def begin_first(self, crowd: float) -> float:
        """The same, of a link that was never in service."""
        timeout_s = self.begin()
        if self._hurried:
            return timeout_s
        return timeout_s * min(CROWD_MAX, crowd * min(crowd, 2.0 ** min(self._failed, 30)))

    def try_again(self) -> float | None:
        """Time is up, and one of the two stands: how long a fresh socket for the other may take. None: give up."""
        if not self._fresh_sockets:
            return None
        self._fresh_sockets -= 1
        return self._timeout_s()

    def _timeout_s(self) -> float:
        if not self._hurried:
            return self._dial_timeout_s
        doubled: float = self._redial_s * 2.0 ** ((HURRIED_DIALS - self._hurried) % HURRY_DOUBLINGS)
        self._hurried -= 1
        return min(doubled, self._dial_timeout_s)

    def pause_s(self, may_have_no_route: bool) -> float:
        """How long to wait before the next dial."""
        if not may_have_no_route:
            return self._redial_s
        doubled: float = self._redial_s * 2.0 ** max(0, min(self._failed, 30) - 1)
        return min(doubled, self._redial_max_s)

    def failed(self) -> None:
        """A dial failed."""
        self._failed += 1

    def encourage(self) -> None:
        """Something says that dialling may succeed now."""
        self._failed = 0

    def hurry(self) -> None:
        """The link is needed at once."""
        self._failed = 0
        self._hurried = HURRIED_DIALS

    def succeeded(self) -> None:
        """The link is in service."""
        self._failed = self._hurried = 0
