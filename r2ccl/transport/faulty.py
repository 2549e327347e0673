"""A device with faults that wraps any other device.

On real sockets a path cannot be killed without the kernel's help, so this wrapper plays the dead path from above: it
holds back whole frames in both directions, and makes ``sample`` show what a kernel would show: bytes in flight, and
silence that grows. What is held goes on in order when the fault ends, as a kernel would send it again; a connection
that was aborted meanwhile is simply gone. Frames are held whole, so the stream below stays consistent.

It cannot play everything: the socket below acknowledges what the peer sent us while we are "cut", so the *peer's*
kernel sees a healthy path to a process that does not answer; wrap both ends where that matters. And a one-sided adapter
below does not flush, since it notices nothing.

While no fault is in force the cost is one attribute check per frame sent and one look-up per event received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from r2ccl.clock import Clock
from r2ccl.protocol.wire import Header
from r2ccl.topology import Endpoint
from r2ccl.transport.fault_rules import PASS, Guard, Pass, Passage, Rule, Verdict
from r2ccl.transport.faulty_connection import FaultyConnection
from r2ccl.transport.faulty_probe import FaultyProbe
from r2ccl.transport.interface import Answer, Connection, Device, Loss, Probe, Purpose, Receiver, Region

#: Told the index of the NIC and whether it has a carrier now, as netlink would.
CarrierCallback = Callable[[int, bool], None]
#: Which connections a silent drop covers.
Covers = Callable[[Connection], bool]


class FaultyDevice:
    """Any device, and handles to make it fail."""

    def __init__(
        self,
        device: Device,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_carrier: CarrierCallback | None = None,
        dial_timeout_s: float = 1.0,
    ) -> None:
        self.nic = device.nic
        self.one_sided = device.one_sided
        self.loop = loop
        self.clock = clock
        self._device = device
        self._on_carrier = on_carrier
        self._dial_timeout_s = dial_timeout_s
        self._receiver: Receiver | None = None
        self._rules: list[Rule] = []
        self._silences: list[Covers] = []
        self._cuts = 0
        #: Connection below -> ours. All and only connections that have not ended.
        self._wrapped: dict[Connection, FaultyConnection] = {}
        #: Dials that never reached the device below.
        self._unanswered: dict[FaultyConnection, None] = {}
        #: All and only probes that have no answer yet.
        self._probes: dict[FaultyProbe, None] = {}

    # Faults.

    def cut(self) -> Guard:
        """Pull the cable: nothing passes, and the carrier callback is told, now and when the guard puts it back."""
        self._cuts += 1
        self._changed()
        if self._cuts == 1:
            self._tell_carrier(up=False)
        return Guard(self._mend)

    def silence(self, covers: Covers = lambda _: True) -> Guard:
        """Nothing passes on the connections that are covered, in either direction, and no one is told."""
        self._silences.append(covers)
        self._changed()
        return Guard(lambda: self._remove(self._silences, covers))

    def install(self, rule: Rule) -> Guard:
        """Put a rule behind those that are there."""
        self._rules.append(rule)
        self._changed()
        return Guard(lambda: self._remove(self._rules, rule))

    def _mend(self) -> None:
        self._cuts -= 1
        if self._cuts == 0:
            self._tell_carrier(up=True)
        self._changed()

    def _remove(self, where: list[Rule] | list[Covers], what: Rule | Covers) -> None:
        del where[[entry is what for entry in where].index(True)]
        self._changed()

    def _tell_carrier(self, up: bool) -> None:
        if self._on_carrier is not None:
            self.loop.call_soon(self._on_carrier, self.nic.index, up)

    def _changed(self) -> None:
        for connection in [*self._wrapped.values(), *self._unanswered]:
            connection.faults_changed()

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    def blocks(self, connection: Connection) -> bool:
        return self._cuts > 0 or any(covers(connection) for covers in self._silences)

    def judge(self, connection: Connection, header: Header, payload_bytes: int) -> Verdict:
        passage = Passage(connection, header, payload_bytes, self.clock.now())
        for rule in self._rules:
            verdict = rule(passage)
            if not isinstance(verdict, Pass):
                return verdict
        return PASS

    # As every device.

    def close_in_child(self) -> None:
        self._device.close_in_child()

    def move(self, host: str, interface_name: str) -> Endpoint:
        endpoint = self._device.move(host, interface_name)
        self.nic = self._device.nic
        return endpoint

    def reserve(self) -> Endpoint:
        return self._device.reserve()

    def listen(self, receiver: Receiver) -> Endpoint:
        self._receiver = receiver
        return self._device.listen(self)

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: Purpose) -> Connection:
        if self._receiver is None:
            raise ValueError("a device must listen before it dials: it has no receiver yet")
        connection = FaultyConnection(self, self._receiver)
        connection.name(peer, remote_nic, purpose)
        connection.give_up_after(self._dial_timeout_s)
        if self.blocks(connection):
            self._unanswered[connection] = None
        else:
            inner = self._device.dial(peer, remote_nic, endpoint, purpose)
            connection.wrap(inner)
            self._wrapped[inner] = connection
        return connection

    def reach(
        self, peer: int, remote_nic: int, endpoint: Endpoint, wait_s: float, heard: Callable[[Answer], None]
    ) -> Probe:
        if self._receiver is None:
            raise ValueError("a device must listen before it knocks: it has no receiver yet")
        stand_in = FaultyConnection(self, self._receiver)
        stand_in.name(peer, remote_nic, Purpose.PROBE)
        probe = FaultyProbe(lambda: self.blocks(stand_in), heard, self._probes)
        probe.begin(self._device, self.loop, (peer, remote_nic, endpoint), wait_s)
        return probe

    def register(self, memory: memoryview) -> Region:
        return self._device.register(memory)

    def deregister(self, region: Region) -> None:
        self._device.deregister(region)

    def close(self) -> None:
        for connection in [*self._wrapped.values(), *self._unanswered]:
            connection.abort()
        for probe in list(self._probes):
            probe.abort()
        self._device.close()

    def forget(self, connection: FaultyConnection, inner: Connection | None) -> None:
        self._unanswered.pop(connection, None)
        if inner is not None:
            self._wrapped.pop(inner, None)

    # As the receiver of the device below.

    def established(self, connection: Connection) -> None:
        ours = self._wrapped.get(connection)
        if ours is None:
            assert self._receiver is not None
            ours = FaultyConnection(self, self._receiver)
            ours.wrap(connection)
            self._wrapped[connection] = ours
        ours.inner_established()

    def destination(self, connection: Connection, header: Header) -> memoryview:
        return self._wrapped[connection].inner_destination(header)

    def landed(self, connection: Connection, header: Header) -> None:
        self._wrapped[connection].inner_landed(header)

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        self._wrapped[connection].inner_chunk(header, payload)

    def spoiled(self, connection: Connection, header: Header) -> None:
        self._wrapped[connection].inner_spoiled(header)

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        self._wrapped[connection].inner_control(header, body)

    def batch_ended(self, connection: Connection) -> None:
        ours = self._wrapped.get(connection)
        if ours is not None:
            ours.inner_batch_ended()

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        ours = self._wrapped.get(connection)
        if ours is not None:
            ours.inner_lost(loss, detail)
