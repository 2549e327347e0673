"""Dials the backups (``protocol.paths``) once the job is connected, a few at a time.

Nobody waits for them: they must not delay ``connect``, and in a job of hundreds of ranks they must not come all at
once. So one peer after another gets its own, each rank beginning with the rank behind it.
"""

from __future__ import annotations

from collections import deque

from r2ccl.actors.links import Port
from r2ccl.actors.shared import Shared
from r2ccl.protocol.paths import backups

#: Between two peers. A handshake takes a core about a millisecond, so this leaves most of it to the program; 500 peers
#: have their backups within five seconds.
PACE_S = 0.01


class Backups:
    """One per rank."""

    def __init__(self, shared: Shared, ports: list[Port]) -> None:
        self._shared = shared
        self._ports = ports
        #: Peers whose backups are still to be dialled. Both ends want them, and the dialler dials.
        self._left: deque[int] = deque()

    def of(self, peer: int) -> list[tuple[int, int]]:
        """The backups to a peer: (own NIC, peer's NIC)."""
        shared = self._shared
        ours, theirs = ([nic.endpoint.host for nic in shared.members[rank].nics] for rank in (shared.rank, peer))
        return backups(ours, theirs, shared.settings.backup_paths, we_are_first=shared.rank < peer)

    def start(self) -> None:
        """Begin to dial."""
        shared = self._shared
        if shared.settings.backup_paths and not self._left:
            self._left.extend(sorted(shared.peers, key=lambda peer: (peer - shared.rank) % shared.size))
            self._next()

    def _next(self) -> None:
        if not self._left:
            return
        peer = self._left.popleft()
        for local, remote in self.of(peer):
            self._ports[local].want(peer, remote)
        self._shared.timers.after(PACE_S, self._next)
