"""Whether it pays to look for news instead of sleeping until somebody rings. Pure.

Looking pays while the answer comes sooner than a wake-up takes, and while nobody else needs the core: a rank that looks
takes it from the very process that is waited for. Whether there are cores enough for all ranks of the node is known
beforehand. Whether other programs are there shows in two ways: the peer does not answer in time, because it is not
running; and we are made to wait for a core ourselves. After a miss some occasions are let pass, twice as many after
each further one, and half as many after each that paid. After a preemption few are, and four times as many after each
further one: on an idle machine the system's own threads want a core now and then, for moments.
"""

from __future__ import annotations

#: Occasions let pass at most after misses: a change for the better is noticed that late.
SKIP_MAX = 256
#: After a preemption, after the next one, and at most.
SKIP_WHEN_PREEMPTED = 4
SKIP_GROWTH = 4
SKIP_WHEN_PREEMPTED_MAX = 1024
#: So many times it must have paid until the next preemption is taken for the first.
PAID_TO_FORGET = 256


class SpinBudget:
    """Of one device. An occasion is a time at which all its connections were asleep and one came into use; where nobody
    goes on without a certain frame, one at which it was not there yet."""

    __slots__ = ("_paid", "_skip", "_skip_max", "_step", "_when_preempted", "enabled", "is_on")

    def __init__(self, enabled: bool, skip_max: int = SKIP_MAX) -> None:
        #: There is a core for every rank of the node.
        self.enabled = enabled
        #: Look for news now.
        self.is_on = False
        #: Occasions still to be let pass, and at most after misses.
        self._skip = 0
        self._skip_max = skip_max
        #: How many after the next miss, at least.
        self._step = 0
        #: And after the next preemption; and how often it has paid since the last.
        self._when_preempted = SKIP_WHEN_PREEMPTED
        self._paid = 0

    def begin(self) -> None:
        """An occasion."""
        self._skip = max(0, self._skip - 1)
        self.is_on = self.enabled and not self._skip

    def paid(self) -> None:
        """News came while we looked."""
        self._step //= 2
        self._paid += 1

    def missed(self) -> None:
        """We looked for as long as it could have paid, and nothing came."""
        self._step = min(self._skip_max, 2 * self._step + 1)
        self._skip = self._step
        self.is_on = False

    def preempted(self) -> None:
        """The system gave our core to somebody else."""
        if self._paid >= PAID_TO_FORGET:
            self._when_preempted = SKIP_WHEN_PREEMPTED
        self._skip = self._when_preempted
        self._when_preempted = min(SKIP_WHEN_PREEMPTED_MAX, SKIP_GROWTH * self._when_preempted)
        self._paid = 0
        self.is_on = False
