"""Binds lanes to links. One for each NIC that carries a share; its mailbox outlives the NIC.

When its NIC dies what its lanes have not had acknowledged goes to the head of each peer's queue. If there is a spare,
the supervisor restarts the actor there: the successor gets the mailbox with its lanes, and binds each to the spare's
link. Without a spare each lane takes a link that serves no other lane, or dissolves, and its chunks spread over the
lanes that are left. A lane that lost its link takes the next one that comes up (decisions 5 and 19). One that found a
backup across rails, or shares a NIC with another, goes back when its rail returns. Whenever a lane changed its link,
those links that serve none are offered anew: what would have added nothing before may do so now."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from r2ccl.actors.actor import Actor, Full, Mailbox
from r2ccl.actors.courier import Courier
from r2ccl.actors.link import Link
from r2ccl.actors.links import PEER_LEFT
from r2ccl.actors.messages import LinkLost, LinkOffered, NicCameBack, NicWentDown, TransportMessage
from r2ccl.actors.shared import Shared
from r2ccl.protocol.lanes import Lane, choose_link, takes_link

#: Control messages only, a few for each link that changes: more than this waiting is a bug.
MAILBOX_CAPACITY = 4096
#: How often a lane that goes back to its rail is looked at: a few round trips settle what it has on its way.
LEAVING_LOOK_S = 0.002


class LaneBox(Mailbox):
    """A transport actor's mailbox: its messages, and the lanes with their chunks."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        super().__init__(MAILBOX_CAPACITY, Full.REFUSE)
        #: peer -> lane
        self.lanes: dict[int, Lane] = {}


class TransportActor(Actor):
    """Lane ``index`` to every peer, at home on NIC ``home_nic``."""

    def __init__(
        self,
        name: str,
        index: int,
        home_nic: int,
        shared: Shared,
        courier: Courier,
        box: LaneBox,
        find_spare: Callable[[TransportActor], int | None],
        move: Callable[[TransportActor, int], None],
        offer: Callable[[Link], None],
    ) -> None:
        super().__init__(name, shared.loop, box)
        self.index = index
        self.home_nic = home_nic
        self.lanes = box.lanes
        self._shared = shared
        self._courier = courier
        self._find_spare = find_spare
        self._move = move
        self._offer = offer

    def start(self) -> None:
        """Put lanes that came without a link, as after a move, on what there is."""
        super().start()
        for lane in self.lanes.values():
            if lane.link is None and lane.is_orphan:
                self._rebind(lane, "moved")

    def handle(self, message: TransportMessage) -> None:
        """See the messages."""
        match message:
            case NicWentDown():
                self._nic_went_down(message)
            case LinkLost():
                self._link_lost(message)
            case LinkOffered():
                self._link_offered(message.link)
            case NicCameBack():
                pass
            case _:
                assert_never(message)

    def _nic_went_down(self, message: NicWentDown) -> None:
        if message.nic != self.home_nic:
            return
        spare = self._find_spare(self)
        if spare is None:
            return
        for lane in self.lanes.values():
            self._unbind(lane)
        self._shared.events.record(
            "lane_moved", lane=self.index, change=f"nic{self.home_nic}->nic{spare}", cause=message.cause
        )
        self._move(self, spare)

    def _link_lost(self, message: LinkLost) -> None:
        lane = self.lanes.get(message.link.id.peer)
        if lane is None or lane.link is not message.link:
            return
        if message.cause == PEER_LEFT:
            self._courier.take_back(lane, lane.link)
            lane.link = message.link.lane = None
        else:
            self._rebind(lane, message.cause)

    def _unbind(self, lane: Lane) -> None:
        """The lane's chunks go to the head of the queue, from where the next link, or the other lanes, take them."""
        link = lane.link
        if link is not None:
            link.lane = None
            lane.link = None
            lane.is_orphan = True
            lane.is_diverted = lane.is_leaving = False
            self._shared.counters.failovers += 1
        self._courier.take_back(lane, link)

    def _rebind(self, lane: Lane, cause: str) -> None:
        old = lane.link
        self._unbind(lane)
        taken = [other.link for other in self._courier.lanes[lane.peer] if other.link is not None]
        link = choose_link(self.home_nic, self._courier.links_up(lane.peer), taken)
        if link is not None:
            self._bind(lane, link, "MOVING->BOUND", cause)
        else:
            survivors = [str(other.id) for other in taken]
            self._shared.events.record(
                "lane_dissolved", lane=self.index, peer=lane.peer, change="BOUND->DISSOLVED", cause=cause,
                link=str(old.id) if old is not None else "none", survivors=",".join(survivors) or "none",
            )  # fmt: skip
            self._courier.pump(lane.peer)
            if any(other.is_up for other in taken):
                self._courier.on_repaired(lane.peer)
        self._offer_idle(lane.peer)
        self._courier.resync(lane.peer)

    def _offer_idle(self, peer: int) -> None:
        for link in self._courier.links_up(peer):
            if link.lane is None:
                self._offer(link)

    def _link_offered(self, link: Link) -> None:
        lane = self.lanes.get(link.id.peer)
        if lane is None or link.lane is not None or not link.is_up:
            return
        if lane.link is None:
            self._bind(lane, link, "DISSOLVED->BOUND", "link up")
        elif takes_link(lane, link, stands_by=True, lanes=self._courier.lanes[lane.peer]):
            lane.is_leaving = True
            self._leave(lane, lane.link, link)
        else:
            self._offer(link)  # it found another meanwhile; a lane of somebody else may still look for one

    def _leave(self, lane: Lane, old: Link, home: Link) -> None:
        """A lane on a backup, or a NIC of another's, goes back to its rail once all that it sent there is settled, so
        nothing is resent."""
        if lane.link is not old or not lane.is_leaving:
            return  # it lost that link meanwhile
        if not self.is_running or not home.is_up or home.lane is not None:
            lane.is_leaving = False
            self._courier.pump(lane.peer)
            self._offer_idle(lane.peer)
        elif lane.outstanding:
            self._shared.timers.after(LEAVING_LOOK_S, self._leave, lane, old, home)
        else:
            old.lane = lane.link = None
            lane.is_leaving, lane.is_orphan = False, True
            cause = "memory is shared" if home.id.is_shared else "rail up"
            self._bind(lane, home, "SHARED->BOUND" if old.is_rail else "BACKUP->BOUND", cause)
            self._offer_idle(lane.peer)

    def _bind(self, lane: Lane, link: Link, change: str, cause: str) -> None:
        lane.link = link
        link.lane = lane
        lane.lead_over(2 if link.id.is_relayed else 1)
        link.route()
        if lane.is_orphan:
            lane.is_orphan = False
            self._shared.events.record(
                "lane_bound", lane=self.index, peer=lane.peer, change=change, cause=cause, link=str(link.id)
            )
        self._courier.pump(lane.peer)
        self._courier.on_repaired(lane.peer)


def add_lane(box: LaneBox, courier: Courier, lane: Lane) -> None:
    """A lane that belongs to this mailbox, seen by the courier."""
    box.lanes[lane.peer] = lane
    courier.lanes[lane.peer].append(lane)
