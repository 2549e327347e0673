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
        """Register the arrays that transfers land in, and room for what is to be reduced into them."""
        planned = operation.planned
        receives = planned.waits.program.receives
        item = operation.arrays[0].item_bytes
        sizes = [(receive.stop - receive.start) * item for receive in receives]
        room = np.empty(sum(n for n, receive in zip(sizes, receives, strict=True) if receive.reduce), np.uint8)
        in_room = self._register(room.data)
        landed_in = {array for array, part in zip(planned.receive_arrays, receives, strict=True) if not part.reduce}
        regions = {array: self._register(operation.arrays[array].bytes) for array in sorted(landed_in)}
        places: list[Landing] = []
        to_reduce: list[np.ndarray[tuple[int], np.dtype[np.uint8]] | None] = []
        used = 0
        for index, (receive, size) in enumerate(zip(receives, sizes, strict=True)):
            if receive.reduce:
                places.append(Landing(receive.step, in_room[0][1].key, used, size))
                to_reduce.append(room[used : used + size])
                used += size
            else:
                key = regions[planned.receive_arrays[index]][0][1].key
                places.append(Landing(receive.step, key, planned.receive_spans[index][0][0], size))
                to_reduce.append(None)
        sources = tuple(receive.source for receive in receives)
        registered = (*in_room, *(pair for pairs in regions.values() for pair in pairs))
        operation.landings = Landings(tuple(places), registered, tuple(to_reduce), sources)

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
