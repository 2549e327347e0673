"""From a piece that may go to a parcel with the courier: where its bytes lie, and who answers for them."""

from __future__ import annotations

from typing import Protocol

from r2ccl.actors.asks import Asks
from r2ccl.actors.courier import Courier
from r2ccl.actors.operation import Operation
from r2ccl.protocol.collective import Piece
from r2ccl.protocol.lanes import Parcel


class Host(Protocol):
    """A coordinator, as far as it sends."""

    communicator: int
    courier: Courier
    asks: Asks

    def notice_misfits(self, peer: int, operation: int) -> None: ...


class Sending:
    """One communicator's."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def send(self, operation: Operation, piece: Piece) -> None:
        """Put a chunk on its way."""
        (index, chunk), planned, host = piece, operation.planned, self._host
        send = planned.waits.program.sends[index]
        copied = planned.copied[index]
        pieces = planned.send_pieces[index]
        payload: memoryview | bytes
        if pieces:
            payload = b"".join(operation.arrays[array].bytes[start:stop] for array, (start, stop) in pieces)
        else:
            start, stop = planned.send_spans[index][chunk]
            payload = operation.arrays[planned.send_arrays[index]].bytes[start:stop]
            if copied:
                payload = bytes(payload)
        # From a copy too it may have to be acknowledged: only so many may outlive their operations.
        outlives = copied and (not send.needs_ack or host.courier.outboxes[send.target].may_copy)
        parcel = Parcel(
            host.communicator, operation.number, send.step, send.target, chunk, planned.send_marks[index], payload,
            None if outlives else operation, index, planned.chunk_bytes, operation.turn,
        )  # fmt: skip
        if not host.courier.submit(parcel):
            if len(payload) <= planned.eager_bytes:
                # Of little the target would not say that it is in the operation.
                host.asks.ask(operation, send.target)
            else:
                host.notice_misfits(send.target, operation.number)
        if outlives:
            assert operation.machine is not None
            operation.machine.settled(index)
