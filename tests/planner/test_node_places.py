"""Ranks are counted within their node, and nodes by the ranks that they have."""

from __future__ import annotations

import pytest

from r2ccl.planner.node_places import NodePlace, place_of


def test_all_on_one_node():
    assert place_of(1, ["a", "a", "a"]) == NodePlace(1, 3, 0, 1, True)


def test_each_on_a_node_of_its_own():
    assert place_of(2, ["a", "b", "c"]) == NodePlace(0, 1, 2, 3, True)


@pytest.mark.parametrize(
    ("rank", "local", "across"),
    [(0, (0, 3), (0, 3)), (1, (0, 2), (1, 3)), (2, (1, 3), (0, 2)), (3, (0, 1), (2, 3)), (4, (2, 3), (0, 1)),
     (5, (1, 2), (1, 2))],
)  # fmt: skip
def test_nodes_of_unlike_sizes_whose_ranks_are_mixed(rank: int, local: tuple[int, int], across: tuple[int, int]):
    assert place_of(rank, ["a", "b", "a", "c", "a", "b"]) == NodePlace(*local, *across, False)
