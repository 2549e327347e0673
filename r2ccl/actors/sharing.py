"""The port of shared memory: a link to each rank of our node, chosen before any that leaves by a NIC.

It is the port of a NIC that is none, as relays have one: sessions, lanes, echoes and notices work over it unchanged. A
lane takes its link before any other, and while it is in service no new chunks go to that peer by NICs: what they carry
within a node goes through the same memory, and costs more on the way. When the link is lost, because the peer's process
ended or what it stored could not be, the lane goes on by a NIC as after any loss.

That two ranks announce the same node says only "probably" (``transport.node_identity``). The proof is that the link can
be made: a stranger on another machine, or in another network namespace, is not found, and what is passed as memory must
hold the token that the other end left in it. Where there is no link nothing is lost but speed, so it is dialled like a
backup: ever more rarely.
"""

from __future__ import annotations

from collections.abc import Iterable

from r2ccl.actors.courier import Courier
from r2ccl.actors.link import Link
from r2ccl.actors.links import Port
from r2ccl.actors.receivers import Arrivals, RelayedFrames, Switchboard
from r2ccl.actors.shared import Shared
from r2ccl.ids import SHARED_NIC
from r2ccl.topology import Member
from r2ccl.transport.interface import Device


class _SharedMemoryPort(Port):
    """The device and its links."""

    def remote_nics(self, member: Member) -> Iterable[int]:
        """See :meth:`Port.remote_nics`."""
        return (SHARED_NIC,) if member.rank in self._shared.neighbours else ()

    def link(self, peer: int, remote_nic: int) -> Link:
        """See :meth:`Port.link`. It carries from the start, as a rail does."""
        link = super().link(peer, remote_nic)
        link.is_rail = True
        return link


class Sharing:
    """What a rank shares with its neighbours: nothing, where there is no device for it."""

    def __init__(
        self,
        shared: Shared,
        device: Device | None,
        arrivals: Arrivals,
        switchboard: Switchboard,
        relays: RelayedFrames,
        courier: Courier,
    ) -> None:
        self._neighbours = frozenset(shared.neighbours if device is not None else ())
        self._courier = courier
        #: One, or none.
        self.ports: list[Port] = []
        if device is not None:
            self.ports.append(_SharedMemoryPort(shared, device, arrivals, switchboard, relays))

    def is_wanted(self, peer: int) -> bool:
        """Is memory to be shared with this peer?"""
        return peer in self._neighbours

    def start(self) -> None:
        """Share memory with every neighbour."""
        for port in self.ports:
            for peer in sorted(self._neighbours):
                port.want(peer, SHARED_NIC)

    def bypass_nics(self, peer: int) -> None:
        """A link to the peer came into service or went out. While memory is shared, NICs get nothing new."""
        if peer not in self._neighbours:
            return
        links = self._courier.links_up(peer)
        is_shared = any(link.id.is_shared for link in links)
        for link in links:
            link.is_bypassed = is_shared and not link.id.is_shared
            link.route()
        self._courier.pump(peer)
