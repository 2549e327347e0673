"""Memory plans, executed: arrays as callers pass them, whole schedules, and what must be where in the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from r2ccl.planner.memory import Copy, Layout, MemoryPlan, Region, Span, in_place, plan_memory
from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm
from r2ccl.schedule.causality import establish
from r2ccl.schedule.ir import Program, Receive, Send, Shape

Array = NDArray[np.int64]
#: In what is not to be read.
GARBAGE = -(1 << 40)


def value(rank: int, position: int) -> int:
    return (rank + 1) * 1_000_003 + position * 7


@dataclass
class Rank:
    program: Program
    arrays: list[Array]
    untouched: list[Array]
    plan: MemoryPlan
    received: set[int]
    #: What each send carries, taken when it was ready.
    payloads: dict[int, Array]

    def take_payloads(self) -> None:
        for index, send in enumerate(self.program.sends):
            if index not in self.payloads and self.received.issuperset(send.after):
                self.payloads[index] = np.concatenate([self.at(span) for span in self.plan.sends[index]])

    def at(self, span: Span) -> Array:
        return self.arrays[span.array][span.start : span.stop]

    def copy(self, copies: tuple[Copy, ...]) -> None:
        for copy in copies:
            self.at(copy.target)[:] = self.at(copy.source)


def arrays_of(sizes: list[int]) -> list[Array]:
    return [np.full(size, GARBAGE, np.int64) for size in sizes]


def layouts(collective: str, rank: int, shape: Shape, split: bool) -> tuple[Layout, list[int]]:
    """How a caller's arrays make a layout; ``split``: a list of arrays where the collective takes one."""
    ranks, parts, count = len(shape.parts), shape.parts, shape.count
    ends = np.cumsum([0, *parts]).tolist()
    own = Region(ends[rank], ends[rank + 1], 0, 0) if parts and collective != "all_to_all" else Region(0, 0, 0, 0)
    if split:
        whole = tuple(Region(ends[i], ends[i + 1], 1 + i, 0) for i in range(ranks))
        sizes = list(parts)
    else:
        whole, sizes = (Region(0, count, 1, 0),), [count]
    match collective:
        case "all_gather":
            return Layout((own,), whole), [parts[rank], *sizes]
        case "reduce_scatter":
            return Layout(whole, (own,)), [parts[rank], *sizes]
        case "gather":
            return Layout((own,), whole if rank == shape.root else ()), [parts[rank], *sizes]
        case "scatter":
            return Layout(whole if rank == shape.root else (), (own,)), [parts[rank], *sizes]
        case "reduce":
            region = (Region(0, count, 0, 0),)
            return Layout(region, region if rank == shape.root else ()), [count]
        case "all_to_all":
            sent, received = np.cumsum([0, *shape.parts]).tolist(), np.cumsum([0, *shape.out_parts]).tolist()
            stride = shape.block_stride
            inputs = tuple(
                Region((rank * ranks + j) * stride, (rank * ranks + j) * stride + parts[j], 0, sent[j])
                for j in range(ranks)
            )
            outputs = tuple(
                Region((i * ranks + rank) * stride, (i * ranks + rank) * stride + shape.out_parts[i], 1, received[i])
                for i in range(ranks)
            )
            return Layout(inputs, outputs), [sent[-1], received[-1]]
    return in_place(count), [count]


def prepare(known: Algorithm, rank: int, program: Program, shape: Shape, split: bool) -> Rank:
    layout, sizes = layouts(known.collective, rank, shape, split)
    plan = plan_memory(program, layout, len(sizes))
    arrays = arrays_of([*sizes, plan.work])
    for region in layout.inputs:
        for position in range(region.start, region.stop):
            arrays[region.array][region.offset + position - region.start] = value(rank, position)
    return Rank(program, arrays, [array.copy() for array in arrays], plan, set(), {})


def play(known: Algorithm, shapes: list[Shape], split: bool = False) -> list[Rank]:
    programs = known.all_programs(shapes)
    ranks = [
        prepare(known, rank, program, shape, split)
        for rank, (program, shape) in enumerate(zip(programs, shapes, strict=True))
    ]
    for each in ranks:
        each.copy(each.plan.first)
        each.take_payloads()
    causality = establish(programs)
    for i in causality.order:
        transfer = causality.transfers[i]
        source, target = ranks[transfer.source], ranks[transfer.target]
        payload = source.payloads[transfer.send_index]
        assert GARBAGE not in payload, f"{transfer} sends what was never written"
        receive(target, transfer.receive_index, causality.receive_of(i), payload)
        target.received.add(transfer.receive_index)
        target.take_payloads()
    for each in ranks:
        each.copy(each.plan.last)
    return ranks


def receive(target: Rank, index: int, part: Receive, payload: Array) -> None:
    spans = target.plan.receives[index]
    if part.reduce:
        own = target.plan.operands[index] or spans[0]
        assert GARBAGE not in target.at(own)
        target.at(spans[0])[:] = target.at(own) + payload
        return
    for span in spans:
        size = span.stop - span.start
        target.at(span)[:], payload = payload[:size], payload[size:]


def blocks(ranks: int, sizes: list[int]) -> list[list[int]]:
    return [[sizes[(i * ranks + j) % len(sizes)] for j in range(ranks)] for i in range(ranks)]


def shapes_for(known: Algorithm, ranks: int, sizes: list[int], root: int) -> list[Shape]:
    parts = [sizes[i % len(sizes)] for i in range(ranks)]
    if known.collective == "all_to_all":
        rows = blocks(ranks, sizes)
        stride = max(max(row) for row in rows)
        return [Shape.in_blocks(rows[i], [row[i] for row in rows], stride) for i in range(ranks)]
    if known.collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
        return [Shape.in_parts(parts, root)] * ranks
    return [Shape(count=sum(parts), root=root)] * ranks


def expected(known: Algorithm, ranks: int, rank: int, shape: Shape, region: Region, root: int) -> list[int]:
    positions = range(region.start, region.stop)
    match known.collective:
        case "all_reduce" | "reduce" | "reduce_scatter":
            return [sum(value(other, position) for other in range(ranks)) for position in positions]
        case "broadcast" | "scatter":
            return [value(root, position) for position in positions]
        case "all_to_all":
            return [value(position // shape.block_stride // ranks, position) for position in positions]
    ends = np.cumsum(shape.parts).tolist()
    return [value(next(i for i, end in enumerate(ends) if position < end), position) for position in positions]


def verify(known: Algorithm, ranks: list[Rank], shapes: list[Shape], root: int, split: bool) -> None:
    for rank, (each, shape) in enumerate(zip(ranks, shapes, strict=True)):
        layout, _ = layouts(known.collective, rank, shape, split)
        for region in layout.outputs:
            found = each.arrays[region.array][region.offset : region.offset + region.stop - region.start]
            assert found.tolist() == expected(known, len(ranks), rank, shape, region, root)
        written = {region.array for region in layout.outputs}
        for index, array in enumerate(each.untouched[:-1]):
            if index not in written:
                assert (each.arrays[index] == array).all(), f"rank {rank}: input {index} was written to"


MOVING = [known for known in ALGORITHMS if known.collective != "barrier"]
SPLITTING = ("all_gather", "reduce_scatter", "gather", "scatter")


def fits(known: Algorithm, sizes: list[int]) -> bool:
    """Some take equal parts only."""
    equal_only = known.name == "bruck" and known.collective == "all_to_all"
    return not equal_only or len(set(sizes)) == 1


@pytest.mark.parametrize("sizes", [[3], [2, 5, 0, 1], [0]], ids=["even", "uneven", "empty"])
@pytest.mark.parametrize("known", MOVING, ids=lambda known: f"{known.collective}-{known.name}")
def test_results_are_where_callers_look_and_inputs_stay_as_they_were(known: Algorithm, sizes: list[int]) -> None:
    if not fits(known, sizes):
        sizes = [max(sizes)]
    for ranks in (1, 2, 3, 4, 5, 7, 8):
        for root in {0, ranks - 1, ranks // 2}:
            shapes = shapes_for(known, ranks, sizes, root)
            for split in (False, True) if known.collective in SPLITTING else (False,):
                verify(known, play(known, shapes, split), shapes, root, split)


def test_in_place_nothing_is_copied_and_no_work_memory_is_taken() -> None:
    for known in ALGORITHMS:
        if known.collective in ("all_reduce", "broadcast"):
            for ranks in (2, 3, 4):
                for rank, program in enumerate(known.all_programs([Shape(count=40)] * ranks)):
                    plan = plan_memory(program, in_place(40), 1)
                    assert (plan.first, plan.last, plan.work) == ((), (), 0), (known, rank)
                    assert all(operand is None for operand in plan.operands)


def test_a_ring_reduce_scatter_reads_its_input_where_it_is() -> None:
    program = next(known for known in ALGORITHMS if (known.collective, known.name) == ("reduce_scatter", "ring")).build(
        4, 1, Shape.in_parts([5, 5, 5, 5])
    )
    plan = plan_memory(program, Layout((Region(0, 20, 0, 0),), (Region(5, 10, 1, 0),)), 2)
    assert plan.first == plan.last == ()
    assert all(operand is not None and operand.array == 0 for operand in plan.operands)
    assert plan.work == 10


def test_fused_arrays_are_packed_once_and_unpacked_once() -> None:
    """A transfer over the boundary of two arrays draws all that it shares positions with into work memory."""
    program = Program(0, 6, (Send(0, 1, 0, 6),), (Receive(0, 1, 0, 6, reduce=True),))
    both = (Region(0, 2, 0, 0), Region(2, 6, 1, 0))
    plan = plan_memory(program, Layout(both, both), 2)
    assert plan.work == 6
    assert plan.first == (Copy(Span(0, 0, 2), Span(2, 0, 2)), Copy(Span(1, 0, 4), Span(2, 2, 6)))
    assert plan.last == (Copy(Span(2, 0, 2), Span(0, 0, 2)), Copy(Span(2, 2, 6), Span(1, 0, 4)))
    assert plan.sends == plan.receives == ((Span(2, 0, 6),),)
