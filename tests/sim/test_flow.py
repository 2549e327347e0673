"""The flow timing, and with it the cost model: no schedule takes longer on an ideal network than its formula says."""

from __future__ import annotations

import pytest

from r2ccl.config import KIB
from r2ccl.planner.choose import build, choose
from r2ccl.planner.cost import Wires, cost_s
from r2ccl.planner.picture import even_picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.schedule.algorithms import ALGORITHMS, IN_PARTS, Algorithm, algorithm
from r2ccl.schedule.ir import Program, Receive, Send, Shape
from r2ccl.sim.flow import Timing, flow
from tests.schedule.cases import even, name_of

#: 30 us, 10 Gbit/s, a reduction at 10 GB/s. No delta: memory is not what the flow is about.
ALPHA_S, BETA, GAMMA, OVERHEAD_S = 30e-6, 0.8e-9, 0.1e-9, 7.5e-6
#: Sums in another order, and parts that differ by an element.
ROUNDING = 1 + 1e-4
#: Those for one kind of wire, which the flow has. Hierarchical ones are compared with their formulas in test_levels.py.
FLAT = [known for known in ALGORITHMS if known.name != "hierarchical"]


def wires(chunk_bytes: int = 256 * KIB) -> Wires:
    return Wires(ALPHA_S, BETA, chunk_bytes, GAMMA, 0.0, OVERHEAD_S)


def timing_of(known: Algorithm, ranks: int, size_bytes: int, chunk_bytes: int = 256 * KIB) -> tuple[Timing, float]:
    """By the flow, and by the formula."""
    count = max(1, size_bytes // 4 // ranks) * ranks
    shapes = even(known, ranks, count)
    if known.collective == "all_to_all":
        block = [count // ranks] * ranks
        shapes = [Shape.in_blocks(block, block)] * ranks
    timing = flow(known.all_programs(shapes), 4, wires(chunk_bytes))
    payload_bytes = 0 if known.collective == "barrier" else 4 * count
    return timing, cost_s(known.collective, known.name, ranks, payload_bytes, wires(chunk_bytes))


def test_one_message_takes_alpha_and_beta_for_each_byte() -> None:
    programs = [Program(0, 1000, (Send(0, 1, 0, 1000),), ()), Program(1, 1000, (), (Receive(0, 0, 0, 1000),))]
    timing = flow(programs, 4, wires())
    assert timing.seconds == pytest.approx(ALPHA_S + 4000 * BETA)
    assert (timing.step_bytes, timing.held_chunks_max) == ((4000,), 0)
    assert timing.steps_s == (timing.seconds,)


def test_chunks_of_a_message_follow_one_another_and_are_reduced_while_others_come() -> None:
    sends, receives = (Send(0, 1, 0, 1000),), (Receive(0, 0, 0, 1000, reduce=True),)
    programs = [Program(0, 1000, sends, ()), Program(1, 1000, (), receives)]
    assert flow(programs, 4, wires(400)).seconds == pytest.approx(ALPHA_S + 4000 * BETA + 400 * GAMMA)


def test_two_senders_to_one_rank_share_its_wire_and_two_messages_of_one_rank_its_sender() -> None:
    sends = (Send(0, 2, 0, 1000),)
    receives = (Receive(0, 0, 0, 1000), Receive(0, 1, 0, 1000))
    programs = [Program(0, 1000, sends, ()), Program(1, 1000, sends, ()), Program(2, 1000, (), receives)]
    assert flow(programs, 4, wires()).seconds == pytest.approx(ALPHA_S + 8000 * BETA)
    both = (Send(0, 1, 0, 1000), Send(0, 2, 0, 1000))
    programs = [Program(0, 1000, both, ())] + [Program(r, 1000, (), (Receive(0, 0, 0, 1000),)) for r in (1, 2)]
    assert flow(programs, 4, wires()).seconds == pytest.approx(ALPHA_S + OVERHEAD_S + 8000 * BETA)


def test_what_waits_for_ever_is_told() -> None:
    programs = [Program(0, 4, (), ()), Program(1, 4, (), (Receive(0, 0, 0, 4),))]
    with pytest.raises(RuntimeError, match="1 ranks wait for ever, rank 1 among them"):
        flow(programs, 4, wires())


@pytest.mark.parametrize("size_bytes", [4 * KIB, 64 * KIB, 4 << 20], ids=lambda size: f"{size >> 10} KiB")
@pytest.mark.parametrize("ranks", [8, 12, 32])
@pytest.mark.parametrize("known", FLAT, ids=name_of)
def test_no_algorithm_takes_longer_than_its_formula(known: Algorithm, ranks: int, size_bytes: int) -> None:
    timing, formula_s = timing_of(known, ranks, size_bytes)
    assert timing.seconds <= formula_s * ROUNDING
    # Nor is the formula of something else. Only a gather's root need not be busy with each message that it gets.
    assert timing.seconds >= formula_s * 0.7 or name_of(known) == "gather-direct"


STEPWISE = [known for known in FLAT if known.name not in ("direct", "chain")]


@pytest.mark.parametrize("ranks", [8, 16, 64])
@pytest.mark.parametrize("known", STEPWISE, ids=name_of)
def test_no_step_is_worse_than_the_algorithms_own(known: Algorithm, ranks: int) -> None:
    """From one step's end to the next: a latency, and the bytes of whoever moves the most.

    With other numbers of ranks some have nothing to do in a step, begin the next, and share a wire with one that is not
    over. That makes the earlier step longer, and the whole no longer.
    """
    timing, _ = timing_of(known, ranks, 64 * KIB)
    before_s = 0.0
    for ended_s, size_bytes in zip(timing.steps_s, timing.step_bytes, strict=True):
        assert ended_s - before_s <= (ALPHA_S + size_bytes * (BETA + GAMMA)) * ROUNDING
        before_s = max(before_s, ended_s)


#: With a logarithmic number of steps, so that a thousand ranks are few events.
LOGARITHMIC = [("all_reduce", 4), ("all_reduce", 1 << 20), ("broadcast", 4 * KIB), ("reduce", 4 * KIB), ("barrier", 0)]


@pytest.mark.parametrize("ranks", [8, 64, 256, 1024])
@pytest.mark.parametrize(("collective", "size_bytes"), LOGARITHMIC, ids=lambda value: str(value))
def test_what_is_chosen_for_eight_to_a_thousand_ranks_takes_no_longer_than_its_formula(
    collective: str, size_bytes: int, ranks: int
) -> None:
    kind = CollectiveKind(collective)
    picture = even_picture(ranks, bandwidth_bytes_s=1 / BETA, latency_s=ALPHA_S)
    request = Request(kind, size_bytes // 4, 4)
    choice = choose(request, ranks, picture)
    programs = [build(choice, request, ranks, rank) for rank in range(ranks)]
    timing = flow(programs, 4, wires(choice.chunk_bytes))
    assert (
        timing.seconds <= cost_s(collective, choice.algorithm, ranks, size_bytes, wires(choice.chunk_bytes)) * ROUNDING
    )
    before_s = 0.0
    for ended_s, step_bytes in zip(timing.steps_s, timing.step_bytes, strict=True):
        assert ended_s - before_s <= (ALPHA_S + step_bytes * (BETA + GAMMA)) * ROUNDING
        before_s = max(before_s, ended_s)


def test_the_ring_fills_the_wire_whatever_the_number_of_ranks() -> None:
    """Twice the buffer goes over each wire; what is above it are its steps."""
    size_bytes = 8 << 20
    for ranks in (8, 32):
        timing, _ = timing_of(algorithm("all_reduce", "ring"), ranks, size_bytes, 64 * KIB)
        wire_s = 2 * (ranks - 1) / ranks * size_bytes * BETA
        assert wire_s < timing.seconds < wire_s + 2 * (ranks - 1) * (ALPHA_S + 64 * KIB * (BETA + GAMMA))


def test_parts_are_those_of_the_collectives() -> None:
    assert {known.collective for known in ALGORITHMS if known.collective in IN_PARTS} == IN_PARTS
