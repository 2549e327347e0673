"""The search for a path's MTU, over every path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.errors import InvalidTransition
from r2ccl.planner.mtu_search import LEAST_BYTES, MtuSearch


def searched(largest_bytes: int, path_bytes: int) -> tuple[int, list[int]]:
    """What is found on a path that passes so much, and the sizes that were tried."""
    search, tried = MtuSearch(largest_bytes), []
    while search.size_bytes is not None:
        tried.append(search.size_bytes)
        search.heard(search.size_bytes <= path_bytes)
        assert len(tried) <= 20, "it has an end"
    return search.path_bytes, tried


def test_a_healthy_path_takes_one_packet() -> None:
    assert searched(1500, 1500) == (1500, [1500])
    assert searched(9000, 9216) == (9000, [9000])


def test_where_nothing_is_answered_it_gives_up_after_two() -> None:
    assert searched(1500, 0) == (0, [1500, LEAST_BYTES])


def test_a_path_that_takes_less_than_the_least_is_not_known() -> None:
    assert searched(1500, LEAST_BYTES - 1) == (0, [1500, LEAST_BYTES])


def test_an_interface_that_takes_less_than_the_least_is_tried_once() -> None:
    assert searched(300, 300) == (300, [300])
    assert searched(300, 0) == (0, [300])


@given(st.integers(LEAST_BYTES, 65535), st.integers(LEAST_BYTES, 70_000))
def test_it_finds_what_passes_in_few_packets(largest_bytes: int, path_bytes: int) -> None:
    found, tried = searched(largest_bytes, path_bytes)
    assert found == min(largest_bytes, path_bytes)
    assert len(tried) <= 2 + 16
    assert len(set(tried)) == len(tried)


def test_it_hears_of_nothing_after_it_is_done() -> None:
    search = MtuSearch(1500)
    search.heard(True)
    with pytest.raises(InvalidTransition):
        search.heard(True)


@pytest.mark.parametrize(("largest", "least"), [(0, 576), (1500, 0)])
def test_a_size_is_at_least_one(largest: int, least: int) -> None:
    with pytest.raises(ValueError, match="size"):
        MtuSearch(largest, least)
