"""Takes a look at every link in service, each ``R2CCL_EVIDENCE`` seconds, and does what the evidence says.

It has no timer of its own: the health monitor, whose ticks come every few milliseconds while bytes are owed and right
after the answers to idle beats, calls it when it looked at the sockets anyway.

What was seen between two looks is gathered by ``protocol.lookout``, judged by ``protocol.evidence``. What is done here
is what one link alone cannot know: its fair share of what all links to its peer carried, the fastest other link, the
errors of its interface, whether we were away ourselves. What begins to speak against a link and what no more does goes
to the event log; when new chunks should take another path, or its own again, its lane is told (``Link.route``).

A backup is a link that serves another lane: only there can chunks go at once, without anything being bound anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from r2ccl.actors.courier import Courier
from r2ccl.actors.link import Link
from r2ccl.actors.links import Port
from r2ccl.actors.shared import Shared
from r2ccl.planner.picture import announced_bandwidth
from r2ccl.protocol import others
from r2ccl.protocol.evidence import Began, Divert, Effect, Ended, Evidence, Kind, Restore
from r2ccl.topology import lanes_over_device


class EvidenceDesk:
    """One per rank. ``own_stall_s``: how long this process has been away altogether."""

    def __init__(self, shared: Shared, ports: list[Port], courier: Courier, own_stall_s: Callable[[], float]) -> None:
        self._shared = shared
        self._ports = ports
        self._courier = courier
        self._own_stall_s = own_stall_s
        #: See ``Shared.new_errors``.
        self.new_errors = shared.new_errors
        self.new_bytes = shared.new_bytes
        #: NIC -> all that it ever sent and received for us, at the last look.
        self._carried: dict[int, tuple[int, int]] = {}
        self._away_s = 0.0
        self._looked_s = shared.clock.now()
        self._due_s = self._looked_s + shared.settings.evidence_s

    def tick(self, now: float) -> None:
        """Look, if it is time. Nearly is enough, or idle links, which beat as often as that, would get every second
        look."""
        settings = self._shared.settings
        if now >= self._due_s - min(settings.heartbeat_s, settings.evidence_s / 2):
            self._due_s = now + settings.evidence_s
            self.look(now)

    def look(self, now: float) -> None:
        """At every link in service."""
        self._mind_own_stall()
        errors = {port.nic.index: self.new_errors(port.nic) for port in self._ports}
        links = [link for port in self._ports for link in port.links.values() if link.is_up]
        by_peer: dict[int, list[Link]] = {}
        for link in links:
            if link.control is not None and link.bulk is not None:
                pressed = self._courier.is_pressed(link.id.peer)
                link.glance(link.control.sample(), link.bulk.sample(), pressed, now)
                by_peer.setdefault(link.id.peer, []).append(link)
        beset = self._beset(now)
        for to_peer in by_peer.values():
            shares = self._fair_shares(to_peer)
            backups_s = [_backup_s(link, to_peer) for link in to_peer]
            for link, share, backup_s in zip(to_peer, shares, backups_s, strict=True):
                nic = link.id.local_nic
                seen = link.lookout.look(share, backup_s, errors[nic], now, nic in beset)
                self._perform(link, link.evidence.sample(seen, now))

    def _beset(self, now: float) -> set[int]:
        """NICs that carried much for others since the last look. What several lanes, or addresses, of one interface
        carry is ours together."""
        period_s, self._looked_s = now - self._looked_s, now
        carried, before = self._shared.counters.bytes_by_nic(), self._carried
        self._carried = carried
        nics = [port.nic for port in self._ports]
        beset = set()
        for nic in nics:
            counted = self.new_bytes(nic)
            ours = [other.index for other in nics if other.name == nic.name]
            sent, received = (
                sum(carried.get(index, (0, 0))[way] - before.get(index, (0, 0))[way] for index in ours)
                for way in (0, 1)
            )
            speed = sum(announced_bandwidth(nics[index]) for index in lanes_over_device(nic, nics))
            most_bytes = self._shared.settings.others_share * period_s * speed
            if counted and others.are_among(counted, (sent, received), most_bytes):
                beset.add(nic.index)
        return beset

    def _mind_own_stall(self) -> None:
        """Short stalls cost what was gathered around them (the health monitor sees to that), one as long as the time
        between two looks also what earlier looks have found."""
        away_s = self._own_stall_s()
        if away_s - self._away_s >= self._shared.settings.evidence_s:
            for port in self._ports:
                for link in port.links.values():
                    link.evidence.void()
                    link.lookout.restart()
        self._away_s = away_s

    def _fair_shares(self, links: Sequence[Link]) -> list[float | None]:
        """What each of the links to a peer should have carried since the last look: of what all of them did, as much
        as its NICs' part is in the speed of all. Links that have no lane, or an idle one by our will, have no part.
        Where they could have carried more nobody can say."""
        if not any(link.lookout.is_pressed for link in links):
            return [None] * len(links)
        speeds = [self._speed(link) for link in links]
        together = sum(speeds)
        carried = sum(link.lookout.carried_bytes for link, speed in zip(links, speeds, strict=True) if speed)
        return [carried * speed / together if speed else None for speed in speeds]

    def _speed(self, link: Link) -> float:
        if link.lane is None or link.evidence.is_diverted:
            return 0.0
        theirs = self._shared.members[link.id.peer].nics[link.id.remote_nic]
        return min(announced_bandwidth(self._ports[link.id.local_nic].nic), announced_bandwidth(theirs))

    def link_lost(self, link: Link) -> None:
        """The link is out of service: what spoke against it is over, and what comes back may be another path."""
        link.lookout.forget()
        self._perform(link, link.evidence.link_lost())

    def _perform(self, link: Link, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Began():
                    self._tell(link, effect.evidence, "CLEAR->SUSPECT", str(effect.evidence), logging.WARNING)
                case Ended():
                    cause = "as usual again" if link.is_up else "link lost"
                    self._tell(link, effect.evidence, "SUSPECT->CLEAR", cause, logging.INFO)
                case Divert():
                    cause = str(link.evidence.standing[Kind.LATENCY])
                    self._reroute(link, "HOME->SHADOW", cause, logging.WARNING)
                case Restore():
                    self._reroute(link, "SHADOW->HOME", effect.cause, logging.INFO)
                case _:
                    assert_never(effect)

    def _tell(self, link: Link, evidence: Evidence, change: str, cause: str, level: int) -> None:
        """An interface's errors are told once, not for each of its links: when the first is accused, the last clear."""
        port = self._ports[link.id.local_nic]
        where = {"link": str(link.id)}
        if evidence.kind is Kind.ERRORS:
            if any(Kind.ERRORS in other.evidence.standing for other in port.links.values() if other is not link):
                return
            where = {"nic": f"nic{port.nic.index}"}
        lasted_s = {} if level == logging.WARNING else {"lasted_s": self._shared.clock.now() - evidence.since_s}
        self._shared.events.record(
            "evidence", level=level, **where, kind=evidence.kind.value, change=change, cause=cause, **lasted_s
        )

    def _reroute(self, link: Link, change: str, cause: str, level: int) -> None:
        self._shared.events.record("route", level=level, link=str(link.id), change=change, cause=cause)
        link.route()


def _backup_s(link: Link, links: Iterable[Link]) -> float | None:
    """How fast the best other path to the peer answers that new chunks of the link's lane can take now; None: there is
    none, or it has no lane."""
    if link.lane is None:
        return None
    answers_s = (
        other.lookout.latest_rtt_s
        for other in links
        if other is not link and other.lane is not None and not other.lane.is_diverted
    )
    return min((answer_s for answer_s in answers_s if answer_s is not None), default=None)
