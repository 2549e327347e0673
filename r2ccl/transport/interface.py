"""Moving bytes, behind five nouns: Device, Region, Connection, Receiver, PathSample. (A sixth, Probe, moves none.)

The interface is shaped by RDMA, the hardest case: memory is registered on a device up front, a receiver tells where a
transfer may be written, writes are one-sided with an ordered notification, completions come in batches, and a lost
queue pair flushes. TCP and shared memory are the easy cases of the same nouns: registration costs nothing, and the
header that arrives first asks for its destination.

Everything here is called on the event loop's thread and nothing awaits. A transport calls its :class:`Receiver`
directly, not by message: this is the per-chunk path. After a batch of calls it says ``batch_ended`` once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from r2ccl.protocol.wire import Header, Landing
from r2ccl.topology import Endpoint, Nic


class Purpose(enum.IntEnum):
    """What a connection is for. Heartbeats, acknowledgements and notices never queue behind bulk."""

    CONTROL = 1
    BULK = 2
    #: Made only to see whether somebody is there, and ended at once.
    PROBE = 4


class Loss(enum.Enum):
    """Why a connection ended, as far as this end can tell."""

    REFUSED = "refused"  #: nobody listens there: with a healthy path, the process is gone
    UNREACHABLE = "unreachable"  #: no route, no such address, dial timed out
    RESET = "reset"
    END_OF_FILE = "end of file"
    BAD_FRAME = "bad frame"
    NOT_ADMITTED = "not admitted"  #: the handshake failed
    FLUSHED = "flushed"  #: one-sided hardware gave up: writes in flight may or may not have landed


@dataclass(frozen=True, slots=True)
class PathSample:
    """What the network says about one connection, at one moment.

    ``silence_s`` is the time since the far end's kernel or process gave any sign (an acknowledgement or data) on this
    connection. ``limited`` marks a sample that accuses nobody: the peer's window is closed, or we have nothing to send.
    ``probing``: our kernel asked whether a closed window is open again, and nobody has answered who would have by now.
    ``rtt_s`` is how long the far end's kernel took to answer; the newest answer has ``rtt_weight`` of the say in it.
    Counters only grow, and begin anew with each connection.
    """

    in_flight_bytes: int
    unsent_bytes: int
    silence_s: float
    rtt_s: float
    limited: bool
    resent_segments: int = 0
    #: Segments that went out, those sent again included, and segments that the far end's kernel has answered.
    sent_segments: int = 0
    answered_segments: int = 0
    #: Bytes that the far end's kernel has, of all kinds.
    acked_bytes: int = 0
    rtt_weight: float = 1.0
    probing: bool = False
    #: Of those in flight, segments that our kernel takes for lost.
    missing_segments: int = 0


#: Of what was posted: whose it is, and what its owner wants to know of it.
Note = tuple[Any, ...]


class Posts(Protocol):
    """The short way of small chunks through memory that two ranks share: no call for each, no turn of the loop.

    What is posted is an ordinary frame in the order of all others, and whoever does not look here gets it as such.
    """

    def post(self, header: bytes, payload: memoryview, note: Note) -> bool:
        """Put a frame where the peer sees it at once. False: that cannot be done now, and nothing was. ``payload`` is
        copied. ``note`` is for :meth:`left`."""

    def left(self, owner: object) -> list[tuple[Note, bytes]]:
        """What an owner posted and the peer has not read as a whole, oldest first: notes and payloads. Also after the
        connection has ended; the peer may have read some of it since. Each is given out once."""

    def next_frame(self, patiently: bool) -> tuple[Header, memoryview] | None:
        """The oldest frame that nobody has read, if it is there as a whole; ``patiently``: look for it for as long as
        it may pay, some microseconds. The header is not checked. The payload is valid until :meth:`take`."""

    def take(self, frame: tuple[Header, memoryview]) -> None:
        """The frame that :meth:`next_frame` gave has been read, and comes no other way."""


class Connection(Protocol):
    """One authenticated connection to one NIC of one peer, for one purpose."""

    purpose: Purpose
    peer: int
    peer_incarnation: int
    local_nic: int
    remote_nic: int
    #: Chunks beyond the eager limit are written into the peer's announced landings with :meth:`write`.
    one_sided: bool

    @property
    def posts(self) -> Posts | None:
        """Its short way, if it has one, while it stands."""

    def send(self, header: bytes, payload: bytes | memoryview) -> None:
        """Queue a frame. ``payload`` is held by reference until the transport let go of it. Never raises, never waits.

        On a lost or aborted connection it does nothing: ``lost`` has been or will be called.
        """

    def write(self, header: bytes, payload: memoryview, landing: Landing, offset: int) -> None:
        """One-sided: place ``payload`` at ``offset`` within ``landing``, then notify the peer with ``header``."""

    def withdraw(self, communicator: int, operation: int) -> bool:
        """Take unsent frames of operations >= ``operation`` out of the queue.

        Returns False if the connection still holds a view of such a frame, part of which is on its way: only
        ``abort`` gets that back.
        """

    def discard_incoming(self) -> None:
        """Throw away the rest of the payload being received: its destination belongs to somebody else now.

        ``landed`` is not called for it. Does nothing if no payload is being received.
        """

    def sample(self) -> PathSample: ...

    def abort(self) -> None:
        """End the connection now. On return no view is held and no memory is written any more; what had already landed
        has been reported first. ``lost`` is not called. May be called at any time, also twice."""


class Receiver(Protocol):
    """Whom a device tells what happens. All views are valid only during the call unless said otherwise."""

    def established(self, connection: Connection) -> None:
        """Dialled or accepted, and authenticated."""

    def destination(self, connection: Connection, header: Header) -> memoryview:
        """Where the payload of this chunk, or relayed frame, goes: exactly ``header.payload_bytes`` writable bytes, on
        loan until ``landed``, ``spoiled``, ``lost``, or until ``discard_incoming`` or ``abort`` is called on the
        connection."""

    def landed(self, connection: Connection, header: Header) -> None:
        """The destination that was asked for holds the payload, and its checksum is right."""

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        """A small chunk or relayed frame that arrived whole, checksum right, without asking for a destination."""

    def spoiled(self, connection: Connection, header: Header) -> None:
        """A chunk's payload failed its checksum. The connection goes on."""

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        """A frame that is neither chunk nor relayed."""

    def batch_ended(self, connection: Connection) -> None:
        """No more events of this connection in this turn of the loop."""

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        """The connection ended without our asking; it was established before, or ``dial`` failed to."""


class Answer(enum.Enum):
    """What came of knocking at an endpoint. It is the far *kernel* that answers: whether its process computes, is
    stopped or shakes hands does not matter."""

    ANSWERED = "answered"
    REFUSED = "refused"  #: the path and the kernel are there, and nobody listens
    SILENT = "silent"  #: nothing came back in time, or there is no way there
    UNTRIED = "untried"  #: we lacked what it takes, such as descriptors: it says nothing about anybody


class Probe(Protocol):
    """A knock that is on its way."""

    def abort(self) -> None:
        """Its answer is not wanted any more. May be called at any time, also twice, also after the answer."""


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a device may read and write until it is deregistered."""

    key: int
    memory: memoryview


class Device(Protocol):
    """One NIC, opened."""

    nic: Nic
    one_sided: bool

    def reserve(self) -> Endpoint:
        """The endpoint to announce. Who dials it waits, or is refused, until ``listen``. Raises ``OSError``."""

    def listen(self, receiver: Receiver) -> Endpoint:
        """Accept connections, at the endpoint that was reserved if one was. Raises ``OSError``."""

    def move(self, host: str, interface_name: str) -> Endpoint:
        """The NIC has another address, or its address is at another interface: listen there from now on.

        To be called after ``listen``. Raises ``OSError``.
        """

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: Purpose) -> Connection:
        """Begin to connect from this NIC; ``established`` or ``lost`` follows on a later turn of the loop.

        The result may be aborted at once. Never raises for what the network does.
        """

    def reach(
        self, peer: int, remote_nic: int, endpoint: Endpoint, wait_s: float, heard: Callable[[Answer], None]
    ) -> Probe:
        """Find out whether the kernel at ``endpoint`` answers a packet from this NIC, within ``wait_s``.

        ``heard`` is called once, on a later turn of the loop, and not at all after ``abort`` or ``close``. It is no
        event of the Receiver: a probe belongs to no link and leads to no connection. Never raises for what the network
        does, and never says ``SILENT`` because we were away ourselves while the answer came.
        """

    def register(self, memory: memoryview) -> Region: ...

    def deregister(self, region: Region) -> None:
        """Nobody reads or writes it any more. Does nothing on a closed device, which has let go of all regions."""

    def close(self) -> None:
        """Stop listening and abort every connection and probe."""

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of every descriptor, without a word to peers or to the parent's loop."""


#: How a runtime gets its devices: real life, the simulator and tests each pass their own.
DeviceFactory = Callable[[Nic], Device]
