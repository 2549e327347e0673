"""Carries out who goes on after losses: one desk for each communicator that a member wants to shrink.

The machine is ``protocol.membership``. Ballots are state: they are said again until the outcome is known, and answered
for as long as the job lives, so that a member who was cut off learns what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

from r2ccl.actors.courier import Courier
from r2ccl.actors.messages import PeerGone, PeerParted
from r2ccl.actors.shared import Shared
from r2ccl.errors import CollectiveTimeout, Evicted, NoQuorum, R2cclError
from r2ccl.protocol.membership import Ballot, Decide, Effect, Leave, Refuse, Shrinking, Tell
from r2ccl.protocol.wire import Kind, Shrunk

#: What is said is said again this often, until it is over.
REPEAT_S = 0.1

#: (outcome, error): one of them.
Done = Callable[[Decide | None, R2cclError | None], None]


class Failures(Protocol):
    """How far the communicator came."""

    def give_up(self) -> int: ...


class ShrinkDesk:
    """One communicator's."""

    def __init__(
        self,
        communicator: int,
        members: tuple[int, ...],
        shared: Shared,
        courier: Courier,
        failures: Failures,
        lost: Iterable[PeerGone | PeerParted],
        leave_successor: Callable[[int, tuple[int, ...]], None],
    ) -> None:
        self._communicator = communicator
        self._members = members
        self._shared = shared
        self._courier = courier
        self._failures = failures
        #: All ranks that are lost, now and later.
        self._lost = lost
        self._leave_successor = leave_successor
        self._machine: Shrinking | None = None
        #: Said before this rank wanted to shrink.
        self._early: dict[int, Ballot] = {}
        self._done: list[Done] = []
        self._outcome: tuple[Decide | None, R2cclError | None] | None = None
        self._began_at_s = 0.0
        self._logged = False

    def begin(self, done: Done, timeout_s: float) -> None:
        """This rank wants to go on. Several calls have one outcome."""
        if self._outcome is not None:
            done(*self._outcome)
            return
        self._done.append(done)
        if timeout_s:
            self._shared.timers.while_awake(timeout_s, self._time_out, timeout_s)
        if self._machine is not None:
            return
        self._machine = self._made(self._failures.give_up())
        self._began_at_s = self._shared.clock.now()
        for peer, ballot in self._early.items():
            self._perform(self._machine.heard(peer, ballot))
        self._perform(self._machine.begin())
        self._repeat()

    def _made(self, completed: int) -> Shrinking:
        dead = [gone.peer for gone in self._lost if _is_over(gone)]
        unreachable = [gone.peer for gone in self._lost if not _is_over(gone)]
        return Shrinking(self._shared.rank, self._members, dead, unreachable, completed)

    def leave(self, error: R2cclError) -> None:
        """This rank closed the communicator: nobody is to wait for it, and whoever waits here hears of the end."""
        if self._machine is None:
            self._machine = self._made(0)
        self._perform(self._machine.withdraw())
        self._end(None, error)

    def close_in_child(self, error: R2cclError) -> None:
        """This process is a fork: it tells nobody anything."""
        self._end(None, error)

    def heard(self, peer: int, told: Shrunk) -> None:
        """A member said something."""
        ballot = Ballot(told.version, told.view, told.vote, told.completed, told.decided)
        if self._machine is None:
            self._early[peer] = ballot
        else:
            self._perform(self._machine.heard(peer, ballot))

    def lost(self, gone: PeerGone | PeerParted) -> None:
        """A rank is gone."""
        if self._machine is not None:
            self._perform(self._machine.lost(gone.peer, _is_over(gone)))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    ballot = effect.ballot
                    told = Shrunk(
                        self._communicator, ballot.version, ballot.view, ballot.vote, ballot.completed, ballot.decided
                    )
                    self._courier.tell(effect.peer, Kind.BALLOT, told.body())
                case Leave():
                    self._leave_successor(self._communicator, effect.members)
                case Decide():
                    self._shared.events.record(
                        "shrunk", members=list(effect.members), completed_by_all=effect.completed_by_all,
                        completed_by_any=effect.completed_by_any,
                    )  # fmt: skip
                    self._end(effect, None)
                case Refuse():
                    error = (
                        Evicted("the other ranks had lost this one, and went on without it")
                        if effect.evicted
                        else NoQuorum(effect.reached, effect.needed)
                    )
                    self._end(None, error)
                case _:
                    assert_never(effect)

    def _end(self, outcome: Decide | None, error: R2cclError | None) -> None:
        if self._outcome is not None:
            return
        self._outcome = (outcome, error)
        done, self._done = self._done, []
        for tell in done:
            tell(outcome, error)

    def _repeat(self) -> None:
        assert self._machine is not None
        if self._machine.is_over:
            return
        waited_s = self._shared.clock.now() - self._began_at_s
        if waited_s >= self._shared.settings.laggard_log_s and not self._logged:
            self._logged = True
            self._shared.events.record(
                "waiting", level=logging.WARNING, call="shrink()", for_s=round(waited_s, 1),
                not_entered=list(self._machine.waits_for()),
            )  # fmt: skip
        self._perform(self._machine.timer_fired())
        self._shared.timers.after(REPEAT_S, self._repeat)

    def _time_out(self, timeout_s: float) -> None:
        """The wait is over, and with it the wish: nobody is to count on this rank."""
        if self._outcome is None and self._machine is not None:
            waits_for = self._machine.waits_for()
            self._perform(self._machine.withdraw())
            silent = {*waits_for, self._shared.rank}
            entered = [member for member in self._machine.view if member not in silent]
            self._end(None, CollectiveTimeout(-1, "shrink()", timeout_s, waits_for, entered, ()))


def _is_over(gone: PeerGone | PeerParted) -> bool:
    """Is it certain that the rank does not go on by itself? It died, or said goodbye."""
    return isinstance(gone, PeerParted) or gone.cause == "dead"
