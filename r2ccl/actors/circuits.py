"""A NIC that is none: its connections are circuits, whose frames another rank carries (``protocol.relay``).

It looks like any device, so ports, links, lanes and sessions work over it unchanged; what differs is what a sample of
its connections says (``limited``: silence on a circuit accuses nobody) and that it calls its receiver from within
what other devices tell, since it has no wire of its own.

A frame on a circuit is copied when it is sent and when it comes: the paths that need no third rank are for speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from r2ccl.actors.link import Link
from r2ccl.actors.shared import Shared
from r2ccl.ids import RELAY_NIC
from r2ccl.protocol.relay import Candidates, Circuit, RelayedFrame, Word, pack_relayed
from r2ccl.protocol.wire import HEADER_BYTES, BadFrame, Flag, Header, Kind, Landing, checksum, unpack_header
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer, Connection, Loss, PathSample, Probe, Purpose, Receiver, Region

#: Chunks up to this size are handed over whole; for larger ones a destination is asked for. As over TCP.
WHOLE_BYTES_MAX = 16 << 10


class Way:
    """A link to the rank that carries, and its connections at one moment: others after a loss carry other circuits."""

    __slots__ = ("bulk", "control", "link")

    def __init__(self, link: Link, control: Connection, bulk: Connection) -> None:
        self.link = link
        self.control = control
        self.bulk = bulk

    @staticmethod
    def over(link: Link | None) -> Way | None:
        """None: the link has not both connections."""
        if link is None or link.control is None or link.bulk is None:
            return None
        return Way(link, link.control, link.bulk)

    @property
    def carrier(self) -> int:
        """The rank that carries."""
        return self.link.id.peer


class RelayConnection:
    """One end of a circuit. See :class:`~r2ccl.transport.interface.Connection`."""

    one_sided = False
    posts = None
    local_nic = remote_nic = RELAY_NIC

    def __init__(self, device: RelayDevice, peer: int, number: int, purpose: Purpose, incarnation: int) -> None:
        self.purpose = purpose
        self.peer = peer
        self.peer_incarnation = incarnation
        self.number = number
        self.circuit = Circuit(device.now())
        #: By whom it is carried; None: not yet.
        self.way: Way | None = None
        #: While it is being made: whom we asked, and did not say no.
        self.asked: dict[int, Way] = {}
        self.is_over = False
        self._device = device
        self._is_landing = False

    def __repr__(self) -> str:
        state = "over" if self.is_over else "asking" if self.way is None else f"by rank {self.way.carrier}"
        return f"<circuit {self.number} to rank {self.peer} {self.purpose.name.lower()} {state}>"

    @property
    def key(self) -> tuple[int, int]:
        return self.peer, self.number

    def send(self, header: bytes, payload: bytes | memoryview) -> None:
        way = self.way
        if self.is_over or way is None:
            return
        frame = b"".join((header, payload))
        number = self.circuit.send(len(frame), self._device.now())
        on = way.bulk if self.purpose is Purpose.BULK else way.control
        self._device.say(way, on, Word.FRAME, self, number, frame)

    def write(self, header: bytes, payload: memoryview, landing: Landing, offset: int) -> None:
        """Other ranks' hardware writes nothing for us."""
        raise AssertionError("a circuit is not one-sided")

    def withdraw(self, communicator: int, operation: int) -> bool:
        """Nothing of anybody's memory is held here: what was sent is a copy."""
        return True

    def discard_incoming(self) -> None:
        self._is_landing = False

    def sample(self) -> PathSample:
        now = self._device.now()
        below = None if self.way is None else self.way.control.sample()
        return PathSample(
            in_flight_bytes=self.circuit.in_flight_bytes,
            unsent_bytes=0 if below is None else below.unsent_bytes,
            silence_s=self.circuit.silence_s(now),
            rtt_s=0.0 if below is None else 2 * below.rtt_s,
            limited=True,
        )

    def abort(self) -> None:
        if self.is_over:
            return
        if self.way is not None:
            on = self.way.bulk if self.purpose is Purpose.BULK else self.way.control
            self._device.say(self.way, on, Word.END, self)
        for way in self.asked.values():
            self._device.say(way, way.control, Word.END, self)
        self._end()

    def lose(self, loss: Loss, detail: str) -> None:
        """It ended without our asking."""
        if not self.is_over:
            self._end()
            self._device.receiver.lost(self, loss, detail)

    def _end(self) -> None:
        self.is_over = True
        self._is_landing = False
        self.asked.clear()
        self._device.forget(self)

    def take(self, frame: bytes | bytearray | memoryview) -> None:
        """A frame for this end. Raises :class:`BadFrame`."""
        header = unpack_header(frame)
        payload = memoryview(frame)[HEADER_BYTES:]
        if len(payload) != header.payload_bytes:
            raise BadFrame(f"a frame of {len(payload)} bytes on a circuit says that it has {header.payload_bytes}")
        receiver = self._device.receiver
        if header.flags & Flag.CHECKSUMMED and checksum(payload) != header.checksum:
            if header.kind != Kind.CHUNK:
                raise BadFrame("a control frame fails its checksum")
            receiver.spoiled(self, header)
        elif header.kind != Kind.CHUNK:
            receiver.control(self, header, payload)
        elif len(payload) <= WHOLE_BYTES_MAX:
            receiver.chunk(self, header, payload)
        else:
            self._land(header, payload)

    def _land(self, header: Header, payload: memoryview) -> None:
        self._is_landing = True
        destination = self._device.receiver.destination(self, header)
        # Inside that call the receiver may have aborted, or given the place to somebody else.
        if self._is_landing:
            self._is_landing = False
            destination[:] = payload
            self._device.receiver.landed(self, header)


class RelayDevice:
    """All circuits of one rank. See :class:`~r2ccl.transport.interface.Device`."""

    one_sided = False

    def __init__(self, shared: Shared, find_way: Callable[[int], Way | None], use: Callable[[Way], None]) -> None:
        self.nic = Nic(RELAY_NIC, "relay", Endpoint("relay", "", 0), spare=True)
        self.receiver: Receiver
        #: Told of a chunk of which only the header came.
        self.on_trimmed: Callable[[Connection, Header], None] = lambda connection, header: None
        self._shared = shared
        self._find_way = find_way
        self._use = use
        self._candidates = Candidates(shared.rank)
        self._last_number = 0
        #: (peer, number) -> circuit. All and only those that are not over.
        self.circuits: dict[tuple[int, int], RelayConnection] = {}
        #: (peer, purpose) -> number of the newest circuit that the peer dialled: an older DIAL came by a slow rank.
        self._newest: dict[tuple[int, int], int] = {}
        #: Circuits on which something came since the last batch ended, in order.
        self._touched: dict[RelayConnection, None] = {}
        self._is_watching = False

    def now(self) -> float:
        return self._shared.clock.now()

    # As every device.

    def reserve(self) -> Endpoint:
        return self.nic.endpoint

    def listen(self, receiver: Receiver) -> Endpoint:
        self.receiver = receiver
        return self.nic.endpoint

    def move(self, host: str, interface_name: str) -> Endpoint:
        """It is nowhere."""
        raise AssertionError("the relays' NIC has no address")

    def reach(
        self, peer: int, remote_nic: int, endpoint: Endpoint, wait_s: float, heard: Callable[[Answer], None]
    ) -> Probe:
        """It is nowhere."""
        raise AssertionError("no kernel is behind the relays' NIC to be knocked at")

    def register(self, memory: memoryview) -> Region:
        """Any memory will do."""
        return Region(0, memory)

    def deregister(self, region: Region) -> None:
        """Nothing to undo."""

    def close_in_child(self) -> None:
        """It has no descriptor."""

    def close(self) -> None:
        for circuit in list(self.circuits.values()):
            circuit.abort()

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: Purpose) -> RelayConnection:
        self._last_number += 1
        # The lower rank's numbers are even, the other's odd: both may dial.
        number = 2 * self._last_number + (self._shared.rank > peer)
        circuit = RelayConnection(self, peer, number, purpose, self._shared.members[peer].incarnation)
        self.circuits[circuit.key] = circuit
        circuit.asked = self._ways_around(peer, ())
        if not circuit.asked:
            self._shared.loop.call_soon(circuit.lose, Loss.UNREACHABLE, "no other rank is reached")
        for way in circuit.asked.values():
            self.say(way, way.control, Word.DIAL, circuit)
        return circuit

    def _ways_around(self, peer: int, besides: tuple[int, ...]) -> dict[int, Way]:
        """Ranks that may carry something to the peer now, a few of them."""
        ways = {}
        for rank in self._shared.peers:
            way = None if rank == peer or rank in besides else self._find_way(rank)
            if way is not None:
                ways[rank] = way
        return {rank: ways[rank] for rank in self._candidates.choose(peer, list(ways))}

    # Out.

    def say(
        self, way: Way, on: Connection, word: Word, circuit: RelayConnection, number: int = 0, frame: bytes = b""
    ) -> None:
        """Something about a circuit, by a way."""
        header = pack_relayed(
            word, self._shared.rank, circuit.peer, circuit.number,
            purpose=circuit.purpose, number=number, received=circuit.circuit.told(), payload_bytes=len(frame),
        )  # fmt: skip
        on.send(header, frame)
        self._use(way)
        if not self._is_watching and word is Word.FRAME:
            self._is_watching = True
            self._shared.timers.after(self._shared.settings.relay_patience_s, self._look)

    def forget(self, circuit: RelayConnection) -> None:
        """It is over."""
        del self.circuits[circuit.key]
        self._touched.pop(circuit, None)

    def _look(self) -> None:
        """Is there a circuit on which bytes are in flight and nothing comes?"""
        self._is_watching = False
        patience_s, now = self._shared.settings.relay_patience_s, self.now()
        for circuit in list(self.circuits.values()):
            if circuit.way is not None and circuit.circuit.should_ask(patience_s, now):
                circuit.circuit.ask(now)
                for way in self._ways_around(circuit.peer, (circuit.way.carrier,)).values():
                    self.say(way, way.control, Word.ASK, circuit)
        if any(circuit.circuit.in_flight_bytes for circuit in self.circuits.values()):
            self._is_watching = True
            self._shared.timers.after(patience_s, self._look)

    # In.

    def heard(self, link: Link, frame: RelayedFrame, payload: bytes | bytearray | memoryview) -> None:
        """A relayed frame for this rank. Raises :class:`BadFrame` for what no rank that keeps the rules would send."""
        circuit = self.circuits.get((frame.source, frame.circuit))
        if circuit is None:
            self._unknown(link, frame)
            return
        match frame.word:
            case Word.DIAL:
                pass  # by a second rank
            case Word.ANSWER:
                self._answered(circuit, link)
            case Word.NO_ROUTE:
                self._not_reached(circuit, link.id.peer)
            case Word.END:
                circuit.lose(Loss.RESET, "the peer ended it")
            case Word.ASK:
                self._reply(link, Word.HERE, frame)
            case Word.HERE:
                self._here(circuit)
            case Word.FRAME | Word.TRIMMED | Word.RECEIPT:
                self._answered(circuit, link)  # the answer itself goes another way, and may come later
                self._arrived(circuit, frame, payload)
            case _:
                assert_never(frame.word)

    def _unknown(self, link: Link, frame: RelayedFrame) -> None:
        """Nothing here has that name. A first DIAL makes it; what else comes of it is told that it is over."""
        if frame.word is Word.DIAL:
            self._dialled(link, frame)
        elif frame.word in (Word.FRAME, Word.TRIMMED, Word.RECEIPT, Word.ANSWER, Word.ASK):
            self._reply(link, Word.END, frame)

    def _dialled(self, link: Link, frame: RelayedFrame) -> None:
        peer, purpose = frame.source, Purpose(frame.purpose)
        way = Way.over(link)
        if way is None or self._newest.get((peer, purpose), 0) >= frame.circuit:
            return
        self._newest[peer, purpose] = frame.circuit
        circuit = RelayConnection(self, peer, frame.circuit, purpose, self._shared.members[peer].incarnation)
        circuit.way = way
        self.circuits[circuit.key] = circuit
        self.say(way, way.control, Word.ANSWER, circuit)
        self.receiver.established(circuit)

    def _answered(self, circuit: RelayConnection, link: Link) -> None:
        way = Way.over(link)
        if circuit.way is not None or way is None:
            return
        circuit.way = way
        circuit.asked.clear()
        circuit.circuit.hear(0, self.now())
        self.receiver.established(circuit)

    def _not_reached(self, circuit: RelayConnection, carrier: int) -> None:
        if circuit.way is None:
            circuit.asked.pop(carrier, None)
            if not circuit.asked:
                circuit.lose(Loss.UNREACHABLE, "no rank that was asked reaches it")
        elif carrier == circuit.way.carrier:
            # A third rank's word: no proof that the peer ended anything.
            circuit.lose(Loss.FLUSHED, f"rank {carrier} does not reach it any more")

    def _here(self, circuit: RelayConnection) -> None:
        if circuit.way is not None and circuit.circuit.is_asking:
            circuit.lose(Loss.FLUSHED, f"rank {circuit.way.carrier} passes nothing on")

    def _reply(self, link: Link, word: Word, frame: RelayedFrame) -> None:
        if link.control is not None:
            link.control.send(pack_relayed(word, self._shared.rank, frame.source, frame.circuit), b"")

    def _arrived(self, circuit: RelayConnection, frame: RelayedFrame, payload: bytes | bytearray | memoryview) -> None:
        if circuit.is_over:
            return
        try:
            circuit.circuit.hear(frame.received, self.now())
            if frame.word is Word.RECEIPT:
                return
            size = len(payload)
            if frame.word is Word.TRIMMED:
                size = HEADER_BYTES + unpack_header(payload).payload_bytes
            if not circuit.circuit.take(frame.number, size):
                circuit.lose(Loss.FLUSHED, "a frame was lost on the way")
                return
            self._touched[circuit] = None
            if frame.word is Word.TRIMMED:
                self.on_trimmed(circuit, unpack_header(payload))
            else:
                circuit.take(payload)
        except BadFrame as bad:
            # The link that it came by is whole: what was wrong is of the other end's making.
            if not circuit.is_over:
                circuit.abort()
                self.receiver.lost(circuit, Loss.BAD_FRAME, str(bad))

    def batch_ended(self) -> None:
        """No more events of a link in this turn of the loop: tell what came by it."""
        touched, self._touched = self._touched, {}
        for circuit in touched:
            if not circuit.is_over:
                self.receiver.batch_ended(circuit)
            if circuit.way is not None and not circuit.is_over and circuit.circuit.owes_receipt:
                self.say(circuit.way, circuit.way.control, Word.RECEIPT, circuit)

    def carrier_lost(self, connection: Connection) -> None:
        """A connection of a link ended: nobody carries on it any more."""
        for circuit in list(self.circuits.values()):
            if circuit.way is not None and connection in (circuit.way.control, circuit.way.bulk):
                detail = f"the link to rank {circuit.way.carrier}, which carried it, was lost"
                self._shared.loop.call_soon(circuit.lose, Loss.FLUSHED, detail)
            elif circuit.way is None:
                self._ask_no_more(circuit, connection)

    def _ask_no_more(self, circuit: RelayConnection, connection: Connection) -> None:
        for rank in [rank for rank, way in circuit.asked.items() if connection is way.control]:
            del circuit.asked[rank]
            if not circuit.asked:
                self._shared.loop.call_soon(circuit.lose, Loss.UNREACHABLE, "every link to those asked was lost")
