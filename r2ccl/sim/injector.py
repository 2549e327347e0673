"""Carries a scenario's faults out on a fabric, each at its moment, and undoes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from r2ccl.protocol.wire import Header, Kind
from r2ccl.sim.faults import FOREVER, Fault, FaultKind, Nic
from r2ccl.sim.history import History
from r2ccl.sim.world import World


class Injector:
    """The hand that pulls cables. Its own source of chance, so that faults don't shift when the fabric draws more."""

    def __init__(self, world: World, history: History, killed: Callable[[int], None], seed: int) -> None:
        self._world = world
        self._fabric = world.fabric
        self._history = history
        self._killed = killed
        self._random = random.Random(f"faults of {seed}")
        #: Ranks that were killed.
        self.dead: set[int] = set()
        #: Set while the rank's process is not frozen.
        self.runs = [asyncio.Event() for _ in world.members]
        for event in self.runs:
            event.set()

    def arm(self, faults: tuple[Fault, ...]) -> None:
        """From now on."""
        now = self._world.loop.time()
        for fault in faults:
            self._world.loop.call_at(now + fault.at_s, self._begin, fault)

    def trouble(self, killed: Iterable[tuple[int, float]], cuts: Iterable[tuple[int, int, float, float]]) -> None:
        """As :meth:`arm`, for the few faults of an aftermath."""
        kills = [Fault(FaultKind.KILL, at_s, FOREVER, (rank, 0)) for rank, at_s in killed if rank not in self.dead]
        self.arm((*kills, *(Fault(FaultKind.CUT, at_s, until_s, (rank, nic)) for rank, nic, at_s, until_s in cuts)))

    def _begin(self, fault: Fault) -> None:
        self._history.tell(-1, f"begins: {fault}")
        undo = self._do(fault)
        if fault.until_s != FOREVER:
            self._world.loop.call_later(fault.until_s - fault.at_s, self._end, fault, undo)

    def _end(self, fault: Fault, undo: Callable[[], None]) -> None:
        self._history.tell(-1, f"ends: {fault}")
        undo()

    def _do(self, fault: Fault) -> Callable[[], None]:
        fabric, one, other = self._fabric, fault.one, fault.other
        match fault.kind:
            case FaultKind.CUT:
                fabric.cut(one)
                return lambda: fabric.restore(one)
            case FaultKind.SILENT_NIC:
                fabric.silent_drop(one)
                return lambda: fabric.restore(one)
            case FaultKind.SILENT_LINK | FaultKind.SILENT_DIRECTION:
                assert other is not None
                drop = fabric.silent_drop_link if fault.kind is FaultKind.SILENT_LINK else fabric.silent_drop_direction
                drop(one, other)
                return lambda: fabric.restore_link(one, other)
            case FaultKind.FREEZE:
                fabric.freeze(one[0])
                self.runs[one[0]].clear()
                return lambda: self._thaw(one[0])
            case FaultKind.CORRUPT:
                return fabric.corrupt(lambda source, target, header: self._spoils(fault, source, header))
            case FaultKind.LATENCY:
                return self._delay(fault)
            case FaultKind.BANDWIDTH:
                port = fabric.port(one)
                port.bandwidth_bytes_s *= fault.amount
                return lambda: setattr(port, "bandwidth_bytes_s", fabric.model.bandwidth_bytes_s)
            case FaultKind.KILL:
                self.dead.add(one[0])
                fabric.kill(one[0])
                self._killed(one[0])
                return lambda: None

    def _thaw(self, rank: int) -> None:
        self._fabric.thaw(rank)
        self.runs[rank].set()

    def _spoils(self, fault: Fault, source: Nic, header: Header) -> bool:
        return source == fault.one and header.kind == Kind.CHUNK and self._random.random() < fault.amount

    def _delay(self, fault: Fault) -> Callable[[], None]:
        nics = [(member.rank, nic.index) for member in self._world.members for nic in member.nics]
        paths = [
            path
            for nic in nics
            if nic[0] != fault.one[0]
            for path in (self._fabric.path(fault.one, nic), self._fabric.path(nic, fault.one))
        ]

        def set_latency(latency_s: float) -> None:
            for path in paths:
                path.latency_s = latency_s

        set_latency(fault.amount)
        return lambda: set_latency(self._fabric.model.latency_s)
