"""Memory that peers' hardware may write into: registered on every NIC when an operation starts, withdrawn when it ends.

Registering with every NIC up front is what makes a failover free of registration: the same key names the memory on
each. Withdrawing it is also the fence of last resort: whatever still wanted to write
an ended operation's memory finds no such region, and its connection ends."""

from __future__ import annotations

import numpy as np

from r2ccl.actors.operation import Landings, Operation
from r2ccl.protocol.wire import Landing
from r2ccl.transport.interface import Device, Region


class Registrar:
    """Registers operations' memory on all devices of this rank."""

    def __init__(self, devices: list[Device]) -> None:
        self._devices = devices

    def open(self, operation: Operation) -> None:
        """Register the buffer, and room for what is to be reduced into it."""
        program, buffer = operation.planned.waits.program, operation.buffer
        item = buffer.item_bytes
        sizes = [(receive.stop - receive.start) * item for receive in program.receives]
        room = np.empty(sum(n for n, receive in zip(sizes, program.receives, strict=True) if receive.reduce), np.uint8)
        in_buffer, in_room = self._register(buffer.bytes), self._register(memoryview(room))  # type: ignore[arg-type]
        places: list[Landing] = []
        to_reduce: list[np.ndarray[tuple[int], np.dtype[np.uint8]] | None] = []
        used = 0
        for receive, size in zip(program.receives, sizes, strict=True):
            if receive.reduce:
                places.append(Landing(receive.step, in_room[0][1].key, used, size))
                to_reduce.append(room[used : used + size])
                used += size
            else:
                places.append(Landing(receive.step, in_buffer[0][1].key, receive.start * item, size))
                to_reduce.append(None)
        sources = tuple(receive.source for receive in program.receives)
        operation.landings = Landings(tuple(places), (*in_buffer, *in_room), tuple(to_reduce), sources)

    def close(self, operation: Operation) -> None:
        """Nobody may write any more."""
        landings, operation.landings = operation.landings, None
        if landings is not None:
            for device, region in landings.regions:
                device.deregister(region)

    def _register(self, memory: memoryview) -> tuple[tuple[Device, Region], ...]:
        regions = tuple((device, device.register(memory)) for device in self._devices)
        assert len({region.key for _, region in regions}) == 1, "memory must have one key on all NICs"
        return regions
