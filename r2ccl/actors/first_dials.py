"""Which links are dialled when a rank starts, and in which order.

What will carry comes first, and ``connect`` waits for it: the memory that is shared with a rank of the same node, the
rails to every other. What stands by follows once the job is connected, one peer after another, each rank beginning with
the rank behind it: the backups (``protocol.paths``), and the rails between ranks that share memory, by which nothing
goes while they do. Nobody waits for those. With them 64 ranks of one machine took twice as long to connect, and in a
job of hundreds of ranks they must not come all at once. Who has lost every other link to a peer wants them at once, and
does not ask here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from r2ccl.actors.courier import Courier
from r2ccl.actors.links import Port
from r2ccl.actors.shared import Shared
from r2ccl.actors.sharing import Sharing
from r2ccl.protocol.paths import backups, rails

#: So long links that will carry may take beyond the first to each peer, before ``connect`` goes on without them; and
#: ranks of our node to answer, before they are taken to be somewhere else.
LATE_LINKS_S = 1.0
#: Between two peers. A handshake takes a core about a millisecond, so this leaves most of it to the program; 500 peers
#: have their backups within five seconds. Between ranks of one node, whose cores are the same, as many times as long as
#: there are ranks on it.
PACE_S = 0.01

#: Waits so many seconds at most (None: for ever) until a link has come into service. Returns whether one has.
NextLink = Callable[[float | None], Awaitable[bool]]


class FirstDials:
    """One per rank. Both ends want a link, and the dialler dials. To want one again that is there does nothing."""

    def __init__(self, shared: Shared, ports: list[Port], sharing: Sharing, courier: Courier) -> None:
        self._shared = shared
        self._ports = ports
        self._sharing = sharing
        self._courier = courier
        #: Peers whose standbys are still to be dialled.
        self._left: deque[int] = deque()

    def rails(self, peer: int) -> list[tuple[int, int]]:
        """The rails to a peer: (own NIC, peer's NIC), the same from both ends; spares too."""
        return rails(len(self._ports), len(self._shared.members[peer].nics))

    def standbys(self, peer: int) -> list[tuple[int, int]]:
        """The links to a peer that will stand by: (own NIC, peer's NIC)."""
        shared = self._shared
        ours, theirs = ([nic.endpoint.host for nic in shared.members[rank].nics] for rank in (shared.rank, peer))
        across = backups(ours, theirs, shared.settings.backup_paths, we_are_first=shared.rank < peer)
        return [*self.rails(peer), *across] if self._sharing.is_wanted(peer) else across

    def begin(self) -> None:
        """Dial what will carry."""
        for peer in self._shared.peers:
            if not self._sharing.is_wanted(peer):
                self._want(peer, self.rails(peer))
        self._sharing.start()

    async def answered(self, next_link: NextLink) -> None:
        """Wait until each peer has a path, and a moment longer for other links that will carry."""
        await self._all_reached(next_link)
        deadline_s = self._shared.clock.now() + LATE_LINKS_S
        while any(self.rails_lacking(peer) > 0 for peer in self._shared.peers):
            left_s = deadline_s - self._shared.clock.now()
            if left_s <= 0 or not await next_link(left_s):
                break

    async def _all_reached(self, next_link: NextLink) -> None:
        """Each peer has a path. If those of our node that have none do not become fewer for a while, it may be another
        node after all, and their rails are dialled."""
        lacking, since_s = self._unreached(), self._shared.clock.now()
        while lacking:
            left_s = None
            if any(self._sharing.is_wanted(peer) for peer in lacking):
                left_s = since_s + LATE_LINKS_S - self._shared.clock.now()
                if left_s <= 0:
                    for peer in lacking:
                        self._want(peer, self.rails(peer))
                    left_s, since_s = LATE_LINKS_S, self._shared.clock.now()
            await next_link(left_s)
            before, lacking = len(lacking), self._unreached()
            if len(lacking) < before:
                since_s = self._shared.clock.now()

    def _unreached(self) -> list[int]:
        return [peer for peer in self._shared.peers if not self._courier.links_up(peer)]

    def rails_lacking(self, peer: int) -> int:
        """How many links to a peer are still to come that will carry."""
        links = self._courier.links_up(peer)
        if any(link.id.is_shared for link in links):
            return 0
        return len(self.rails(peer)) - sum(link.is_rail for link in links)

    def follow(self) -> None:
        """The job is connected: begin to dial what stands by."""
        if not self._left:
            ranks = self._shared.size
            self._left.extend(sorted(self._shared.peers, key=lambda peer: (peer - self._shared.rank) % ranks))
            self._next()

    def _next(self) -> None:
        while self._left:
            peer = self._left.popleft()
            if ways := self.standbys(peer):
                self._want(peer, ways)
                crowd = 1 + len(self._shared.neighbours) if self._sharing.is_wanted(peer) else 1
                self._shared.timers.after(crowd * PACE_S, self._next)
                return

    def stop(self) -> None:
        """Dial no more of them: the rank is about to leave."""
        self._left.clear()

    def _want(self, peer: int, ways: Iterable[tuple[int, int]]) -> None:
        for local, remote in ways:
            self._ports[local].want(peer, remote)
