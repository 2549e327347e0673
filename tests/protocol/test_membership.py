"""Shrinking: one membership for all who go on, in whatever order views, votes and losses arrive."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from r2ccl.protocol import membership
from r2ccl.protocol.membership import Ballot, Decide, Effect, Leave, Refuse, Shrinking, Tell


class Network:
    """Members, and messages that are lost, doubled and overtaken while it is not healed."""

    def __init__(self, ranks: int, rng: random.Random) -> None:
        self.rng = rng
        self.members = [Shrinking(rank, range(ranks), (), (), rng.randrange(9)) for rank in range(ranks)]
        self.alive = set(range(ranks))
        #: Pairs that have lost each other for good.
        self.cut: set[frozenset[int]] = set()
        self.messages: list[tuple[int, int, Ballot]] = []
        #: How it ended for whom; None: that one gave up.
        self.outcome: dict[int, Decide | Refuse | None] = {}
        #: Memberships that a rank has left.
        self.left: dict[int, set[tuple[int, ...]]] = defaultdict(set)

    def perform(self, rank: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self.messages.append((rank, effect.peer, effect.ballot))
            elif isinstance(effect, Leave):
                self.left[rank].add(effect.members)
            else:
                assert rank not in self.outcome, "ended twice"
                self.outcome[rank] = effect

    def begin(self, rank: int) -> None:
        self.perform(rank, self.members[rank].begin())

    def withdraw(self, rank: int) -> None:
        if rank not in self.outcome:
            self.perform(rank, self.members[rank].withdraw())
            self.outcome[rank] = None

    def kill(self, rank: int) -> None:
        self.alive.discard(rank)

    def lose(self, one: int, other: int, dead: bool) -> None:
        if one in self.alive:
            self.perform(one, self.members[one].lost(other, dead))

    def deliver(self, index: int) -> None:
        source, target, ballot = self.messages.pop(index)
        if target in self.alive and frozenset((source, target)) not in self.cut:
            self.perform(target, self.members[target].heard(source, ballot))

    def settle(self) -> None:
        """Everything arrives, and is said again until nothing changes."""
        delivered = 0
        for _ in range(40):
            while self.messages:
                self.deliver(0)
                delivered += 1
                assert delivered < 20_000, "it never comes to rest"
            for rank in self.alive:
                self.perform(rank, self.members[rank].timer_fired())
        self.messages.clear()

    def decided(self) -> dict[int, Decide]:
        return {rank: end for rank, end in self.outcome.items() if isinstance(end, Decide)}


def whole_memberships(network: Network) -> set[tuple[int, ...]]:
    """Memberships that all their members decided on: the only ones in which an operation can end."""
    decided = network.decided()
    votes = {end.members for end in decided.values()}
    return {
        vote for vote in votes if all(m in network.alive and m in decided and decided[m].members == vote for m in vote)
    }


def counted_on(network: Network) -> list[tuple[int, int, tuple[int, ...]]]:
    """Who counts on whom in which membership, who neither goes on in it nor has left it."""
    decided = network.decided()
    return [
        (rank, member, end.members)
        for rank, end in decided.items()
        for member in end.members
        if member in network.alive
        and (member not in decided or decided[member].members != end.members)
        and end.members not in network.left[member]
    ]


class Play:
    """A story drawn from a seed: losses, and an order of everything."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        ranks = rng.randint(2, 6)
        self.network = Network(ranks, rng)
        self.waiting = list(range(ranks))
        #: (who notices, whom, dead) in any order; noticing oneself is dying.
        self.losses: list[tuple[int, int, bool]] = []
        #: Who gives up, some time after it began.
        self.impatient = rng.sample(range(ranks), rng.choice((0, 0, 1, 2)))
        for _ in range(rng.randint(0, 3)):
            one, other = rng.sample(range(ranks), 2)
            if rng.random() < 0.5:
                self.losses += [(rank, other, True) for rank in range(ranks)]
            else:
                self.network.cut.add(frozenset((one, other)))
                self.losses += [(one, other, False), (other, one, False)]

    def step(self) -> None:
        """Anything that can happen now."""
        choice, network = self.rng.random(), self.network
        if self.waiting and choice < 0.2:
            network.begin(self.waiting.pop(self.rng.randrange(len(self.waiting))))
        elif self.impatient and self.impatient[-1] not in self.waiting and choice > 0.95:
            network.withdraw(self.impatient.pop())
        elif self.losses and choice < 0.3:
            self.notice(self.losses.pop(self.rng.randrange(len(self.losses))))
        elif network.messages:
            self.handle_message(self.rng.randrange(len(network.messages)), choice)

    def notice(self, loss: tuple[int, int, bool]) -> None:
        one, other, dead = loss
        if one == other:
            self.network.kill(one)
        elif dead and other in self.network.alive:
            self.losses.append(loss)  # nobody is proven dead before
        else:
            self.network.lose(one, other, dead)

    def handle_message(self, index: int, choice: float) -> None:
        if choice < 0.4:
            self.network.messages.pop(index)
        else:
            if choice < 0.5:
                self.network.messages.append(self.network.messages[index])
            self.network.deliver(index)

    def finish(self) -> None:
        """What was to happen happens, and then messages arrive."""
        for one, other, _ in self.losses:
            if one == other:
                self.network.kill(one)
        for rank in self.waiting:
            if rank in self.network.alive:
                self.network.begin(rank)
        for one, other, dead in self.losses:
            if one != other:
                self.network.lose(one, other, dead)
        self.network.settle()


def play(seed: int) -> Network:
    story = Play(seed)
    for _ in range(300):
        story.step()
        assert len(whole_memberships(story.network)) <= 1
    story.finish()
    return story.network


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_in_any_order_at_most_one_membership_goes_on_and_everybody_learns_how_it_ends(first: int) -> None:
    for seed in range(first, first + 250):
        network = play(seed)
        assert len(whole_memberships(network)) <= 1, f"seed {seed}"
        hung = [rank for rank in network.alive if rank not in network.outcome]
        assert not hung, f"seed {seed}: {hung} hear nothing"
        assert not counted_on(network), f"seed {seed}: {counted_on(network)}"


def lose_all(network: Network, groups: list[list[int]]) -> None:
    """The network falls apart."""
    for group in groups:
        for other_group in groups:
            if group is not other_group:
                for one in group:
                    for other in other_group:
                        network.cut.add(frozenset((one, other)))
                        network.lose(one, other, False)


def ends(network: Network) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, end in sorted(network.outcome.items()):
        assert end is not None
        found["on" if isinstance(end, Decide) else "evicted" if end.evicted else "no quorum"].append(rank)
    return dict(found)


def shrunk(groups: list[list[int]]) -> Network:
    ranks = sum(len(group) for group in groups)
    network = Network(ranks, random.Random(0))
    lose_all(network, groups)
    for rank in range(ranks):
        network.begin(rank)
    network.settle()
    return network


def test_of_five_ranks_split_in_three_and_two_the_three_go_on() -> None:
    assert ends(shrunk([[0, 1], [2, 3, 4]])) == {"no quorum": [0, 1], "on": [2, 3, 4]}


def test_of_two_halves_the_one_with_the_lowest_rank_goes_on() -> None:
    assert ends(shrunk([[0, 3], [1, 2]])) == {"on": [0, 3], "no quorum": [1, 2]}
    assert ends(shrunk([[0], [1]])) == {"on": [0], "no quorum": [1]}


def test_without_a_majority_nobody_goes_on() -> None:
    assert ends(shrunk([[0, 1], [2], [3, 4]])) == {"no quorum": [0, 1, 2, 3, 4]}


def test_the_proven_dead_do_not_count() -> None:
    network = Network(5, random.Random(0))
    for dead in (1, 2, 3):
        network.kill(dead)
        for rank in (0, 4):
            network.lose(rank, dead, True)
    network.begin(0)
    network.begin(4)
    network.settle()
    assert ends(network) == {"on": [0, 4]}
    assert network.decided()[0] == network.decided()[4]


def test_of_two_that_lost_only_each_other_the_lower_goes_on_and_the_other_is_told() -> None:
    network = Network(4, random.Random(0))
    network.cut.add(frozenset((1, 2)))
    network.lose(1, 2, False)
    network.lose(2, 1, False)
    for rank in range(4):
        network.begin(rank)
    network.settle()
    assert ends(network) == {"on": [0, 1, 3], "evicted": [2]}


def test_all_who_go_on_hear_how_far_all_and_how_far_any_had_come() -> None:
    members = [Shrinking(rank, range(3), (), (), completed) for rank, completed in enumerate((7, 5, 9))]
    network = Network(3, random.Random(0))
    network.members = members
    for rank in range(3):
        network.begin(rank)
    network.settle()
    assert set(network.decided().values()) == {Decide((0, 1, 2), 5, 9)}


def test_it_says_whom_it_waits_for() -> None:
    member = Shrinking(0, range(3), (), (), 0)
    member.begin()
    assert member.waits_for() == (1, 2)
    member.heard(2, Ballot(1, (0, 1, 2), (), 0))
    assert member.waits_for() == (1,)


def test_whoever_gives_up_after_its_vote_leaves_what_it_voted_for() -> None:
    member = Shrinking(0, range(3), (), (), 0)
    member.begin()
    for peer in (1, 2):
        member.heard(peer, Ballot(1, (0, 1, 2), (), 0))
    assert Leave((0, 1, 2)) in member.withdraw()
    silent = Shrinking(0, range(3), (), (), 0)
    silent.begin()
    assert silent.withdraw() == [Tell(peer, Ballot(2, (), (), 0)) for peer in (1, 2)]


def test_a_membership_that_another_one_overtook_is_left() -> None:
    member = Shrinking(0, range(4), (), (), 0)
    member.begin()
    for peer in (1, 2, 3):
        member.heard(peer, Ballot(1, (0, 1, 2, 3), (), 0))
    member.lost(3, True)
    member.heard(1, Ballot(2, (0, 1, 2), (), 0))
    member.heard(2, Ballot(2, (0, 1, 2), (0, 1, 2), 0))
    effects = member.heard(1, Ballot(3, (0, 1, 2), (0, 1, 2), 0))
    assert effects[-2:] == [Leave((0, 1, 2, 3)), Decide((0, 1, 2), 0, 0)]


def test_of_two_the_one_that_gave_up_does_not_go_on_in_the_place_of_the_other() -> None:
    member = Shrinking(1, range(2), (), (), 0)
    member.begin()
    assert Refuse(False, (0, 1), 2) in member.heard(0, Ballot(2, (), (), 0))


def test_without_the_rule_that_a_decision_stands_two_memberships_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model finds it: who has decided must not vote again, and who hears of a decision must take it."""

    def look_again(self: Shrinking, peer: int, ballot: Ballot) -> list[Effect]:
        self._ballots[peer] = ballot
        if self.is_over and ballot.decided is None and isinstance(self._decided, Decide):
            self._over, self._decided = False, None
            return [effect for effect in self._look() if isinstance(effect, Tell)]
        return [] if self.is_over else self._look()

    def play_all() -> None:
        for seed in range(400):
            play(seed)

    monkeypatch.setattr(membership.Shrinking, "heard", look_again)
    with pytest.raises(AssertionError):
        play_all()
