"""Who is in which operation: told by ``Entered``, asked for when an operation takes long or its calls differ.

An operation that does not end has few possible stories: a rank never called it, a rank called something else, or all
called it and somebody makes no progress. Hearing from every rank tells which, so after a moment each rank announces
its oldest unfinished operation to all, and answers others' announcements. Nothing here decides that an operation fails
except a difference of calls; slowness alone is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from r2ccl.protocol.wire import Entered

#: Calls remembered per peer: as many as can be running.
CALLS_MAX = 128


@dataclass(frozen=True, slots=True)
class Presence:
    """Where the ranks are with respect to one operation."""

    not_entered: tuple[int, ...]
    entered: tuple[int, ...]
    finished: tuple[int, ...]


class RollCall:
    """What one communicator's other members said."""

    __slots__ = ("_calls", "_entered", "_finished", "_peers", "latest")

    def __init__(self, peers: Iterable[int]) -> None:
        self._peers = tuple(peers)
        #: Per peer: number of operations that it has entered, and finished, as far as we heard.
        self._entered = dict.fromkeys(self._peers, 0)
        self._finished = dict.fromkeys(self._peers, 0)
        #: Per peer: operation -> (fingerprint, call, under what).
        self._calls: dict[int, dict[int, tuple[int, str, str]]] = {peer: {} for peer in self._peers}
        #: The last operation that anybody announced.
        self.latest = -1

    def heard(self, peer: int, entered: Entered) -> None:
        """A peer announced an operation."""
        number = entered.operation
        self.reached(peer, number)
        if entered.finished:
            self._finished[peer] = max(self._finished[peer], number + 1)
        calls = self._calls[peer]
        calls[number] = (entered.fingerprint, entered.call, entered.under)
        self.latest = max(self.latest, number)
        while len(calls) > CALLS_MAX:
            del calls[min(calls)]

    def reached(self, peer: int, operation: int) -> None:
        """A chunk or acknowledgement shows that the peer is in the operation, or beyond."""
        if operation >= self._entered[peer]:
            self._entered[peer] = operation + 1

    def most_reached(self) -> int:
        """All operations below it have been entered by some peer."""
        return max(self._entered.values(), default=0)

    def differing(self, operation: int, fingerprint: int) -> dict[int, str]:
        """Peers that called something else under this number, and what."""
        if operation > self.latest:
            return {}
        return {
            peer: calls[operation][1]
            for peer, calls in self._calls.items()
            if operation in calls and calls[operation][0] != fingerprint
        }

    def calls(self, operation: int) -> dict[int, str]:
        """What each peer called under this number, as far as we heard."""
        return {peer: calls[operation][1] for peer, calls in self._calls.items() if operation in calls}

    def circumstances(self, operation: int) -> dict[int, str]:
        """What each peer's plan depends on besides, as far as we heard."""
        return {peer: calls[operation][2] for peer, calls in self._calls.items() if operation in calls}

    def presence(self, operation: int) -> Presence:
        """Where everybody is. A peer that went beyond an operation need not have finished it: several run at once."""
        finished = [peer for peer in self._peers if self._finished[peer] > operation]
        entered = [peer for peer in self._peers if self._entered[peer] > operation and peer not in finished]
        not_entered = [peer for peer in self._peers if self._entered[peer] <= operation]
        return Presence(tuple(not_entered), tuple(entered), tuple(finished))
