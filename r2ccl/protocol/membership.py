"""Who goes on after ranks were lost: all who call ``shrink()`` agree on one membership, or are told that they may not.

Theory of operation. Each member tells the others whom it can reach (its *view*), and keeps telling until it knows the
outcome. When it has the view of everybody in its own, it computes the membership that all of these views allow: as long
as any two do not reach each other, whoever lacks the most is left out, of several the highest rank. Everybody who knows
the same views computes the same, so they *vote* for it, and whoever has seen the votes of all its members for it has
*decided*. A view that changes, because another rank is lost meanwhile, starts over. A decision that anybody holds
stands: who hears of one takes it, if it is a member, and else is *evicted*. Who may not go on says so with an empty
view, and nobody waits for it.

May two decisions differ? Deciding takes the votes of all members decided on, and who has decided votes no more. So a
member of the first would have to be missing in the second; an operation of the first needs that member, which is in the
second and refuses. Nobody ever returns a result of half a membership. The *quorum* keeps the halves of a split network
from both going on, which would be no wrong sum but two jobs: more than half of the last membership less the proven
dead; of exactly two halves the one with the lowest rank.

A vote cannot be taken back: whoever has seen it may have decided by now, and counts on its sender. So a member that
ends otherwise, because its time is up, too few are left or others decided without it, *leaves* each membership that it
has voted for, as a rank leaves a communicator by closing it. Of a decision each member goes on, is lost, or has left.

    event                      -> effects
    begin                         Tell all in view
    heard a view or vote          Tell (if ours changed), Decide, Refuse (no quorum)
    heard a decision              Decide, or Refuse (evicted); Leave (other memberships voted for)
    lost a rank                   as a changed view
    withdraw (time is up)         Tell, Leave (all that was voted for)
    timer                         Tell again, until decided
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one member says."""

    #: Grows with everything that its sender says anew: of two that cross, the later one holds.
    version: int
    #: Ranks that the sender can reach, itself included.
    view: tuple[int, ...]
    #: The membership that the sender votes for; empty while it lacks views.
    vote: tuple[int, ...]
    #: Operations below this number have ended well at the sender.
    completed: int
    #: The sender has seen all votes: how far all members had come, and any of them.
    decided: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Send what we say to a peer."""

    peer: int
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Decide:
    """The new membership, in order of rank, and how far the old one had come."""

    members: tuple[int, ...]
    completed_by_all: int
    completed_by_any: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """This rank may not go on. ``evicted``: the others did without it; else they are too few."""

    evicted: bool
    reached: tuple[int, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Leave:
    """This rank has voted for a membership and will not be in it: who decided on it must hear of that."""

    members: tuple[int, ...]


Effect = Tell | Decide | Refuse | Leave


class Shrinking:
    """One member's part in shrinking one communicator."""

    __slots__ = (
        "_ballots",
        "_begun",
        "_completed",
        "_dead",
        "_decided",
        "_gone",
        "_members",
        "_over",
        "_rank",
        "_said",
        "_version",
        "_voted",
    )

    def __init__(
        self, rank: int, members: Iterable[int], dead: Iterable[int], unreachable: Iterable[int], completed: int
    ) -> None:
        self._rank = rank
        self._members = frozenset(members)
        self._dead = set(dead)
        self._gone = set(dead) | set(unreachable)
        self._completed = completed
        #: The last ballot of each peer.
        self._ballots: dict[int, Ballot] = {}
        self._version = 0
        self._said: Ballot | None = None
        self._decided: Decide | None = None
        #: Memberships that this rank has voted for, each smaller than the one before; in order.
        self._voted: dict[tuple[int, ...], None] = {}
        self._over = False
        self._begun = False

    @property
    def is_over(self) -> bool:
        """Decided or refused."""
        return self._over

    @property
    def view(self) -> tuple[int, ...]:
        return tuple(sorted(self._members - self._gone))

    def waits_for(self) -> tuple[int, ...]:
        """Members in view that have said nothing yet."""
        return tuple(peer for peer in self.view if peer != self._rank and peer not in self._ballots)

    def begin(self) -> list[Effect]:
        """This rank wants to go on."""
        self._begun = True
        decided = next((ballot for ballot in self._ballots.values() if ballot.decided is not None), None)
        return self._look() if decided is None else self._follow(decided)

    def heard(self, peer: int, ballot: Ballot) -> list[Effect]:
        """A member said something."""
        if peer not in self._members or peer == self._rank:
            return []
        if self._over and ballot.decided is None and ballot.view:
            # Whoever has not heard yet how it ended hears it again.
            return [] if self._said is None else [Tell(peer, self._said)]
        known = self._ballots.get(peer)
        if self._over or (known is not None and known.version >= ballot.version):
            return []
        self._ballots[peer] = ballot
        if not self._begun:
            return []
        return self._look() if ballot.decided is None else self._follow(ballot)

    def lost(self, peer: int, is_dead: bool) -> list[Effect]:
        """A member is dead, or cannot be reached."""
        if peer not in self._members:
            return []
        if is_dead:
            self._dead.add(peer)
        self._gone.add(peer)
        return [] if self._over or not self._begun else self._look()

    def withdraw(self) -> list[Effect]:
        """This rank does not want to go on any more."""
        return [] if self._over else self._stay_behind()

    def timer_fired(self) -> list[Effect]:
        """Say it again: it may have been lost."""
        return [] if self._over or self._said is None else self._tell(self._said)

    def _look(self) -> list[Effect]:
        view = self.view
        vote = self._allowed(view)
        if not self._is_quorum(vote or view):
            # More will not come: who is lost stays lost. The others must not wait for us.
            return [*self._stay_behind(), Refuse(False, view, self._needed())]
        effects: list[Effect] = []
        if self._said is None or (self._said.view, self._said.vote) != (view, vote):
            effects += self._say(view, vote, None)
        if vote and self._rank in vote and self._all_voted(vote):
            completed = [self._ballots[peer].completed for peer in vote if peer != self._rank] + [self._completed]
            effects += self._decide(vote, (min(completed), max(completed)))
        return effects

    def _allowed(self, view: tuple[int, ...]) -> tuple[int, ...]:
        """The membership that all views allow; none while one of them is not known."""
        views = {self._rank: frozenset(view)}
        for peer in view:
            if peer != self._rank:
                ballot = self._ballots.get(peer)
                if ballot is None:
                    return ()
                if ballot.view:  # who has none goes on with nobody
                    views[peer] = frozenset(ballot.view)
        while True:
            lacking = {
                rank: sum(rank not in views[other] or other not in views[rank] for other in views if other != rank)
                for rank in views
            }
            # Whoever lacks the most goes first, of several the highest.
            worst = max(lacking, key=lambda rank: (lacking[rank], rank))
            if not lacking[worst]:
                return tuple(sorted(views))
            del views[worst]

    def _all_voted(self, vote: tuple[int, ...]) -> bool:
        return all(self._ballots[peer].vote == vote for peer in vote if peer != self._rank)

    def _decide(self, vote: tuple[int, ...], reached: tuple[int, int]) -> list[Effect]:
        self._over = True
        self._decided = Decide(vote, *reached)
        return [*self._say(self.view, vote, reached), *self._leave_all_but(vote), self._decided]

    def _stay_behind(self) -> list[Effect]:
        """This rank goes on with nobody."""
        self._over = True
        return [*self._say((), (), None), *self._leave_all_but(())]

    def _leave_all_but(self, members: tuple[int, ...]) -> list[Effect]:
        return [Leave(voted) for voted in self._voted if voted != members]

    def _follow(self, ballot: Ballot) -> list[Effect]:
        """Somebody has decided."""
        if self._rank not in ballot.vote:
            return [*self._stay_behind(), Refuse(True, self.view, self._needed())]
        assert ballot.decided is not None
        return self._decide(ballot.vote, ballot.decided)

    def _say(self, view: tuple[int, ...], vote: tuple[int, ...], decided: tuple[int, int] | None) -> list[Effect]:
        self._version += 1
        if self._rank in vote:
            self._voted[vote] = None
        self._said = Ballot(self._version, view, vote, self._completed, decided)
        return self._tell(self._said)

    def _tell(self, ballot: Ballot) -> list[Effect]:
        return [Tell(peer, ballot) for peer in sorted(self._members - self._gone) if peer != self._rank]

    def _needed(self) -> int:
        return len(self._members - self._dead) // 2 + 1

    def _is_quorum(self, members: Iterable[int]) -> bool:
        alive = self._members - self._dead
        chosen = alive & frozenset(members)
        return 2 * len(chosen) > len(alive) or (2 * len(chosen) == len(alive) and min(alive) in chosen)
