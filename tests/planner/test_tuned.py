"""Choices by what was measured: the sizes at which algorithms change follow from the figures."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.actors.planning import Call, Plans
from r2ccl.config import KIB, MIB
from r2ccl.planner.choose import choose
from r2ccl.planner.cost import Wires, cost_s
from r2ccl.planner.picture import Picture, even_picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.planner.switches import Reach, switches
from r2ccl.reduction import Op
from r2ccl.tuning import Tuning
from tests.planner.tunings import FLOAT32, tuned

BROADCAST, ALL_REDUCE = CollectiveKind.BROADCAST, CollectiveKind.ALL_REDUCE


def first_end(kind: CollectiveKind, picture: Picture) -> int:
    """The largest size of the first algorithm."""
    largest = switches(kind, picture)[0].largest_bytes
    assert largest is not None
    return largest


def test_a_broadcast_changes_where_the_two_formulas_cross() -> None:
    """L (a + m b) = (n-1) a + m b + (n-2) c b, and c is the chunk: 256 KiB above it."""
    ranks, alpha_s, beta = 16, 40e-6, 0.4e-9
    crossing = ((ranks - 1 - 4) * alpha_s + (ranks - 2) * 256 * KIB * beta) / (3 * beta)
    found = first_end(BROADCAST, tuned(ranks, alpha_s, beta))
    assert found <= crossing <= found * 1.07


def test_dearer_messages_move_the_change_up_and_dearer_bytes_move_it_down() -> None:
    usual = first_end(BROADCAST, tuned(16))
    assert first_end(BROADCAST, tuned(16, alpha_s=300e-6)) > 2 * usual
    assert first_end(BROADCAST, tuned(16, beta_s_per_byte=5e-9)) < usual


def test_the_ring_begins_where_a_second_trip_to_memory_costs_more_than_its_steps() -> None:
    """2 (n-1) a - 2 log2(n) a = 2 (p-1)/p m delta."""
    ranks, alpha_s, delta = 8, 30e-6, 3e-11
    crossing = (2 * 7 - 2 * 3) * alpha_s / (2 * 7 / 8 * delta)
    reaches = switches(ALL_REDUCE, tuned(ranks, alpha_s, delta_s_per_byte=delta))
    assert [reach.algorithm for reach in reaches] == ["recursive_doubling", "halving_doubling", "ring"]
    assert reaches[1].largest_bytes is not None
    assert reaches[1].largest_bytes <= crossing <= reaches[1].largest_bytes * 1.07


def test_a_slow_reduction_ends_recursive_doubling_sooner() -> None:
    """It reduces the whole buffer in each round, the others each element once."""
    fast, slow = (first_end(ALL_REDUCE, tuned(64, alpha_s=100e-6, gamma_s_per_byte=gamma)) for gamma in (1e-12, 30e-9))
    assert slow < fast / 2


def test_a_dear_further_message_speaks_for_going_in_company() -> None:
    parts = (4 * KIB,) * 16
    request = Request(CollectiveKind.GATHER, sum(parts), 1, parts=parts)
    assert choose(request, 16, tuned(16, overhead_s=1e-8)).algorithm == "direct"
    assert choose(request, 16, tuned(16, overhead_s=29e-6)).algorithm == "binomial"


def test_the_reason_says_by_what_it_was_chosen() -> None:
    reason = choose(Request(ALL_REDUCE, 1, 4), 4, tuned(4, wire="shared_memory")).reason
    assert "; by what was measured on shared memory" in reason
    assert "measured" not in choose(Request(ALL_REDUCE, 1, 4), 4, even_picture(4)).reason


def test_figures_of_another_wire_change_nothing() -> None:
    plain, other = even_picture(8), dataclasses.replace(tuned(8), wire="network")
    for size in (4, 64 * KIB, MIB, 256 * MIB):
        request = Request(ALL_REDUCE, size // 4, 4)
        assert choose(request, 8, other) == choose(request, 8, plain)


def test_ranks_that_go_by_different_figures_notice() -> None:
    """They cannot, for rank 0 announces them; if they ever did it would be no mixed sum."""
    call = Call(ALL_REDUCE, FLOAT32, "float32", 8, Op.SUM)
    pictures = [even_picture(2), tuned(2), tuned(2, alpha_s=31e-6), tuned(2, wire="shared_memory")]
    assert len({Plans(0, picture, range(2)).plan(call).fingerprint for picture in pictures}) == 4
    untouched = dataclasses.replace(even_picture(2), tuning=Tuning(1e-10))
    assert (
        Plans(0, untouched, range(2)).plan(call).fingerprint == Plans(0, pictures[0], range(2)).plan(call).fingerprint
    )


def test_switches_name_the_whole_range_and_are_found_to_within_a_sixteenth() -> None:
    picture = tuned(16)
    for kind in (ALL_REDUCE, BROADCAST, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL):
        reaches = switches(kind, picture)
        assert reaches[-1].largest_bytes is None
        ends = [reach.largest_bytes for reach in reaches[:-1]]
        assert ends == sorted(ends, key=lambda end: end or 0)
    end = first_end(BROADCAST, picture)
    for size, name in ((end, "binomial"), (end * 17 // 16 + 4, "chain")):
        assert choose(Request(BROADCAST, size // 4, 4), 16, picture).algorithm == name


def test_one_algorithm_has_no_switch() -> None:
    assert switches(CollectiveKind.BARRIER, tuned(4)) == [Reach("dissemination", None)]


@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_reductions_are_counted_as_often_as_the_busiest_rank_makes_them(ranks: int) -> None:
    only_reducing = Wires(0.0, 0.0, 1 << 18, gamma_s_per_byte=1.0, delta_s_per_byte=0.0, overhead_s=0.0)
    rounds, folds = ranks.bit_length() - 1, int(ranks & (ranks - 1) > 0)
    count = 1 << 20
    others = count * (ranks - 1) / ranks
    assert cost_s("all_reduce", "recursive_doubling", ranks, count, only_reducing) == (rounds + folds) * count
    assert cost_s("all_reduce", "ring", ranks, count, only_reducing) == others
    assert cost_s("reduce_scatter", "ring", ranks, count, only_reducing) == others
    assert cost_s("reduce_scatter", "direct", ranks, count, only_reducing) == others
    assert cost_s("reduce", "binomial", ranks, count, only_reducing) == (ranks - 1).bit_length() * count
    part = 1 - 1 / (1 << rounds)
    assert cost_s("all_reduce", "halving_doubling", ranks, count, only_reducing) == (part + folds) * count
    for collective, name in (("broadcast", "chain"), ("all_gather", "ring"), ("all_to_all", "direct")):
        assert cost_s(collective, name, ranks, count, only_reducing) == 0
