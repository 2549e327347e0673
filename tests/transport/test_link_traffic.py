"""What went through an interface since the last look: the arithmetic, and the kernel itself."""

from __future__ import annotations

import dataclasses
import socket
import sys

import pytest

from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.link_statistics import parse_row
from r2ccl.transport.link_traffic import NicTraffic, read_bytes
from tests.transport.test_link_statistics import STATS_LINK_64, answer, attribute, row

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")
ONE, OTHER = (Nic(index, f"eth{index}", Endpoint("inet", "10.0.0.1", 1)) for index in range(2))


class Counted:
    """Interfaces with names, numbers and counters."""

    def __init__(self) -> None:
        self.numbers = {"eth0": 3, "eth1": 4}
        self.bytes = {3: (100, 200), 4: (0, 0)}
        self.traffic = NicTraffic(self.bytes.get, lambda name: self.numbers.get(name, 0))


def test_the_first_look_tells_nothing_and_later_ones_what_came_since_for_each_nic() -> None:
    counted = Counted()
    assert [counted.traffic.new_bytes(ONE), counted.traffic.new_bytes(OTHER)] == [None, None]
    counted.bytes.update({3: (105, 260), 4: (7, 0)})
    assert [counted.traffic.new_bytes(ONE), counted.traffic.new_bytes(OTHER)] == [(5, 60), (7, 0)]
    assert counted.traffic.new_bytes(ONE) == (0, 0)


@pytest.mark.parametrize("counters", [(99, 200), (100, 199)])
def test_counters_that_began_anew_are_not_compared(counters: tuple[int, int]) -> None:
    counted = Counted()
    counted.traffic.new_bytes(ONE)
    counted.bytes[3] = counters
    assert counted.traffic.new_bytes(ONE) is None
    assert counted.traffic.new_bytes(ONE) == (0, 0)


def test_another_interface_and_one_that_was_gone_begin_anew() -> None:
    counted = Counted()
    counted.traffic.new_bytes(ONE)
    counted.bytes[9] = (1000, 1000)
    counted.numbers["eth0"] = 9
    assert counted.traffic.new_bytes(ONE) is None
    del counted.bytes[9]
    assert counted.traffic.new_bytes(ONE) is None
    counted.bytes[9] = (2000, 2000)
    assert counted.traffic.new_bytes(ONE) is None
    assert counted.traffic.new_bytes(ONE) == (0, 0)


def test_the_bytes_are_at_their_places_in_the_kernels_answer() -> None:
    """A row of the test of errors has 3000 bytes received, and 4000 sent."""
    found = parse_row(answer(attribute(STATS_LINK_64, row({}))))
    assert found is not None
    assert found[2:4] == (3000, 4000)


@linux_only
def test_the_kernel_counts_what_goes_over_the_loopback() -> None:
    traffic, loopback = NicTraffic(), Nic(0, "lo", Endpoint("inet", "127.0.0.1", 1))
    assert traffic.new_bytes(loopback) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        for _ in range(10):
            one.sendto(bytes(5000), one.getsockname())
            one.recv(5000)
    seen = traffic.new_bytes(loopback)
    assert seen is not None
    assert min(seen) >= 50_000
    assert traffic.new_bytes(dataclasses.replace(loopback, name="no such one")) is None


@linux_only
def test_the_kernel_has_sent_before_received_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2ccl.transport.link_traffic.read_row", lambda _index: (1, 2, 3000, 4000))
    assert read_bytes(1) == (4000, 3000)
    monkeypatch.setattr("r2ccl.transport.link_traffic.read_row", lambda _index: None)
    assert read_bytes(1) is None
