"""When one communicator's chunks are acknowledged: at once to who waits for it, else in the next chunk's header, or
after two milliseconds in a frame of its own (decision 9)."""

from __future__ import annotations

from typing import Protocol

from r2ccl.actors.courier import Courier
from r2ccl.actors.inbox import Inbox
from r2ccl.actors.shared import Shared
from r2ccl.protocol.ledger import Ledger, frames_of
from r2ccl.protocol.wire import Ack, Kind, OpenTransfer

#: Acknowledgements that nobody waits for ride in the next chunk's header, or go out after this long.
ACK_DELAY_S = 0.002


class Host(Protocol):
    """A coordinator, as far as it acknowledges."""

    communicator: int
    shared: Shared
    courier: Courier
    inbox: Inbox
    ledger: Ledger
    is_running: bool

    def entered(self) -> int: ...


class Acknowledging:
    """One communicator's acknowledgements."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._timer_armed = False

    def flush(self) -> None:
        """A batch of chunks was dealt with: acknowledge those that somebody waits for, the others soon."""
        inbox = self._host.inbox
        if inbox.acks_wanted:
            for peer in inbox.acks_wanted:
                self._acknowledge(peer)
            inbox.acks_owed -= inbox.acks_wanted
            inbox.acks_wanted.clear()
        if inbox.acks_owed and not self._timer_armed:
            self._timer_armed = True
            self._host.shared.timers.after(ACK_DELAY_S, self._late)

    def resync(self, peer: int) -> None:
        """A path to the peer changed: say all of it again, and ask for what came spoiled."""
        host = self._host
        self._say_arrived(peer, host.ledger.acknowledge_all(peer))
        for name in host.ledger.missing(peer):
            host.courier.tell(peer, Kind.REPEAT, [host.communicator, *name])

    def _late(self) -> None:
        self._timer_armed = False
        if not self._host.is_running:
            return
        for peer in self._host.inbox.acks_owed:
            self._acknowledge(peer)
        self._host.inbox.acks_owed.clear()

    def _acknowledge(self, peer: int) -> None:
        self._say_arrived(peer, self._host.ledger.acknowledge(peer))

    def _say_arrived(self, peer: int, transfers: tuple[OpenTransfer, ...]) -> None:
        host = self._host
        for some in frames_of(transfers):
            ack = Ack(host.communicator, host.ledger.completed, some, host.entered())
            host.courier.tell(peer, Kind.ACK, ack.body())
