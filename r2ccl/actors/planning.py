"""From a call to what executes it: asks the planner once for each kind of call, and keeps the answer.

A plan is a pure function of (picture, request), so all ranks that call alike plan alike. The fingerprint of call,
epoch and planning settings goes with every chunk: ranks that would not plan alike notice before they mix sums
(decision 11). Where only two ranks know a transfer's size, it goes into the fingerprint of that transfer's chunks."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from r2ccl.actors.operation import Exchange, Move, Placed, Planned, Span
from r2ccl.planner import memory
from r2ccl.planner.choose import build, choose
from r2ccl.planner.memory import Layout, MemoryPlan, in_place, plan_memory
from r2ccl.planner.picture import Picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.protocol.collective import CollectiveMachine, Waits, prepare
from r2ccl.reduction import Op, Reducer, finish, kernel_name, reducer
from r2ccl.schedule.ir import Program, Receive, Send

#: The largest chunk that is moved in lockstep: half of a ring, so that a second is posted when the first was read.
LOCKSTEP_CHUNK_MAX = 1 << 20
#: And the most that a rank sends of one operation, while its loop waits: 1 ms, or 4 where two ranks share a core, if
#: nobody is late.
LOCKSTEP_SENT_MAX = 6 << 20
#: Kinds of calls remembered; a program that varies its sizes for ever starts over.
PLANS_MAX = 1024
#: Told of them: a loop of training has a few kinds of calls.
REASONS_MAX = 16
#: What ranks must have in common besides the call is told them beside it, and so short that both fit where a call does.
UNDER_CHARACTERS_MAX = 200


class Call(NamedTuple):
    """A collective as a rank asks for it. Hashable, and quickly made: equal calls share a plan."""

    kind: CollectiveKind
    dtype: np.dtype[np.generic]
    dtype_name: str
    #: All elements of the larger of the collective's two states; all_to_all: all that this rank sends.
    elements: int
    op: Op | None = None
    root: int = 0
    parts: tuple[int, ...] = ()
    out_parts: tuple[int, ...] = ()
    uneven: bool = False
    #: None: one array, in place.
    layout: Layout | None = None
    #: How many arrays the caller passed.
    arrays: int = 1
    #: What ranks must agree on, and what the error says if they do not; made when needed.
    words: str = ""


class Plans:
    """One communicator's plans under one picture of the network. Ranks are those of the communicator; ``members`` says
    who they are in the job."""

    def __init__(self, rank: int, picture: Picture, members: Sequence[int]) -> None:
        self._rank = rank
        self._ranks = len(picture.nics)
        self._picture = picture
        self._members = tuple(members)
        self._kept: dict[Call, Planned] = {}
        #: The latest call, and its plan: most calls are like the one before, and to compare is cheaper than to look up.
        self._latest: tuple[Call | None, Planned | None] = (None, None)
        self._messages: dict[tuple[Call, int, bool], Planned] = {}
        self._agreement = (
            f"epoch {picture.epoch}, R2CCL_CHUNK_BYTES {picture.chunk_bytes}, R2CCL_EAGER_BYTES {picture.eager_bytes}, "
            f"{kernel_name()}{_nodes_in_words(picture)}{_measured(picture)}"
        )

    @property
    def epoch(self) -> int:
        return self._picture.epoch

    @property
    def reasons(self) -> list[str]:
        """Of the latest plans, newest last: what was chosen, and against what."""
        return [planned.reason for planned in list(self._kept.values())[-REASONS_MAX:]]

    def plan(self, call: Call) -> Planned:
        """The plan of a call. Raises :class:`~r2ccl.errors.UsageError` if ``op`` is not defined for the dtype."""
        latest, planned = self._latest
        if planned is not None and call == latest:
            return planned
        planned = self._kept.get(call)
        if planned is None:
            planned = self._make(call)
            if len(self._kept) >= PLANS_MAX:
                self._kept.clear()
            self._kept[call] = planned
        self._latest = (call, planned)
        return planned

    def _make(self, call: Call) -> Planned:
        reduce = None if call.op is None else reducer(np.dtype(call.dtype), call.op)
        item = call.dtype.itemsize
        request = Request(call.kind, call.elements, item, call.root, call.parts, call.out_parts, call.uneven)
        choice = choose(request, self._ranks, self._picture)
        program = build(choice, request, self._ranks, self._rank)
        layout = in_place(call.elements) if call.layout is None else call.layout
        where = plan_memory(program, layout, call.arrays)
        waits = prepare(self._among_members(program), max(1, choice.chunk_bytes // item))
        planned = self._planned(call, request, waits, where, reduce, f"{choice.algorithm}: {choice.reason}")
        is_between_two = self._ranks == 2 and waits.is_exchange
        hears_of_all = call.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BARRIER) or is_between_two
        moves = moves_of(planned) if hears_of_all else ()
        unheard = {move.peer for move in moves} - {move.peer for move in moves if not move.is_send}
        return dataclasses.replace(planned, exchange=_exchange(planned), moves=moves, unheard=frozenset(unheard))

    def message(self, call: Call, peer: int, tag: int, outgoing: bool) -> Planned:
        """The plan of this rank's side of a message to or from ``peer``, a rank in the job."""
        key = (call, peer, outgoing)
        planned = self._messages.get(key)
        if planned is None:
            planned = self._make_message(call, peer, tag, outgoing)
            if len(self._messages) >= PLANS_MAX:
                self._messages.clear()
            self._messages[key] = planned
        return planned

    def _make_message(self, call: Call, peer: int, tag: int, outgoing: bool) -> Planned:
        item, count = call.dtype.itemsize, call.elements
        # Both sides choose alike: a message is a broadcast to one.
        request = Request(call.kind, count, item)
        chunk_bytes = choose(request, self._ranks, self._picture).chunk_bytes
        sends = (Send(tag, peer, 0, count, needs_ack=True),) if outgoing else ()
        receives = () if outgoing else (Receive(tag, peer, 0, count),)
        program = Program(self._members[self._rank], count, sends, receives)
        where = plan_memory(program, in_place(count), 1)
        waits = prepare(program, max(1, chunk_bytes // item))
        planned = self._planned(call, request, waits, where, None, "message")
        # A receiver that waits for any source must hear of what waits for its memory.
        hears = (peer,) if count * item > planned.eager_bytes else ()
        return dataclasses.replace(planned, step=tag, bulky_sources=hears, asked=None)

    def _planned(
        self, call: Call, request: Request, waits: Waits, where: MemoryPlan, reduce: Reducer | None, reason: str
    ) -> Planned:
        program, item = waits.program, call.dtype.itemsize
        agreed, described = describe(call)
        fingerprint = zlib.crc32(f"{agreed} | {self._agreement}".encode())
        # Both ends of a transfer must say the same: who sends no more waits for no announcement.
        picture = self._picture
        eager_bytes = picture.small_bytes(request.kind) if picture.is_small(request) else picture.eager_bytes
        incoming: dict[int, int] = {}
        for receive in program.receives:
            incoming[receive.source] = incoming.get(receive.source, 0) + _elements(receive) * item
        sends = [_placed(waits, *known, item) for known in zip(where.sends, waits.send_chunks, strict=True)]
        receives = [_placed(waits, *known, item) for known in zip(where.receives, waits.receive_chunks, strict=True)]
        return Planned(
            call=described,
            fingerprint=fingerprint,
            waits=waits,
            reduce=reduce,
            finish=None if call.op is None else finish(call.op, self._ranks),
            send_spans=tuple(spans for _, spans, _ in sends),
            receive_spans=tuple(spans for _, spans, _ in receives),
            send_arrays=tuple(array for array, _, _ in sends),
            receive_arrays=tuple(array for array, _, _ in receives),
            send_pieces=tuple(pieces for _, _, pieces in sends),
            receive_pieces=tuple(pieces for _, _, pieces in receives),
            operands=tuple(
                None if span is None else (span.array, span.start - home[0].start)
                for span, home in zip(where.operands, where.receives, strict=True)
            ),
            first=_copies(where.first),
            last=_copies(where.last),
            work_elements=where.work,
            results=tuple(_in_elements(span) for span in where.results),
            send_marks=tuple(_mark(call, fingerprint, send) for send in program.sends),
            receive_marks=tuple(_mark(call, fingerprint, receive) for receive in program.receives),
            copied=tuple(
                program.sends_from_copies or (send.needs_ack and _elements(send) * item <= eager_bytes)
                for send in program.sends
            ),
            chunk_bytes=waits.chunk_elements * item,
            targets=tuple(sorted({send.target for send in program.sends})),
            bulky_sources=tuple(s for s, size in sorted(incoming.items()) if size > eager_bytes),
            eager_bytes=eager_bytes,
            uneven_sources=tuple(sorted(incoming)) if call.uneven else (),
            reason=reason,
            epoch=self._picture.epoch,
            asked=call,
            under=_in_short(self._agreement),
        )

    def _among_members(self, program: Program) -> Program:
        """The program with the members' ranks in the job."""
        members = self._members
        if members == tuple(range(len(members))):
            return program
        return dataclasses.replace(
            program,
            rank=members[program.rank],
            sends=tuple(dataclasses.replace(send, target=members[send.target]) for send in program.sends),
            receives=tuple(dataclasses.replace(part, source=members[part.source]) for part in program.receives),
        )


def _measured(picture: Picture) -> str:
    """What plans depend on beyond the defaults, for the agreement."""
    asked = f", R2CCL_ALGORITHMS {picture.algorithms}" if picture.algorithms else ""
    if picture.tuning is None or (picture.cost is None and not picture.nodes):
        return asked
    return f"{asked}, tuning {zlib.crc32(repr(picture.tuning.as_numbers()).encode()):08x} of {picture.wire}"


def _in_short(agreement: str) -> str:
    """What is too long ends in a digest of all of it: what differs is still seen to."""
    if len(agreement) <= UNDER_CHARACTERS_MAX:
        return agreement
    digest = f"... {zlib.crc32(agreement.encode()):08x}"
    return agreement[: UNDER_CHARACTERS_MAX - len(digest)] + digest


def _is_plain(planned: Planned) -> bool:
    """Everything goes and comes in one piece, and nothing else is to be done."""
    return not (
        any(planned.send_pieces + planned.receive_pieces)
        or planned.first
        or planned.last
        or planned.work_elements
        or planned.uneven_sources
    )


def _exchange(planned: Planned) -> Exchange | None:
    """What the short way needs to know; None: the plan is not for it."""
    program = planned.waits.program
    if not planned.waits.is_exchange or program.sends[0].target != program.receives[0].source:
        return None
    if not _is_plain(planned) or not all(planned.copied) or planned.bulky_sources:
        return None
    send, receive = program.sends[0], program.receives[0]
    ((send_start, send_stop),), ((start, stop),) = planned.send_spans[0], planned.receive_spans[0]
    return Exchange(
        send.target, send.step, planned.send_marks[0], planned.send_arrays[0], send_start, send_stop, send.needs_ack,
        receive.step, planned.receive_marks[0], stop - start,
    )  # fmt: skip


def moves_of(planned: Planned) -> tuple[Move, ...]:
    """What a rank does one after the other in an operation of this plan; nothing: the plan is not for lockstep."""
    waits, program = planned.waits, planned.waits.program
    if (
        not program.sends
        or not _is_plain(planned)
        or any(chunks != 1 for chunks in waits.send_chunks + waits.receive_chunks)
        or any(stop - start > LOCKSTEP_CHUNK_MAX for ((start, stop),) in planned.send_spans + planned.receive_spans)
        or sum(stop - start for ((start, stop),) in planned.send_spans) > LOCKSTEP_SENT_MAX
    ):
        return ()
    machine = CollectiveMachine(waits)
    moves: list[Move] = []
    to_send = machine.start()
    for index in range(len(program.receives)):
        for send, _ in to_send:
            moves.append(_send(planned, send))
            machine.settled(send)  # a copy is what goes out
        if not machine.may_apply(index, 0):
            return ()
        moves.append(_receive(planned, index))
        to_send = machine.applied(index, 0)[0]
    return tuple(moves) + tuple(_send(planned, send) for send, _ in to_send)


def _send(planned: Planned, index: int) -> Move:
    send, ((start, stop),) = planned.waits.program.sends[index], planned.send_spans[index]
    return Move(
        True, index, send.target, send.step, planned.send_marks[index], planned.send_arrays[index], start, stop, False
    )


def _receive(planned: Planned, index: int) -> Move:
    receive, ((start, stop),) = planned.waits.program.receives[index], planned.receive_spans[index]
    is_final = planned.reduce is not None and not receive.reduce
    return Move(
        False, index, receive.source, receive.step, planned.receive_marks[index], planned.receive_arrays[index],
        start, stop, is_final,
    )  # fmt: skip


def _elements(part: Send | Receive) -> int:
    return sum(stop - start for start, stop in part.segments)


def _mark(call: Call, fingerprint: int, part: Send | Receive) -> int:
    return zlib.crc32(b"%d" % _elements(part), fingerprint) if call.uneven else fingerprint


def _placed(
    waits: Waits, spans: tuple[memory.Span, ...], chunks: int, item: int
) -> tuple[int, tuple[Span, ...], tuple[Placed, ...]]:
    """A transfer's array, where each chunk lies in it, in bytes, and its pieces if it has several."""
    first = spans[0]
    if len(spans) == 1:
        ranges = (waits.chunk_range(first.start, first.stop, chunk) for chunk in range(chunks))
        return first.array, tuple((start * item, stop * item) for start, stop in ranges), ()
    size = sum(span.stop - span.start for span in spans) * item
    return first.array, ((0, size),), tuple((span.array, (span.start * item, span.stop * item)) for span in spans)


def _in_elements(span: memory.Span) -> Placed:
    return span.array, (span.start, span.stop)


def _copies(copies: Iterable[memory.Copy]) -> tuple[tuple[Placed, Placed], ...]:
    return tuple((_in_elements(copy.source), _in_elements(copy.target)) for copy in copies)


def _nodes_in_words(picture: Picture) -> str:
    if not picture.nodes:
        return ""
    hierarchy = "on" if picture.insists else "auto"
    digest = zlib.crc32(str((picture.nodes, picture.sharers)).encode())
    return f", R2CCL_HIERARCHY {hierarchy}, {len(picture.nodes)} nodes {digest:08x}"


#: Longer lists of parts are told by a digest.
PARTS_CHARACTERS_MAX = 100


def describe(call: Call) -> tuple[str, str]:
    """A call in words, such as ``all_reduce(float32[1000], sum)``: what ranks agree on, and what this one called."""
    if call.words:
        agreed, _, own = call.words.partition("|")
        return agreed, own or agreed
    if call.kind is CollectiveKind.BARRIER:
        return "barrier()", "barrier()"
    words = []
    if call.op is not None:
        words.append(call.op.value)
    if call.kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER):
        words.append(f"root={call.root}")
    if call.uneven:
        own = f"counts={_numbers(call.parts)}, out_counts={_numbers(call.out_parts)}"
        return f"{call.kind.value}({call.dtype_name})", f"{call.kind.value}({call.dtype_name}, {own})"
    size = f"{call.dtype_name}[{call.elements}]"
    if len(set(call.parts)) > 1:
        words.append(f"parts={_numbers(call.parts)}")
    text = f"{call.kind.value}({', '.join([size, *words])})"
    return text, text


def _numbers(numbers: tuple[int, ...]) -> str:
    text = str(list(numbers))
    return text if len(text) <= PARTS_CHARACTERS_MAX else f"{len(numbers)} numbers, {zlib.crc32(text.encode()):08x}"
