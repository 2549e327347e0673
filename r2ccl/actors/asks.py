"""Whom one communicator asked to say when it is in an operation: small chunks wait for its credit.

Of little a peer does not say so unasked. What goes out from copies may still wait when its operation has ended here, so
what was asked outlives the operation, too: the question may be lost with its path.
"""

from __future__ import annotations

from typing import Protocol

from r2ccl.actors.courier import Courier
from r2ccl.actors.failing import Failing
from r2ccl.actors.operation import Operation, Planned
from r2ccl.errors import CommunicatorClosed
from r2ccl.protocol.wire import Entered, Kind


class Host(Protocol):
    """A coordinator, as far as it asks."""

    communicator: int
    courier: Courier
    failing: Failing
    running: dict[int, Operation]

    def announce(self, operation: Operation, peer: int, finished: bool = False, asks: bool = False) -> None: ...


class Asks:
    """One communicator's questions that were not answered."""

    def __init__(self, host: Host) -> None:
        self._host = host
        #: By peer and operation: as many as chunks that wait for credit, or did when a path was lost the last time.
        self._asked: dict[tuple[int, int], Planned] = {}

    def ask(self, operation: Operation, peer: int) -> None:
        """What waits for credit goes when the peer says that it is in the operation."""
        if peer not in operation.asked:
            operation.asked |= {peer}
            self._asked[peer, operation.number] = operation.planned
            self._host.announce(operation, peer, asks=True)

    def ask_about(self, number: int, planned: Planned, peer: int) -> None:
        """As :meth:`ask`, of one that may have ended here."""
        if (operation := self._host.running.get(number)) is not None:
            self.ask(operation, peer)
        else:
            self._asked[peer, number] = planned
            self._ask(number, planned, peer)

    def answered(self, peer: int, operation: int) -> None:
        """The peer said it."""
        self._asked.pop((peer, operation), None)

    def again(self, peer: int) -> None:
        """A path was lost, and a question may be. Those of operations that run are said with all else of these."""
        host = self._host
        entered = host.courier.outboxes[peer].entered_by_peer(host.communicator)
        for key in [key for key in self._asked if key[0] == peer]:
            number, planned = key[1], self._asked[key]
            # What a rank sent before it left its communicator is still to arrive.
            if number < entered or not isinstance(host.failing.error, CommunicatorClosed | None):
                del self._asked[key]
            elif number not in host.running:
                self._ask(number, planned, peer)

    def _ask(self, number: int, planned: Planned, peer: int) -> None:
        question = Entered(
            self._host.communicator, number, planned.fingerprint, planned.call, False, (), planned.step, True
        )
        self._host.courier.tell(peer, Kind.ENTERED, question.body())
