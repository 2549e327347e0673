"""How the ranks of ``r2ccl topology-check`` come together: the rendezvous of every job, then a desk at rank 0.

Each rank opens a post at each of its NICs and announces them at the rendezvous, as a job does. Rank 0 announces one
thing more, as if it were a NIC behind its last: the *desk*, where the others sit down to take orders and hand in what
they saw. It listens wherever the rendezvous does, because by that way all have come, whatever their NICs are worth; and
like everything here it talks to who proves to know the job's secret.

The name of the job gets a word more, so that a check never meets a job of the same name and port.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from r2ccl.bootstrap import invitation, refuse_open_listeners, select_nics
from r2ccl.cli.topology_conductor import CheckFailed, Conductor
from r2ccl.cli.topology_posts import Post
from r2ccl.cli.topology_probes import Prober
from r2ccl.cli.topology_wire import Door, Ended, Messages, prove
from r2ccl.cli.topology_worker import Worker, own_view
from r2ccl.clock import MonotonicClock
from r2ccl.config import Settings
from r2ccl.errors import RendezvousError
from r2ccl.planner.network_picture import Picture
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Listener, Purpose, Target
from r2ccl.rendezvous.launch import Placement
from r2ccl.rendezvous.meet import Rendezvous, meet
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.topology import AddressBook, Endpoint, Member, Nic
from r2ccl.transport.mtu_probe import probe_key
from r2ccl.transport.nic_facts import read_nic_facts
from r2ccl.transport.node_identity import node_id

#: Exit codes, the same on all ranks.
FINE, PROBLEMS, NOT_CHECKED = 0, 1, 2
#: Longest wait for rank 0's next order: it waits for the slowest of all, and has deadlines of its own.
ORDER_WAIT_S = 900.0
#: Rank 0's name may have several addresses: for so long one may stay silent, which is two lost packets and a moment.
DIAL_S = 4.0
_DESK = "desk"
_CHECK = "/check"
_JOB_CHARACTERS_MAX = 120


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be checked, and whom to tell."""

    #: Seconds for which each NIC sends; 0: no rates.
    rate_s: float
    #: Rank 0 tells a person how far it is.
    say: Callable[[str], None]
    #: Rank 0 shows the picture, and returns the exit code.
    report: Callable[[Picture], int]


async def take_part(placement: Placement, settings: Settings, wishes: Wishes) -> int:
    """One rank's part; returns the exit code. Raises :class:`R2cclError` when the network could not be checked."""
    nics = select_nics(placement, settings).nics
    meeting = _meeting(placement, settings)
    refuse_open_listeners(placement, settings, nics, meeting.secret)
    rank = _Rank(meeting, settings, wishes, nics)
    try:
        return await rank.run()
    finally:
        rank.close()


def _meeting(placement: Placement, settings: Settings) -> Meeting:
    meeting = invitation(placement, settings)
    return replace(meeting, job=meeting.job + _CHECK) if len(meeting.job) <= _JOB_CHARACTERS_MAX else meeting


class _Rank:
    """One rank, from its posts to the exit code."""

    def __init__(self, meeting: Meeting, settings: Settings, wishes: Wishes, nics: tuple[Nic, ...]) -> None:
        self._meeting = meeting
        self._settings = settings
        self._wishes = wishes
        self._clock = MonotonicClock()
        self._incarnations: dict[int, int] = {}
        self._key = probe_key(meeting.secret, meeting.job)
        self._node = node_id(settings.node_id)
        self._posts: list[Post] = []
        self._desk: _Desk | None = None
        try:
            for nic in nics:
                self._posts.append(Post(nic, meeting.identity, self._incarnations, self._key, self._clock))
            if meeting.rank == 0 and meeting.size > 1:
                self._desk = _Desk(meeting, self._incarnations, len(nics))
        except BaseException:
            self.close()
            raise
        self._nics = tuple(replace(post.nic, endpoint=post.endpoint) for post in self._posts)

    async def run(self) -> int:
        """The exit code. Raises :class:`R2cclError`."""
        meeting = self._meeting
        announced = self._nics if self._desk is None else (*self._nics, self._desk.as_nic)
        if meeting.rank == 0 and meeting.size > 1:
            self._wishes.say(f"waiting up to {meeting.timeout_s:g} s for {meeting.size} ranks at {meeting.host}")
        rendezvous = await meet(meeting, Member(meeting.rank, meeting.incarnation, self._node, announced))
        try:
            book = rendezvous.book
            self._incarnations.update({member.rank: member.incarnation for member in book})
            desk = None if self._desk is None else self._desk.door
            doors = [post.attend for post in self._posts] + ([desk.attend] if desk else [])
            part = self._conduct if meeting.rank == 0 else self._serve
            return await _while_attended(doors, part(rendezvous, book))
        finally:
            await rendezvous.aclose()

    def close(self) -> None:
        """Whatever is open."""
        for post in self._posts:
            post.close()
        if self._desk is not None:
            self._desk.door.close()

    def _worker(self, book: AddressBook) -> Worker:
        prober = Prober(self._meeting.identity, self._nics, book, self._key, self._clock)
        return Worker(own_view(self._meeting.rank, self._node, self._nics, read_nic_facts()), prober, book)

    async def _conduct(self, rendezvous: Rendezvous, book: AddressBook) -> int:
        guests = {} if self._desk is None else self._desk.guests
        await rendezvous.all_connected()
        if self._desk is not None:
            await self._desk.all_here(self._meeting.timeout_s)
        conductor = Conductor(self._worker(_without_desk(book)), guests, self._clock, self._wishes.say)
        code = NOT_CHECKED
        try:
            picture = await conductor.picture(self._settings.backup_paths, self._wishes.rate_s)
            code = self._wishes.report(picture)
        finally:
            await conductor.end(code)
        return code

    async def _serve(self, rendezvous: Rendezvous, book: AddressBook) -> int:
        desk = await _sit_down(self._meeting, book[0])
        try:
            await rendezvous.all_connected()
            worker = self._worker(_without_desk(book))
            while True:
                try:
                    async with asyncio.timeout(ORDER_WAIT_S):
                        order = await desk.receive()
                except TimeoutError:
                    raise CheckFailed(f"rank 0 asked for nothing within {ORDER_WAIT_S:g} s") from None
                match order:
                    case ["end", int(code)]:
                        return code
                await desk.send(await worker.perform(order))
        except Ended as ended:
            raise CheckFailed(f"rank 0, at its desk: {ended}") from ended
        finally:
            desk.close()


class _Desk:
    """Where the other ranks sit down, at rank 0."""

    def __init__(self, meeting: Meeting, incarnations: dict[int, int], index: int) -> None:
        self.guests: dict[int, Messages] = {}
        self._size = meeting.size
        self._complete = asyncio.Event()
        self._over = asyncio.Event()
        # Without a secret only this machine may find somebody listening.
        host = meeting.listening_host if meeting.secret or meeting.insecure else "127.0.0.1"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        listener.setblocking(False)
        self.as_nic = Nic(index, _DESK, Endpoint("inet6" if ":" in host else "inet", host, listener.getsockname()[1]))
        self.door = Door(
            listener,
            lambda: Listener(
                meeting.identity, index, secrets.token_bytes(32), purposes=(Purpose.CONTROL,), incarnations=incarnations
            ),
            self._serve,
        )

    async def all_here(self, wait_s: float) -> None:
        """Raises :class:`CheckFailed`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._complete.wait()
        except TimeoutError:
            missing = [str(rank) for rank in range(1, self._size) if rank not in self.guests]
            raise CheckFailed(f"rank(s) {', '.join(missing)} did not come to the desk within {wait_s:g} s") from None

    async def _serve(self, sock: socket.socket, machine: Listener) -> None:
        self.guests[machine.peer.rank] = Messages(sock, machine.leftover)
        if len(self.guests) == self._size - 1:
            self._complete.set()
        # The connection stays until the door closes.
        await self._over.wait()


def _without_desk(book: AddressBook) -> AddressBook:
    return (replace(book[0], nics=book[0].nics[:-1]), *book[1:]) if len(book) > 1 else book


async def _sit_down(meeting: Meeting, host: Member) -> Messages:
    """Find rank 0's desk, by the way by which rank 0 was found. Raises :class:`RendezvousError`."""
    desk = host.nics[-1]
    loop = asyncio.get_running_loop()
    trouble = "its name does not resolve"
    try:
        found = await loop.getaddrinfo(meeting.host, desk.endpoint.port, type=socket.SOCK_STREAM)
    except OSError as unresolved:
        found, trouble = [], str(unresolved)
    target = Target(0, desk.index, host.incarnation)
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(DIAL_S):
                await loop.sock_connect(sock, address)
            machine = Dialler(meeting.identity, 0, target, Purpose.CONTROL, secrets.token_bytes(32))
            return Messages(sock, await prove(sock, machine))
        except (OSError, TimeoutError, HandshakeRefused) as failed:
            trouble = str(failed) or "no answer"
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise RendezvousError(
        f"rank {meeting.rank} found rank 0 and not its desk at {meeting.host}, port {desk.endpoint.port}: {trouble}; "
        "does a firewall let through the ports of the rendezvous only?"
    )


async def _while_attended(
    doors: Sequence[Callable[[], Coroutine[Any, Any, None]]], part: Coroutine[Any, Any, int]
) -> int:
    """Run a part while doors let in; they close with it."""
    failure: Exception | None = None
    code = NOT_CHECKED
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attend()) for attend in doors]
        try:
            code = await part
        except (CheckFailed, RendezvousError) as failed:
            failure = failed
        finally:
            for task in tasks:
                task.cancel()
    if failure is not None:
        raise failure
    return code
