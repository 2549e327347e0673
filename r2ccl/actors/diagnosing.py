"""Finds out whose fault a lost link is, for the incident log. Repair and planning never wait for it (decision 19).

A thin shell: ``protocol.incidents`` says which links are examined, ``protocol.diagnosis`` what has to be asked and what
the answers mean; here knocks go out, third ranks are asked and answered, and verdicts are written down.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import logging
from collections.abc import Iterable
from typing import Any, assert_never

from r2ccl.actors.courier import Courier
from r2ccl.actors.knocking import Knocker
from r2ccl.actors.link import Link
from r2ccl.actors.link_log import NO_LOSS
from r2ccl.actors.links import Port
from r2ccl.actors.messages import PeerGone
from r2ccl.actors.shared import Shared
from r2ccl.ids import LinkId
from r2ccl.protocol import diagnosis
from r2ccl.protocol.diagnosis import DiagnosisTimes, Knock, OtherRail, Scene
from r2ccl.protocol.diagnosis_messages import Allowance, Reach, Reached, read_reach, read_reached
from r2ccl.protocol.incidents import For, IncidentBook, LostLink, Tell
from r2ccl.protocol.verdict import Said, Third
from r2ccl.protocol.wire import Kind, Notice

#: The start that repair has: lanes move and notices go out before the first knock.
KNOCK_S = 0.002
#: On a whole path, as after the death of a process, our own knock is answered by now, and nobody needs to be asked.
ASK_S = 0.01
#: Netlink, notices of peers and the end of a process may be this much slower than the loss of a link.
SETTLE_S = 0.03
#: What an ask, its answer, and two busy loops may take beside the third's knocks.
ANSWER_S = 0.15
#: Third ranks that are asked about a link: a second one because the first may be busy, or have lost the same.
THIRDS_MAX = 2
#: Other NICs of the peer that are knocked at, to tell a NIC from its node.
OTHERS_MAX = 3
#: Asks of ours that have no answer yet; those of links that are examined at once fit many times.
ASKS_OPEN_MAX = 256


class Diagnosing:
    """One per rank. Called where links are lost, come back and are repaired."""

    def __init__(self, shared: Shared, ports: list[Port], courier: Courier) -> None:
        self._shared = shared
        self._ports = ports
        self._courier = courier
        self._knocker = Knocker(shared, ports)
        times = DiagnosisTimes(KNOCK_S, ASK_S, SETTLE_S, ASK_S + 2 * self._knocker.longest_s + ANSWER_S)
        self._book = IncidentBook(times, self._scene_of)
        #: Number of an ask -> whom we asked, and about which link.
        self._asks: dict[int, tuple[int, LinkId]] = {}
        self._last_ask = 0
        self._allowances = {peer: Allowance() for peer in shared.peers}
        #: peer -> its newest notice: version, and NICs that are down.
        self._announced: dict[int, tuple[int, frozenset[int]]] = {}
        courier.on_repaired = self._repaired

    def incidents(self) -> list[dict[str, Any]]:
        """See ``Communicator.stats``."""
        return [incident.as_dict() for incident in self._book.incidents]

    def explain(self, gone: PeerGone) -> PeerGone:
        """A peer is gone: what is told of it, with the verdict on the links to it, if there is one."""
        if gone.cause == "dead":
            self._hear((link for link in self._book.examined() if link.peer == gone.peer), diagnosis.PeerDied())
        self._book.gone(gone.peer)
        known = self._book.about(gone.peer)
        if known is None:
            return gone
        return dataclasses.replace(gone, verdict=f"{gone.verdict}; incident {known.number}: {known.words}")

    # What happens.

    def link_went_down(self, link: Link, cause: str) -> None:
        """A link is out of service."""
        if cause in NO_LOSS or not link.id.joins_nics:
            return  # what others carry, or memory, says nothing about a NIC
        silent_s = link.health.silence_s if cause == "silence" else 0.0
        lost = LostLink(link.id, cause, silent_s, link.lane is not None, link.session.ended_by_peer)
        self._perform(self._book.lost(lost, self._shared.clock.now()))

    def link_came_up(self, link: LinkId) -> None:
        """A link is in service, or again."""
        if not link.joins_nics:
            return
        self._perform(self._book.returned(link, self._shared.clock.now()))

    def nic_changed(self, nic: int, up: bool) -> None:
        """The system says that one of our NICs lost or found its carrier."""
        self._hear((link for link in self._book.examined() if link.local_nic == nic), diagnosis.OwnNicChanged(up))

    def notice_heard(self, peer: int, notice: Notice) -> None:
        """A peer says which of its NICs are down."""
        if notice.version <= self._announced.get(peer, (0, frozenset()))[0]:
            return
        down = frozenset(notice.nics_down)
        self._announced[peer] = (notice.version, down)
        for link in self._book.examined():
            if link.peer == peer:
                self._hear([link], diagnosis.TheirNicAnnounced(link.remote_nic not in down))

    def _repaired(self, peer: int) -> None:
        self._book.repaired(peer, self._shared.clock.now())

    # Our own questions.

    def _scene_of(self, link: LinkId) -> Scene:
        _, down = self._announced.get(link.peer, (0, frozenset()))
        nics = len(self._shared.members[link.peer].nics)
        rails = [(theirs % len(self._ports), theirs) for theirs in range(nics) if theirs != link.remote_nic]
        thirds = self._thirds(link)
        others = [self._other_rail(*rail, thirds) for rail in rails if self._ports[rail[0]].is_up]
        own_nic_up = self._ports[link.local_nic].is_up
        return Scene(own_nic_up, link.remote_nic not in down, tuple(others[:OTHERS_MAX]), thirds)

    def _other_rail(self, ours: int, theirs: int, thirds: tuple[Third, ...]) -> OtherRail:
        third = Third(thirds[0].rank, self._nic_on_rail(ours, thirds[0].rank)) if thirds else None
        return OtherRail(ours, theirs, third)

    def _thirds(self, link: LinkId) -> tuple[Third, ...]:
        """Whom to ask: rather ranks with a direct link in service on this rail, rather on other nodes, and then the
        next ones after us, so that not everybody asks the same."""
        members = self._shared.members
        local = self._ports[link.local_nic]
        reachable = {other.id.peer for port in self._ports for other in port.links.values() if other.is_up}
        reachable.discard(link.peer)
        nodes = (members[self._shared.rank].node, members[link.peer].node)

        def by_preference(rank: int) -> tuple[bool, bool, int]:
            direct = local.links.get((rank, self._nic_on_rail(link.local_nic, rank)))
            distance = (rank - self._shared.rank) % self._shared.size
            return direct is None or not direct.is_up, members[rank].node in nodes, distance

        chosen = heapq.nsmallest(THIRDS_MAX, reachable, by_preference)
        return tuple(Third(rank, self._nic_on_rail(link.local_nic, rank)) for rank in chosen)

    def _nic_on_rail(self, nic: int, rank: int) -> int:
        return nic % len(self._shared.members[rank].nics)

    def _hear(self, links: Iterable[LinkId], event: diagnosis.Event) -> None:
        now = self._shared.clock.now()
        for link in list(links):
            self._perform(self._book.handle(link, event, now))

    def _perform(self, effects: list[For | Tell]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                incident = effect.incident
                self._shared.events.record(
                    "incident", level=logging.WARNING, incident=incident.number, verdict=incident.words,
                    report=incident.report(),
                )  # fmt: skip
            else:
                self._perform_for(effect.link, effect.effect)

    def _perform_for(self, link: LinkId, effect: diagnosis.Effect) -> None:
        match effect:
            case Knock():
                self._knocker.knock(effect, lambda said: self._hear([link], diagnosis.KnockAnswered(effect, said)))
            case diagnosis.AskThird():
                self._ask(link, effect.third)
            case diagnosis.ArmTimer():
                self._shared.timers.after(effect.delay_s, self._hear, [link], diagnosis.TimerFired(effect.token))
            case diagnosis.Conclude():
                raise AssertionError("the book keeps verdicts to itself")
            case _:
                assert_never(effect)

    def _ask(self, link: LinkId, third: Third) -> None:
        self._last_ask += 1
        if len(self._asks) >= ASKS_OPEN_MAX:
            del self._asks[next(iter(self._asks))]
        self._asks[self._last_ask] = (third.rank, link)
        reach = Reach(self._last_ask, link.peer, link.remote_nic, link.local_nic)
        self._courier.tell(third.rank, Kind.REACH, reach.body())

    def answer_heard(self, peer: int, fields: list[Any]) -> None:
        """A third rank answers. Raises BadFrame."""
        reached = read_reached(fields)
        asked, link = self._asks.get(reached.number, (None, None))
        if asked != peer or link is None:
            return
        del self._asks[reached.number]
        self._hear([link], diagnosis.ThirdAnswered(peer, reached.theirs, reached.askers))

    # Others' questions.

    def ask_heard(self, peer: int, fields: list[Any]) -> None:
        """A rank wants us to knock at two NICs. Raises BadFrame."""
        nics = [len(member.nics) for member in self._shared.members]
        reach = read_reach(fields, nics, peer, self._shared.rank)
        if not self._allowances[peer].take(self._shared.clock.now()):
            return
        said: dict[str, Said] = {}

        def heard(whom: str, answer: Said) -> None:
            said[whom] = answer
            if len(said) == 2:
                reached = Reached(reach.number, said["theirs"], said["askers"])
                self._courier.tell(peer, Kind.REACHED, reached.body())

        for whom, rank, nic in (("theirs", reach.rank, reach.nic), ("askers", peer, reach.asker_nic)):
            knock = Knock(nic % len(self._ports), rank, nic)
            self._knocker.knock(knock, functools.partial(heard, whom))
