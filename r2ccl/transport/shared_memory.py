"""Shared memory between the ranks of a node: a device that is no NIC, of the same five nouns as the others.

Ranks map a segment for each connection once (``shared_segment``), found and authenticated over a Unix socket
(``shared_handshake``), and then move frames through its rings (``shared_ring``, ``shared_connection``). What is decided
here is how a rank learns that there is something to read: while a connection is in use it looks by itself, turn by turn
of the loop, which costs neither end a system call; soon after the last frame it *parks*, and whoever writes then wakes
it by the device's eventfd.

Looking takes a core; when that pays is decided in ``shared_spin``. Where it does not, a connection parks at once.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable

from r2ccl.clock import MonotonicClock
from r2ccl.protocol.wire import BadFrame
from r2ccl.telemetry.strangers import CROWDED
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer, Receiver, Region
from r2ccl.transport.interface import Purpose as WirePurpose
from r2ccl.transport.shared_connection import SharedConnection
from r2ccl.transport.shared_handshake import Handshake, SharedProbe, address, new_socket
from r2ccl.transport.shared_segment import RING_BYTES_MOST, bulk_ring_bytes
from r2ccl.transport.shared_spin import SpinBudget
from r2ccl.transport.sockets import Acceptor
from r2ccl.transport.tcp import HALF_OPEN_MAX, Admission

#: Turns of the loop without a frame after which a connection parks.
SPIN_TURNS = 16
#: Looks at all rings in one turn: about 6 us. Other callbacks of the loop wait for no longer.
LOOKS_PER_TURN = 64
#: Who awaits something looks for so many times as long, about 20 us, before the loop goes on with others. If it came
#: by then the loop does not go on at all, but for every so many such answers: all else in the process waits meanwhile.
WATCHES_PER_AWAIT = 3
ANSWERS_PER_TURN = 32
#: Turns after which the system is asked whether it took our core: the answer costs as much as ten looks.
TURNS_PER_QUESTION = 32


#: Who cannot go on without a frame looks for it for so long at most, within the call that needs it, where there is a
#: core for every rank. Where there is not, others have the core between two looks, and who is waited for may have to
#: wait for it first: with 0.2 ms an operation of 64 KiB between four ranks on two cores took 1,200 to 1,700 us, with
#: 2 ms 470 to 710, for one who goes on too soon makes all others wait in vain.
LOCKSTEP_S = 200e-6
LOCKSTEP_GIVING_WAY_S = 2e-3
#: Occasions let pass at most after waits in vain. Few, since ranks that let different ones pass are never in lockstep.
LOCKSTEP_SKIP_MAX = 8


class SharedMemoryDevice:
    """The memory that this rank shares with others of its node. See :class:`~r2ccl.transport.interface.Device`."""

    one_sided = False

    def __init__(self, nic: Nic, admission: Admission, loop: asyncio.AbstractEventLoop, may_spin: bool = True) -> None:
        self.nic = nic
        self.spin = SpinBudget(may_spin)
        #: Of those who cannot go on without a certain frame: an occasion is a time at which it was not there yet.
        self.lockstep = SpinBudget(True, LOCKSTEP_SKIP_MAX)
        self.bell = -1
        self.bulk_ring_bytes = RING_BYTES_MOST
        self._admission = admission
        self._loop = loop
        self._clock = MonotonicClock()
        self._receiver: Receiver | None = None
        self._door: Acceptor | None = None
        #: All and only connections and handshakes that hold a socket.
        self._open: set[SharedConnection | Handshake] = set()
        #: All and only probes that may not have answered; bounded by those who ask.
        self._probes: list[SharedProbe] = []
        self._half_open = 0
        self._regions = 0
        #: Connections whose rings are looked at in every turn.
        self._hot: list[SharedConnection] = []
        self._turn_is_due = False
        #: Turns left to look without finding anything.
        self._patience = 0
        #: How often who awaits something may still find it before the loop has a turn.
        self._answers_left = ANSWERS_PER_TURN
        self._is_awaited = self._is_looking = False
        self._turns = 0
        self._preemptions = 0

    def expect(self, ranks: int, cores: int) -> None:
        """So many ranks, of which we are one, are on this node, and may run on so many cores."""
        self.spin.enabled = ranks <= cores
        self.bulk_ring_bytes = bulk_ring_bytes(ranks)

    @property
    def receiver(self) -> Receiver:
        """Whom to tell."""
        assert self._receiver is not None, "a device listens before it dials"
        return self._receiver

    def reserve(self) -> Endpoint:
        """See :class:`~r2ccl.transport.interface.Device`."""
        listener = new_socket()
        try:
            listener.bind(address(self.nic.endpoint))
            listener.listen(HALF_OPEN_MAX)
        except OSError:
            listener.close()
            raise
        self._door = Acceptor(self._loop, listener, self._accepted)
        return self.nic.endpoint

    def listen(self, receiver: Receiver) -> Endpoint:
        """See :class:`~r2ccl.transport.interface.Device`."""
        self._receiver = receiver
        if self._door is None:
            self.reserve()
        assert self._door is not None
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._loop.add_reader(self.bell, self._rung)
        self._door.start()
        return self.nic.endpoint

    def move(self, host: str, interface_name: str) -> Endpoint:
        """Memory has no address that could change."""
        raise AssertionError("shared memory does not move")

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: WirePurpose) -> SharedConnection:
        """See :class:`~r2ccl.transport.interface.Device`."""
        connection = SharedConnection(self._loop, self.receiver, self.nic.index, WirePurpose(purpose))
        connection.peer, connection.remote_nic = peer, remote_nic
        machine = self._admission.dialler(self.nic.index, peer, remote_nic, purpose)
        Handshake(self, self._loop, connection, machine).connect(endpoint)
        return connection

    def reach(
        self, peer: int, remote_nic: int, endpoint: Endpoint, wait_s: float, heard: Callable[[Answer], None]
    ) -> SharedProbe:
        """See :class:`~r2ccl.transport.interface.Device`."""
        del peer, remote_nic, wait_s  # the endpoint says it all, and the kernel answers at once
        probe = SharedProbe(self._loop, endpoint, self._note_answer(heard))
        self._probes.append(probe)
        return probe

    def _note_answer(self, heard: Callable[[Answer], None]) -> Callable[[Answer], None]:
        def note(answer: Answer) -> None:
            self._probes.pop(0)  # answers come in the order of the knocks
            heard(answer)

        return note

    def register(self, memory: memoryview) -> Region:
        """The rings take copies: any memory will do."""
        self._regions += 1
        return Region(self._regions, memory)

    def deregister(self, region: Region) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """See :class:`~r2ccl.transport.interface.Device`."""
        for probe in self._probes:
            probe.abort()
        self._probes.clear()
        if self._door is not None:
            self._door.close()
            self._door = None
        for user in list(self._open):
            user.abort()
        if self.bell >= 0:
            self._loop.remove_reader(self.bell)
            os.close(self.bell)
            self.bell = -1

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of every descriptor and all memory."""
        if self._door is not None:
            self._door.close_in_child()
        for user in self._open:
            user.close_in_child()
        self._hot.clear()
        if self.bell >= 0:
            os.close(self.bell)

    def forget(self, user: SharedConnection | Handshake) -> None:
        """The user's socket is closed."""
        self._open.discard(user)

    def remember(self, user: SharedConnection | Handshake) -> None:
        """The user holds a socket from now on."""
        self._open.add(user)

    def half_open(self, change: int) -> None:
        """Counts strangers that are being asked who they are."""
        self._half_open += change

    def _accepted(self, sock: socket.socket, _: object) -> None:
        if self._half_open >= HALF_OPEN_MAX:
            sock.close()
            self.turned_away(CROWDED, f"{HALF_OPEN_MAX} wait already")
            return
        connection = SharedConnection(self._loop, self.receiver, self.nic.index, WirePurpose.CONTROL)
        Handshake(self, self._loop, connection, self._admission.listener(self.nic.index)).accepted(sock)

    def turned_away(self, reason: str, says: str) -> None:
        """Somebody on this node was not admitted."""
        self._admission.turned_away(self.nic.index, reason, "a process of this user", says)

    # Looking.

    def is_busy(self, connection: SharedConnection) -> None:
        """Look at the connection's rings from the next turn on."""
        if not self._hot:
            self._begin_to_look()
        if not connection.is_hot:
            connection.unpark()
            self._hot.append(connection)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _rung(self) -> None:
        """Somebody wrote, or made room, where we sleep."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            return
        for user in list(self._open):
            if isinstance(user, SharedConnection) and not user.is_hot and user.may_have_been_rung_for():
                self.is_busy(user)
        self._look()

    def look_for(self, is_over: Callable[[], bool]) -> None:
        """Somebody awaits what only news can end, and here may be the news: look now, for as long as it may pay.

        That saves a small operation its turn of the loop, which costs as much as the rest of it. What is delivered may
        call back and await in turn: only the outermost looks.
        """
        if self._is_awaited or self._is_looking or not self.spin.is_on or not self._answers_left:
            return
        self._is_awaited = True
        try:
            for _ in range(WATCHES_PER_AWAIT):
                self._watch()
                if self._look():
                    self._patience = SPIN_TURNS
                    if is_over():
                        self._answers_left -= 1
                        return
                if not self.spin.is_on:
                    return
        finally:
            self._is_awaited = False

    def wait_while(self, lacks: Callable[[], bool]) -> bool:
        """Somebody cannot go on while something is lacking in a ring. Returns whether it came soon."""
        budget = self.lockstep
        budget.begin()
        if not budget.is_on:
            return False
        if self._looks_in_vain(lacks):
            budget.missed()
            return False
        budget.paid()
        return True

    def _looks_in_vain(self, lacks: Callable[[], bool]) -> bool:
        until_s = self._clock.now() + (LOCKSTEP_S if self.spin.enabled else LOCKSTEP_GIVING_WAY_S)
        while self._clock.now() < until_s:
            if not self.spin.enabled:
                os.sched_yield()  # the rank that is waited for may want this core
                if not lacks():
                    return False
            elif not all(lacks() for _ in range(LOOKS_PER_TURN)):
                return False
        return True

    def _turn(self) -> None:
        self._turn_is_due = False
        self._answers_left = ANSWERS_PER_TURN
        try:
            if self._look():
                self._patience = SPIN_TURNS
            elif self.spin.is_on and self._patience > 0:
                self._patience -= 1
                self._watch()
            else:
                if self.spin.is_on:
                    self.spin.missed()
                self._hot = [connection for connection in self._hot if not self._park(connection)]
        finally:
            # Also when a callback failed: who has no turn that is due and is not parked would sleep for ever.
            if self._hot:
                self._turn_soon()

    def _look(self) -> bool:
        """Read from, and write into, all rings that are in use. Returns whether there was anything."""
        found, self._is_looking = False, True
        try:
            for connection in list(self._hot):
                if not connection.is_open:
                    self._hot.remove(connection)
                    continue
                try:
                    found |= connection.pump()
                except BadFrame as bad:
                    connection.fail(bad)
                found |= connection.read()
        finally:
            self._is_looking = False
        return found

    def _begin_to_look(self) -> None:
        self.spin.begin()
        self._patience = SPIN_TURNS
        if self.spin.is_on:
            self._preemptions = _preemptions()

    def _watch(self) -> None:
        """Look at the rings in use until there is something, for a few microseconds."""
        rings = [connection.reader for connection in self._hot if connection.reader is not None]
        for _ in range(LOOKS_PER_TURN):
            for ring in rings:
                if ring.has_news():
                    self.spin.paid()
                    return
        self._turns += 1
        if self._turns % TURNS_PER_QUESTION == 0 and self._preemptions != _preemptions():
            self.spin.preempted()

    def _park(self, connection: SharedConnection) -> bool:
        try:
            return not connection.is_open or connection.park()
        except BadFrame as bad:
            connection.fail(bad)
            return True


def _preemptions() -> int:
    """How often the system took the core from this thread for somebody else."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
