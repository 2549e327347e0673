"""Who has to go when more callers wait at a listener than it has room for. Pure: a listener acts on what it decides.

Everybody who connects is a stranger until its handshake is done, and holds a descriptor and some memory until then. A
listener has room for a fixed number of them. To turn away whoever comes when the room is full would let a stranger shut
the door by filling it, and keeping it filled; so it is one who waits already that makes room:

1. One who has not said a right word yet, before any who has: a Hello for this very job, rank and NIC (and, once ranks
   have met, from an incarnation among 2^64 that was admitted). A member says it as soon as it is connected.
2. Of these, one from the address from which most came. A flood from one address costs nobody else a place.
3. Of these, the one who came first. Who answers within a few turns of the loop is long gone by then.

How long one may stay at most is a matter of timers, which the listener keeps.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Caller = TypeVar("Caller")


class Doorkeeper(Generic[Caller]):
    """Those who have connected and are no members yet, of one listener."""

    __slots__ = ("_crowd", "_greeted", "_hosts", "_room")

    def __init__(self, room: int) -> None:
        if room < 1:
            raise ValueError(f"a listener with room for {room} lets nobody in")
        self._room = room
        #: Where each one comes from. Bounded by the room.
        self._hosts: dict[Caller, str] = {}
        #: By address, in the order in which they came: those who have said nothing right yet, and those who have.
        self._crowd: dict[str, dict[Caller, None]] = {}
        self._greeted: dict[str, dict[Caller, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def came(self, caller: Caller, host: str) -> Caller | None:
        """Somebody connected, and waits from now on. Returns who has to go in its place, and waits no more."""
        leaves = None
        if len(self._hosts) >= self._room:
            fullest = max((self._crowd or self._greeted).values(), key=len)
            leaves = next(iter(fullest))
            self.gone(leaves)
        self._hosts[caller] = host
        self._crowd.setdefault(host, {})[caller] = None
        return leaves

    def greeted(self, caller: Caller) -> None:
        """It said a right word. May be told again, and of one who waits no more."""
        host = self._hosts.get(caller)
        if host is not None and _leave(self._crowd, host, caller):
            self._greeted.setdefault(host, {})[caller] = None

    def gone(self, caller: Caller) -> None:
        """It has become a member, or was turned away, or hung up. May be told again."""
        host = self._hosts.pop(caller, None)
        if host is not None and not _leave(self._crowd, host, caller):
            _leave(self._greeted, host, caller)


def _leave(those: dict[str, dict[Caller, None]], host: str, caller: Caller) -> bool:
    from_there = those.get(host, {})
    if caller not in from_there:
        return False
    del from_there[caller]
    if not from_there:
        del those[host]
    return True
