"""From a call to what executes it: asks the planner once for each kind of call, and keeps the answer.

A plan is a pure function of (picture, request), so all ranks that call alike plan alike. The fingerprint of call,
epoch and planning settings goes with every chunk: ranks that would not plan alike notice before they mix sums
(decision 11)."""

from __future__ import annotations

import zlib

import numpy as np

from r2ccl.actors.operation import Planned, Span
from r2ccl.buffers import Buffer
from r2ccl.planner.choose import build, choose
from r2ccl.planner.picture import Picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.protocol.collective import Waits, prepare
from r2ccl.reduction import Op, kernel_name, reducer

#: Kinds of calls remembered; a program that varies its sizes for ever starts over.
PLANS_MAX = 1024

_Key = tuple[CollectiveKind, str, int, Op | None, int]


class Plans:
    """One communicator's plans under one picture of the network."""

    def __init__(self, rank: int, picture: Picture) -> None:
        self._rank = rank
        self._ranks = len(picture.nics)
        self._picture = picture
        self._kept: dict[_Key, Planned] = {}
        self._agreement = f"epoch {picture.epoch}, {picture.chunk_bytes}, {picture.eager_bytes}, {kernel_name()}"

    @property
    def epoch(self) -> int:
        return self._picture.epoch

    def plan(self, kind: CollectiveKind, buffer: Buffer, op: Op | None, root: int) -> Planned:
        """The plan of a call. Raises :class:`~r2ccl.errors.UsageError` if ``op`` is not defined for the dtype."""
        key = (kind, buffer.dtype_name, buffer.count, op, root)
        planned = self._kept.get(key)
        if planned is None:
            if len(self._kept) >= PLANS_MAX:
                self._kept.clear()
            planned = self._kept[key] = self._make(kind, buffer, op, root)
        return planned

    def _make(self, kind: CollectiveKind, buffer: Buffer, op: Op | None, root: int) -> Planned:
        reduce = None if op is None else reducer(np.dtype(buffer.array.dtype), op)
        request = Request(kind, buffer.count, buffer.item_bytes, root)
        choice = choose(request, self._ranks, self._picture)
        program = build(choice, request, self._ranks, self._rank)
        waits = prepare(program, max(1, choice.chunk_bytes // buffer.item_bytes))
        incoming: dict[int, int] = {}
        for receive in program.receives:
            size = (receive.stop - receive.start) * buffer.item_bytes
            incoming[receive.source] = incoming.get(receive.source, 0) + size
        call = describe(kind, buffer, op, root)
        item = buffer.item_bytes
        return Planned(
            call=call,
            fingerprint=zlib.crc32(f"{call} | {self._agreement}".encode()),
            waits=waits,
            reduce=reduce,
            send_spans=tuple(
                _spans(waits, send.start, send.stop, chunks, item)
                for send, chunks in zip(program.sends, waits.send_chunks, strict=True)
            ),
            receive_spans=tuple(
                _spans(waits, receive.start, receive.stop, chunks, item)
                for receive, chunks in zip(program.receives, waits.receive_chunks, strict=True)
            ),
            copied=tuple(
                program.sends_from_copies
                or (send.needs_ack and (send.stop - send.start) * item <= self._picture.eager_bytes)
                for send in program.sends
            ),
            chunk_bytes=waits.chunk_elements * item,
            targets=tuple(sorted({send.target for send in program.sends})),
            bulky_sources=tuple(s for s, size in sorted(incoming.items()) if size > self._picture.eager_bytes),
            reason=f"{choice.algorithm}: {choice.reason}",
        )


def _spans(waits: Waits, start: int, stop: int, chunks: int, item_bytes: int) -> tuple[Span, ...]:
    """Where each chunk of a transfer lies in the buffer, in bytes."""
    ranges = (waits.chunk_range(start, stop, chunk) for chunk in range(chunks))
    return tuple((first * item_bytes, last * item_bytes) for first, last in ranges)


def describe(kind: CollectiveKind, buffer: Buffer, op: Op | None, root: int) -> str:
    """A call in words, such as ``all_reduce(float32[1000], sum)``."""
    if kind is CollectiveKind.BARRIER:
        return "barrier()"
    last = f"root={root}" if op is None else op.value
    return f"{kind.value}({buffer!r}, {last})"
