"""One of two processes that throw frames to and fro through shared memory, with pauses in which both fall asleep.

    python ping_pong.py RANK MARK SECONDS

Rank 1 throws back what comes. Rank 0 exits with 1 if a frame is not back in time, and prints how many were.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import uvloop

from r2ccl.protocol.handshake import Identity
from r2ccl.protocol.wire import Header, Kind, pack_header
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Connection, Loss, Purpose
from r2ccl.transport.shared_memory import SharedMemoryDevice
from r2ccl.transport.tcp import Admission

SIZES = (4, 4, 4, 4096, 65536, 262144, 3 << 20)
PATIENCE_S = 15.0
DIAL_S = 0.2


class Player:
    def __init__(self, throws_back: bool) -> None:
        self._throws_back = throws_back
        self.memory = memoryview(bytearray(max(SIZES)))
        self.is_up = asyncio.Event()
        self.is_back = asyncio.Event()
        self.is_over = asyncio.Event()

    def established(self, connection: Connection) -> None:
        self.is_up.set()

    def destination(self, connection: Connection, header: Header) -> memoryview:
        return self.memory[: header.payload_bytes]

    def landed(self, connection: Connection, header: Header) -> None:
        self.chunk(connection, header, self.memory)

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        if self._throws_back:
            self.throw(connection, header.payload_bytes)
        else:
            self.is_back.set()

    def throw(self, connection: Connection, size: int) -> None:
        connection.send(pack_header(Kind.CHUNK, 0, size, 1, 1), self.memory[:size])

    def spoiled(self, connection: Connection, header: Header) -> None:
        raise AssertionError("memory spoils nothing")

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        raise AssertionError("nobody sent control")

    def batch_ended(self, connection: Connection) -> None:
        """Nothing to do."""

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.is_over.set()


async def throw(device: SharedMemoryDevice, player: Player, endpoint: Endpoint, seconds: float) -> int:
    while True:
        connection = device.dial(1, 0, endpoint, Purpose.BULK)
        await asyncio.sleep(DIAL_S)
        if player.is_up.is_set():
            break
        connection.abort()
    rng, frames, until_s = random.Random(1), 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        player.is_back.clear()
        player.throw(connection, rng.choice(SIZES))
        async with asyncio.timeout(PATIENCE_S):
            await player.is_back.wait()
        frames += 1
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.0005)
    return frames


async def main(rank: int, mark: str, seconds: float) -> None:
    endpoints = [Endpoint("shared", f"r2ccl-{mark}-{number}", 0) for number in range(2)]
    admission = Admission(Identity("job", b"secret", rank, 1000 + rank, "0"), {0: 1000, 1: 1001})
    device = SharedMemoryDevice(Nic(0, "memory", endpoints[rank]), admission, asyncio.get_running_loop())
    player = Player(throws_back=rank == 1)
    device.listen(player)
    if rank == 1:
        await player.is_over.wait()
    else:
        print(await throw(device, player, endpoints[1], seconds))
    device.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
