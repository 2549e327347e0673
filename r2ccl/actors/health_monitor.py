"""Watches links and peers: looks closely while bytes are owed, beats now and then while not.

Each tick samples the sockets of links that owe something and asks the judges of ``protocol.health``. Verdicts on
links go to the ports, doubts about peers to ``protocol.liveness``. A tick that comes late says that we were away
ourselves, and voids what was gathered (decision 17)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from r2ccl.actors.actor import Actor, Mailbox
from r2ccl.actors.courier import Courier
from r2ccl.actors.evidence_desk import EvidenceDesk
from r2ccl.actors.link import Link
from r2ccl.actors.links import Port
from r2ccl.actors.messages import (
    ConnectionEnded,
    DialRefused,
    EchoHeard,
    GoodbyeHeard,
    HealthMessage,
    NicCameBack,
    NicWentDown,
    NoticeHeard,
    PathsChanged,
    PeerAnswered,
    PeerGone,
)
from r2ccl.actors.shared import Shared
from r2ccl.protocol import liveness, session_events
from r2ccl.protocol.health import Health, OwnStall
from r2ccl.protocol.liveness import PeerLiveness
from r2ccl.protocol.wire import Kind, Notice, pack_control
from r2ccl.topology import Endpoint, Nic


class HealthMonitor(Actor):
    """One per rank."""

    def __init__(
        self,
        shared: Shared,
        mailbox: Mailbox,
        ports: list[Port],
        courier: Courier,
        evidence: EvidenceDesk,
        announce_gone: Callable[[PeerGone], None],
        nic_changed: Callable[[NicWentDown | NicCameBack], None],
    ) -> None:
        super().__init__("health", shared.loop, mailbox)
        self._shared = shared
        self._ports = ports
        self._courier = courier
        self._evidence = evidence
        self._announce_gone = announce_gone
        self._nic_changed = nic_changed
        settings = shared.settings
        self.stall = OwnStall(settings.heartbeat_s)
        shared.timers.away_s = lambda: self.stall.away_s(shared.clock.now())
        self.peers = {peer: PeerLiveness(peer, settings.unreachable_after_s) for peer in shared.peers}
        self._fast: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        #: When the idle tick is due: while nothing is owed it is what tells that we were away.
        self._idle_due_s = 0.0
        #: (peer, its NIC, our NIC) -> newest incident that the peer told of, or that the link has got over.
        self._incidents: dict[tuple[int, int, int], int] = {}
        #: peer -> its NICs that it said are down.
        self._remote_down: dict[int, frozenset[int]] = {}
        self._notice_versions: dict[int, int] = {}

    def start(self) -> None:
        """Begin to watch."""
        super().start()
        self._arm_idle_tick(self._shared.clock.now())
        if self._courier.unsettled:
            self.look_closely()

    def stop(self) -> None:
        """Watch no more."""
        super().stop()
        for timer in (self._fast, self._slow):
            if timer is not None:
                timer.cancel()
        self._fast = self._slow = None

    def look_closely(self) -> None:
        """Bytes are owed from now on."""
        if self._fast is None and self.is_running:
            now = self._shared.clock.now()
            self.stall.tick(now)
            self.stall.expect(now + self._shared.settings.heartbeat_s)
            self._fast = self._loop.call_later(self._shared.settings.heartbeat_s, self._tick)

    # Links.

    def _tick(self) -> None:
        self._fast = None
        now = self._shared.clock.now()
        late = self.stall.tick(now)
        busy = self._courier.unsettled > 0
        for port in self._ports:
            for link in list(port.links.values()):
                if late:
                    link.void()
                    link.lookout.restart()
                if link.watched or link.is_suspected or (link.lane is not None and link.lane.outstanding):
                    busy = True
                    self._look_at(port, link, now, late)
                else:
                    # Not looked at, so nobody knows whether bytes were in flight all the time until the next look.
                    link.void()
        self._evidence.tick(now)
        if busy:
            self.look_closely()
        else:
            self.stall.expect(self._idle_due_s)

    def _look_at(self, port: Port, link: Link, now: float, late: bool) -> None:
        if link.control is None or link.bulk is None or not link.is_up:
            link.watched = link.is_late = False
            link.void()
            return
        held_up = link.holds_up
        control, bulk = link.control.sample(), link.bulk.sample()
        link.glance(control, bulk, self._courier.is_pressed(link.id.peer), now)
        if link.lane is not None and (late or bulk.limited):
            link.lane.rate.void()  # what it waits for is a process, not the wire
        health = link.health.judge(control, bulk, now)
        if health is Health.RED and not late:
            link.watched = link.is_late = False
            port.step(link, session_events.Withdrawn("silence"))
            return
        link.is_late = health is Health.YELLOW and not late
        self._suspect(link, began=link.holds_up and not held_up)
        owes = link.lane is not None and bool(link.lane.outstanding)
        beat_is_due = not control.unsent_bytes and now - link.beaten_at_s >= self._shared.settings.heartbeat_s
        if beat_is_due and (owes or link.is_unanswered):
            # Also while an earlier beat is on its way: the answers to later ones tell that only it was lost, where a
            # single one would be silent until the kernel sends it again after 200 ms.
            self._beat(link, now)
        elif not owes and not any(each.in_flight_bytes or each.unsent_bytes for each in (control, bulk)):
            link.watched = False

    def _suspect(self, link: Link, began: bool) -> None:
        """While a link is late, and not yet silent, or what it carries stands still behind lost packets, others carry
        what is new: chunks, and all control. Some of its own chunks go out there, too, and what was said on it is said
        again when that ``began``."""
        link.route()
        lane = link.lane
        if link.holds_chunks_up and lane is not None and lane.outstanding:
            self._courier.hedge(lane)
        if began:
            self._courier.resync(link.id.peer)

    def _beat(self, link: Link, now: float) -> None:
        assert link.control is not None
        link.beaten_at_s = now
        link.control.send(*pack_control(Kind.BEAT, self._shared.rank, link.id.peer, []))

    def _idle_tick(self) -> None:
        now = self._shared.clock.now()
        if self._fast is None:
            self.stall.tick(now)
        for port in self._ports:
            port.tidy()
            for link in port.links.values():
                if (
                    link.is_up
                    and link.control is not None
                    and now - link.beaten_at_s >= self._shared.settings.idle_beat_s
                ):
                    self._beat(link, now)
                    link.watched = True
        self._arm_idle_tick(now)
        self.look_closely()

    def _arm_idle_tick(self, now: float) -> None:
        self._idle_due_s = now + self._shared.settings.idle_beat_s
        self._slow = self._loop.call_later(self._shared.settings.idle_beat_s, self._idle_tick)
        if self._fast is None:
            self.stall.expect(self._idle_due_s)

    # What is heard.

    def handle(self, message: HealthMessage) -> None:
        """See the messages."""
        match message:
            case NicWentDown() | NicCameBack():
                self._own_nic(message)
            case ConnectionEnded():
                self._perform(message.peer, self.peers[message.peer].connection_ended(message.how))
            case DialRefused():
                self._perform(message.peer, self.peers[message.peer].refused())
            case PeerAnswered():
                self.peers[message.peer].answered()
            case PathsChanged():
                self._paths_changed(message)
            case NoticeHeard():
                self._notice_heard(message.peer, message.notice)
            case EchoHeard():
                # A notice of that, or of an earlier loss, may come later, by a slower path: it is none of this link.
                key = (message.peer, message.remote_nic, message.local_nic)
                self._incidents[key] = max(message.incident, self._incidents.get(key, 0))
            case GoodbyeHeard():
                self.peers[message.peer].said_goodbye()
            case _:
                assert_never(message)

    def _own_nic(self, message: NicWentDown | NicCameBack) -> None:
        port = next((port for port in self._ports if port.nic.index == message.nic), None)
        if port is None or port.is_up is isinstance(message, NicCameBack):
            return
        if isinstance(message, NicWentDown):
            self._record(port.nic, "UP->DOWN", message.cause, logging.WARNING)
            # Told before the links are: lanes that move to a spare as a whole are not bound one by one before.
            self._nic_changed(message)
            port.nic_went_down(message.cause)
        else:
            self._record(port.nic, "DOWN->UP", message.cause, logging.INFO)
            self._nic_changed(message)
            port.nic_came_back()
            for peer, judge in self.peers.items():
                self._perform(peer, judge.nic_returned())
        for peer in self._shared.peers:
            self._courier.notify(peer)

    def _record(self, nic: Nic, change: str, cause: str, level: int) -> None:
        """A change of a NIC, which is named by its index, and by the system's name where that says more."""
        name = f"nic{nic.index}"
        device = {} if nic.name == name else {"device": nic.name}
        self._shared.events.record("nic", level=level, nic=name, change=change, cause=cause, **device)

    def _paths_changed(self, message: PathsChanged) -> None:
        judge = self.peers[message.peer]
        if message.links_up:
            judge.path_found()
            return
        self._want_every_path(message.peer)
        self._perform(message.peer, judge.no_path())

    def _want_every_path(self, peer: int) -> None:
        """No link of the plan is left: try NICs across rails, where there may be a route, and ranks that relay."""
        for port in self._ports:
            for nic in port.remote_nics(self._shared.members[peer]):
                if port.is_up:
                    port.left_alone(peer, nic)

    def _notice_heard(self, peer: int, notice: Notice) -> None:
        if notice.version <= self._notice_versions.get(peer, 0):
            return
        self._notice_versions[peer] = notice.version
        for nic, family, host, port_number in notice.moved:
            if nic < len(self._shared.members[peer].nics):
                self._shared.moved[peer, nic] = Endpoint(family, host, port_number)
        down = frozenset(notice.nics_down)
        before = self._remote_down.get(peer, frozenset())
        self._remote_down[peer] = down
        told = {(theirs, ours): incident for theirs, ours, incident in notice.links_down}
        for port in self._ports:
            for link in [link for link in port.links.values() if link.id.peer == peer]:
                theirs = link.id.remote_nic
                if theirs in down - before:
                    port.step(link, session_events.Withdrawn(f"rank {peer} nic{theirs} is down", by_peer=True))
                elif theirs in before - down:
                    port.step(link, session_events.Encouraged(usable=port.is_up))
                if (theirs, port.nic.index) in told:
                    self._link_given_up(port, link, told[theirs, port.nic.index])
        if told and self._shared.one_sided:
            self._courier.confirm_fences(peer, notice.links_down)
        self._courier.ask_fences(peer)

    def _link_given_up(self, port: Port, link: Link, incident: int) -> None:
        key = (link.id.peer, link.id.remote_nic, port.nic.index)
        if incident <= self._incidents.get(key, 0):
            return
        self._incidents[key] = incident
        port.step(link, session_events.Withdrawn(f"rank {link.id.peer} gave it up", by_peer=True))

    # Peers.

    def _perform(self, peer: int, effects: list[liveness.Effect]) -> None:
        for effect in effects:
            match effect:
                case liveness.Probe():
                    self._probe(peer)
                case liveness.ArmTimer():
                    self._shared.timers.after(effect.delay_s, self._liveness_timer, peer, effect.token)
                case liveness.Declare():
                    self._shared.events.record(
                        "peer_gone", level=logging.WARNING, peer=peer, change="ALIVE->GONE", cause=effect.cause,
                        verdict=effect.verdict,
                    )  # fmt: skip
                    self._announce_gone(PeerGone(peer, effect.cause, effect.verdict))
                case _:
                    assert_never(effect)

    def _liveness_timer(self, peer: int, token: int) -> None:
        if self.is_running:
            self._perform(peer, self.peers[peer].timer_fired(token))

    def _probe(self, peer: int) -> None:
        for port in self._ports:
            if not port.is_up:
                continue
            for key in [key for key in port.links if key[0] == peer]:
                port.probe(peer, key[1])
