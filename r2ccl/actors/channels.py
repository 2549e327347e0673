"""Messages between two ranks: who waits for a message of whom, and which one it gets.

All messages with one tag from one rank to another travel in a *channel*, in order: the n-th send meets the n-th
receive. A channel is a communicator of two members in which only one sends, so everything that holds of collectives
holds of messages: exactly once, over several NICs, through the loss of one; unlike calls are named, and what fails,
fails on both sides, and with it the communicator that the channel belongs to. Its id is derived from both ranks and the
tag, so a receiver knows from a first chunk which channel to make.

A receive from any source has no channel until a message is there. Receives with its tag that were called after it wait
behind it, so that messages meet receives in the order of the calls.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from r2ccl.actors.operation import Planned
from r2ccl.actors.shared import Shared
from r2ccl.actors.timers import Timer
from r2ccl.actors.work import Work
from r2ccl.buffers import Buffer
from r2ccl.errors import PeerLost, R2cclError
from r2ccl.ids import channel_id
from r2ccl.protocol.wire import Abort
from r2ccl.vocabulary import TAG_MAX


class Failures(Protocol):
    """What channels need to know of how a communicator fails."""

    error: R2cclError | None
    on_failed: list[Callable[[R2cclError, Abort | None], None]]
    on_left: list[Callable[[], None]]
    left: dict[int, int]

    def fail(self, operation: int, cause: str, text: str, details: tuple[object, ...]) -> None: ...
    def fail_with(self, abort: Abort) -> None: ...
    def refuse_if_failed(self) -> None: ...
    def close(self, error: R2cclError, goes_on: bool = False) -> None: ...
    def first_unfinished(self) -> int: ...


class Arrivals(Protocol):
    """Of a channel's inbox."""

    on_unclaimed: Callable[[], None]


class Host(Protocol):
    """A coordinator, as far as it concerns channels."""

    communicator: int
    peers: tuple[int, ...]
    has_left: bool

    @property
    def failing(self) -> Failures: ...
    @property
    def inbox(self) -> Arrivals: ...
    def submit(
        self, planned: Planned, arrays: tuple[Buffer, ...], work: Work, timeout_s: float, waited_s: float = 0.0
    ) -> bool: ...
    def has_unclaimed(self) -> bool: ...
    def leave(self) -> None: ...


#: Makes the coordinator of a communicator with these members.
Open = Callable[[int, tuple[int, ...]], Host]
#: The plan of a receive from a source.
PlanFrom = Callable[[int], Planned]


@dataclass(slots=True, eq=False)
class _Receive:
    """Called, and not in a channel yet."""

    #: None: any.
    source: int | None
    plan_from: PlanFrom
    buffer: Buffer
    work: Work
    timeout_s: float
    #: When it was called: what it waited for a source counts.
    called_at_s: float
    #: Our own absence so far when it was called: that does not count.
    away_s: float
    timer: Timer | None = None
    #: It has a channel, or ended without one.
    is_settled: bool = False

    def settle(self) -> None:
        """It waits here no longer."""
        self.is_settled = True
        if self.timer is not None:
            self.timer.cancel()


class Channels:
    """One communicator's messages. Ranks are those of the job."""

    def __init__(self, host: Host, shared: Shared, open_channel: Open) -> None:
        self._host = host
        self._shared = shared
        self._open = open_channel
        self._channels: dict[int, Host] = {}
        #: Incoming channels by tag and source.
        self._incoming: dict[int, dict[int, Host]] = {}
        #: By tag: receives that wait for a source, and those called after them.
        self._pending: dict[int, deque[_Receive]] = {}
        host.failing.on_failed.append(self._failed)
        host.failing.on_left.append(self._left)

    def send(self, target: int, tag: int, planned: Planned, buffer: Buffer, work: Work, timeout_s: float) -> None:
        """Send a message: the next of the channel."""
        self._host.failing.refuse_if_failed()
        self._channel(self._shared.rank, target, tag).submit(planned, (buffer,), work, timeout_s)

    def receive(
        self, source: int | None, tag: int, plan_from: PlanFrom, buffer: Buffer, work: Work, timeout_s: float
    ) -> None:
        """Receive a message: the next of its channel, or of whichever has one first."""
        self._host.failing.refuse_if_failed()
        pending = self._pending.get(tag)
        if source is not None and not pending:
            self._channel(source, self._shared.rank, tag).submit(plan_from(source), (buffer,), work, timeout_s)
            return
        now, away_s = self._shared.clock.now(), self._shared.timers.away_s()
        call = _Receive(source, plan_from, buffer, work, timeout_s, now, away_s)
        if timeout_s:
            call.timer = self._shared.timers.while_awake(timeout_s, self._time_out, call)
        self._pending.setdefault(tag, deque()).append(call)
        self._match(tag)
        self._left()

    def adopt(self, channel: int, source: int, tag: int) -> bool:
        """A chunk or announcement of a channel that is not known: is it one of ours?"""
        if source not in self._host.peers or tag > TAG_MAX:
            return False
        ends = [(source, self._shared.rank)]
        if self._host.has_left:
            ends.append((self._shared.rank, source))  # somebody waits for what we shall never send
        for begin, end in ends:
            if channel_id(self._host.communicator, begin, end, tag) == channel:
                self._channel(begin, end, tag)
                return True
        return False

    @property
    def communicator(self) -> int:
        """Whose messages these are."""
        return self._host.communicator

    def numbers(self) -> list[int]:
        """The ids of all channels there are."""
        return list(self._channels)

    def _channel(self, source: int, target: int, tag: int) -> Host:
        number = channel_id(self._host.communicator, source, target, tag)
        known = self._channels.get(number)
        if known is not None:
            return known
        channel = self._channels[number] = self._open(number, (source, target))
        channel.failing.on_failed.append(
            lambda error, abort: None if abort is None else self._host.failing.fail_with(abort)
        )
        if target == self._shared.rank:
            self._incoming.setdefault(tag, {})[source] = channel
            channel.inbox.on_unclaimed = lambda: self._match(tag)
        if self._host.has_left and self._host.failing.error is not None:
            # Others began it before they heard that we are gone, and would wait for us.
            channel.leave()
            channel.failing.close(self._host.failing.error, goes_on=True)
        return channel

    def _match(self, tag: int) -> None:
        """Give messages that are there to the receives that have waited longest for them."""
        pending = self._pending.get(tag)
        if not pending:
            return
        # One that waits for any source may want the next message of whatever source those behind it wait for.
        any_waits = False
        for call in list(pending):
            if call.is_settled:
                continue  # by what came of one before it: that may match others, or fail the communicator
            source = self._source_for(call, tag)
            if source is None and not any_waits:
                source = call.source
            if source is None:
                any_waits = any_waits or call.source is None
                continue
            pending.remove(call)
            call.settle()
            self._submit(call, source, tag)
        if not pending and self._pending.get(tag) is pending:
            del self._pending[tag]

    def _source_for(self, call: _Receive, tag: int) -> int | None:
        """A source that the call takes and that has a message nobody has claimed."""
        sources = self._incoming.get(tag, {})
        candidates = sorted(sources) if call.source is None else [call.source]
        return next((s for s in candidates if s in sources and sources[s].has_unclaimed()), None)

    def _submit(self, call: _Receive, source: int, tag: int) -> None:
        away_s = self._shared.timers.away_s() - call.away_s
        # What our absence left unread may come now: as long as that lasted there is time for it in any case.
        waited_s = min(self._shared.clock.now() - call.called_at_s, max(0.0, call.timeout_s - away_s))
        try:
            self._channel(source, self._shared.rank, tag).submit(
                call.plan_from(source), (call.buffer,), call.work, call.timeout_s, waited_s
            )
        except R2cclError as error:
            call.work.finish(error)

    def _time_out(self, call: _Receive) -> None:
        if call.is_settled:
            return
        details = (call.work.call, call.timeout_s, self._host.peers, (), ())
        text = f"no message within {call.timeout_s:g} s"
        self._host.failing.fail(self._host.failing.first_unfinished(), "timeout", text, details)

    def _left(self) -> None:
        """A member closed: if all have, nobody sends to those who would take a message of any."""
        left = self._host.failing.left
        if not self._pending or any(peer not in left for peer in self._host.peers):
            return
        lost = PeerLost(list(self._host.peers), "dead", "they closed their communicators")
        self._end_pending(lost)

    def _failed(self, error: R2cclError, abort: Abort | None) -> None:
        for channel in list(self._channels.values()):
            if abort is not None:
                channel.failing.fail_with(abort)
        self._end_pending(error)

    def _end_pending(self, error: R2cclError) -> None:
        pending, self._pending = self._pending, {}
        # A callback of one may raise, and the others end all the same.
        with contextlib.ExitStack() as rest:
            for call in reversed([call for calls in pending.values() for call in calls]):
                call.settle()
                rest.callback(call.work.finish, error)
