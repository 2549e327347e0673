"""How the largest packet that passes a path is found: the largest possible, then the least, then by halves.

On a healthy path the first try ends it. Where it fails, a small packet tells "nothing is answered here" (a firewall,
say) from "large ones vanish", and only then the border between is searched. Sizes are those of IP packets.

    state      heard        next
    LARGEST    passed       done: that is it
    LARGEST    lost         LEAST
    LEAST      passed       HALVING between least and largest
    LEAST      lost         done: 0, nothing is known
    HALVING    either       done when both borders touch

It decides sizes only; what counts as lost (how many tries, how long each) is the prober's.
"""

from __future__ import annotations

from r2ccl.errors import InvalidTransition

#: Every IPv4 host takes this much.
LEAST_BYTES = 576


class MtuSearch:
    """One path."""

    def __init__(self, largest_bytes: int, least_bytes: int = LEAST_BYTES) -> None:
        if largest_bytes < 1 or least_bytes < 1:
            raise ValueError("a packet has a size")
        #: What is known to pass, and the least that is known not to.
        self._passed = 0
        self._lost = largest_bytes + 1
        self._least = min(least_bytes, largest_bytes)
        #: What is to be tried next; None: done.
        self.size_bytes: int | None = largest_bytes

    @property
    def path_bytes(self) -> int:
        """The largest that passed; 0: none did."""
        return self._passed

    def heard(self, passed: bool) -> None:
        """What became of ``size_bytes``."""
        if self.size_bytes is None:
            raise InvalidTransition("a search for the MTU heard of a packet after it was done")
        if passed:
            self._passed = self.size_bytes
        else:
            self._lost = self.size_bytes
        self.size_bytes = self._next()

    def _next(self) -> int | None:
        if self._passed == 0:
            return self._least if self._lost > self._least else None
        return (self._passed + self._lost) // 2 if self._lost - self._passed > 1 else None
