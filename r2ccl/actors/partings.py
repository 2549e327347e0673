"""How a rank and its peers part: who said goodbye, who needs nothing more, and whose going ends something here.

A peer that said goodbye may end its connections in any order, and what one of them ends with may be read before what
another still holds: so each is left to end by itself, and only when none stands, or no path was left for the grace
time, is the peer gone for good. An operation that still lacks chunks of it cannot end well any more (decision 10)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from r2ccl.actors.courier import Courier
from r2ccl.actors.links import Port
from r2ccl.actors.messages import PeerParted
from r2ccl.actors.relaying import Relays
from r2ccl.actors.shared import Shared
from r2ccl.protocol.wire import Kind

#: A goodbye is said again after so long until the peer says its own, then after twice as long, up to a limit: many
#: ranks on few cores need time, and not to be told again.
REPEAT_S = 0.1
REPEAT_S_MAX = 1.0


class Partings:
    """One per rank. ``tell_all`` reaches every coordinator; ``wake`` whoever waits for peers to part."""

    def __init__(
        self,
        shared: Shared,
        ports: list[Port],
        courier: Courier,
        tell_all: Callable[[Any], None],
        wake: Callable[[], None],
        relays: Relays,
    ) -> None:
        self._shared = shared
        self._ports = ports
        self._courier = courier
        self._tell_all = tell_all
        self._wake = wake
        self._relays = relays
        #: We are closing.
        self.is_closing = False
        self._said_goodbye: set[int] = set()
        #: Peers that need nothing more: they have heard our goodbye, or ended a connection after theirs, or are lost.
        self._parted: set[int] = set()
        #: When goodbye was said to all that are waited for, and how long after it is again.
        self._said_at_s = -math.inf
        self._repeat_s = REPEAT_S / 2
        courier.farewells.append(self._farewell)

    def waited_for(self) -> list[int]:
        """Peers that may still need us: while others say goodbye to one another through us, all of them. They are told
        that we heard theirs, which else our going would say."""
        if self._relays.is_needed:
            return list(self._shared.peers)
        return [peer for peer in self._shared.peers if peer not in self._parted]

    def goodbye_heard(self, peer: int, heard_ours: bool) -> None:
        """A peer is closing. Whoever has heard both goodbyes first may go: to the other, its going is the answer."""
        is_first = peer not in self._said_goodbye
        self._said_goodbye.add(peer)
        if heard_ours:
            self._parted.add(peer)
        elif self.is_closing and is_first:
            self.say_goodbye(peer)
        self._wake()

    def speak(self) -> float:
        """Say goodbye to all that are waited for, if it is time. Returns when it will be the next time."""
        now = self._shared.clock.now()
        if now >= self._due_s:
            for peer in self.waited_for():
                self.say_goodbye(peer)
            self._said_at_s, self._repeat_s = now, min(2 * self._repeat_s, REPEAT_S_MAX)
        return self._due_s

    @property
    def _due_s(self) -> float:
        # Whoever relays keeps others waiting, and nothing tells it when it is needed no more.
        return self._said_at_s + (REPEAT_S if self._relays.is_needed else self._repeat_s)

    def say_goodbye(self, peer: int) -> None:
        """We close, and have everything below these numbers."""
        heard = int(peer in self._said_goodbye)
        for communicator, ledger in self._courier.ledgers.items():
            if peer in self._courier.peers[communicator]:
                self._courier.tell(peer, Kind.GOODBYE, [communicator, ledger.completed, heard])

    def _farewell(self, peer: int) -> None:
        """A path to the peer changed: a goodbye may have been lost with it."""
        if self.is_closing and peer not in self._parted:
            self.say_goodbye(peer)

    def connection_ended(self, peer: int) -> bool:
        """A connection ended without our asking. Returns whether that was to be expected."""
        if peer not in self._said_goodbye:
            return False
        self._parted.add(peer)
        standing = [port for port in self._ports if port.peer_leaves(peer)]
        if standing:
            self._part_later(peer)
        else:
            self._part(peer)
        self._wake()
        return True

    def paths_lost(self, peer: int) -> None:
        """No link to the peer is in service."""
        if peer in self._said_goodbye:
            self._part_later(peer)

    def lost(self, peer: int) -> None:
        """The peer is dead or unreachable."""
        for port in self._ports:
            port.peer_left(peer)
        self._parted.add(peer)
        self._wake()

    def _part_later(self, peer: int) -> None:
        self._shared.timers.while_awake(self._shared.settings.unreachable_after_s, self._part_if_cut_off, peer)

    def _part_if_cut_off(self, peer: int) -> None:
        if not self._courier.links_up(peer):
            self._part(peer)

    def _part(self, peer: int) -> None:
        self.lost(peer)
        self._tell_all(PeerParted(peer))
