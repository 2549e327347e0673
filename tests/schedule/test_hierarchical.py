"""Schedules of ranks that share nodes: proved on nodes of many shapes; no byte crosses a node's border without need."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm, algorithm
from r2ccl.schedule.check import check, wasted_acks
from r2ccl.schedule.ir import Program, Shape
from tests.schedule.cases import BIG, LAYOUTS, cases, even, from_parts, has_root, name_of, on_nodes
from tests.schedule.execution import World
from tests.schedule.test_proofs import lacking_a_wait, operands

Nodes = tuple[tuple[int, ...], ...]
HIERARCHICAL = [known for known in ALGORITHMS if known.name == "hierarchical"]
#: Those that stand in a circle or chain, which goes from node to node.
IN_LINE = [known for known in ALGORITHMS if known.name in ("ring", "chain")]
on_layouts = pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
each_hierarchical = pytest.mark.parametrize("known", HIERARCHICAL, ids=name_of)


def ranks_on(nodes: Nodes) -> int:
    return sum(map(len, nodes))


def crossing(programs: Sequence[Program], nodes: Nodes) -> list[int]:
    """By node: elements that leave it."""
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node}
    left = [0] * len(nodes)
    for program in programs:
        for send in program.sends:
            if node_of[program.rank] != node_of[send.target]:
                left[node_of[program.rank]] += send.stop - send.start
    return left


@pytest.mark.parametrize("known", ALGORITHMS, ids=name_of)
@on_layouts
def test_every_algorithm_does_what_its_collective_means_on_nodes_of_any_shape(known: Algorithm, nodes: Nodes) -> None:
    ranks = ranks_on(nodes)
    for root in range(ranks if has_root(known) else 1):
        for shapes in cases(known, ranks, root):
            check(known.all_programs(on_nodes(shapes, nodes)), known.means(shapes))


@each_hierarchical
@on_layouts
def test_no_send_of_a_hierarchical_schedule_waits_for_an_acknowledgement_in_vain(
    known: Algorithm, nodes: Nodes
) -> None:
    for shapes in cases(known, ranks_on(nodes)):
        assert wasted_acks(check(known.all_programs(on_nodes(shapes, nodes)), known.means(shapes))) == []


@each_hierarchical
@pytest.mark.parametrize("nodes", [((0, 1), (2, 3)), ((0, 1, 2), (3,)), ((0, 2), (1, 3, 4))], ids=str)
def test_no_wait_of_a_hierarchical_schedule_is_superfluous(known: Algorithm, nodes: Nodes) -> None:
    ranks = ranks_on(nodes)
    for shapes in (even(known, ranks, BIG), from_parts(known, [3, 0, 1, 2, 5][:ranks])):
        for lacking in lacking_a_wait(known.all_programs(on_nodes(shapes, nodes))):
            with pytest.raises(ValueError):  # noqa: PT011 — which rule it breaks depends on the wait
                check(lacking, known.means(shapes))


@each_hierarchical
@on_layouts
def test_a_hierarchical_schedule_runs_in_any_order_that_its_waits_allow(known: Algorithm, nodes: Nodes) -> None:
    generator = random.Random(str(nodes))
    for in_place in (True, False):
        shapes = even(known, ranks_on(nodes), 37)
        World(known.all_programs(on_nodes(shapes, nodes)), known.means(shapes), 3, generator, in_place).run()


@on_layouts
def test_a_hierarchical_all_reduce_takes_each_byte_across_a_nodes_border_once_in_each_direction_and_phase(
    nodes: Nodes,
) -> None:
    """The least there is: for each of h nodes 2 (h - 1) / h of the buffer, however many ranks it has."""
    programs = algorithm("all_reduce", "hierarchical").all_programs([Shape(60 * 7, nodes=nodes)] * ranks_on(nodes))
    share = 60 * 7 // len(nodes)
    assert crossing(programs, nodes) == [2 * (len(nodes) - 1) * share] * len(nodes)


@on_layouts
def test_a_hierarchical_all_gather_takes_each_part_across_once_to_each_other_node(nodes: Nodes) -> None:
    ranks = ranks_on(nodes)
    shape = Shape.in_parts([rank + 3 for rank in range(ranks)])
    programs = algorithm("all_gather", "hierarchical").all_programs(on_nodes([shape] * ranks, nodes))
    behind = [*nodes[1:], nodes[0]]
    kept = [sum(shape.parts[rank] for rank in node) for node in behind]  # what the next node has itself
    assert crossing(programs, nodes) == [shape.count - own if len(nodes) > 1 else 0 for own in kept]


@on_layouts
def test_a_hierarchical_reduce_scatter_takes_one_sum_a_node_of_each_part_across(nodes: Nodes) -> None:
    ranks = ranks_on(nodes)
    shape = Shape.in_parts([rank + 3 for rank in range(ranks)])
    programs = algorithm("reduce_scatter", "hierarchical").all_programs(on_nodes([shape] * ranks, nodes))
    kept = [sum(shape.parts[rank] for rank in node) for node in nodes]
    assert crossing(programs, nodes) == [shape.count - own if len(nodes) > 1 else 0 for own in kept]


@pytest.mark.parametrize("name", ["hierarchical", "chain"])
@on_layouts
def test_a_broadcast_enters_each_node_once_whoever_is_the_root(name: str, nodes: Nodes) -> None:
    ranks = ranks_on(nodes)
    for root in range(ranks):
        programs = algorithm("broadcast", name).all_programs([Shape(9, root, nodes=nodes)] * ranks)
        assert sum(crossing(programs, nodes)) == 9 * (len(nodes) - 1)
        assert max(crossing(programs, nodes)) <= 9


@on_layouts
def test_all_ranks_of_an_even_node_send_as_much_across_as_any(nodes: Nodes) -> None:
    if len({len(node) for node in nodes}) > 1 or len(nodes) == 1:
        nodes = ((0, 1, 2), (3, 4, 5))
    ranks = ranks_on(nodes)
    alone = tuple((rank,) for rank in range(ranks))
    programs = algorithm("all_reduce", "hierarchical").all_programs([Shape(ranks * 8, nodes=nodes)] * ranks)
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node}
    across = [
        sum(send.stop - send.start for send in program.sends if node_of[send.target] != node_of[program.rank])
        for program in programs
    ]
    assert across == [2 * (len(nodes) - 1) * 8] * ranks
    assert sum(crossing(programs, alone)) == 2 * (ranks - 1) * ranks * 8


@pytest.mark.parametrize("known", IN_LINE, ids=name_of)
@on_layouts
def test_circles_and_chains_go_from_node_to_node(known: Algorithm, nodes: Nodes) -> None:
    """So that at any time one rank of a node sends across, and one receives."""
    ranks = ranks_on(nodes)
    programs = known.all_programs(on_nodes(even(known, ranks, 3 * ranks, 1 if has_root(known) else 0), nodes))
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node}
    wires = {
        (program.rank, send.target)
        for program in programs
        for send in program.sends
        if node_of[program.rank] != node_of[send.target]
    }
    leaving = [node_of[source] for source, _ in wires]
    assert len(leaving) == len(set(leaving)) == len(nodes) - (known.name == "chain" or len(nodes) == 1)


def test_a_hierarchical_reduce_scatter_has_its_operands_node_by_node_around_both_circles() -> None:
    nodes = ((0, 1, 2), (3, 4, 5))
    shape = Shape.in_parts([1] * 6)
    known = algorithm("reduce_scatter", "hierarchical")
    held = operands(check(known.all_programs(on_nodes([shape] * 6, nodes)), known.means([shape] * 6)))
    assert [held[rank, rank] for rank in range(6)] == [
        [4, 5, 3, 1, 2, 0],
        [5, 3, 4, 2, 0, 1],
        [3, 4, 5, 0, 1, 2],
        [1, 2, 0, 4, 5, 3],
        [2, 0, 1, 5, 3, 4],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_without_nodes_a_hierarchical_schedule_is_the_ring(collective: str) -> None:
    for shapes in ([Shape.in_parts([5] * 6)] * 6, [Shape.in_parts([3, 0, 1, 2, 5])] * 5):
        hierarchical, ring = (algorithm(collective, name).all_programs(shapes) for name in ("hierarchical", "ring"))
        for one, other in zip(hierarchical, ring, strict=True):
            assert {(s.step, s.target, s.segments) for s in one.sends} == {
                (s.step, s.target, s.segments) for s in other.sends
            }


@each_hierarchical
def test_a_thousand_ranks_on_uneven_nodes_plan_one_by_one(known: Algorithm) -> None:
    nodes = tuple(tuple(range(first, min(first + 24, 1024))) for first in range(0, 1024, 24))
    assert len(nodes[-1]) == 16
    (shape, *_) = on_nodes(even(known, 1024, 1 << 20), nodes)
    programs = {rank: known.build(1024, rank, shape) for rank in (0, 23, 24, 500, 1023)}
    for rank, program in programs.items():
        assert len(program.sends) <= 2 * 43 * 24 * 2
        for peer, other in programs.items():
            sent = {(send.step, send.segments) for send in program.sends if send.target == peer}
            assert sent == {(receive.step, receive.segments) for receive in other.receives if receive.source == rank}


@pytest.mark.parametrize("nodes", [((0, 1),), ((0, 1), (1, 2)), ((0, 1), (2, 3))], ids=str)
def test_nodes_that_do_not_have_each_rank_once_are_refused(nodes: Nodes) -> None:
    with pytest.raises(ValueError, match="do not have each of 3 ranks once"):
        algorithm("all_reduce", "hierarchical").build(3, 0, Shape(9, nodes=nodes))


@pytest.mark.parametrize("name", ["binomial", "chain"])
def test_a_reduce_on_nodes_has_its_operands_node_by_node_around_the_circle_from_the_root(name: str) -> None:
    nodes = ((0, 4), (1, 2), (3,))
    known = algorithm("reduce", name)
    expected = {0: [0, 4, 1, 2, 3], 1: [1, 2, 3, 0, 4], 2: [2, 1, 3, 0, 4], 3: [3, 0, 4, 1, 2], 4: [4, 0, 1, 2, 3]}
    for root, order in expected.items():
        shapes = [Shape(1, root, nodes=nodes)] * 5
        assert operands(check(known.all_programs(shapes), known.means(shapes)))[root, 0] == order
