"""What the system tells of interfaces, here and in made-up directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2ccl.transport.nic_facts import (
    NicFacts,
    answers_for_itself,
    driver_and_bus_address,
    numa_node,
    prefix_length,
    read_nic_facts,
)


def put(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_loopback_is_told_with_its_network() -> None:
    lo = read_nic_facts()["lo"]
    assert lo.state == "up"
    assert lo.prefix_length("127.0.0.1") == 8
    assert lo.prefix_length("10.0.0.1") == 0
    assert lo.mtu_bytes > 1500
    assert (lo.driver, lo.bus_address, lo.numa_node) == ("", "", None)


@pytest.mark.parametrize(
    ("netmask", "length"), [("255.255.255.0", 24), ("255.255.254.0", 23), ("255.255.255.255", 32), (None, 0), ("", 0)]
)
def test_a_netmask_is_a_length(netmask: str | None, length: int) -> None:
    assert prefix_length(netmask) == length


@pytest.mark.parametrize(
    ("switched_on", "has_carrier", "state"),
    [(True, True, "up"), (True, False, "no carrier"), (False, False, "down"), (False, True, "down")],
)
def test_the_state_is_a_word(switched_on: bool, has_carrier: bool, state: str) -> None:
    assert NicFacts("eth0", switched_on, has_carrier).state == state


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("x", None)])
def test_the_numa_node_is_that_of_the_bus_address(text: str, node: int | None, tmp_path: Path) -> None:
    put(tmp_path, "sys/bus/pci/devices/0000:3b:00.0/numa_node", text)
    assert numa_node("0000:3b:00.0", tmp_path) == node
    assert numa_node("0000:5e:00.0", tmp_path) is None
    assert numa_node("", tmp_path) is None


@pytest.mark.parametrize(
    ("everywhere", "here", "alone"),
    [
        ((1, 2), (0, 0), True),
        ((0, 0), (1, 2), True),
        ((0, 2), (1, 0), True),
        ((1, 0), (0, 0), False),
        ((0, 0), (0, 2), False),
    ],
)
def test_the_larger_of_two_arp_settings_holds(
    everywhere: tuple[int, int], here: tuple[int, int], alone: bool, tmp_path: Path
) -> None:
    for where, (ignore, announce) in (("all", everywhere), ("eth0", here)):
        put(tmp_path, f"proc/sys/net/ipv4/conf/{where}/arp_ignore", str(ignore))
        put(tmp_path, f"proc/sys/net/ipv4/conf/{where}/arp_announce", str(announce))
    assert answers_for_itself("eth0", tmp_path) is alone


def test_a_system_that_does_not_tell_of_arp_is_not_trusted_with_it(tmp_path: Path) -> None:
    assert not answers_for_itself("eth0", tmp_path)


def test_an_interface_that_is_not_there_has_no_driver() -> None:
    assert driver_and_bus_address("no-such-nic") == ("", "")
    assert driver_and_bus_address("a-name-that-no-interface-can-have") == ("", "")
