"""Which NICs are announced several times, and as what."""

from __future__ import annotations

import pytest

from r2ccl.topology import Endpoint, Nic, device_label, lanes_over_device
from r2ccl.transport.nic_lanes import with_lanes


def nic(index: int, host: str = "", speed_mbit_s: int = 1000, spare: bool = False) -> Nic:
    endpoint = Endpoint("inet", host or f"10.0.{index}.1", 0)
    return Nic(index, "lo" if host.startswith("127.") else f"eth{index}", endpoint, speed_mbit_s, spare=spare)


def test_a_single_real_nic_has_two_lanes_with_half_the_speed_each() -> None:
    first, second = with_lanes([nic(0)], 0)
    assert (first.index, second.index) == (0, 1)
    assert (first.name, first.endpoint, first.speed_mbit_s) == (second.name, second.endpoint, second.speed_mbit_s)
    assert first.speed_mbit_s == 500
    assert device_label(first, [first, second]) == "eth0, lane 1 of 2"
    assert device_label(second, [first, second]) == "eth0, lane 2 of 2"


@pytest.mark.parametrize(
    "nics", [[nic(0, "127.0.0.1")], [nic(0), nic(1)], [nic(0), nic(1, spare=True)]], ids=["loopback", "two", "a spare"]
)
def test_otherwise_each_nic_has_one(nics: list[Nic]) -> None:
    assert with_lanes(nics, 0) == tuple(nics)
    assert [device_label(one, nics) for one in nics] == [one.name for one in nics]


def test_where_it_is_asked_for_all_nics_come_once_and_then_all_again() -> None:
    lanes = with_lanes([nic(0), nic(1, spare=True)], 3)
    assert [(lane.index, lane.name, lane.spare) for lane in lanes] == [
        (0, "eth0", False), (1, "eth1", True), (2, "eth0", False), (3, "eth1", True), (4, "eth0", False),
        (5, "eth1", True),
    ]  # fmt: skip
    assert [lane.speed_mbit_s for lane in lanes] == [333] * 6
    assert lanes_over_device(lanes[3], lanes) == [1, 3, 5]
    assert with_lanes([nic(0)], 1) == (nic(0),)
    assert len(with_lanes([nic(0, "127.0.0.1")], 2)) == 2


def test_an_unknown_speed_stays_unknown() -> None:
    assert [lane.speed_mbit_s for lane in with_lanes([nic(0, speed_mbit_s=0)], 0)] == [0, 0]
