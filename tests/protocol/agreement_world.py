"""Members of a communicator that agree over a network that loses, doubles and reorders, while they run operations.

Time passes in one of two ways. In *disorder* anything that is under way may arrive next or never, and any timer may
fire, so that a seed is an order of events and thousands of seeds are thousands of orders. *Healed*, messages arrive and
timers fire when they are due. Whatever happens, each admission is compared with those of the same operation elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from r2ccl.protocol.agreement import Agreement, ArmTimer, Effect, Tell
from r2ccl.protocol.agreement_messages import Agreed, Message
from r2ccl.protocol.agreement_proposer import Stage

#: An agreement that takes longer than this once the network is healed would be a fault. Patience and rest are included.
HEALED_S = 10.0
DELAY_S = 0.001
IN_FLIGHT_MAX = 40


class Split(AssertionError):
    """Two members ran one operation under two epochs."""


class World:
    """The members, and all that is under way between them."""

    def __init__(self, ranks: int) -> None:
        self.now = 0.0
        self.members = {rank: Agreement(rank, range(ranks)) for rank in range(ranks)}
        self.live = list(range(ranks))
        #: Ranks that neither hear nor are heard.
        self.cut: set[int] = set()
        #: (source, target, message, when it is due)
        self.wire: list[tuple[int, int, Message, float]] = []
        #: (due, rank, token)
        self.timers: list[tuple[float, int, int]] = []
        #: By operation: what each rank ran it under.
        self.runs: dict[int, dict[int, Agreed]] = {}
        self.counts = dict.fromkeys(range(ranks), 0)
        self.reports = dict.fromkeys(range(ranks), b"")
        #: (to whom, who is gone): not known there yet.
        self.news: list[tuple[int, int]] = []
        self.epochs: dict[int, Agreed] = {}
        self.held = 0

    # Events.

    def take(self, rank: int, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(peer, message):
                    if not self.cut & {rank, peer}:
                        self.wire.append((rank, peer, message, self.now + DELAY_S))
                case ArmTimer(token, delay_s):
                    self.timers.append((self.now + delay_s, rank, token))
                case _:
                    self._note_epoch(self.members[rank].committed)

    def _note_epoch(self, agreed: Agreed) -> None:
        if self.epochs.setdefault(agreed.epoch, agreed) != agreed:
            raise Split(f"epoch {agreed.epoch} is {agreed} and {self.epochs[agreed.epoch]}")

    def deliver(self, index: int) -> None:
        source, target, message, _ = self.wire.pop(index)
        if target in self.live and not self.cut & {source, target}:
            self.take(target, self.members[target].heard(source, message, self.now))

    def fire(self, index: int) -> None:
        _, rank, token = self.timers.pop(index)
        if rank in self.live:
            self.take(rank, self.members[rank].timer_fired(token, self.now))

    def measure(self, rank: int, report: bytes) -> None:
        self.reports[rank] = report
        self.take(rank, self.members[rank].measured(report, self.now))

    def call(self, rank: int) -> bool:
        """Admit the next operation, if it may be."""
        member, operation = self.members[rank], self.counts[rank]
        if not member.may_admit(operation):
            self.held += 1
            return False
        agreed = member.agreed_for(operation)
        member.admitted(operation)
        self.counts[rank] += 1
        for other, theirs in self.runs.setdefault(operation, {}).items():
            # One that is dead may have run what nobody knows of. If it ran under a *later* epoch it knew a commit.
            if theirs != agreed and (other in self.live or theirs.epoch > agreed.epoch):
                raise Split(f"rank {rank} runs {operation} under {agreed}, rank {other} ran it under {theirs}")
        self.runs[operation][rank] = agreed
        return True

    def kill(self, rank: int, rng: Random) -> None:
        """It dies; some of what it sent still arrives, and the others learn of it in any order."""
        self.live.remove(rank)
        self.wire = [entry for entry in self.wire if entry[0] != rank or rng.random() < 0.5]
        self.news += [(other, rank) for other in self.live]
        self.news = [(to, gone) for to, gone in self.news if to != rank]

    def learn(self, index: int) -> None:
        to, gone = self.news.pop(index)
        self.take(to, self.members[to].gone(gone, self.counts[gone], self.now))

    # Disorder.

    def disorder(self, rng: Random, steps: int, deaths: int, losses: float) -> None:
        for _ in range(steps):
            self.step(rng, deaths, losses)

    def step(self, rng: Random, deaths: int, losses: float) -> None:
        choice = rng.random()
        if choice < 0.48:
            self._any_message(rng, losses)
        elif choice < 0.72:
            self.call(rng.choice(self.live))
        elif choice < 0.86:
            self._any_timer(rng)
        elif choice < 0.89:
            self.measure(rng.choice(self.live), rng.choice((b"", b"half", b"down")))
        elif choice < 0.93:
            if self.news:
                self.learn(rng.randrange(len(self.news)))
        elif choice < 0.94:
            self.cut ^= {rng.choice(self.live)}
        elif len(self.members) - len(self.live) < deaths and len(self.live) > 1 and self._is_interesting(rng):
            self.kill(self.live[0] if rng.random() < 0.8 else rng.choice(self.live), rng)

    def _is_interesting(self, rng: Random) -> bool:
        """Death while a proposal is out, or when not all know the commit, is where bugs are."""
        return self.is_uneven() or rng.random() < (0.3 if self.proposing() else 0.05)

    def _any_message(self, rng: Random, losses: float) -> None:
        if not self.wire:
            return
        del self.wire[: max(0, len(self.wire) - IN_FLIGHT_MAX)]
        index = rng.randrange(len(self.wire))
        fate = rng.random()
        if fate < losses:
            del self.wire[index]
            return
        if fate < losses + 0.1:
            self.wire.append(self.wire[index])
        self.deliver(index)

    def _any_timer(self, rng: Random) -> None:
        self.now += rng.choice((0.0, 0.01, 0.2))
        if self.timers:
            self.fire(rng.randrange(len(self.timers)))

    # Healed.

    def heal(self, each_step: Callable[[], object] = lambda: None) -> None:
        """Everybody hears everybody and of every death; go on until nothing is left to do."""
        self.cut.clear()
        while self.news:
            self.learn(0)
        until = self.now + HEALED_S
        self.wire = [(source, target, message, self.now) for source, target, message, _ in self.wire]
        while self.wire or self.timers:
            each_step()
            self.next_due()
            assert self.now < until, f"no end: {self.waiting()}"
        assert not any(self.waiting().values()), self.waiting()

    def next_due(self) -> None:
        """What is due next happens."""
        message = min(range(len(self.wire)), key=lambda index: self.wire[index][3], default=None)
        timer = min(range(len(self.timers)), key=self.timers.__getitem__, default=None)
        if message is not None and (timer is None or self.wire[message][3] <= self.timers[timer][0]):
            self.now = max(self.now, self.wire[message][3])
            self.deliver(message)
        elif timer is not None:
            self.now = max(self.now, self.timers[timer][0])
            self.fire(timer)

    def run_for(self, seconds: float) -> None:
        """Time passes, and what is due happens."""
        until = self.now + seconds
        while (due := self._due_next()) is not None and due <= until:
            self.next_due()
        self.now = until

    def _due_next(self) -> float | None:
        return min([entry[3] for entry in self.wire] + [entry[0] for entry in self.timers], default=None)

    def waiting(self) -> dict[int, object]:
        return {rank: self.members[rank].waiting for rank in self.live}

    def check_converged(self) -> None:
        """All know the same newest epoch, it shows what all measured, and operations go on under it."""
        newest = {self.members[rank].committed for rank in self.live}
        assert len(newest) == 1, newest
        (agreed,) = newest
        assert [agreed.picture[rank] for rank in self.live] == [self.reports[rank] for rank in self.live]
        last = max(*self.counts.values(), agreed.first_operation) + 2
        for rank in self.live:
            while self.counts[rank] < last:
                assert self.call(rank), f"rank {rank} holds operation {self.counts[rank]}"
            assert self.runs[last - 1][rank] == agreed

    def is_uneven(self) -> bool:
        """Do some know of an epoch that others don't?"""
        return len({self.members[rank].committed.epoch for rank in self.live}) > 1

    def proposing(self) -> bool:
        """Is a proposal out?"""
        return any(
            waiting is not None and waiting.stage == Stage.PROPOSING.value
            for waiting in (self.members[rank].waiting for rank in self.live)
        )


def live_through(seed: int, steps: int = 150) -> World:
    """One order of events, then healing. Raises if anything is not as it must be."""
    rng = Random(seed)
    ranks = rng.choice((2, 2, 3, 3, 3, 4, 5))
    world = World(ranks)
    deaths = rng.choice((0, 0, 1, ranks - 1))
    world.measure(rng.randrange(ranks), b"half")
    world.disorder(rng, steps, deaths, rng.choice((0.0, 0.1, 0.4)))
    world.heal()
    world.check_converged()
    return world


def take_over(seed: int) -> World:
    """As above, but a proposer surely dies when it has decided and some know that and some do not, or nearly."""
    rng = Random(seed)
    ranks = rng.choice((3, 3, 4))
    world = World(ranks)
    for _ in range(2):
        world.measure(rng.randrange(ranks), rng.choice((b"half", b"down")))
        nearly = rng.random() < 0.5
        for _ in range(300):
            world.step(rng, 0, 0.1)
            if world.is_uneven() or (nearly and world.proposing() and rng.random() < 0.05):
                break
        if len(world.live) > 2:
            world.kill(world.live[0], rng)
    world.disorder(rng, 80, 0, 0.1)
    world.heal()
    world.check_converged()
    return world
