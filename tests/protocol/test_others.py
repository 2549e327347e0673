"""Whose bytes a NIC carries, by what its interface counts and what we know to be ours."""

from __future__ import annotations

import pytest

from r2ccl.protocol.others import WITH_HEADERS, are_among

MOST = 100_000.0


@pytest.mark.parametrize("direction", range(2))
def test_others_count_where_they_sent_or_received_more_than_so_much(direction: int) -> None:
    def others(count: float) -> bool:
        counted = [0, 0]
        counted[direction] = int(count)
        return are_among((counted[0], counted[1]), (0, 0), MOST)

    assert not others(0)
    assert not others(MOST)
    assert others(MOST + 1)


def test_what_is_ours_is_no_others_with_its_headers_and_nor_is_it_the_other_ways() -> None:
    own = 800_000
    with_headers = int(own * WITH_HEADERS)
    assert not are_among((with_headers, with_headers), (own, own), MOST)
    assert are_among((with_headers, with_headers), (own, 0), MOST)
    assert are_among((with_headers, with_headers), (0, own), MOST)
    assert are_among((with_headers + 100_001, with_headers), (own, own), MOST)


def test_more_of_ours_than_the_interface_counted_hides_no_others_of_the_other_way() -> None:
    """What is acknowledged now may have gone out before the last look."""
    assert not are_among((0, 0), (500_000, 500_000), MOST)
    assert are_among((0, 200_000), (500_000, 0), MOST)
