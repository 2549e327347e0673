"""What algorithms cost, and which is chosen, where ranks share nodes: compared with the programs themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from r2ccl.config import KIB, MIB
from r2ccl.planner.choose import Choice, build, choose
from r2ccl.planner.cost import OVERHEAD, Wires
from r2ccl.planner.levels import WITHIN_BANDWIDTH_BYTES_S, WITHIN_LATENCY_S, Levels, cost_on_levels_s, levels
from r2ccl.planner.picture import NicEstimate, Picture, even_picture, first_picture, later_picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.schedule.algorithms import ALGORITHMS, IN_PARTS, algorithm, meaning
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Program, Shape
from r2ccl.topology import Endpoint, Member, Nic

GBIT_S = 125e6
Nodes = tuple[tuple[int, ...], ...]
TWO_BY_TWO: Nodes = ((0, 1), (2, 3))
UNEVEN: Nodes = ((0, 1), (2, 3), (4,))


def even_nodes(nodes: int, per_node: int) -> Nodes:
    return tuple(tuple(range(first, first + per_node)) for first in range(0, nodes * per_node, per_node))


def picture(nodes: Nodes, gbit_s: float = 2.0, nics: int = 2, insists: bool = False) -> Picture:
    """All ranks of a node behind the same NICs."""
    size_of = {rank: len(node) for node in nodes for rank in node}
    flat = even_picture(len(size_of), nics, gbit_s * GBIT_S)
    return dataclasses.replace(
        flat, nodes=nodes, sharers=tuple(size_of[rank] for rank in sorted(size_of)), insists=insists
    )


def request(kind: CollectiveKind, payload_bytes: int, ranks: int, root: int = 0) -> Request:
    parts = (payload_bytes // ranks,) * ranks if kind.value in IN_PARTS else ()
    return Request(kind, sum(parts) if parts else payload_bytes, 1, root, parts, parts)


def chosen(kind: CollectiveKind, payload_bytes: int, on: Picture) -> str:
    ranks = len(on.nics)
    return choose(request(kind, payload_bytes, ranks), ranks, on).algorithm


def leaving(programs: Iterable[Program], nodes: Nodes) -> int:
    """Elements that leave the busiest node."""
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node}
    left = [0] * len(nodes)
    for program in programs:
        left[node_of[program.rank]] += sum(
            send.stop - send.start for send in program.sends if node_of[send.target] != node_of[program.rank]
        )
    return max(left)


# What is agreed on.


def member(rank: int, node: str, *hosts: str) -> Member:
    nics = [Nic(index, f"eth{index}", Endpoint("inet", host, 1000 + rank), 1000) for index, host in enumerate(hosts)]
    return Member(rank, 1, node, tuple(nics))


BOOK = (
    member(0, "a", "10.0.0.1", "10.0.1.1"),
    member(1, "b", "10.0.0.2", "10.0.1.2"),
    member(2, "a", "10.0.0.1", "10.0.1.1"),
    member(3, "b", "10.0.2.2"),
    member(4, "c", "10.0.0.3"),
)


def test_the_first_picture_knows_who_shares_a_node_and_who_its_interfaces() -> None:
    drawn = first_picture(BOOK, 1000, 10)
    assert drawn.nodes == ((0, 2), (1, 3), (4,))
    assert drawn.sharers == (2, 1, 2, 1, 1)
    assert not drawn.insists
    assert first_picture(BOOK, 1000, 10, "on") == dataclasses.replace(drawn, insists=True)


def test_places_count_in_the_book_of_a_group_not_ranks_of_the_job() -> None:
    drawn = first_picture((BOOK[3], BOOK[4], BOOK[1]), 1000, 10)
    assert drawn.nodes == ((0, 2), (1,))


@pytest.mark.parametrize(
    ("book", "hierarchy"), [(BOOK, "off"), (BOOK[::2][:2], "on"), ((BOOK[0], BOOK[1], BOOK[4]), "on")]
)
def test_nodes_do_not_matter_where_there_is_one_or_every_rank_has_its_own_or_they_are_not_wanted(
    book: tuple[Member, ...], hierarchy: str
) -> None:
    drawn = first_picture(book, 1000, 10, hierarchy)
    assert (drawn.nodes, drawn.sharers) == ((), ())


def test_interfaces_that_ranks_share_count_once_and_those_of_one_rank_alone_in_full() -> None:
    drawn = first_picture(BOOK, 1000, 10)
    assert drawn.node_bandwidth_bytes_s == 1 * GBIT_S  # c; a has 2, b 3
    assert dataclasses.replace(drawn, nodes=((0, 2), (1, 3, 4))).node_bandwidth_bytes_s == 2 * GBIT_S


def test_later_pictures_keep_the_nodes() -> None:
    first = first_picture(BOOK, 1000, 10)
    later = later_picture(first, 3, [[5.0, None], [7.0, 8.0], [1.0, 1.0], [1.0], [1.0]])
    assert (later.nodes, later.sharers) == (first.nodes, first.sharers)
    assert later.node_bandwidth_bytes_s == 1.0


@pytest.mark.parametrize(
    "wrong", [{"nodes": ((0, 1),)}, {"nodes": ((0, 1), (1, 2))}, {"nodes": ((0, 1), (2,)), "sharers": (1, 1)}]
)
def test_nodes_that_do_not_fit_the_ranks_are_refused(wrong: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="do not fit 3 ranks"):
        Picture(0, ((NicEstimate(),),) * 3, **{"sharers": (1, 1, 1), **wrong})  # type: ignore[arg-type]


# Costs.

NOTHING = Wires(0.0, 0.0, 1)


def only(nodes: Nodes, **wires: Wires) -> Levels:
    """Levels on which nothing costs anything but these wires."""
    real = levels(picture(nodes), 1)
    alone, crowded, shared, within = (wires.get(kind, NOTHING) for kind in ("alone", "crowded", "shared", "within"))
    return dataclasses.replace(real, alone=alone, crowded=crowded, shared=shared, within=within)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [TWO_BY_TWO, even_nodes(3, 3), even_nodes(2, 5)], ids=str)
def test_what_crosses_costs_as_much_as_leaves_a_node(collective: str, nodes: Nodes) -> None:
    ranks = sum(map(len, nodes))
    count = 60 * ranks
    shape = Shape.in_parts([60] * ranks) if collective in IN_PARTS else Shape(count)
    programs = algorithm(collective, "hierarchical").all_programs([dataclasses.replace(shape, nodes=nodes)] * ranks)
    by_bytes = only(nodes, shared=Wires(0.0, 1.0, 1))
    assert cost_on_levels_s(collective, "hierarchical", ranks, count, by_bytes) == pytest.approx(
        leaving(programs, nodes)
    )


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_on_uneven_nodes_the_most_that_leaves_one_counts(collective: str) -> None:
    nodes: Nodes = ((0, 1, 2), (3,))
    shape = dataclasses.replace(Shape.in_parts([10] * 4), nodes=nodes)
    programs = algorithm(collective, "hierarchical").all_programs([shape] * 4)
    by_bytes = only(nodes, shared=Wires(0.0, 1.0, 1))
    assert cost_on_levels_s(collective, "hierarchical", 4, 40, by_bytes) == leaving(programs, nodes) == 30


def test_a_rank_handles_all_that_it_sends_whatever_the_wire() -> None:
    by_bytes = only(TWO_BY_TWO, within=Wires(0.0, 1.0, 1))
    programs = algorithm("all_reduce", "hierarchical").all_programs([Shape(40, nodes=TWO_BY_TWO)] * 4)
    sent = {sum(send.stop - send.start for send in program.sends) for program in programs}
    assert sent == {cost_on_levels_s("all_reduce", "hierarchical", 4, 40, by_bytes)} == {60}


def test_hops_cost_what_their_wire_does_and_messages_beyond_them_their_overhead() -> None:
    nodes = even_nodes(5, 3)
    assert cost_on_levels_s("all_gather", "hierarchical", 15, 0, only(nodes, shared=Wires(1.0, 0.0, 1))) == 4
    within = only(nodes, within=Wires(1.0, 0.0, 1))
    assert cost_on_levels_s("all_gather", "hierarchical", 15, 0, within) == 2 + (14 - 6) * OVERHEAD
    assert cost_on_levels_s("all_reduce", "hierarchical", 15, 0, within) == 2 * (2 + (14 - 6) * OVERHEAD)
    assert cost_on_levels_s("broadcast", "hierarchical", 15, 0, within) == 2


def test_of_a_broadcast_a_leader_sends_everything_twice() -> None:
    slow_ranks = only(TWO_BY_TWO, within=Wires(0.0, 1.0, 10), alone=Wires(0.0, 0.0, 10))
    assert cost_on_levels_s("broadcast", "hierarchical", 4, 1000, slow_ranks) == 2 * 1000 + 10
    slow_wires = only(even_nodes(4, 2), alone=Wires(0.0, 1.0, 10))
    assert cost_on_levels_s("broadcast", "hierarchical", 8, 1000, slow_wires) == 1000 + 2 * 10


@pytest.mark.parametrize("name", ["halving_doubling", "recursive_doubling"])
@pytest.mark.parametrize("nodes", [TWO_BY_TWO, even_nodes(4, 2), even_nodes(2, 8)], ids=str)
def test_doubling_on_aligned_nodes_crosses_only_in_its_last_rounds(name: str, nodes: Nodes) -> None:
    ranks = sum(map(len, nodes))
    programs = algorithm("all_reduce", name).all_programs([Shape(16 * ranks)] * ranks)
    per_node = len(nodes[0])
    # A crowded wire has a k-th of the node's NICs, so a byte of a rank is k of the node's.
    by_bytes = only(nodes, crowded=Wires(0.0, float(per_node), 1))
    assert cost_on_levels_s("all_reduce", name, ranks, 16 * ranks, by_bytes) == pytest.approx(
        leaving(programs, nodes), rel=1e-6
    )
    rounds = cost_on_levels_s("all_reduce", name, ranks, 0, only(nodes, crowded=Wires(1.0, 0.0, 1)))
    within = cost_on_levels_s("all_reduce", name, ranks, 0, only(nodes, within=Wires(1.0, 0.0, 1)))
    assert rounds + within == len({send.step for program in programs for send in program.sends})


@pytest.mark.parametrize("nodes", [((0, 2), (1, 3)), UNEVEN, even_nodes(2, 3), even_nodes(3, 2)], ids=str)
def test_doubling_on_other_nodes_crosses_throughout(nodes: Nodes) -> None:
    ranks = sum(map(len, nodes))
    rounds = only(nodes, crowded=Wires(1.0, 0.0, 1))
    folds = 2 * (ranks.bit_count() > 1)
    assert cost_on_levels_s("all_reduce", "recursive_doubling", ranks, 0, rounds) == ranks.bit_length() - 1 + folds


def test_a_tree_on_even_nodes_crosses_first_and_then_no_more() -> None:
    nodes = even_nodes(5, 4)
    assert cost_on_levels_s("broadcast", "binomial", 20, 100, only(nodes, alone=Wires(1.0, 0.0, 1))) == 3
    assert cost_on_levels_s("reduce", "binomial", 20, 100, only(nodes, within=Wires(1.0, 0.0, 1))) == 2
    assert cost_on_levels_s("broadcast", "binomial", 5, 100, only(UNEVEN, alone=Wires(1.0, 0.0, 1))) == 3


def test_all_ranks_of_a_node_at_once_share_what_one_has_alone() -> None:
    on = levels(picture(even_nodes(2, 4)), 4096)
    assert on.alone.beta_s_per_byte == pytest.approx(1 / (4 * GBIT_S))
    assert on.shared.beta_s_per_byte == pytest.approx(1 / (4 * GBIT_S))
    assert on.crowded.beta_s_per_byte == pytest.approx(1 / GBIT_S)
    assert on.within == Wires(WITHIN_LATENCY_S, 1 / WITHIN_BANDWIDTH_BYTES_S, 4096)


def test_ranks_with_nics_of_their_own_have_them_also_at_once() -> None:
    own = dataclasses.replace(picture(even_nodes(2, 4)), sharers=(1,) * 8)
    on = levels(own, 4096)
    assert on.crowded.beta_s_per_byte == on.alone.beta_s_per_byte == pytest.approx(1 / (4 * GBIT_S))
    assert on.shared.beta_s_per_byte == pytest.approx(1 / (16 * GBIT_S))


def test_a_flat_algorithm_is_no_faster_than_a_rank_moves_its_bytes() -> None:
    on = levels(picture(TWO_BY_TWO, gbit_s=400), 4096)
    assert on.alone.beta_s_per_byte == 1 / WITHIN_BANDWIDTH_BYTES_S
    assert on.shared.beta_s_per_byte < on.alone.beta_s_per_byte


def test_every_algorithm_has_a_cost_on_nodes_and_others_are_refused() -> None:
    on = levels(picture(UNEVEN), 4096)
    for known in ALGORITHMS:
        assert cost_on_levels_s(known.collective, known.name, 5, MIB, on) > 0
    with pytest.raises(ValueError, match="no cost is known of 'hierarchical' for gather"):
        cost_on_levels_s("gather", "hierarchical", 5, MIB, on)


# The choice.


@pytest.mark.parametrize("nodes", [TWO_BY_TWO, even_nodes(4, 4), even_nodes(8, 8), UNEVEN, ((0, 1, 2), (3,))], ids=str)
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_large_collectives_are_hierarchical_where_nics_are_slower_than_memory(
    kind: CollectiveKind, nodes: Nodes
) -> None:
    assert chosen(kind, 64 * MIB, picture(nodes)) == "hierarchical"


def test_tiny_all_reduces_on_aligned_nodes_are_not() -> None:
    for nodes in (TWO_BY_TWO, even_nodes(4, 8)):
        assert chosen(CollectiveKind.ALL_REDUCE, 4, picture(nodes)) == "recursive_doubling"


def test_small_broadcasts_go_down_a_tree_also_on_nodes() -> None:
    assert chosen(CollectiveKind.BROADCAST, 4, picture(even_nodes(8, 4))) == "binomial"


def test_large_broadcasts_on_many_ranks_have_leaders() -> None:
    assert chosen(CollectiveKind.BROADCAST, 64 * MIB, picture(even_nodes(4, 8))) == "hierarchical"


def test_where_all_ranks_have_nodes_of_their_own_nothing_is_hierarchical() -> None:
    for kind in CollectiveKind:
        for payload_bytes in (0, 40, 64 * MIB):
            assert chosen(kind, payload_bytes, even_picture(4)) != "hierarchical"


def test_whoever_insists_gets_it_wherever_there_is_a_schedule_for_it() -> None:
    insisting = picture(TWO_BY_TWO, insists=True)
    for kind in CollectiveKind:
        there_is = any((known.collective, known.name) == (kind.value, "hierarchical") for known in ALGORITHMS)
        for payload_bytes in (4, 64 * MIB):
            assert (chosen(kind, payload_bytes, insisting) == "hierarchical") == there_is


def test_the_reason_names_the_nodes() -> None:
    reason = choose(request(CollectiveKind.ALL_REDUCE, 64 * MIB, 4), 4, picture(TWO_BY_TWO)).reason
    assert reason.startswith(
        "all_reduce of 67108864 bytes over 4 ranks on 2 nodes of 2 ranks in epoch 0: hierarchical "
    )
    reason = choose(request(CollectiveKind.ALL_REDUCE, 64 * MIB, 5), 5, picture(UNEVEN)).reason
    assert " over 5 ranks on 3 nodes of 1 to 2 ranks in epoch 0: hierarchical " in reason


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [(CollectiveKind.ALL_REDUCE, 6), (CollectiveKind.ALL_GATHER, 5), (CollectiveKind.BROADCAST, 1)],
)
def test_a_piece_of_a_hierarchical_schedule_has_a_chunk_for_each_nic(kind: CollectiveKind, pieces: int) -> None:
    chunk_bytes = choose(request(kind, 960 * KIB, 5), 5, picture(UNEVEN, insists=True)).chunk_bytes
    assert chunk_bytes == min(256 * KIB, -(-960 * KIB // pieces // 2 // 4096) * 4096)


@pytest.mark.parametrize("kind", CollectiveKind)
@pytest.mark.parametrize("payload_bytes", [40, 4 * MIB])
@pytest.mark.parametrize("insists", [True, False])
@pytest.mark.parametrize("nodes", [((0, 3), (1, 2), (4,)), TWO_BY_TWO], ids=str)
def test_what_is_built_on_nodes_does_what_was_asked_for(
    kind: CollectiveKind, payload_bytes: int, insists: bool, nodes: Nodes
) -> None:
    ranks = sum(map(len, nodes))
    asked = request(kind, payload_bytes if kind is not CollectiveKind.BARRIER else 0, ranks, root=ranks - 1)
    choice = choose(asked, ranks, picture(nodes, insists=insists))
    assert choice.nodes == nodes
    check([build(choice, asked, ranks, rank) for rank in range(ranks)], meaning(kind.value, [asked.shape] * ranks))


def test_a_choice_says_which_nodes_the_schedule_is_for() -> None:
    asked = request(CollectiveKind.ALL_REDUCE, 4000, 4)
    flat, on_nodes = (build(Choice("hierarchical", 4096, "", nodes), asked, 4, 0) for nodes in ((), TWO_BY_TWO))
    assert flat != on_nodes
    assert on_nodes == algorithm("all_reduce", "hierarchical").build(4, 0, Shape(4000, nodes=TWO_BY_TWO))
