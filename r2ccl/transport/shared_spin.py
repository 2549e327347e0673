"""Whether it pays to look for news instead of sleeping until somebody rings. Pure.

Looking pays while the answer comes sooner than a wake-up takes, and while nobody else needs the core: a rank that looks
takes it from the very process that is waited for. Whether there are cores enough for all ranks of the node is known
beforehand. Whether other programs are there shows in two ways: the peer does not answer in time, because it is not
running; and we are made to wait for a core ourselves. After a miss some occasions are let pass, twice as many after
each further one, and half as many after each that paid. After a preemption very many are.
"""

from __future__ import annotations

#: Occasions let pass at most after misses: a change for the better is noticed that late.
SKIP_MAX = 256
#: And after a preemption.
SKIP_WHEN_PREEMPTED = 1024


class SpinBudget:
    """Of one device. An occasion is a time at which all its connections were asleep and one came into use."""

    __slots__ = ("_skip", "_step", "enabled", "is_on")

    def __init__(self, enabled: bool) -> None:
        #: There is a core for every rank of the node.
        self.enabled = enabled
        #: Look for news now.
        self.is_on = False
        #: Occasions still to be let pass.
        self._skip = 0
        #: How many after the next miss, at least.
        self._step = 0

    def begin(self) -> None:
        """An occasion."""
        self._skip = max(0, self._skip - 1)
        self.is_on = self.enabled and not self._skip

    def paid(self) -> None:
        """News came while we looked."""
        self._step //= 2

    def missed(self) -> None:
        """We looked for as long as it could have paid, and nothing came."""
        self._step = min(SKIP_MAX, 2 * self._step + 1)
        self._skip = self._step
        self.is_on = False

    def preempted(self) -> None:
        """The system gave our core to somebody else."""
        self._skip = SKIP_WHEN_PREEMPTED
        self.is_on = False
