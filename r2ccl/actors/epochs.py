"""Carries out the agreement on the picture of the network, and keeps the plans of each epoch: one for a communicator.

The machine is :mod:`r2ccl.protocol.agreement`. An operation is *admitted* when it starts: then its epoch is fixed. It
was planned from the newest picture when it was called, so it is planned anew only if another has come, or begins later.
While this rank has promised not to pass an operation, those from there on wait as references, as they do for room.

Messages depend on no epoch: they are planned from the first picture for ever."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from r2ccl.actors.courier import Courier
from r2ccl.actors.operation import Planned
from r2ccl.actors.planning import Plans
from r2ccl.actors.shared import Shared
from r2ccl.errors import InvalidTransition
from r2ccl.planner.choose import largest_chunk_bytes
from r2ccl.planner.picture import Picture, announced_bandwidth, first_picture, later_picture
from r2ccl.protocol.agreement import Adopt, Agreement, ArmTimer, Effect, Released, Tell
from r2ccl.protocol.agreement_messages import MEMBERS_MAX, PICTURE_BYTES_MAX, REPORT_BYTES_MAX, AskOutcome, read_message
from r2ccl.protocol.steadiness import bandwidth_of, pack_steps, read_steps, step_of
from r2ccl.protocol.wire import BadFrame, Kind
from r2ccl.topology import Member

#: NICs named by the line that tells of a new epoch.
CHANGES_NAMED_MAX = 4


class Epochs:
    """``members``: the communicator's ranks in the job. ``released``: more operations may start. ``replanned``: from
    now on calls are planned from another picture."""

    def __init__(
        self,
        communicator: int,
        members: Sequence[int],
        shared: Shared,
        courier: Courier,
        released: Callable[[], None],
        replanned: Callable[[], None],
    ) -> None:
        settings = shared.settings
        self._communicator = communicator
        self._shared = shared
        self._courier = courier
        self._released = released
        self._replanned = replanned
        self._members = tuple(members)
        self._book = [shared.members[member] for member in members]
        self._first = first_picture(
            self._book,
            settings.chunk_bytes,
            settings.eager_bytes,
            hierarchy=settings.hierarchy,
            tuning=shared.tuning,
            algorithms=settings.algorithms,
            one_sided=shared.one_sided,
        )
        #: Of the first picture.
        self.first = self._plans_from(self._first)
        #: What no chunk of the newest picture's plans exceeds.
        self.chunk_bytes = largest_chunk_bytes(self._first)
        #: Of the newest one; calls are planned from it before they have a number.
        self.newest = self.first
        #: Of epochs that operations not started yet may still be of.
        self._plans = {0: self.first}
        self._agreement = Agreement(shared.rank, members) if _can_agree(self._book) else None
        #: By member what each of its NICs carries, in the newest picture.
        self._seen = [_carried(member, b"") for member in self._book]
        self._is_over = False

    def _plans_from(self, picture: Picture) -> Plans:
        return Plans(self._members.index(self._shared.rank), picture, self._members)

    def may_admit(self, operation: int) -> bool:
        """May it start, as far as the agreement goes?"""
        return self._agreement is None or self._agreement.may_admit(operation)

    def admit(self, operation: int, planned: Planned) -> Planned:
        """It starts now. Returns its plan, of the epoch that holds for it."""
        agreement = self._agreement
        if agreement is None:
            return planned
        epoch = agreement.agreed_for(operation).epoch if len(self._plans) > 1 else self.newest.epoch
        agreement.admitted(operation)
        if planned.epoch != epoch:
            planned = self._plans[epoch].plan(planned.asked)
        if len(self._plans) > 1:
            self._forget(agreement.epochs)
        return planned

    def _forget(self, still: Sequence[int]) -> None:
        """No operation is left for epochs other than these: they are over, or were replaced before they began."""
        self._plans = {epoch: plans for epoch, plans in self._plans.items() if epoch in still}

    @property
    def waiting(self) -> dict[str, Any] | None:
        """What is not agreed yet; None: everything is."""
        waiting = None if self._agreement is None else self._agreement.waiting
        return None if waiting is None else dataclasses.asdict(waiting)

    def report(self, report: bytes) -> None:
        """Our NICs are steadily thus; empty: as announced."""
        if self._agreement is not None and not self._is_over:
            self._perform(self._agreement.measured(report, self._shared.clock.now()))

    def heard(self, peer: int, body: list[Any]) -> None:
        """A member said something. Raises :class:`~r2ccl.protocol.wire.BadFrame`."""
        message = read_message(body)
        if self._agreement is None:
            return
        if self._is_over:
            if isinstance(message, AskOutcome):
                # Whoever is held by a promise may have nobody else to hear the outcome from.
                self._perform(self._agreement.outcome(message, peer))
            return
        try:
            effects = self._agreement.heard(peer, message, self._shared.clock.now())
        except InvalidTransition as broken:
            raise BadFrame(f"rank {peer} says what contradicts what was agreed: {broken}") from broken
        self._perform(effects)

    def gone(self, peer: int, admitted: int) -> None:
        """A member closed or is dead, and is known to have started all operations below ``admitted``."""
        if self._agreement is not None and not self._is_over:
            self._perform(self._agreement.gone(peer, admitted, self._shared.clock.now()))

    def end(self) -> None:
        """The communicator ended: nothing more is said, but to who asks for an outcome."""
        self._is_over = True

    def _timer(self, token: int) -> None:
        if self._agreement is not None and not self._is_over:
            self._perform(self._agreement.timer_fired(token, self._shared.clock.now()))

    def _perform(self, effects: list[Effect]) -> None:
        released = False
        for effect in effects:
            match effect:
                case Tell():
                    body = [self._communicator, *effect.message.body()]
                    self._courier.tell(effect.peer, Kind.AGREEMENT, body)
                case Adopt():
                    self._adopt(effect)
                    released = True
                case Released():
                    released = True
                case ArmTimer():
                    self._shared.timers.after(effect.delay_s, self._timer, effect.token)
                case _:
                    assert_never(effect)
        if released:
            # Last: what starts now may end at once, and the caller may call, or close, in between.
            self._released()

    def _adopt(self, effect: Adopt) -> None:
        agreed = effect.agreed
        # Reports come in the order of the members' ranks, which need not be the communicator's.
        reports = dict(zip(sorted(self._members), agreed.picture, strict=True))
        reported = [_carried(member, reports[member.rank]) for member in self._book]
        picture = later_picture(self._first, agreed.epoch, reported)
        before, self._seen = self._seen, reported
        self.chunk_bytes = largest_chunk_bytes(picture)
        self._plans[agreed.epoch] = self.newest = self._plans_from(picture)
        assert self._agreement is not None
        self._forget(self._agreement.epochs)
        self._shared.events.record(
            "replan", change=f"{agreed.epoch - 1}->{agreed.epoch}", cause=_changes(self._book, before, reported),
            first_operation=agreed.first_operation,
        )  # fmt: skip
        self._replanned()


def _can_agree(book: Sequence[Member]) -> bool:
    """Beyond these limits of a frame the first picture holds for ever. One rank alone has nobody to agree with."""
    longest = max(len(member.nics) for member in book)
    return 1 < len(book) <= MEMBERS_MAX and longest <= min(REPORT_BYTES_MAX, PICTURE_BYTES_MAX // len(book))


def announced_steps(member: Member) -> list[int | None]:
    """What a rank's report says of NICs that are as announced; None: a spare, which carries nothing."""
    return [None if nic.spare else step_of(announced_bandwidth(nic)) for nic in member.nics]


def pack_report(member: Member, steps: Sequence[int | None]) -> bytes:
    """A rank's report on its NICs; empty where all are as announced."""
    return b"" if list(steps) == announced_steps(member) else pack_steps(steps)


def _carried(member: Member, report: bytes) -> list[float | None]:
    """What each NIC of a rank carries, in bytes per second, by its report."""
    announced = announced_steps(member)
    steps = read_steps(report) if len(report) == len(announced) else announced
    return [
        None if step is None else announced_bandwidth(nic) if step == before else bandwidth_of(step)
        for nic, step, before in zip(member.nics, steps, announced, strict=True)
    ]


def _changes(
    book: Sequence[Member], before: Sequence[Sequence[float | None]], after: Sequence[Sequence[float | None]]
) -> str:
    """Which NICs a new picture shows otherwise than the last one, in words."""
    found = [
        f"rank {member.rank} nic{nic} {'carries nothing' if new is None else f'{new * 8e-9:.3g} Gbit/s'}"
        for member, old_nics, new_nics in zip(book, before, after, strict=True)
        for nic, (old, new) in enumerate(zip(old_nics, new_nics, strict=True))
        if old != new
    ]
    more = f", and {len(found) - CHANGES_NAMED_MAX} more" if len(found) > CHANGES_NAMED_MAX else ""
    return ", ".join(found[:CHANGES_NAMED_MAX]) + more
