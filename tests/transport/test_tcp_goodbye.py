"""A peer's last word and the end of its connections, all there before we look: the word is heard first."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from r2ccl.protocol.wire import Header, Kind, pack_control, pack_header
from r2ccl.transport.interface import Connection, Loss, Purpose
from r2ccl.transport.tcp_connection import TcpConnection


class Recorder:
    """A receiver that notes in which order it is told."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.told: list[str] = []
        self.ended = ended

    def established(self, connection: Connection) -> None:
        """Nothing to do."""

    batch_ended = established

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        self.told.append("chunk")

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        self.told.append("goodbye")

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.told.append(f"{connection.purpose.name.lower()} lost")
        if connection.purpose is Purpose.BULK:
            self.ended.set_result(None)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setblocking(False)
    return ours, theirs


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_goodbye_is_heard_before_the_end_of_the_bulk_connection_that_came_after_it(run):
    async def scenario() -> list[str]:
        loop = asyncio.get_running_loop()
        recorder = Recorder(loop.create_future())
        theirs: dict[Purpose, socket.socket] = {}
        for purpose in (Purpose.BULK, Purpose.CONTROL):
            ours, theirs[purpose] = connected()
            TcpConnection(loop, recorder, 0, purpose).open(ours, b"", lambda _: None)  # type: ignore[arg-type]
        # The chunk makes bulk the first that is ready.
        theirs[Purpose.BULK].sendall(pack_header(Kind.CHUNK, 0, 0))
        theirs[Purpose.CONTROL].sendall(b"".join(pack_control(Kind.GOODBYE, 1, 0, [1, 1, 0])))
        for sock in theirs.values():
            sock.close()
        async with asyncio.timeout(20):
            await recorder.ended
        return recorder.told

    told = run(scenario())
    assert told.index("chunk") < told.index("goodbye") < told.index("bulk lost")
