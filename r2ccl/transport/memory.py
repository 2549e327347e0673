"""The memory transport: devices whose network is this process. A verified fake.

A :class:`Fabric` is a small world: ports with bandwidth, paths with latency, processes that can stop or die, and faults
that are set from outside while traffic flows. It runs on any asyncio loop, in virtual time on the simulator's, and
repeats itself exactly: every choice is drawn from the function that it is given. The conformance suite runs on it and
on the real transports alike, so what the simulator proves about the actors holds for sockets too.

Files: ``memory_path`` is the network, ``memory_process`` a rank as its kernel sees it, ``memory_pipe`` the kernels (or
adapters) at the ends of one direction, ``memory_probe`` a knock, ``memory_connection``, ``memory_frame`` and
``memory_reader`` the process's side. A connection is made here, without any cryptography.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from r2ccl.protocol.wire import Header, Landing, unpack_header
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer, Connection, Loss, Purpose, Receiver, Region
from r2ccl.transport.memory_connection import MemoryConnection
from r2ccl.transport.memory_frame import byte_view
from r2ccl.transport.memory_path import Model, Path, Port, PortName
from r2ccl.transport.memory_pipe import Pipe
from r2ccl.transport.memory_probe import MemoryProbe
from r2ccl.transport.memory_process import Process

#: Told the index of the NIC, and whether it has a carrier now.
CarrierWatcher = Callable[[int, bool], None]
#: (sender's port, receiver's port, header) -> whether a bit of this payload flips on the way.
CorruptionRule = Callable[[PortName, PortName, Header], bool]


class Fabric:
    """A network in this process, and the handles of everything that can go wrong with it.

    ``draw`` returns numbers in [0, 1): the one source of chance. A NIC is named by (rank, index).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, draw: Callable[[], float] = lambda: 0.0, model: Model | None = None
    ) -> None:
        self.loop, self.draw = loop, draw
        self.model = model or Model()
        self._ports: dict[PortName, Port] = {}
        self._paths: dict[tuple[PortName, PortName], Path] = {}
        self._processes: dict[int, Process] = {}
        self._devices: list[MemoryDevice] = []
        self._listening: dict[Endpoint, MemoryDevice] = {}
        self._watchers: dict[int, list[CarrierWatcher]] = {}
        self._corruptions: list[CorruptionRule] = []
        self._last_port_number = 0

    # Building.

    def device(
        self, nic: Nic, rank: int, incarnation: int = 1, one_sided: bool = False, shares_memory: bool = False
    ) -> MemoryDevice:
        """Open a NIC of a rank, or the memory that it shares. A killed rank comes back to life with its first one."""
        if not self.process(rank).alive:
            self._processes[rank] = Process()
        device = MemoryDevice(self, nic, rank, incarnation, one_sided, shares_memory)
        self._devices.append(device)
        return device

    def process(self, rank: int) -> Process:
        return self._processes.setdefault(rank, Process())

    def port(self, name: PortName) -> Port:
        if name not in self._ports:
            self._ports[name] = Port(name, self.model.bandwidth_bytes_s)
        return self._ports[name]

    def path(self, source: PortName, target: PortName) -> Path:
        """The one-way path between two NICs; its latency and bandwidth may be set."""
        if (source, target) not in self._paths:
            routed = not self.model.rails_apart or source[1] == target[1]
            self._paths[source, target] = Path(self.port(source), self.port(target), self.model.latency_s, routed)
        return self._paths[source, target]

    def watch_carrier(self, rank: int, watcher: CarrierWatcher) -> None:
        """Tell the owner of a NIC, and nobody else, when its carrier goes and comes."""
        self._watchers.setdefault(rank, []).append(watcher)

    # Faults.

    def cut(self, nic: PortName) -> None:
        """Pull the cable: nothing passes in either direction, and the owner's kernel says that the carrier is gone."""
        self._set_carrier(nic, up=False)

    def silent_drop(self, nic: PortName) -> None:
        """Nothing passes through this NIC in either direction, and no one is told."""
        self.port(nic).silent = True
        self._refresh()

    def silent_drop_link(self, one: PortName, other: PortName) -> None:
        """Nothing passes between these two NICs in either direction, and no one is told."""
        self.path(one, other).severed = self.path(other, one).severed = True
        self._refresh()

    def silent_drop_direction(self, source: PortName, target: PortName) -> None:
        """Nothing passes from ``source`` to ``target``; the way back is whole. No one is told."""
        self.path(source, target).severed = True
        self._refresh()

    def restore(self, nic: PortName) -> None:
        """Undo :meth:`cut` and :meth:`silent_drop`."""
        self.port(nic).silent = False
        self._set_carrier(nic, up=True)

    def restore_link(self, one: PortName, other: PortName) -> None:
        """Undo :meth:`silent_drop_link` and :meth:`silent_drop_direction`."""
        self.path(one, other).severed = self.path(other, one).severed = False
        self._refresh()

    def kill(self, rank: int) -> None:
        """End a rank's process: its kernel closes every connection that no child holds too, and refuses new ones."""
        self.process(rank).alive = False
        for device in [device for device in self._devices if device.rank == rank]:
            if not device.children:
                device.die()

    def fork(self, rank: int) -> None:
        """Give a rank's process a child, which shares every descriptor until it lets go of them."""
        for device in [device for device in self._devices if device.rank == rank]:
            device.children += 1

    def freeze(self, rank: int) -> None:
        """Stop a rank's process. Its kernel goes on: acknowledges until the window is full, completes no handshake."""
        self.process(rank).frozen = True

    def thaw(self, rank: int) -> None:
        self.process(rank).thaw()
        for device in [device for device in self._devices if device.rank == rank]:
            device.pump()

    def corrupt(self, rule: CorruptionRule) -> Callable[[], None]:
        """Flip a bit of each payload that ``rule`` picks. Returns what takes the rule out again."""
        self._corruptions.append(rule)
        return lambda: self._corruptions.remove(rule)

    def is_corrupted(self, source: PortName, target: PortName, header: bytes) -> bool:
        if not self._corruptions:
            return False
        parsed = unpack_header(header)
        return any(rule(source, target, parsed) for rule in self._corruptions)

    def describe(self) -> str:
        """Every connection and what it has in flight, one per line, as ``ss`` would show it."""
        lines = []
        for device in self._devices:
            for connection in device.connections:
                sample = connection.sample()
                lines.append(
                    f"{connection!r} in_flight={sample.in_flight_bytes} unsent={sample.unsent_bytes} "
                    f"silence={sample.silence_s * 1e3:.3f}ms{' limited' if sample.limited else ''}"
                )
        return "\n".join(lines)

    def _set_carrier(self, nic: PortName, up: bool) -> None:
        port = self.port(nic)
        changed = port.carrier is not up
        port.carrier = up
        self._refresh()
        if changed:
            rank, index = nic
            for watcher in self._watchers.get(rank, ()):
                self.loop.call_soon(self.process(rank).run, watcher, index, up)

    def _refresh(self) -> None:
        for path in self._paths.values():
            path.refresh()

    # Making connections: called by devices.

    def reserve(self, device: MemoryDevice, host: str = "") -> Endpoint:
        self._last_port_number += 1
        return Endpoint("memory", host or f"rank{device.rank}.nic{device.nic.index}", self._last_port_number)

    def vacate(self, device: MemoryDevice) -> None:
        """Nobody listens any more where the device did."""
        for endpoint in [endpoint for endpoint, listening in self._listening.items() if listening is device]:
            del self._listening[endpoint]

    def listen(self, device: MemoryDevice, endpoint: Endpoint) -> None:
        self._listening[endpoint] = device

    def forget(self, device: MemoryDevice) -> None:
        self.vacate(device)
        if device in self._devices:
            self._devices.remove(device)

    def knock(self, device: MemoryDevice, dialling: MemoryConnection, endpoint: Endpoint) -> None:
        """The first packet of a dial. On a dead path nobody answers, and the dial's own timer ends it."""
        there = self.path(device.port, (dialling.peer, dialling.remote_nic))
        back = self.path((dialling.peer, dialling.remote_nic), device.port)
        self._carry(there, lambda: self._answer(device, dialling, endpoint, there, back))

    def reach(self, source: PortName, target: PortName, endpoint: Endpoint, tell: Callable[[Answer], None]) -> None:
        """A packet that the far kernel answers, whatever its process does."""
        back = self.path(target, source)

        def answer() -> None:
            listener = self._listening.get(endpoint)
            said = Answer.ANSWERED if listener is not None and listener.port == target else Answer.REFUSED
            self._carry(back, lambda: tell(said))

        self._carry(self.path(source, target), answer)

    def _answer(
        self, device: MemoryDevice, dialling: MemoryConnection, endpoint: Endpoint, there: Path, back: Path
    ) -> None:
        listener = self._listening.get(endpoint)
        if listener is None:
            refusal = (Loss.REFUSED, f"nobody listens at {endpoint}")
        elif (listener.rank, listener.nic.index) != (dialling.peer, dialling.remote_nic):
            refusal = (Loss.NOT_ADMITTED, f"rank {listener.rank} answers at {endpoint}, not rank {dialling.peer}")
        elif listener.one_sided is not device.one_sided:
            refusal = (Loss.NOT_ADMITTED, "the two devices are not of one kind")
        else:
            listener.process.run(self._admit, listener, device, dialling, there, back)
            return
        self._carry(back, lambda: device.process.run(dialling.fail, *refusal))

    def _admit(
        self, listener: MemoryDevice, device: MemoryDevice, dialling: MemoryConnection, there: Path, back: Path
    ) -> None:
        accepted = listener.accept(device.rank, device.nic.index, dialling.purpose)
        if accepted is None:
            self._carry(back, lambda: device.process.run(dialling.fail, Loss.REFUSED, "no longer listening"))
            return
        forth = Pipe(self.loop, self.model, there, back, self._lands_anyway(device))
        reverse = Pipe(self.loop, self.model, back, there, self._lands_anyway(device))
        accepted.attach(reverse, forth, device.incarnation)
        forth.join(dialling, accepted)
        reverse.join(accepted, dialling)

        def connect() -> None:
            if dialling.gone:
                forth.close()
                accepted.abort()
                return
            dialling.attach(forth, reverse, listener.incarnation)
            dialling.open()

        # Nobody else would ever close it: the dialling end has not heard of it, and the other has the way back only.
        self._carry(back, lambda: device.process.run(connect), forth.close)

    def _lands_anyway(self, device: MemoryDevice) -> Callable[[], bool]:
        return (lambda: self.draw() < 0.5) if device.one_sided else (lambda: False)

    def _carry(self, path: Path, packet: Callable[[], None], lost: Callable[[], None] = lambda: None) -> None:
        """One small packet, lost if the path is or becomes dead."""
        if not path.alive:
            lost()
            return
        losses = path.losses

        def arrive() -> None:
            (packet if path.losses == losses else lost)()

        self.loop.call_later(path.latency_s, arrive)


class MemoryDevice:
    """One NIC of one rank on a fabric."""

    def __init__(
        self, fabric: Fabric, nic: Nic, rank: int, incarnation: int, one_sided: bool, shares_memory: bool = False
    ) -> None:
        self.fabric = fabric
        self.nic = nic
        self.rank = rank
        self.incarnation = incarnation
        self.one_sided = one_sided
        #: Whoever reads may look for what arrives before the loop does (``Posts``).
        self.shares_memory = shares_memory
        self.process = fabric.process(rank)
        #: Forked children that hold its descriptors too.
        self.children = 0
        self._receiver: Receiver | None = None
        self._endpoint: Endpoint | None = None
        #: All and only connections that have not ended. Ordered, for determinism.
        self._connections: dict[MemoryConnection, None] = {}
        #: All and only probes that have no answer yet.
        self._probes: dict[MemoryProbe, None] = {}
        self._regions: dict[int, Region] = {}
        self._last_key = 0

    @property
    def port(self) -> PortName:
        return (self.rank, self.nic.index)

    @property
    def connections(self) -> tuple[MemoryConnection, ...]:
        return tuple(self._connections)

    # As every device.

    def reserve(self) -> Endpoint:
        """An endpoint to announce; nobody is admitted there before ``listen``."""
        self._endpoint = self.fabric.reserve(self)
        return self._endpoint

    def listen(self, receiver: Receiver) -> Endpoint:
        self._receiver = receiver
        endpoint = self._endpoint or self.reserve()
        self.fabric.listen(self, endpoint)
        return endpoint

    def move(self, host: str, interface_name: str) -> Endpoint:
        if self._receiver is None:
            raise ValueError("a device must listen before it moves: it has no receiver yet")
        self.nic = dataclasses.replace(self.nic, name=interface_name)
        self.fabric.vacate(self)
        self._endpoint = self.fabric.reserve(self, host)
        return self.listen(self._receiver)

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: Purpose) -> Connection:
        if self._receiver is None:
            raise ValueError("a device must listen before it dials: it has no receiver yet")
        connection = MemoryConnection(self, peer, remote_nic, purpose, self._receiver)
        if not self.process.alive:
            connection.abort()  # whoever still calls on behalf of a dead process changes nothing and hears nothing
            return connection
        self._connections[connection] = None
        connection.awaits(
            self.fabric.model.dial_timeout_s, lambda: connection.fail(Loss.UNREACHABLE, f"{endpoint} did not answer")
        )
        self.fabric.knock(self, connection, endpoint)
        return connection

    def reach(
        self, peer: int, remote_nic: int, endpoint: Endpoint, wait_s: float, heard: Callable[[Answer], None]
    ) -> MemoryProbe:
        probe = MemoryProbe(self.fabric.loop, self.process.run, heard, self._probes)
        if self.process.alive:
            probe.wait(wait_s)
            self.fabric.reach(self.port, (peer, remote_nic), endpoint, probe.answered)
        return probe

    def register(self, memory: memoryview) -> Region:
        """Keys are counted per device, so memory registered on all NICs of a rank in one order has one key."""
        self._last_key += 1
        region = Region(self._last_key, byte_view(memory))
        self._regions[region.key] = region
        return region

    def deregister(self, region: Region) -> None:
        self._regions.pop(region.key, None)  # gone already if the device was closed, or died

    def close_in_child(self) -> None:
        assert self.children, "a fork comes first"
        self.children -= 1

    def close(self) -> None:
        self.fabric.forget(self)
        self._receiver = None
        for connection in self.connections:
            connection.abort()
        for probe in tuple(self._probes):
            probe.abort()
        self._regions.clear()

    # For its connections and its fabric.

    def accept(self, peer: int, remote_nic: int, purpose: Purpose) -> MemoryConnection | None:
        if self._receiver is None:
            return None
        connection = MemoryConnection(self, peer, remote_nic, purpose, self._receiver)
        self._connections[connection] = None
        connection.awaits(self.fabric.model.dial_timeout_s, connection.abort)
        return connection

    def forget(self, connection: MemoryConnection) -> None:
        self._connections.pop(connection, None)

    def corrupts(self, connection: MemoryConnection, header: bytes) -> bool:
        return self.fabric.is_corrupted(self.port, (connection.peer, connection.remote_nic), header)

    def place(self, landing: Landing, offset: int, size: int) -> memoryview | None:
        """The registered memory that a write names, or None if it names none."""
        region = self._regions.get(landing.region)
        start = landing.offset + offset
        if region is None or start + size > region.memory.nbytes:
            return None
        return region.memory[start : start + size]

    def pump(self) -> None:
        for connection in self.connections:
            connection.pump()

    def die(self) -> None:
        self.fabric.forget(self)
        for connection in self.connections:
            connection.die()
        for probe in tuple(self._probes):
            probe.abort()
        self._regions.clear()
