"""From evidence to verdict: the table by which a lost link names its culprit.

Two ends of a link cannot tell whose fault its loss is. A third point can: whoever of the two still reaches it is whole.
How evidence is gathered is ``protocol.diagnosis``'s business; here is what it means.

    our NIC   their NIC  our knock   thirds: of our NIC   of theirs    their other NICs   verdict
    (a link that is back meanwhile, whatever else was said)                               nothing wrong any more
    down      not down                                                                    our NIC
    down      down                                                                        ambiguous: both, or shared
    up        down                                                                        their NIC
    up        up         refused (or the rank is known to be dead)                        their process
    up        up         answered                                                         nothing wrong any more
    up        up         silent      reached              reached                         the path between
    up        up         silent      reached              silent       silent             their node
    up        up         silent      reached              silent       (else)             their NIC
    up        up         silent      silent               reached                         our NIC
    up        up         silent      reached              not known    silent             their node
    up        up         silent      reached              not known    (else)             ambiguous: path or their NIC
    up        up         silent      not known            reached                         ambiguous: path or our NIC
    up        up         silent      silent, or not known              silent             ambiguous: their node, or all
                                                                                          that lies between
    up        up         silent      silent, or not known              (else)             ambiguous: nobody can tell

*Reached* is what any third, or any of our knocks at one, says; *silent* is what is said only by a third that proves
itself to work: one that does not reach them must reach us, and one that does not reach us must reach them. A silent
knock of ours that could not be tried (``UNKNOWN``) counts as silent: the link is out of service for a reason. *Their
other NICs* are silent if none answers, and from one of ours that knocks there in vain we reach a third rank; in the
last rows, where nothing proves anything, if none answers.

With two ranks there is no third: the last rows apply, unless an owner says what it knows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Said(enum.IntEnum):
    """What came of a knock. The numbers go over the wire."""

    SILENT = 0
    ANSWERED = 1
    #: The kernel is there, and nobody listens.
    REFUSED = 2
    #: Not tried, or nobody said in time.
    UNKNOWN = 3

    @property
    def is_sign(self) -> bool:
        """Something came back: both NICs and the path between them work."""
        return self in (Said.ANSWERED, Said.REFUSED)


class Verdict(enum.Enum):
    """Where to look."""

    OUR_NIC = "our NIC"
    PATH = "the path between"
    THEIR_NIC = "their NIC"
    THEIR_NODE = "their node"
    THEIR_PROCESS = "their process"
    AMBIGUOUS = "ambiguous"
    NOTHING = "nothing wrong any more"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, and for an ambiguous one what it is between."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Third:
    """A rank that may be asked, and its NIC on the rail in question."""

    rank: int
    nic: int


@dataclass(frozen=True, slots=True)
class ThirdPoint:
    """What is known by way of one third rank."""

    third: Third
    #: Our knock at it, from the suspected NIC.
    we_reach_it: Said
    it_reaches_them: Said
    it_reaches_us: Said

    @property
    def ours(self) -> Said:
        """Of our NIC: one sign suffices."""
        both = (self.we_reach_it, self.it_reaches_us)
        return Said.ANSWERED if any(said.is_sign for said in both) else min(both)


@dataclass(frozen=True, slots=True)
class OtherNic:
    """Another NIC of theirs, at which we knock from another of ours."""

    nic: int
    said: Said
    #: Our knock at a third rank from the same NIC of ours, which may have died with the suspected one.
    control: Said


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that may bear on one link."""

    own_nic_up: bool
    #: As the peer last gave notice.
    their_nic_up: bool
    is_back: bool
    has_died: bool
    #: Our knock at their NIC.
    direct: Said
    #: What is known of their other NICs.
    others: tuple[OtherNic, ...]
    thirds: tuple[ThirdPoint, ...]

    @property
    def node_is_silent(self) -> bool:
        """None of their other NICs answers, and one of those that do not would have if it could."""
        none_answers = not any(other.said.is_sign for other in self.others)
        return none_answers and any(other.said is Said.SILENT and other.control.is_sign for other in self.others)

    @property
    def node_seems_silent(self) -> bool:
        """As before, where nobody can say whether it would have."""
        return bool(self.others) and all(other.said is Said.SILENT for other in self.others)


def judge(seen: Evidence) -> Finding:
    """The table above. Total."""
    if seen.is_back:
        return Finding(Verdict.NOTHING)
    if not seen.own_nic_up:
        if seen.their_nic_up:
            return Finding(Verdict.OUR_NIC)
        return Finding(Verdict.AMBIGUOUS, "both NICs are down: each of them, or what they share")
    if not seen.their_nic_up:
        return Finding(Verdict.THEIR_NIC)
    if seen.has_died or seen.direct is Said.REFUSED:
        return Finding(Verdict.THEIR_PROCESS)
    if seen.direct is Said.ANSWERED:
        return Finding(Verdict.NOTHING)
    return _judge_by_thirds(seen)


def _judge_by_thirds(seen: Evidence) -> Finding:
    works_here = any(point.ours.is_sign for point in seen.thirds)
    works_there = any(point.it_reaches_them.is_sign for point in seen.thirds)
    if works_here and works_there:
        return Finding(Verdict.PATH)
    if works_here:
        if seen.node_is_silent:
            return Finding(Verdict.THEIR_NODE)
        if any(point.ours.is_sign and point.it_reaches_them is Said.SILENT for point in seen.thirds):
            return Finding(Verdict.THEIR_NIC)
        return Finding(Verdict.AMBIGUOUS, "the path between, or their NIC")
    if works_there:
        if any(point.it_reaches_them.is_sign and point.ours is Said.SILENT for point in seen.thirds):
            return Finding(Verdict.OUR_NIC)
        return Finding(Verdict.AMBIGUOUS, "the path between, or our NIC")
    if seen.node_seems_silent:
        return Finding(Verdict.AMBIGUOUS, "their node, or all that lies between")
    return Finding(Verdict.AMBIGUOUS, "either NIC, or the path between")
