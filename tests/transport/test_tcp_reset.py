"""What a reset must not swallow: frames that had arrived before it, and the reset itself."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from r2ccl.protocol.wire import Header, Kind, pack_control
from r2ccl.transport.interface import Connection, Loss, Purpose
from r2ccl.transport.tcp_connection import TcpConnection

#: Fewer bytes than the kernel takes without the peer reading: what a closed socket has not sent yet, a reset takes
#: along.
FRAMES = 500


class Recorder:
    """A receiver of control frames only."""

    def __init__(self, ended: asyncio.Future[Loss]) -> None:
        self.frames = 0
        self.ended = ended

    def established(self, connection: Connection) -> None:
        """Nothing to do."""

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        self.frames += 1

    def batch_ended(self, connection: Connection) -> None:
        """Nothing to do."""

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.ended.set_result(loss)

    def destination(self, connection: Connection, header: Header) -> memoryview:
        raise AssertionError("no chunk was sent")

    landed = chunk = spoiled = destination


async def read_until_the_reset() -> tuple[int, Loss]:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setblocking(False)
    ours.send(b"which they leave unread, so that their end comes as a reset")
    theirs.sendall(b"".join(b"".join(pack_control(Kind.BEAT, 1, 0, [])) for _ in range(FRAMES)))
    recorder = Recorder(loop.create_future())
    connection = TcpConnection(loop, recorder, 0, Purpose.CONTROL)  # type: ignore[arg-type]
    connection.open(ours, b"", lambda _: None)
    theirs.close()
    async with asyncio.timeout(20):
        loss = await recorder.ended
    return recorder.frames, loss


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_frames_before_a_reset_are_delivered_and_the_reset_is_heard(run):
    async def scenario() -> tuple[int, Loss]:
        return await read_until_the_reset()

    frames, loss = run(scenario())
    assert loss is Loss.RESET
    assert frames == FRAMES
