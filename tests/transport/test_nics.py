"""Which interfaces become NICs, over plain data; and what this machine has."""

from __future__ import annotations

import dataclasses
import logging
import sys

import pytest

from r2ccl.errors import ConfigurationError
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.nics import (
    Interface,
    LeftOut,
    choose_selector,
    discover,
    find_nics,
    parse_nccl_selector,
    parse_selector,
    select,
)

LO = Interface("lo", ("127.0.0.1",), loopback=True, mtu_bytes=65536, whole_loopback_network=True)
ETH0 = Interface("eth0", ("10.0.0.1",), speed_mbit_s=1000)
ETH1 = Interface("eth1", ("10.0.1.1", "10.0.2.1"), speed_mbit_s=25000, mtu_bytes=9000)
ETH10 = Interface("eth10", ("10.0.10.1",))
HOST = (LO, ETH0, ETH1, ETH10)


def names(text: str = "", interfaces=HOST, spares: str = "", **more) -> list[str]:
    selection = select(interfaces, parse_selector(text), spares, **more)
    assert [nic.index for nic in selection.nics] == list(range(len(selection.nics)))
    return [nic.name for nic in selection.nics]


def hosts(text: str, interfaces=HOST, **more) -> list[str]:
    return [nic.endpoint.host for nic in select(interfaces, parse_selector(text), **more).nics]


def test_by_default_all_interfaces_with_an_address_of_their_own_are_used():
    selection = select(HOST, parse_selector(""))
    assert selection.nics[:2] == (
        Nic(0, "eth0", Endpoint("inet", "10.0.0.1", 0), 1000, 1500, False),
        Nic(1, "eth1", Endpoint("inet", "10.0.1.1", 0), 25000, 9000, False),
    )
    assert selection.left_out == (LeftOut("lo", "loopback"),)


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        (Interface("docker0", ("172.17.0.1",), kind="bridge"), "a bridge"),
        (Interface("docker0", ("172.17.0.1",)), "a bridge"),
        (Interface("br-0a1b2c", ("172.18.0.1",)), "a bridge"),
        (Interface("virbr0", ("192.168.122.1",)), "a bridge"),
        (Interface("odd", ("10.9.0.1",), kind="bridge"), "a bridge"),
        (Interface("eth7", ("10.9.0.1",), master="br0", master_kind="bridge"), "a port of br0"),
        (Interface("eth7", ("10.9.0.1",), master="bond0", master_kind="bond"), "a port of bond0"),
        (Interface("tun0", ("10.8.0.2",), kind="tun"), "a tunnel (tun)"),
        (Interface("tap3", ("10.8.0.2",)), "a tunnel (tun)"),
        (Interface("wg0", ("10.8.0.2",)), "a tunnel (wireguard)"),
        (Interface("x", ("10.8.0.2",), kind="sit"), "a tunnel (sit)"),
        (Interface("x", ("10.8.0.2",), kind="gretap"), "a tunnel (gretap)"),
        (Interface("x", ("10.8.0.2",), kind="dummy"), "a dummy"),
        (Interface("ifb0", (), kind="ifb", up=False), "a dummy"),
        (Interface("eth7", ("10.9.0.1",), up=False), "down"),
        (Interface("eth7", ()), "no IPv4 address"),
        (Interface("eth7", ("169.254.7.7",)), "only a link-local address"),
    ],
)
def test_what_shares_a_wire_or_carries_nothing_is_left_out_with_the_reason(interface, reason):
    selection = select((ETH0, interface), parse_selector(""))
    assert [nic.name for nic in selection.nics] == ["eth0"]
    assert selection.left_out == (LeftOut(interface.name, reason),)


@pytest.mark.parametrize(
    "interface",
    [
        Interface("eth0", ("172.17.0.2",), kind="veth"),
        Interface("eth0.5", ("10.5.0.1",), kind="vlan"),
        Interface("bond0", ("10.5.0.1",), kind="bond"),
        Interface("ib0", ("10.5.0.1",), kind="ipoib"),
        Interface("eth3", ("10.5.0.1",), master="red", master_kind="vrf"),
    ],
)
def test_what_carries_an_address_of_its_own_is_kept(interface):
    assert names("", (LO, interface)) == [interface.name]


def test_a_routable_address_is_preferred_to_a_link_local_one():
    assert hosts("", (Interface("eth0", ("169.254.1.1", "10.0.0.1")),)) == ["10.0.0.1"]


def test_names_and_addresses_are_used_in_the_order_given():
    assert hosts("eth10, 10.0.2.1 ,eth0") == ["10.0.10.1", "10.0.2.1", "10.0.0.1"]


def test_what_is_named_is_taken_at_its_word():
    tunnel = Interface("tun0", ("10.8.0.2",), kind="tun")
    down = Interface("eth2", ("10.0.3.1",), up=False)
    assert names("tun0,eth2", (*HOST, tunnel, down)) == ["tun0", "eth2"]


def test_an_exclusion_leaves_the_other_usable_ones():
    selection = select(HOST, parse_selector("^eth1,^10.0.10.1"))
    assert [nic.name for nic in selection.nics] == ["eth0"]
    assert LeftOut("eth1", "excluded by R2CCL_NICS") in selection.left_out


def test_what_is_not_named_is_left_out_for_that_reason():
    assert LeftOut("eth1", "not named by R2CCL_NICS") in select(HOST, parse_selector("eth0")).left_out


@pytest.mark.parametrize("text", ["eth7", "^eth7", "10.0.0.99", "eth0,eth7", "ETH0"])
def test_an_unknown_nic_is_refused_with_the_list_of_what_exists(text):
    with pytest.raises(ConfigurationError, match=r"There are: lo \(127.0.0.1; loopback\), eth0 \(10.0.0.1\), eth1"):
        names(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("eth0,^eth1", "either"),
        ("^", "either"),
        ("eth0,eth0", "names eth0 .* twice"),
        ("eth0,10.0.0.1", "names eth0 .* twice"),
        ("^eth0,^eth1,^eth10,^lo", "no NIC is usable"),
    ],
)
def test_a_contradictory_selector_is_refused(text, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        names(text)


def test_a_named_nic_without_an_address_is_refused():
    with pytest.raises(ConfigurationError, match="eth2 has no IPv4 address"):
        names("eth2", (*HOST, Interface("eth2", ())))


def test_a_host_without_any_interface_is_refused():
    with pytest.raises(ConfigurationError, match="no interface at all"):
        names("", ())


# Spares.


def test_spares_are_marked_among_the_chosen_and_added_to_them():
    nics = select(HOST, parse_selector("eth0,eth1"), "eth1,10.0.10.1").nics
    assert [(nic.name, nic.spare) for nic in nics] == [("eth0", False), ("eth1", True), ("eth10", True)]
    nics = select(HOST, parse_selector(""), "eth0").nics
    assert [(nic.name, nic.spare) for nic in nics] == [("eth0", True), ("eth1", False), ("eth10", False)]


@pytest.mark.parametrize(
    ("text", "spares", "sentence"),
    [
        ("eth0", "eth0", "all NICs are spares"),
        ("^eth1", "eth1", "leaves out eth1, a spare"),
        ("", "eth7", "R2CCL_SPARE_NICS: there is no NIC 'eth7'"),
        ("", "^eth1", r"\^ means nothing there"),
    ],
)
def test_impossible_spares_are_refused(text, spares, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        names(text, spares=spares)


def test_a_loopback_address_can_be_a_spare():
    nics = select((LO,), parse_selector("127.0.1.1,127.0.2.1"), "127.0.2.1", rendezvous_is_loopback=True).nics
    assert [(nic.endpoint.host, nic.spare) for nic in nics] == [("127.0.1.1", False), ("127.0.2.1", True)]


# Loopback.


def test_a_rendezvous_on_loopback_makes_loopback_the_nic():
    selection = select(HOST, parse_selector(""), rendezvous_is_loopback=True)
    assert [nic.endpoint.host for nic in selection.nics] == ["127.0.0.1"]
    assert LeftOut("eth0", "the rendezvous is on loopback") in selection.left_out


def test_a_rendezvous_on_loopback_takes_named_nics_all_the_same():
    assert names("eth0,eth1", rendezvous_is_loopback=True) == ["eth0", "eth1"]


def test_loopback_is_used_when_there_is_nothing_else():
    assert hosts("", (LO, Interface("eth0", ("10.0.0.1",), up=False))) == ["127.0.0.1"]
    assert hosts("127.0.1.1", (LO,)) == ["127.0.1.1"]


def test_several_loopback_addresses_stand_in_for_nics():
    assert hosts("127.0.1.3,127.0.2.3", rendezvous_is_loopback=True) == ["127.0.1.3", "127.0.2.3"]
    assert names("127.0.1.3,127.0.2.3", rendezvous_is_loopback=True) == ["lo", "lo"]


def test_one_loopback_address_may_come_twice_where_there_is_no_other():
    single = dataclasses.replace(LO, whole_loopback_network=False)
    assert hosts("127.0.0.1,127.0.0.1", (single,), rendezvous_is_loopback=True) == ["127.0.0.1"] * 2
    with pytest.raises(ConfigurationError, match=r"no NIC '127\.0\.1\.1'"):
        hosts("127.0.1.1", (single,), rendezvous_is_loopback=True)


@pytest.mark.parametrize("text", ["lo", "127.0.0.1", "127.0.1.3", "eth0,127.0.1.3"])
def test_loopback_is_refused_when_the_rendezvous_is_elsewhere(text):
    with pytest.raises(ConfigurationError, match="is a loopback address, but the rendezvous is not"):
        names(text)


@pytest.mark.parametrize("rendezvous_is_loopback", [True, False])
def test_a_link_local_address_is_refused_even_when_named(rendezvous_is_loopback):
    with pytest.raises(ConfigurationError, match="link-local"):
        names("eth2", (*HOST, Interface("eth2", ("169.254.2.2",))), rendezvous_is_loopback=rendezvous_is_loopback)


# What the user told others already.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eth1", ["eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("=eth1,eth0", ["eth1", "eth0"]),
        ("eth0,eth", ["eth0", "eth1", "eth10"]),
        ("^eth1", ["eth0"]),
        ("^=eth1", ["eth0", "eth10"]),
        ("^docker,veth", ["eth0", "eth1", "eth10"]),
    ],
)
def test_nccls_grammar_is_understood(text, expected):
    assert [nic.name for nic in select(HOST, parse_nccl_selector(text)).nics] == expected


@pytest.mark.parametrize(("text", "sentence"), [("ib", "matches no NIC"), ("=ib0", "there is no NIC 'ib0'")])
def test_an_nccl_setting_that_matches_nothing_is_refused_with_the_list(text, sentence):
    with pytest.raises(ConfigurationError, match=f"NCCL_SOCKET_IFNAME.*{sentence}.*There are"):
        select(HOST, parse_nccl_selector(text))


def test_our_setting_goes_before_nccls_and_nccls_before_gloos():
    both = {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}
    assert [nic.name for nic in select(HOST, choose_selector("eth0", both)).nics] == ["eth0"]
    assert [nic.name for nic in select(HOST, choose_selector("", both)).nics] == ["eth1", "eth10"]
    del both["NCCL_SOCKET_IFNAME"]
    assert [nic.name for nic in select(HOST, choose_selector("", both)).nics] == ["eth1"]
    assert len(select(HOST, choose_selector("", {})).nics) == 3


# This machine.


def test_this_machine_has_a_loopback_interface():
    (loopback,) = (interface for interface in discover() if "127.0.0.1" in interface.addresses)
    assert loopback.loopback
    assert loopback.up
    assert loopback.whole_loopback_network == (sys.platform == "linux")


def test_what_is_honoured_chosen_and_left_out_is_logged(caplog):
    caplog.set_level(logging.INFO)
    (loopback,) = (interface.name for interface in discover() if "127.0.0.1" in interface.addresses)
    environ = {"GLOO_SOCKET_IFNAME": loopback}
    (nic,) = find_nics("", "", rendezvous_is_loopback=True, environ=environ).nics
    assert nic.endpoint == Endpoint("inet", "127.0.0.1", 0)
    assert f"R2CCL_NICS is not set; going by GLOO_SOCKET_IFNAME={loopback}" in caplog.text
    assert f"nic=0 name={loopback} address=127.0.0.1" in caplog.text


def test_a_system_without_netlink_goes_by_names(monkeypatch):
    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("r2ccl.transport.nics.read_links", refuse)
    assert any("127.0.0.1" in interface.addresses and not interface.kind for interface in discover())
