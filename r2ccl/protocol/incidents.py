"""From lost links to incidents: what happened together is told together, once, in an operator's words.

Theory of operation. A NIC that dies takes a link to every peer with it, and nobody wants to read a line for each. So a
link that is lost joins the *group* that is being examined already if it shares its NIC or its peer with it, and else
begins one. The first few links of a group are diagnosed, each by a machine of ``protocol.diagnosis``; the others share
their fate. When the last machine has its verdict the group falls into parts with one culprit each, mostly one, and each
part is an incident: one line in the log, one entry in what is kept.

Links that carry nothing are lost later than those that do: only their next idle beat finds out. Such a link joins the
incident that names the culprit which it shares, without being examined and without another line. One that was lost in
that incident before, and had come back, has been lost anew: a new incident.

Nothing here gates anything. When lanes are repaired this hears of it, and notes how long that took.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from r2ccl.ids import LinkId
from r2ccl.protocol.diagnosis import Conclude, Diagnosis, DiagnosisTimes, Effect, Event, LinkReturned, Scene
from r2ccl.protocol.incident_words import culprit_words, evidence_words, goes_without_saying, headline, milliseconds
from r2ccl.protocol.verdict import Evidence, Finding, Verdict

#: Kept, newest last: some hours of an ordinary day, some seconds of a very bad one.
KEPT = 64
#: Links of one group that are examined. A switch that takes 1,000 links of a rank with it shows in any of them: each
#: costs some knocks and asks, and all ranks do it at once.
EXAMINED_MAX = 4
#: Links named in one incident; of more only the number is told.
NAMED_MAX = 16
#: Idle links beat once a second, so those of a dead NIC are all found out within this time of the verdict.
JOINS_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class LostLink:
    """A link that was taken out of service."""

    link: LinkId
    cause: str
    #: The link had been silent for so long; 0 where something else gave it away.
    silent_s: float
    #: A lane was on it, which has to find another.
    carried: bool
    #: The peer took it out of service.
    by_peer: bool


@dataclass(slots=True)
class Incident:
    """What is told of one event. Its times are of one clock."""

    number: int
    first: LostLink
    #: When the first link was taken out of service.
    started_s: float
    #: When the first sign of trouble was, as far as anybody can tell now.
    first_evidence_s: float
    links: list[LinkId] = field(default_factory=list)
    links_total: int = 0
    #: A lane had been on one of the links.
    carried: bool = False
    #: Links whose lane is not repaired.
    waiting: set[LinkId] = field(default_factory=set)
    #: Links whose lane is -> since when.
    mended_s: dict[LinkId, float] = field(default_factory=dict)
    #: Links that are not in service again.
    down: set[LinkId] = field(default_factory=set)
    concluded_s: float | None = None
    verdict: Verdict | None = None
    #: The verdict with names.
    words: str = ""
    evidence: list[str] = field(default_factory=list)

    def add(self, lost: LostLink) -> None:
        """Another link of the same event."""
        self.links_total += 1
        self.down.add(lost.link)
        if len(self.links) < NAMED_MAX:
            self.links.append(lost.link)

    def must_repair(self, lost: LostLink) -> None:
        """The link's lane has to find another."""
        self.carried = True
        self.waiting.add(lost.link)

    @property
    def repaired_s(self) -> float | None:
        """When the last of its lanes had another link; None while one has not, and if there was none."""
        return None if self.waiting else max(self.mended_s.values(), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; see ``Communicator.stats``."""
        nics, peers = {link.local_nic for link in self.links}, {link.peer for link in self.links}
        return {
            "number": self.number,
            "started": self.started_s,
            "first_evidence_s": self.first_evidence_s,
            "repaired_after_s": self.after_s(self.repaired_s),
            "verdict_after_s": self.after_s(self.concluded_s),
            "verdict": self.words or None,
            "cause": self.first.cause,
            "evidence": list(self.evidence),
            "links": [str(link) for link in self.links],
            "links_total": self.links_total,
            "nic": f"nic{min(nics)}" if len(nics) == 1 else None,
            "peer": min(peers) if len(peers) == 1 else None,
        }

    def after_s(self, moment_s: float | None) -> float | None:
        """Counted from the first evidence."""
        return None if moment_s is None else moment_s - self.first_evidence_s

    def report(self) -> str:
        """All of it, for the log."""
        if self.waiting:
            repair = "lanes not repaired yet"
        elif self.carried and self.repaired_s is None:
            repair = "no lane is needed any more"
        elif self.carried:
            repair = f"lanes repaired after {milliseconds(self.after_s(self.repaired_s))}"
        else:
            repair = "no lane was on it"
        told = [headline(self.first.link, self.first.cause, self.first.silent_s, self.links, self.links_total)]
        verdict = f"verdict after {milliseconds(self.after_s(self.concluded_s))}: {self.words}"
        told += [said for said in self.evidence if said != goes_without_saying(self.first.link, self.first.cause)]
        return "; ".join([*told, repair, verdict])


@dataclass(frozen=True, slots=True)
class For:
    """An effect of the machine of one link."""

    link: LinkId
    effect: Effect


@dataclass(frozen=True, slots=True)
class Tell:
    """An incident has its verdict: log it."""

    incident: Incident


@dataclass(slots=True)
class _Group:
    """Links that were lost together, while they are examined."""

    incident: Incident
    lost: dict[LinkId, LostLink] = field(default_factory=dict)
    machines: dict[LinkId, Diagnosis] = field(default_factory=dict)
    found: dict[LinkId, tuple[Finding, Evidence]] = field(default_factory=dict)

    def shares(self, link: LinkId) -> bool:
        return any(one.local_nic == link.local_nic or one.peer == link.peer for one in self.lost)


class IncidentBook:
    """One per rank. ``scene_of``: what is known when a link is lost."""

    def __init__(self, times: DiagnosisTimes, scene_of: Callable[[LinkId], Scene]) -> None:
        self._times = times
        self._scene_of = scene_of
        self._kept: deque[Incident] = deque(maxlen=KEPT)
        self._groups: list[_Group] = []
        self._number = 0

    @property
    def incidents(self) -> Sequence[Incident]:
        """Oldest first; those that have no verdict yet among them."""
        return tuple(self._kept)

    def lost(self, lost: LostLink, now: float) -> list[For | Tell]:
        """A link was taken out of service."""
        group = next((group for group in self._groups if group.shares(lost.link)), None)
        if group is None:
            known = self._known(lost.link, now)
            if known is not None:
                known.add(lost)
                return []
            group = _Group(self._new(lost, now))
            self._groups.append(group)
        group.incident.first_evidence_s = min(group.incident.first_evidence_s, now - lost.silent_s)
        again = lost.link in group.lost
        group.lost[lost.link] = lost
        if not again:
            group.incident.add(lost)
        if lost.carried:
            group.incident.must_repair(lost)
        if again or len(group.machines) >= EXAMINED_MAX:
            return []
        machine = group.machines[lost.link] = Diagnosis(lost.link, self._scene_of(lost.link), self._times)
        return [For(lost.link, effect) for effect in machine.begin(now)]

    def examined(self) -> list[LinkId]:
        """Links that machines work on."""
        return [link for group in self._groups for link in group.machines if link not in group.found]

    def handle(self, link: LinkId, event: Event, now: float) -> list[For | Tell]:
        """Something that bears on one link."""
        told: list[For | Tell] = []
        for group in [group for group in self._groups if link in group.machines]:
            for effect in group.machines[link].handle(event, now):
                if isinstance(effect, Conclude):
                    group.found[link] = (effect.finding, effect.evidence)
                else:
                    told.append(For(link, effect))
            if len(group.found) == len(group.machines):
                self._groups.remove(group)
                told += self._close(group, now)
        return told

    def returned(self, link: LinkId, now: float) -> list[For | Tell]:
        """A link is in service again."""
        for incident in self._kept:
            incident.down.discard(link)
        return self.handle(link, LinkReturned(), now)

    def repaired(self, peer: int, now: float) -> None:
        """Lanes to the peer have links again, and what was taken back goes out there."""
        for incident in self._kept:
            for link in [link for link in incident.waiting if link.peer == peer]:
                incident.waiting.discard(link)
                incident.mended_s[link] = now

    def gone(self, peer: int) -> None:
        """Nothing goes to the peer any more."""
        for incident in self._kept:
            incident.waiting -= {link for link in incident.waiting if link.peer == peer}

    def about(self, peer: int) -> Incident | None:
        """The newest incident with a verdict in which a link to the peer was lost that is still down."""
        found = (i for i in reversed(self._kept) if i.verdict and any(link.peer == peer for link in i.down))
        return next(found, None)

    def _new(self, lost: LostLink, now: float) -> Incident:
        self._number += 1
        incident = Incident(self._number, lost, now, now - lost.silent_s)
        self._kept.append(incident)
        return incident

    def _known(self, link: LinkId, now: float) -> Incident | None:
        """The incident, told already, that explains the loss of this link too."""
        for incident in reversed(self._kept):
            fresh = incident.concluded_s is not None and now - incident.concluded_s <= JOINS_WITHIN_S
            if fresh and link not in incident.links and _explains(incident, link):
                return incident
        return None

    def _close(self, group: _Group, now: float) -> list[For | Tell]:
        parts: dict[Hashable, list[LinkId]] = {}
        for link, (finding, _) in group.found.items():
            parts.setdefault((finding.verdict, _culprit(finding.verdict, link)), []).append(link)
        home = {examined: key for key, links in parts.items() for examined in links}
        for link in sorted(group.lost.keys() - home.keys()):
            kin = [examined for examined in home if examined.local_nic == link.local_nic or examined.peer == link.peer]
            parts[home[(kin or list(home))[0]]].append(link)
        whole = dataclasses.replace(group.incident)
        told: list[For | Tell] = []
        for number, links in enumerate(parts.values()):
            incident = group.incident if number == 0 else self._new(group.lost[links[0]], now)
            if len(parts) > 1:
                _take_part(incident, whole, [group.lost[link] for link in group.lost if link in links])
            told.append(Tell(_concluded(incident, links[0], *group.found[links[0]], now)))
        return told


def _take_part(part: Incident, whole: Incident, lost: Sequence[LostLink]) -> None:
    """The part has these links, and of the whole's state what belongs to them."""
    part.started_s, part.first_evidence_s = whole.started_s, whole.first_evidence_s
    part.first, part.links, part.links_total, part.down = lost[0], [], 0, set()
    for one in lost:
        part.add(one)
    links = {one.link for one in lost}
    part.down, part.waiting = whole.down & links, whole.waiting & links
    part.carried = any(one.carried for one in lost)
    part.mended_s = {link: moment_s for link, moment_s in whole.mended_s.items() if link in links}


def _concluded(incident: Incident, link: LinkId, finding: Finding, evidence: Evidence, now: float) -> Incident:
    incident.concluded_s = now
    incident.verdict = finding.verdict
    incident.words = culprit_words(link, finding)
    incident.evidence = evidence_words(link, evidence)
    return incident


def _culprit(verdict: Verdict, link: LinkId) -> Hashable:
    """What two links must have in common to be one incident under this verdict."""
    match verdict:
        case Verdict.OUR_NIC:
            return link.local_nic
        case Verdict.THEIR_NIC:
            return link.peer, link.remote_nic
        case Verdict.THEIR_NODE | Verdict.THEIR_PROCESS:
            return link.peer
        case Verdict.PATH:
            return link
        case Verdict.AMBIGUOUS | Verdict.NOTHING:
            return None


def _explains(incident: Incident, link: LinkId) -> bool:
    """Whether the incident's culprit would take this link with it, too."""
    if incident.verdict in (None, Verdict.PATH, Verdict.NOTHING):
        return False
    if incident.verdict is Verdict.AMBIGUOUS:
        return any(one.local_nic == link.local_nic or one.peer == link.peer for one in incident.links)
    assert incident.verdict is not None
    return _culprit(incident.verdict, incident.first.link) == _culprit(incident.verdict, link)
