"""What a job survives on this network: of each NIC and each rail, whether all ranks still meet when it is lost.

r2ccl joins two ranks by links: rails (NICs of equal index) and some backups across rails. Two ranks go on while one of
their links is left. Without any they go on through a third rank that has links to both, one hop and no more, which is
slower and shares that rank's NICs. Without such a rank the job ends (``PeerLost``).

A link counts where both ends reach each other: which of the two dials is a matter of their ranks, and those change with
the launcher. Ranks of one node need no network.

Pure, and over the picture only, so it answers for networks that nobody has cut yet. The loss of a rail stands for that
of the switch that it goes through.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from r2ccl.planner.network_picture import Pair, Picture, needs_the_network

#: Pairs of ranks that a sentence names; of more, the number is told.
_NAMED_MAX = 3


class Verdict(enum.StrEnum):
    """What becomes of a job."""

    DIRECT = "yes"  #: every two ranks still have a link
    RELAYED = "by relay"  #: some go on through a third rank
    CUT = "no"  #: some cannot


@dataclass(frozen=True, slots=True)
class Loss:
    """NICs that go together, and what they are called."""

    what: str
    #: (rank, NIC).
    nics: frozenset[tuple[int, int]]
    #: One device, also where ranks of a node share it; else a rail.
    is_one_device: bool
    #: Some rank has no NIC besides.
    is_all_of_a_rank: bool


@dataclass(frozen=True, slots=True)
class Survival:
    """What becomes of the job when that is lost, and why."""

    loss: Loss
    verdict: Verdict
    #: Pairs of ranks that cannot go on, or those that do by relay.
    ranks: tuple[tuple[int, int], ...]
    reason: str


class Links:
    """Which ranks are joined by what."""

    def __init__(self, picture: Picture) -> None:
        reached = picture.reached
        self._picture = picture
        self._size = len(picture.hosts)
        #: Two ranks, lower first -> links that work both ways, as (NIC of the first, NIC of the second).
        self._usable: dict[tuple[int, int], list[Pair]] = {two: [] for two in combinations(range(self._size), 2)}
        for pair in picture.links:
            if pair in reached and pair.back in reached:
                self._usable[pair.source, pair.target].append(pair)
        self._local = {
            two for two in self._usable if not needs_the_network(picture.hosts[two[0]], picture.hosts[two[1]])
        }

    def cut(self, lost: frozenset[tuple[int, int]]) -> list[tuple[int, int]]:
        """Pairs of ranks that have no link left."""
        return [
            two
            for two, links in self._usable.items()
            if two not in self._local
            and not any(
                (pair.source, pair.source_nic) not in lost and (pair.target, pair.target_nic) not in lost
                for pair in links
            )
        ]

    def beyond_relays(self, cut: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of the pairs that no third rank joins."""
        apart = set(cut)

        def meet(one: int, other: int) -> bool:
            return (min(one, other), max(one, other)) not in apart

        return [
            (one, other)
            for one, other in sorted(apart)
            if not any(meet(one, third) and meet(other, third) for third in range(self._size))
        ]

    def judge(self, loss: Loss) -> Survival:
        """What becomes of the job."""
        apart = self.cut(loss.nics)
        if not apart:
            return Survival(loss, Verdict.DIRECT, (), "every two ranks still have a link")
        lost = self.beyond_relays(apart)
        if not lost:
            return Survival(
                loss, Verdict.RELAYED, tuple(apart), f"{_named(apart)} only through another rank, which is slower"
            )
        return Survival(loss, Verdict.CUT, tuple(lost), self._why(loss, lost))

    def _why(self, loss: Loss, lost: list[tuple[int, int]]) -> str:
        already = set(self.beyond_relays(self.cut(frozenset())))
        if already >= set(lost):
            return f"{_named(lost)}: not even now, with all NICs there"
        because = [two for two in lost if two not in already]
        return f"because {_named(because)} only by {'it' if loss.is_one_device else 'these'}"


def survival(picture: Picture) -> list[Survival]:
    """The loss of each NIC, and of each rail where there are several."""
    links = Links(picture)
    return [links.judge(loss) for loss in (*nic_losses(picture), *rail_losses(picture))]


def unjoined(picture: Picture) -> list[tuple[int, int]]:
    """Ranks that have no link with all NICs there."""
    return Links(picture).cut(frozenset())


def nic_losses(picture: Picture) -> list[Loss]:
    """Each NIC once, also where ranks of one node share it."""
    by_device: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for host, nic in picture.nics():
        by_device.setdefault(picture.device(host.rank, nic.index), []).append((host.rank, nic.index))
    losses = []
    for users in by_device.values():
        rank, first = users[0]
        also = f", which ranks {', '.join(str(user) for user, _ in users)} share" if len(users) > 1 else ""
        losses.append(Loss(picture.name(rank, first) + also, frozenset(users), True, _is_all_of_a_rank(picture, users)))
    return losses


def rail_losses(picture: Picture) -> list[Loss]:
    """All NICs of one index, for each index that two ranks or more have."""
    losses = []
    for rail in range(max((len(host.nics) for host in picture.hosts), default=0)):
        users = [(host.rank, rail) for host in picture.hosts if rail < len(host.nics)]
        if len(users) > 1:
            losses.append(
                Loss(
                    f"rail {rail} (nic{rail} of all ranks)", frozenset(users), False, _is_all_of_a_rank(picture, users)
                )
            )
    return losses


def _is_all_of_a_rank(picture: Picture, users: Iterable[tuple[int, int]]) -> bool:
    """Is it the last device of one of these ranks?"""
    users = list(users)
    lost = {picture.device(rank, nic) for rank, nic in users}
    return any({picture.device(rank, other.index) for other in picture.hosts[rank].nics} <= lost for rank, _ in users)


def _named(pairs: list[tuple[int, int]]) -> str:
    words = [f"rank {one} reaches rank {other}" for one, other in pairs[:_NAMED_MAX]]
    more = f" and {len(pairs) - _NAMED_MAX} more pairs" if len(pairs) > _NAMED_MAX else ""
    return ", ".join(words) + more
