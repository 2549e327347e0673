"""The cost model, compared with the programs that it is a model of."""

from __future__ import annotations

import pytest

from r2ccl.planner.cost import DELTA_S_PER_BYTE, OVERHEAD, Wires, cost_s
from r2ccl.schedule.algorithms import ALGORITHMS, IN_PARTS, Algorithm, algorithm
from r2ccl.schedule.ir import Shape

WIRES = Wires(alpha_s=30e-6, beta_s_per_byte=1e-9, chunk_bytes=1 << 18)
LATENCY_ONLY = Wires(alpha_s=1.0, beta_s_per_byte=0.0, chunk_bytes=1 << 18)
BYTES_ONLY = Wires(alpha_s=0.0, beta_s_per_byte=1.0, chunk_bytes=1)


#: Of hierarchical schedules tests/planner/test_levels.py says what they cost.
FLAT = [known for known in ALGORITHMS if known.name != "hierarchical"]
WAITING = [known for known in FLAT if known.name != "direct"]
DIRECT = [known for known in FLAT if known.name == "direct"]


def shapes(known: Algorithm, ranks: int, part: int) -> list[Shape]:
    if known.collective == "all_to_all":
        return [Shape.in_blocks([part] * ranks, [part] * ranks)] * ranks
    if known.collective in IN_PARTS:
        return [Shape.in_parts([part] * ranks)] * ranks
    return [Shape(0 if known.collective == "barrier" else part * ranks)] * ranks


@pytest.mark.parametrize("known", WAITING, ids=lambda known: f"{known.collective}-{known.name}")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16, 17])
def test_latencies_are_counted_as_often_as_the_schedule_has_steps(known: Algorithm, ranks: int) -> None:
    programs = known.all_programs(shapes(known, ranks, 16))
    steps = {send.step for program in programs for send in program.sends}
    assert cost_s(known.collective, known.name, ranks, 0, LATENCY_ONLY) == len(steps)


@pytest.mark.parametrize("known", DIRECT, ids=lambda known: known.collective)
def test_what_goes_directly_waits_once_and_is_busy_with_every_further_message(known: Algorithm) -> None:
    assert cost_s(known.collective, "direct", 1, 0, LATENCY_ONLY) == 0
    assert cost_s(known.collective, "direct", 2, 0, LATENCY_ONLY) == 1
    assert cost_s(known.collective, "direct", 9, 0, LATENCY_ONLY) == 1 + 7 * OVERHEAD


def test_every_flat_algorithm_has_a_formula() -> None:
    for known in FLAT:
        assert cost_s(known.collective, known.name, 4, 1 << 20, WIRES) > 0


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("all_reduce", "recursive_doubling"),
        ("all_reduce", "halving_doubling"),
        ("all_reduce", "ring"),
        ("broadcast", "binomial"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_bytes_are_counted_as_many_as_the_busiest_rank_sends(collective: str, name: str, ranks: int) -> None:
    count = 16 * ranks
    programs = algorithm(collective, name).all_programs([Shape(count)] * ranks)
    most = max(sum(send.stop - send.start for send in program.sends) for program in programs)
    assert cost_s(collective, name, ranks, count, BYTES_ONLY) == pytest.approx(most, rel=1e-6)


def test_folding_costs_a_whole_message_in_and_out() -> None:
    assert cost_s("all_reduce", "recursive_doubling", 5, 100, BYTES_ONLY) == (2 + 2) * 100
    assert cost_s("all_reduce", "halving_doubling", 5, 100, BYTES_ONLY) == pytest.approx(2 * 75 + 200)


def test_a_chain_moves_its_bytes_once_and_fills_by_a_chunk_for_each_further_hop() -> None:
    wires = Wires(0.0, 1.0, chunk_bytes=10)
    assert cost_s("broadcast", "chain", 2, 1000, wires) == 1000
    assert cost_s("broadcast", "chain", 5, 1000, wires) == 1000 + 3 * 10
    assert cost_s("broadcast", "chain", 5, 4, wires) == 4 + 3 * 4


def test_only_memory_keeps_halving_doubling_from_always_beating_the_ring() -> None:
    for ranks in (4, 8, 64):
        payload_bytes = 1 << 30
        saved_s = (2 * (ranks - 1) - 2 * (ranks.bit_length() - 1)) * WIRES.alpha_s
        ring, halving = (
            cost_s("all_reduce", name, ranks, payload_bytes, WIRES) for name in ("ring", "halving_doubling")
        )
        assert ring - saved_s == pytest.approx(halving - 2 * (1 - 1 / ranks) * payload_bytes * DELTA_S_PER_BYTE)
        assert ring < halving


def test_an_algorithm_without_a_formula_is_refused() -> None:
    with pytest.raises(ValueError, match="no cost is known of 'rign'"):
        cost_s("all_reduce", "rign", 2, 0, WIRES)
