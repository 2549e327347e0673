"""Every order of a small world: two and three members, a few operations, timers and a death.

The wire is a set out of which nothing is taken: whatever was ever said may arrive at any time, again and again, or
never, which covers loss, doubling and reordering at once. Worlds that are alike are looked at once, and
one in which less was said than in another not at all. Time stands still;
a timer may fire at any moment, as often as the budget allows.

To be quick, states of members and messages are numbered, a set of messages is a number whose bits they are, and what a
member in some state does at some event is computed once.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pytest

from r2ccl.errors import InvalidTransition
from r2ccl.protocol import agreement_proposer
from r2ccl.protocol.agreement import Agreement, Effect, Tell
from r2ccl.protocol.agreement_messages import (
    Agreed,
    Commit,
    Inquire,
    Message,
    No,
    Propose,
    State,
    Withdraw,
    Yes,
)
from r2ccl.protocol.agreement_proposer import Stage
from r2ccl.protocol.agreement_voter import Purpose
from tests.protocol import agreement_mutations as mutations
from tests.protocol.agreement_world import Split

T = TypeVar("T", bound=Hashable)
WORLDS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may happen. Deaths are of the lowest live ranks; rounds and polls are timers that fire."""

    ranks: int
    operations: int
    rounds: int
    polls: int
    deaths: int


class Hear(NamedTuple):
    source: int
    message: Message


class Fire(NamedTuple):
    purpose: Purpose


class Call(NamedTuple):
    operation: int


class Learn(NamedTuple):
    gone: int
    admitted: int


class Measure(NamedTuple):
    report: bytes


Event = Hear | Fire | Call | Learn | Measure


class World(NamedTuple):
    """One state of everything. ``members``: numbers of their states; ``runs``: (operation, rank, what it ran under)."""

    members: tuple[int, ...]
    said: int
    runs: tuple[tuple[int, int, Agreed], ...]
    rounds: int
    polls: int
    dead: int
    unaware: tuple[tuple[int, int], ...]


class Numbers(Generic[T]):
    """Numbers things in the order of their appearance."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, thing: T) -> int:
        number = self._numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class Explorer:
    """Looks at every world that can be reached."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.keys = Numbers[tuple[Any, ...]]()
        #: By number of a state: a member in it.
        self.members: list[Agreement] = []
        self.messages = Numbers[tuple[int, int, Message]]()
        self.known: dict[tuple[int, Event], tuple[int, int]] = {}
        #: By message, state of its speaker (None: dead) and of its hearer.
        self.worth: dict[tuple[int, int | None, int], bool] = {}
        #: By all else: what was said, and how many rounds and polls may come.
        self.seen: dict[tuple[Any, ...], list[tuple[int, int, int]]] = {}

    def explore(self) -> int:
        """Count them. Raises when two members ran one operation apart."""
        ranks = range(self.budget.ranks)
        members = tuple(self.number(Agreement(rank, ranks)) for rank in ranks)
        start = World(members, 0, (), self.budget.rounds, self.budget.polls, 0, ())
        start = self.after(start, 0, Measure(b"half"))
        todo = deque([start])
        count = 0
        while todo:
            count += 1
            assert count < WORLDS_MAX, "the budget is too large"
            for after in self.next_worlds(todo.popleft()):
                world = after._replace(said=self.worth_hearing(after))
                if self.is_news(world):
                    todo.append(world)
        return count

    def worth_hearing(self, world: World) -> int:
        """What was said, less what can have no effect any more."""
        worth = 0
        for index, (source, target, _) in enumerate(self.messages.things):
            if world.said >> index & 1 and target >= world.dead:
                speaker = world.members[source] if source >= world.dead else None
                question = index, speaker, world.members[target]
                if question not in self.worth:
                    self.worth[question] = self._matters(*question)
                worth |= self.worth[question] << index
        return worth

    def _matters(self, index: int, source: int | None, target: int) -> bool:
        speaker = None if source is None else self.members[source]
        return matters(self.messages.things[index][2], speaker, self.members[target])

    def is_news(self, world: World) -> bool:
        """Is there no world that was seen, equal but that more was said and more may happen? All follows from that."""
        alike = self.seen.setdefault((world.members, world.runs, world.dead, world.unaware), [])
        said, rounds, polls = world.said, world.rounds, world.polls
        for other in alike:
            if other[0] | said == other[0] and other[1] >= rounds and other[2] >= polls:
                return False
        alike[:] = [other for other in alike if other[0] | said != said or other[1] > rounds or other[2] > polls]
        alike.append((said, rounds, polls))
        return True

    def number(self, member: Agreement) -> int:
        number = self.keys.of(key(member))
        if number == len(self.members):
            self.members.append(member)
        return number

    def after(self, world: World, rank: int, event: Event) -> World:
        """A member meets an event."""
        before = world.members[rank]
        if (before, event) not in self.known:
            member = clone(self.members[before])
            said = 0
            for effect in happen(member, event):
                if isinstance(effect, Tell):
                    said |= 1 << self.messages.of((rank, effect.peer, effect.message))
            self.known[before, event] = self.number(member), said
        number, said = self.known[before, event]
        members = (*world.members[:rank], number, *world.members[rank + 1 :])
        return world._replace(members=members, said=world.said | said)

    def next_worlds(self, world: World) -> Iterator[World]:
        for index, (source, target, message) in enumerate(self.messages.things):
            if world.said >> index & 1 and target >= world.dead:
                yield self.after(world, target, Hear(source, message))
        for rank in range(world.dead, self.budget.ranks):
            yield from self.own_events(world, rank)
        for rank, gone in world.unaware:
            if rank >= world.dead:
                admitted = self.members[world.members[gone]]._voter.admitted
                left = tuple(news for news in world.unaware if news != (rank, gone))
                yield self.after(world, rank, Learn(gone, admitted))._replace(unaware=left)
        if world.dead < self.budget.deaths:
            news = tuple((rank, world.dead) for rank in range(world.dead + 1, self.budget.ranks))
            yield world._replace(dead=world.dead + 1, unaware=(*world.unaware, *news))

    def own_events(self, world: World, rank: int) -> Iterator[World]:
        member = self.members[world.members[rank]]
        if Purpose.ROUND in member._tokens and world.rounds:
            yield self.after(world, rank, Fire(Purpose.ROUND))._replace(rounds=world.rounds - 1)
        if Purpose.POLL in member._tokens and world.polls:
            yield self.after(world, rank, Fire(Purpose.POLL))._replace(polls=world.polls - 1)
        operation = member._voter.admitted
        if operation < self.budget.operations and member.may_admit(operation):
            agreed = member.agreed_for(operation)
            for number, other, theirs in world.runs:
                # One that is dead may have run what nobody knows of; under a later epoch it knew of a commit.
                if number == operation and theirs != agreed and (other >= world.dead or theirs.epoch > agreed.epoch):
                    raise Split(f"rank {rank} runs {operation} under {agreed}, rank {other} under {theirs}")
            runs = tuple(sorted((*world.runs, (operation, rank, agreed)), key=lambda run: run[:2]))
            yield self.after(world, rank, Call(operation))._replace(runs=runs)


def happen(member: Agreement, event: Event) -> list[Effect]:
    match event:
        case Hear():
            return member.heard(event.source, event.message, 0.0)
        case Fire():
            return member.timer_fired(member._tokens[event.purpose], 0.0)
        case Call():
            member.admitted(event.operation)
            return []
        case Learn():
            return member.gone(event.gone, event.admitted, 0.0)
        case Measure():
            return member.measured(event.report, 0.0)


def matters(message: Message, speaker: Agreement | None, hearer: Agreement) -> bool:
    """Can it, now or later, change anything but who is told once more what he has no use for? When in doubt, yes."""
    voter, proposer = hearer._voter, hearer._proposer
    match message:
        case State(ballot=ballot):
            return ballot == proposer._ballot and proposer.stage is Stage.ASKING
        case Yes(ballot=ballot):
            return ballot == proposer._ballot and proposer.stage is Stage.PROPOSING
        case No(ballot=ballot, promised=promised):
            busy = proposer.stage in (Stage.ASKING, Stage.PROPOSING)
            return promised.number > proposer._number or (ballot == proposer._ballot and busy)
        case Commit(agreed=agreed):
            return agreed.epoch > voter.committed.epoch
        case Withdraw(epoch=epoch, below=below):
            return epoch > voter.committed.epoch and below > voter.void_below
        case Inquire(ballot=ballot, epoch=epoch):
            heeds = (
                speaker is not None and speaker._proposer._ballot == ballot and speaker._proposer.stage is Stage.ASKING
            )
            behind = speaker is not None and epoch < voter.committed.epoch
            return ballot > voter.promised or heeds or behind
        case Propose(ballot=ballot, agreed=agreed):
            waits = speaker is not None and speaker.committed.epoch < agreed.epoch
            return waits or (agreed.epoch > voter.committed.epoch and ballot >= voter.promised)
        case _:
            return True


#: What only names or paces things, and the other half: members that differ in nothing else are alike.
NO_STATE = frozenset(("_serial", "_report_repeats", "_repeats", "_patience_s", "_polls", "_voter", "_proposer"))


def clone(member: Agreement) -> Agreement:
    """A copy that shares only what never changes."""
    twin = copy.copy(member)
    twin._voter = copy.copy(member._voter)
    twin._proposer = copy.copy(member._proposer)
    twin._proposer._voter = twin._voter
    for part in (twin, twin._voter, twin._proposer):
        for name in part.__slots__:
            value = getattr(part, name)
            if isinstance(value, (list, dict)):
                setattr(part, name, value.copy())
    return twin


def key(member: Agreement) -> tuple[Any, ...]:
    """What a member's future depends on."""
    parts = (member, member._voter, member._proposer)
    values = ((name, getattr(part, name)) for part in parts for name in part.__slots__ if name not in NO_STATE)
    return tuple(_frozen(name, value) for name, value in values)


def _frozen(name: str, value: Any) -> Any:
    if name == "_tokens":
        return frozenset(value)
    if isinstance(value, dict):
        return frozenset(value.items())
    return tuple(value) if isinstance(value, list) else value


@pytest.fixture(autouse=True)
def _a_proposal_goes_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire loses nothing for good, so a reminder adds nothing, and one timer ends the patience."""
    monkeypatch.setattr(agreement_proposer, "SENDS", 1)


@pytest.mark.parametrize(
    ("budget", "worlds"),
    [
        (Budget(ranks=2, operations=2, rounds=2, polls=0, deaths=0), 900),
        (Budget(ranks=2, operations=2, rounds=3, polls=0, deaths=1), 12_000),
        (Budget(ranks=2, operations=1, rounds=4, polls=1, deaths=1), 14_000),
        (Budget(ranks=3, operations=1, rounds=1, polls=0, deaths=0), 2_500),
        (Budget(ranks=3, operations=1, rounds=1, polls=0, deaths=1), 35_000),
    ],
    ids=repr,
)
def test_in_no_order_is_an_operation_run_under_two_epochs(budget: Budget, worlds: int) -> None:
    assert Explorer(budget).explore() > worlds


@pytest.mark.parametrize(
    ("mutation", "budget"),
    [
        (mutations.a_yes_promises_nothing, Budget(2, 1, 1, 0, 0)),
        (mutations.yes_although_it_was_admitted, Budget(2, 1, 1, 0, 0)),
        (mutations.one_yes_too_few, Budget(2, 1, 1, 0, 0)),
        (mutations.committed_after_it_was_withdrawn, Budget(2, 1, 2, 0, 0)),
        (mutations.a_new_proposer_does_not_ask, Budget(3, 1, 1, 0, 1)),
        (mutations.a_promise_ends_by_the_clock, Budget(2, 1, 1, 1, 0)),
        (mutations.a_yes_to_any_ballot, Budget(2, 1, 4, 1, 1)),
    ],
)
def test_a_rule_left_out_is_found(
    mutation: mutations.Mutation, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises((Split, InvalidTransition)):
        Explorer(budget).explore()
