"""The picture of the network that plans are made from."""

from __future__ import annotations

import pytest

from r2ccl.planner.picture import DEFAULT_BANDWIDTH_BYTES_S, NicEstimate, Picture, even_picture, first_picture
from r2ccl.topology import Endpoint, Member, Nic

SOMEWHERE = Endpoint("inet", "127.0.0.1", 1)


def member(rank: int, *nics: Nic) -> Member:
    return Member(rank, 1, "node", nics)


def test_the_first_picture_has_the_carrying_nics_that_were_announced() -> None:
    book = (
        member(0, Nic(0, "a", SOMEWHERE, 500), Nic(1, "b", SOMEWHERE, 1000)),
        member(1, Nic(0, "a", SOMEWHERE, 0), Nic(1, "b", SOMEWHERE, 1000, spare=True)),
    )
    picture = first_picture(book, chunk_bytes=1000, eager_bytes=10)
    assert picture == Picture(
        0,
        ((NicEstimate(62.5e6), NicEstimate(125e6)), (NicEstimate(DEFAULT_BANDWIDTH_BYTES_S),)),
        chunk_bytes=1000,
        eager_bytes=10,
    )


def test_the_slowest_sets_the_pace() -> None:
    picture = Picture(0, ((NicEstimate(10.0, 0.1), NicEstimate(20.0, 0.3)), (NicEstimate(25.0, 0.2),)))
    assert picture.rank_bandwidth_bytes_s == 25.0
    assert picture.slowest_nic_bytes_s == 10.0
    assert picture.latency_s == 0.3


def test_a_rank_without_a_nic_that_carries_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 1 has no NIC"):
        Picture(0, ((NicEstimate(),), ()))
    with pytest.raises(ValueError, match="rank 0 has no NIC"):
        even_picture(2, bandwidth_bytes_s=0.0)
