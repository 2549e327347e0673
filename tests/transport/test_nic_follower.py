"""Which NIC a change is about: interfaces that come and go under an address, addresses that change on an interface."""

from __future__ import annotations

import pytest

from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.link_events import AddressEvent, LinkEvent
from r2ccl.transport.nic_follower import News, NicChanged, NicFollower, NicMoved

ETH0_UP, ETH1_UP = LinkEvent("eth0", 12, True), LinkEvent("eth1", 14, True)


@pytest.fixture
def follower() -> NicFollower:
    """Of eth0 at 10.0.1.10 and eth1 at 10.0.2.10, both up and told."""
    nics = (Nic(0, "eth0", Endpoint("inet", "10.0.1.10", 5000)), Nic(1, "eth1", Endpoint("inet", "10.0.2.10", 5001)))
    made = NicFollower(nics)
    assert hear(made, ETH0_UP, ETH1_UP) == [NicChanged(0, True, "carrier"), NicChanged(1, True, "carrier")]
    return made


def hear(follower: NicFollower, *events: LinkEvent | AddressEvent) -> list[News]:
    """All news of some events."""
    news: list[News] = []
    for event in events:
        news += follower.hear_link(event) if isinstance(event, LinkEvent) else follower.hear_address(event)
    return news


def disconnected(follower: NicFollower) -> list[News]:
    """What the kernel says when a container loses a network: the interface gets its name on the host, then goes."""
    return hear(
        follower,
        LinkEvent("eth1", 14, False),
        LinkEvent("vethbd01", 14, False),
        AddressEvent(14, "10.0.2.10", removed=True),
        LinkEvent("vethbd01", 14, False, removed=True),
    )


def test_a_carrier_that_goes_and_comes_is_told_of_its_nic_alone(follower):
    assert hear(follower, LinkEvent("eth1", 14, False)) == [NicChanged(1, False, "carrier")]
    assert hear(follower, ETH1_UP) == [NicChanged(1, True, "carrier")]
    assert hear(follower, LinkEvent("eth7", 20, True)) == []


def test_a_removed_interface_is_known_by_its_number(follower):
    assert hear(follower, LinkEvent("vethbd01", 14, False, removed=True)) == [NicChanged(1, False, "removed")]


def test_a_container_that_is_disconnected_and_connected_has_its_nic_back_on_another_interface(follower):
    down = NicChanged(1, False, "carrier")
    assert disconnected(follower) == [down, down, NicChanged(1, False, "address")]
    back: list[LinkEvent | AddressEvent] = [
        LinkEvent("veth77aa", 16, False),
        LinkEvent("eth2", 16, False),
        AddressEvent(16, "10.0.2.10"),
        LinkEvent("eth2", 16, True),
    ]
    assert hear(follower, *back) == [NicMoved(1, "10.0.2.10", "eth2", up=False), NicChanged(1, True, "carrier")]
    assert hear(follower, LinkEvent("eth2", 16, False)) == [down]


def test_and_once_more(follower):
    disconnected(follower)
    hear(follower, LinkEvent("eth2", 16, True), AddressEvent(16, "10.0.2.10"))
    assert hear(follower, AddressEvent(16, "10.0.2.10", removed=True)) == [NicChanged(1, False, "address")]
    again = hear(follower, LinkEvent("eth3", 18, True), AddressEvent(18, "10.0.2.10"))
    assert again == [NicMoved(1, "10.0.2.10", "eth3", up=True)]


def test_an_interface_that_is_made_anew_under_its_old_name_is_another_one(follower):
    disconnected(follower)
    assert hear(follower, LinkEvent("eth1", 16, True)) == []
    assert hear(follower, AddressEvent(16, "10.0.2.10")) == [NicMoved(1, "10.0.2.10", "eth1", up=True)]


def test_an_address_that_comes_back_where_it_was_moves_nothing(follower):
    assert hear(follower, AddressEvent(14, "10.0.2.10", removed=True)) == [NicChanged(1, False, "address")]
    assert hear(follower, ETH1_UP) == []
    assert hear(follower, AddressEvent(14, "10.0.2.10")) == [NicChanged(1, True, "address")]


def test_an_interface_that_is_given_another_address_is_the_same_nic(follower):
    assert hear(follower, AddressEvent(14, "10.0.2.99")) == []  # a second address
    hear(follower, AddressEvent(14, "10.0.2.10", removed=True))
    assert hear(follower, AddressEvent(99, "10.9.9.9")) == []  # somebody else's
    assert hear(follower, AddressEvent(14, "10.0.2.11")) == [NicMoved(1, "10.0.2.11", "eth1", up=True)]
    assert hear(follower, AddressEvent(14, "10.0.2.11", removed=True)) == [NicChanged(1, False, "address")]


def test_what_the_old_interface_still_says_is_not_about_the_new_one(follower):
    disconnected(follower)
    hear(follower, LinkEvent("eth2", 16, True), AddressEvent(16, "10.0.2.10"))
    assert hear(follower, AddressEvent(14, "10.0.2.10", removed=True), LinkEvent("eth1", 14, False)) == []


def test_an_interface_that_is_renamed_takes_its_nic_along(follower):
    assert hear(follower, LinkEvent("rail1", 14, False)) == [NicChanged(1, False, "carrier")]
    assert hear(follower, LinkEvent("rail1", 14, True)) == [NicMoved(1, "10.0.2.10", "rail1", up=True)]
    assert hear(follower, LinkEvent("rail1", 14, True)) == [NicChanged(1, True, "carrier")]


def test_an_address_on_an_interface_not_told_yet_waits_for_its_name(follower):
    disconnected(follower)
    assert hear(follower, AddressEvent(16, "10.0.2.10")) == [NicMoved(1, "10.0.2.10", "", up=False)]
    assert hear(follower, LinkEvent("eth2", 16, True)) == [NicMoved(1, "10.0.2.10", "eth2", up=True)]


def test_nics_that_share_an_interface_share_its_carrier():
    nics = [Nic(index, "lo", Endpoint("inet", f"127.0.{index}.1", 0)) for index in range(2)]
    assert hear(NicFollower(nics), LinkEvent("lo", 1, True)) == [
        NicChanged(0, True, "carrier"),
        NicChanged(1, True, "carrier"),
    ]


@pytest.fixture
def lanes() -> NicFollower:
    """Of two lanes over eth0 at 10.0.1.10, up and told, and a third NIC."""
    first, second = (Nic(index, "eth0", Endpoint("inet", "10.0.1.10", 5000 + index)) for index in range(2))
    made = NicFollower((first, second, Nic(2, "eth1", Endpoint("inet", "10.0.2.10", 5002))))
    hear(made, ETH0_UP, ETH1_UP)
    return made


def test_what_befalls_an_interface_befalls_all_lanes_over_it(lanes: NicFollower) -> None:
    assert hear(lanes, LinkEvent("eth0", 12, False)) == [NicChanged(i, False, "carrier") for i in (0, 1)]
    assert hear(lanes, ETH0_UP) == [NicChanged(i, True, "carrier") for i in (0, 1)]
    assert hear(lanes, AddressEvent(12, "10.0.1.10", removed=True)) == [NicChanged(i, False, "address") for i in (0, 1)]
    assert hear(lanes, AddressEvent(12, "10.0.1.10")) == [NicChanged(i, True, "address") for i in (0, 1)]


def test_all_lanes_over_an_interface_follow_its_address_and_it(lanes: NicFollower) -> None:
    hear(lanes, AddressEvent(12, "10.0.1.10", removed=True))
    assert hear(lanes, AddressEvent(12, "10.0.1.77")) == [NicMoved(i, "10.0.1.77", "eth0", True) for i in (0, 1)]
    hear(lanes, AddressEvent(12, "10.0.1.77", removed=True), LinkEvent("eth5", 30, True))
    assert hear(lanes, AddressEvent(30, "10.0.1.77")) == [NicMoved(i, "10.0.1.77", "eth5", True) for i in (0, 1)]


def test_nics_of_one_interface_with_addresses_of_their_own_are_no_lanes() -> None:
    nics = (Nic(index, "eth0", Endpoint("inet", f"10.0.1.{index}", 5000)) for index in range(2))
    made = NicFollower(nics)
    hear(made, ETH0_UP)
    for host in ("10.0.1.0", "10.0.1.1"):
        hear(made, AddressEvent(12, host, removed=True))
    assert hear(made, AddressEvent(12, "10.0.1.8")) == [NicMoved(0, "10.0.1.8", "eth0", True)]
    assert hear(made, AddressEvent(12, "10.0.1.9")) == [NicMoved(1, "10.0.1.9", "eth0", True)]
