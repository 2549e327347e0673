"""Control frames: what each says, and whose business it is. Who hears of it decides what follows.

Bodies come from a peer that is authenticated, and may be wrong all the same: what does not fit is a ``BadFrame``, which
ends the connection that it came by and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from r2ccl.actors.communicators import Communicators
from r2ccl.actors.courier import Courier
from r2ccl.actors.diagnosing import Diagnosing
from r2ccl.actors.link import Link
from r2ccl.actors.messages import AbortAcknowledged, AbortHeard, EnteredHeard, GoodbyeHeard, NoticeHeard
from r2ccl.protocol.wire import (
    Ack,
    BadFrame,
    Header,
    Kind,
    read_abort,
    read_ack,
    read_entered,
    read_notice,
    read_shrunk,
    unpack_body,
)


class Health(Protocol):
    """What is told to the health monitor."""

    def tell(self, message: Any) -> None: ...


class Hearing:
    """One per rank."""

    def __init__(
        self,
        courier: Courier,
        communicators: Communicators,
        diagnosing: Diagnosing,
        health: Callable[[], Health],
        goodbye_heard: Callable[[GoodbyeHeard, bool], None],
    ) -> None:
        self._courier = courier
        self._communicators = communicators
        self._diagnosing = diagnosing
        self._health = health
        self._goodbye_heard = goodbye_heard

    def control(self, link: Link, header: Header, body: memoryview) -> None:
        """A control frame. Raises BadFrame, which ends the connection."""
        peer, fields = link.id.peer, unpack_body(body)
        kind = header.kind
        if kind == Kind.ACK:
            link.counters.acks_received += 1
            self._courier.acknowledged(peer, read_ack(fields))
        elif kind == Kind.ENTERED:
            entered = read_entered(fields)
            self._communicators.adopt(entered.communicator, peer, entered.step)
            self._communicators.tell(entered.communicator, EnteredHeard(peer, entered))
        elif kind == Kind.ABORT:
            abort = read_abort(fields)
            if not self._communicators.tell(abort.communicator, AbortHeard(peer, abort)):
                # Kept for when it is made here, which may be never. Nothing was called here, so all of it has failed.
                self._courier.tell(peer, Kind.ABORT_ACK, [abort.communicator, abort.operation])
                if abort.operation:
                    self._courier.tell(peer, Kind.ABORT, dataclasses.replace(abort, operation=0).body())
        elif kind == Kind.NOTICE:
            notice = read_notice(fields)
            self._diagnosing.notice_heard(peer, notice)
            self._health().tell(NoticeHeard(peer, notice))
        elif kind == Kind.BALLOT:
            self._communicators.ballot_heard(peer, read_shrunk(fields))
        elif kind == Kind.AGREEMENT and fields and type(fields[0]) is int:
            self._communicators.agreement_heard(peer, fields[0], fields[1:])
        elif all(type(field) is int for field in fields):
            self._numbers(peer, kind, fields)
        else:
            raise BadFrame(f"a frame of kind {kind} does not fit")

    def _numbers(self, peer: int, kind: int, fields: list[int]) -> None:
        """Frames whose body is numbers only."""
        match kind, fields:
            case Kind.ABORT_ACK, [communicator, operation]:
                self._communicators.tell(communicator, AbortAcknowledged(peer, communicator, operation))
            case Kind.REPEAT, [communicator, operation, step, chunk, copy]:
                self._courier.resend(peer, communicator, operation, step, chunk, copy)
            case Kind.FENCED, [*links] if len(links) % 3 == 0:
                for ours, theirs, incident in zip(links[::3], links[1::3], links[2::3], strict=True):
                    self._courier.fenced(peer, ours, theirs, incident)
            case Kind.REACH, _:
                self._diagnosing.ask_heard(peer, fields)
            case Kind.REACHED, _:
                self._diagnosing.answer_heard(peer, fields)
            case Kind.GOODBYE, [communicator, completed, heard]:
                self._courier.acknowledged(peer, Ack(communicator, completed, ()))
                self._goodbye_heard(GoodbyeHeard(peer, communicator, completed), bool(heard))
            case _:
                raise BadFrame(f"a frame of kind {kind} does not fit")
