"""What an incident is called: in an operator's words, always the same ones, so that a log can be searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from r2ccl.ids import LinkId
from r2ccl.protocol.verdict import Evidence, Finding, Said, ThirdPoint, Verdict

#: What a link's cause is when netlink took it out of service.
CARRIER: Final = "carrier"
_YES_OR_NO: Final = {Said.SILENT: "no", Said.ANSWERED: "yes", Said.REFUSED: "yes", Said.UNKNOWN: "not known"}


def milliseconds(seconds: float | None) -> str:
    """``2.1 ms``, ``38 ms``."""
    if seconds is None:
        return "unknown time"
    ms = seconds * 1e3
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def headline(first: LinkId, cause: str, silent_s: float, links: Sequence[LinkId], total: int) -> str:
    """What was lost, and how one knew. ``links``: as many as are kept, of ``total``."""
    if cause == CARRIER:
        return f"our nic{first.local_nic} lost its carrier, {total} link{'s' if total > 1 else ''}"
    how = f"silent for {milliseconds(silent_s)}" if silent_s else cause
    if total == 1:
        return f"link {_link(first)}: {how}"
    if len({link.local_nic for link in links}) == 1:
        return f"{total} links of our nic{first.local_nic}: {how}"
    if len({link.peer for link in links}) == 1:
        return f"{total} links to rank {first.peer}: {how}"
    return f"{total} links, the first {_link(first)}: {how}"


def goes_without_saying(first: LinkId, cause: str) -> str:
    """The piece of evidence that the headline has told already."""
    if cause == CARRIER:
        return _own_nic_is_down(first)
    return _their_nic_is_down(first) if cause == f"{_theirs(first)} is down" else ""


def culprit_words(link: LinkId, finding: Finding) -> str:
    """The verdict with the name of what it blames."""
    verdict = finding.verdict.value
    match finding.verdict:
        case Verdict.OUR_NIC:
            return f"{verdict} (nic{link.local_nic})"
        case Verdict.THEIR_NIC:
            return f"{verdict} ({_theirs(link)})"
        case Verdict.THEIR_NODE | Verdict.THEIR_PROCESS:
            return f"{verdict} (rank {link.peer})"
        case Verdict.PATH:
            return f"{verdict} (nic{link.local_nic} and {_theirs(link)})"
        case Verdict.AMBIGUOUS:
            return f"{verdict} ({finding.reason})"
        case Verdict.NOTHING:
            return verdict


def evidence_words(link: LinkId, seen: Evidence) -> list[str]:
    """What was found out about one link; only what somebody said, or did not although asked."""
    if seen.is_back:
        return ["the link is back"]
    told: list[str] = []
    if not seen.own_nic_up:
        told.append(_own_nic_is_down(link))
    if not seen.their_nic_up:
        told.append(_their_nic_is_down(link))
    if seen.has_died:
        told.append(f"the process of rank {link.peer} is gone")
    if seen.direct is not Said.UNKNOWN:
        answer = "its kernel refuses" if seen.direct is Said.REFUSED else _YES_OR_NO[seen.direct]
        told.append(f"we reach {_theirs(link)}: {answer}")
    told += [
        f"we reach rank {link.peer} nic{other.nic}: {_YES_OR_NO[other.said]}"
        for other in seen.others
        if _is_said(other.said)
    ]
    if seen.own_nic_up and seen.their_nic_up and not seen.has_died and not seen.direct.is_sign:
        for point in seen.thirds:
            told += _third_words(link, point)
        if not seen.thirds:
            told.append(f"our nic{link.local_nic} has its carrier")
            told.append(f"rank {link.peer} gave no notice of its nic{link.remote_nic}")
            told.append("there is no third rank to ask")
    return told


def _third_words(link: LinkId, point: ThirdPoint) -> list[str]:
    rank = point.third.rank
    told = []
    if _is_said(point.we_reach_it):
        told.append(
            f"our nic{link.local_nic} reaches rank {rank} nic{point.third.nic}: {_YES_OR_NO[point.we_reach_it]}"
        )
    if point.it_reaches_them is Said.UNKNOWN and point.it_reaches_us is Said.UNKNOWN:
        return [*told, f"rank {rank} did not say in time"]
    return [
        *told,
        f"rank {rank} reaches {_theirs(link)}: {_YES_OR_NO[point.it_reaches_them]}",
        f"rank {rank} reaches our nic{link.local_nic}: {_YES_OR_NO[point.it_reaches_us]}",
    ]


def _is_said(said: Said) -> bool:
    return said is not Said.UNKNOWN


def _own_nic_is_down(link: LinkId) -> str:
    return f"our nic{link.local_nic} is down"


def _their_nic_is_down(link: LinkId) -> str:
    return f"rank {link.peer} says that its nic{link.remote_nic} is down"


def _theirs(link: LinkId) -> str:
    return f"rank {link.peer} nic{link.remote_nic}"


def _link(link: LinkId) -> str:
    return f"nic{link.local_nic}->{_theirs(link)}"
