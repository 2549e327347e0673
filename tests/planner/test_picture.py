"""The picture of the network that plans are made from."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.planner.picture import (
    DEFAULT_BANDWIDTH_BYTES_S,
    NicEstimate,
    Picture,
    even_picture,
    first_picture,
    later_picture,
)
from r2ccl.topology import Endpoint, Member, Nic
from r2ccl.tuning import Tuning, WireCost

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
        wire="loopback",
    )


MEMORY, LOOPBACK, NETWORK = (WireCost(alpha, alpha / 100, alpha / 10, 1e-12) for alpha in (1e-6, 1e-5, 1e-4))
TUNING = Tuning(1e-10, MEMORY, LOOPBACK, NETWORK)


def at(host: str, rank: int, node: str) -> Member:
    return Member(rank, 1, node, (Nic(0, "a", Endpoint("inet", host, 1), 1000),))


@pytest.mark.parametrize(
    ("hosts", "nodes", "tuning", "wire"),
    [
        (("127.0.0.1", "127.0.0.2"), "aa", TUNING, "shared_memory"),
        (("10.0.0.1", "10.0.0.2"), "aa", TUNING, "shared_memory"),
        (("127.0.0.1", "127.0.0.2"), "aa", TUNING.without_shared_memory(), "loopback"),
        (("127.0.0.1", "127.0.0.2"), "aa", None, "loopback"),
        (("127.0.0.1", "127.0.0.2"), "ab", TUNING, "loopback"),
        (("127.0.0.1", "10.0.0.2"), "ab", TUNING, "network"),
        (("10.0.0.1", "10.0.0.2"), "ab", TUNING, "network"),
    ],
)
def test_the_wire_is_the_one_that_the_slowest_step_goes_by(
    hosts: tuple[str, ...], nodes: str, tuning: Tuning | None, wire: str
) -> None:
    book = [at(host, rank, node) for rank, (host, node) in enumerate(zip(hosts, nodes, strict=True))]
    picture = first_picture(book, 1000, 10, tuning=tuning)
    assert picture.wire == wire
    assert picture.cost == (None if tuning is None else getattr(tuning, wire))


def test_without_figures_of_its_wire_a_picture_goes_by_what_nics_announced() -> None:
    picture = dataclasses.replace(even_picture(2, bandwidth_bytes_s=1e9), tuning=Tuning(1e-10, loopback=LOOPBACK))
    assert (picture.wire, picture.cost) == ("network", None)
    assert picture.seconds_per_byte == 1e-9


def test_on_a_network_a_byte_takes_as_long_as_the_slower_of_nic_and_measurement_says() -> None:
    measured = Tuning(1e-10, network=WireCost(1e-5, 2e-9, 1e-6, 1e-12))
    fast = dataclasses.replace(even_picture(2, bandwidth_bytes_s=1e9), tuning=measured)
    assert fast.seconds_per_byte == 2e-9
    lost_a_nic = later_picture(fast, 1, [[0.25e9], [1e9]])
    assert lost_a_nic.seconds_per_byte == 4e-9
    assert (lost_a_nic.tuning, lost_a_nic.wire) == (measured, "network")


def test_where_cores_set_the_pace_nobody_asks_the_nic() -> None:
    measured = dataclasses.replace(even_picture(2, bandwidth_bytes_s=1e6), tuning=TUNING, wire="loopback")
    assert measured.seconds_per_byte == LOOPBACK.beta_s_per_byte


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
