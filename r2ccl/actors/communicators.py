"""All communicators of one rank: their coordinators, their channels, and what was said of one before it was made here.

Members make a communicator at different moments. Chunks that come before wait at the arrivals desk; what control frames
say of it is kept here, a few for each, because it would be said again late or only by who takes long."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from r2ccl.actors.actor import Actor, Full, Mailbox
from r2ccl.actors.arrivals import ArrivalsDesk
from r2ccl.actors.causes import Loss
from r2ccl.actors.channels import Channels
from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.courier import Courier
from r2ccl.actors.epochs import Epochs
from r2ccl.actors.messages import AbortAcknowledged, AbortHeard, EnteredHeard, PeerGone, PeerParted
from r2ccl.actors.operation import ScratchPool
from r2ccl.actors.registration import Registrar
from r2ccl.actors.shared import Shared
from r2ccl.actors.shrinking import ShrinkDesk
from r2ccl.actors.supervisor import ChildSpec, Supervisor
from r2ccl.actors.timers import Timer
from r2ccl.errors import CommunicatorClosed, R2cclError
from r2ccl.ids import objects_id, successor_id
from r2ccl.planner.choose import largest_chunk_bytes
from r2ccl.planner.picture import first_picture
from r2ccl.protocol.wire import Kind, Shrunk

#: Control messages waiting for one actor: a few per peer and link are normal, this many are a bug.
MAILBOX_CAPACITY = 16384
#: Communicators to come that are heard of, and messages kept for each.
EARLY_MAX = 64
#: A rank that left a communicator says so again, to members that have not left, after this long, which doubles, up to
#: a limit. It is no more than a frame: others may use the communicator as long as they like.
GOODBYE_AGAIN_S = 1.0
GOODBYE_AGAIN_MAX_S = 60.0
#: Scratch pieces kept for reuse.
SCRATCH_KEEP = 16


class Communicators:
    """One per rank."""

    def __init__(
        self,
        shared: Shared,
        courier: Courier,
        desk: ArrivalsDesk,
        supervisor: Supervisor,
        registrar: Registrar,
        own_stall_s: Callable[[], float],
        surrender: Callable[[int, int], None],
    ) -> None:
        self.coordinators: dict[int, Coordinator] = {}
        self._shared = shared
        self._courier = courier
        self._desk = desk
        self._supervisor = supervisor
        self._registrar = registrar
        self._own_stall_s = own_stall_s
        self._surrender = surrender
        self._pool = ScratchPool(_largest_chunk_bytes(shared), SCRATCH_KEEP)
        self._channels: list[Channels] = []
        #: Said of communicators that were not made here yet.
        self._early: dict[int, list[Any]] = {}
        #: Peers that were lost or left, for communicators that are made afterwards.
        self._gone: list[PeerGone | PeerParted] = []
        self._shrink_desks: dict[int, ShrinkDesk] = {}
        #: What this rank says of its NICs; empty: they are as announced.
        self.nic_report = b""
        #: Why they ended here, of communicators that this rank has left and others not yet.
        self._left: dict[int, R2cclError] = {}
        #: Communicators that this rank has left and others not yet: when it says so again.
        self._goodbyes: dict[int, Timer] = {}
        desk.adopt = self.adopt
        courier.farewells.append(self._farewell)

    def open(self, communicator: int, members: tuple[int, ...]) -> Coordinator:
        """The coordinator of a communicator, started on first use."""
        existing = self.coordinators.get(communicator)
        if existing is not None:
            return existing
        build = functools.partial(self._coordinator, communicator, members)
        created = self._supervisor.add(ChildSpec(f"coordinator-{communicator:x}", build, restarts_max=0))
        assert isinstance(created, Coordinator)
        self.coordinators[communicator] = created
        for message in [*self._gone, *self._early.pop(communicator, ())]:
            created.tell(message)
        return created

    def epochs(self, coordinator: Coordinator, members: tuple[int, ...]) -> Epochs:
        """What a communicator's collectives are planned from, agreed on from now on. ``members`` in its own order."""
        epochs = coordinator.epochs = Epochs(
            coordinator.communicator, members, self._shared, self._courier, coordinator.start_waiting, self._fit_lanes
        )
        # What failed may have earlier operations to end, held by a promise as others are: only a close ends it.
        coordinator.failing.on_failed.append(lambda error, abort: epochs.end() if abort is None else None)
        coordinator.failing.on_over = epochs.gone
        if self.nic_report:
            epochs.report(self.nic_report)
        return epochs

    def _fit_lanes(self) -> None:
        """Lanes measure themselves by whole chunks: of the smallest that any plan to come cuts for the peer."""
        sizes: dict[int, int] = {}
        for coordinator in self.coordinators.values():
            if coordinator.epochs is not None and coordinator.failing.error is None:
                for peer in coordinator.peers:
                    sizes[peer] = min(sizes.get(peer, coordinator.epochs.chunk_bytes), coordinator.epochs.chunk_bytes)
        for peer, size in sizes.items():
            for lane in self._courier.lanes[peer]:
                lane.chunk_bytes = size

    def report(self, nic_report: bytes) -> None:
        """What this rank's NICs carry has changed."""
        self.nic_report = nic_report
        for coordinator in list(self.coordinators.values()):
            if coordinator.epochs is not None and coordinator.failing.error is None:
                coordinator.epochs.report(nic_report)

    def agreement_heard(self, peer: int, communicator: int, body: list[Any]) -> None:
        """A member said something of a communicator's epochs. One that is not made here yet answers when it is asked
        again. Raises :class:`~r2ccl.protocol.wire.BadFrame`."""
        coordinator = self.coordinators.get(communicator)
        if coordinator is not None and coordinator.epochs is not None:
            coordinator.epochs.heard(peer, body)

    def channels(self, coordinator: Coordinator) -> Channels:
        """The messages between a communicator's members."""
        made = Channels(coordinator, self._shared, self.open)
        self._channels.append(made)
        # Messages that came before the communicator was made here.
        heard = [
            (number, told.peer, told.entered.step)
            for number, kept in self._early.items()
            for told in kept
            if isinstance(told, EnteredHeard)
        ]
        for channel in [*heard, *self._desk.strangers()]:
            made.adopt(*channel)
        return made

    def channel_numbers(self) -> list[int]:
        """The ids of all communicators' channels."""
        return [number for channels in self._channels for number in channels.numbers()]

    def adopt(self, communicator: int, source: int, tag: int) -> None:
        """Something came of a communicator: if it is a channel that is not known, make it."""
        if communicator not in self.coordinators:
            any(channels.adopt(communicator, source, tag) for channels in self._channels)
            if any(objects_id(left) == communicator for left in self._left):
                # Others began to send objects there after this rank had left, and would wait for it.
                self._courier.tell(source, Kind.GOODBYE, [communicator, 0, 0])

    def tell(self, communicator: int, message: Any) -> bool:
        """Tell a coordinator, or keep it for when it is made. Returns whether there is one."""
        coordinator = self.coordinators.get(communicator)
        if coordinator is None:
            self._keep(communicator, message)
            return False
        if coordinator.is_running:
            coordinator.tell(message)
        return True

    def tell_all(self, message: Any) -> None:
        """Tell every coordinator."""
        for coordinator in self.coordinators.values():
            if coordinator.is_running:
                coordinator.tell(message)

    def peer_gone(self, gone: PeerGone | PeerParted) -> None:
        """A rank is dead or unreachable, or has left."""
        self._gone.append(gone)
        if isinstance(gone, PeerGone):
            self._shared.lost[gone.peer] = Loss(gone.cause, gone.verdict)
        self._desk.abandon(gone.peer)
        self.tell_all(gone)
        for desk in self._shrink_desks.values():
            desk.lost(gone)

    def shrink_desk(self, communicator: int) -> ShrinkDesk | None:
        """Where it is decided who goes on, of a communicator that exists here."""
        coordinator = self.coordinators.get(communicator)
        if coordinator is None:
            return None
        if communicator not in self._shrink_desks:
            members = tuple(sorted((self._shared.rank, *coordinator.peers)))
            self._shrink_desks[communicator] = ShrinkDesk(
                communicator, members, self._shared, self._courier, coordinator.failing, self._gone,
                self._leave_successor,
            )  # fmt: skip
        return self._shrink_desks[communicator]

    def _leave_successor(self, communicator: int, members: tuple[int, ...]) -> None:
        """Members of a communicator may have shrunk it and count on this rank, which does not go on with them: it makes
        what they made, and closes it."""
        number = successor_id(communicator, members)
        coordinator = self.open(number, members)
        self.channels(coordinator)
        error = CommunicatorClosed("this rank did not go on with those who shrank the communicator")
        coordinator.leave()
        coordinator.failing.close(error, goes_on=True)
        self.leave_shrinking(number, error)
        self.retire([number])

    def ballot_heard(self, peer: int, told: Shrunk) -> None:
        """A member wants to go on without who is lost."""
        desk = self.shrink_desk(told.communicator)
        if desk is not None:
            desk.heard(peer, told)
            if told.communicator in self._left:
                desk.leave(self._left[told.communicator])

    def leave_shrinking(self, communicator: int, error: R2cclError) -> None:
        """This rank has left a communicator: members who shrink it are not to wait for it, now or later."""
        self._left[communicator] = error
        if communicator in self._shrink_desks:
            self._shrink_desks[communicator].leave(error)

    def retire(self, numbers: list[int]) -> None:
        """This rank has left communicators, the first and those that hang on it: forget them when all its other members
        have left it, too."""
        failing = self.coordinators[numbers[0]].failing

        def forget_if_all_left() -> None:
            if failing.all_left() and numbers[0] in self.coordinators:
                self._forget(numbers)

        # It stays in that list for good: the list goes with the coordinator.
        failing.on_left.append(forget_if_all_left)
        forget_if_all_left()
        if numbers[0] in self.coordinators:
            self._say_goodbye_after(GOODBYE_AGAIN_S, numbers[0])

    def _farewell(self, peer: int) -> None:
        for coordinator in list(self.coordinators.values()):
            if coordinator.has_left and peer in coordinator.peers:
                coordinator.say_goodbye([peer])

    def _say_goodbye_after(self, delay_s: float, number: int) -> None:
        self._goodbyes[number] = self._shared.timers.after(delay_s, self._say_goodbye_again, number, 2 * delay_s)

    def _say_goodbye_again(self, number: int, then_after_s: float) -> None:
        """A member whose goodbye was lost with its path may have forgotten the communicator, and answers one."""
        coordinator = self.coordinators[number]
        coordinator.say_goodbye(coordinator.failing.staying())
        self._say_goodbye_after(min(then_after_s, GOODBYE_AGAIN_MAX_S), number)

    def close_in_child(self, error: CommunicatorClosed) -> None:
        """This process is a fork: whatever is under way ends here, without a word to anybody."""
        for coordinator in self.coordinators.values():
            # First, so that what follows the end of one begins nothing here.
            coordinator.failing.error = error
        for coordinator in list(self.coordinators.values()):
            coordinator.failing.close(error)
        for desk in self._shrink_desks.values():
            desk.close_in_child(error)

    def _forget(self, numbers: list[int]) -> None:
        # With channels that others began after this rank had left.
        late = [n for channels in self._channels if channels.communicator in numbers for n in channels.numbers()]
        for number in {*numbers, *late}:
            coordinator = self.coordinators.pop(number)
            self._supervisor.remove(coordinator.name)
            self._courier.dismiss(number, coordinator.resync)
            self._desk.retire(number)
            self._early.pop(number, None)
            self._shrink_desks.pop(number, None)
            self._left.pop(number, None)
            if number in self._goodbyes:
                self._goodbyes.pop(number).cancel()
        self._channels = [channels for channels in self._channels if channels.communicator not in numbers]

    def _keep(self, communicator: int, message: Any) -> None:
        if self._desk.is_retired(communicator) or isinstance(message, AbortAcknowledged):
            return
        if isinstance(message, AbortHeard):
            self._desk.forget(communicator)
        kept = self._early.setdefault(communicator, [])
        if len(kept) < EARLY_MAX and message not in kept:
            kept.append(message)
        while len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    def _coordinator(self, communicator: int, members: tuple[int, ...], predecessor: Actor | None) -> Coordinator:
        assert predecessor is None, "a coordinator is not restarted: its operations would be lost"
        mailbox = Mailbox(MAILBOX_CAPACITY, Full.REFUSE)
        return Coordinator(
            communicator, members, self._shared, mailbox, self._courier, self._desk, self._pool, self._registrar,
            self._own_stall_s, self._surrender,
        )  # fmt: skip


def _largest_chunk_bytes(shared: Shared) -> int:
    """Of any communicator's plans: one of ranks of a single machine has larger chunks than the job."""
    settings, node = shared.settings, shared.members[shared.rank].node
    picture = first_picture(shared.members, settings.chunk_bytes, settings.eager_bytes, tuning=shared.tuning)
    if any(member.node == node and member.rank != shared.rank for member in shared.members):
        return dataclasses.replace(picture, wire="shared_memory").chunk_bytes_most
    return largest_chunk_bytes(picture)
