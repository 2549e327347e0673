"""Calls that differ between ranks: how they are noticed, heard and named (decision 11).

A difference shows in a chunk's fingerprint, or in what a peer announced. Before it fails the operation each rank tells
all others what it called and listens a moment, so that the error can name everybody's call. From the moment in which a
difference is known the operation does not end well, whatever arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from r2ccl.actors.courier import Courier
from r2ccl.actors.operation import Operation
from r2ccl.actors.shared import Shared
from r2ccl.errors import UNDER
from r2ccl.protocol.roll_call import RollCall
from r2ccl.protocol.wire import CALL_CHARACTERS_MAX, Entered, Kind

#: A difference of calls is announced, and judged after this long, so that everybody's call can be named.
HEARING_S = 0.2
#: Calls named by the error of ranks that called different things.
CALLS_NAMED_MAX = 200

#: (operation, cause, text, details)
Fail = Callable[[int, str, str, tuple[Any, ...]], None]


class Host(Protocol):
    """What is needed of the coordinator."""

    communicator: int
    peers: tuple[int, ...]
    shared: Shared
    courier: Courier
    running: dict[int, Operation]
    next_operation: int

    @property
    def waiting(self) -> Any: ...
    def announce(self, operation: Operation, peer: int, finished: bool = False, asks: bool = False) -> None: ...


class Differences:
    """One communicator's. ``finished``: recently finished calls, as (fingerprint, call, under what)."""

    def __init__(
        self, host: Host, roll_call: RollCall, finished: Mapping[int, tuple[int, str, str]], fail: Fail
    ) -> None:
        self._host = host
        self._roll_call = roll_call
        self._finished = finished
        self._fail = fail
        #: Operations whose calls differ, being heard.
        self._heard: set[int] = set()
        #: The first of them.
        self.since: int | None = None
        #: Peers that asked to hear when we are in an operation, by operation.
        self._askers: dict[int, set[int]] = {}

    def noticed(self, operation: int) -> None:
        """Somebody called something else: tell all what we called, listen a moment, then fail."""
        ours = self._host.running.get(operation)
        if ours is None or operation in self._heard:
            return
        self._heard.add(operation)
        self.since = min(self._heard)
        for peer in self._host.peers:
            self._host.announce(ours, peer)
        self._host.shared.timers.after(HEARING_S, self._judge, operation)

    def concern(self, operation: int) -> bool:
        """Did somebody call something else? It will fail, whatever arrives meanwhile."""
        return operation in self._heard

    def are_silent_on(self, operation: int) -> bool:
        """There is nothing to be done about this one when it begins: see :meth:`began`."""
        return operation > self._roll_call.latest and operation not in self._askers

    def began(self, operation: Operation) -> None:
        """An operation began: did a peer announce another call before, or ask to hear when we are in it?"""
        for peer in self._askers.pop(operation.number, ()):
            self._host.announce(operation, peer)
        if self._roll_call.differing(operation.number, operation.planned.fingerprint):
            self.noticed(operation.number)

    def entered_heard(self, peer: int, entered: Entered) -> None:
        """A peer announced an operation: note it, compare it, answer it."""
        self._roll_call.heard(peer, entered)
        number = entered.operation
        ours = self._host.running.get(number)
        if ours is not None:
            if entered.fingerprint != ours.planned.fingerprint:
                self.noticed(number)
            elif entered.asks:
                self._host.announce(ours, peer)
            return
        if entered.asks and number >= self._host.next_operation - len(self._host.waiting):
            self._askers.setdefault(number, set()).add(peer)
        finished = self._finished.get(number)
        if finished is not None and not entered.finished:
            fingerprint, call, under = finished
            differs = fingerprint != entered.fingerprint
            answer = Entered(self._host.communicator, number, fingerprint, call, True, under=under if differs else "")
            self._host.courier.tell(peer, Kind.ENTERED, answer.body())

    def _judge(self, operation: int) -> None:
        ours = self._host.running.get(operation)
        if ours is None:
            return
        rank = self._host.shared.rank
        calls = {**self._roll_call.calls(operation), rank: ours.planned.call}
        under = {**self._roll_call.circumstances(operation), rank: ours.planned.under}
        if len(set(under.values()) - {""}) > 1:
            # Calls may read alike: it is something else that plans depend on.
            calls = {one: call_under(call, under[one]) for one, call in calls.items()}
        mine = calls[rank]
        # Those that differ first: of a thousand ranks not all calls fit the frame that tells of them.
        named = sorted(calls.items(), key=lambda item: (item[1] == mine, item[0]))[: CALLS_NAMED_MAX - 1]
        self._fail(operation, "mismatch", "calls differ", tuple(sorted({*named, (rank, mine)})))


def call_under(call: str, under: str) -> str:
    """A call and what its plan depends on besides; no longer than calls may be."""
    room = CALL_CHARACTERS_MAX - len(UNDER) - len(under)
    return f"{call[:room]}{UNDER}{under}" if under and room > 0 else call
