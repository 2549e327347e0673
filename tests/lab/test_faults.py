"""What a cut does, and what the host can see of it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time

import pytest
from pyroute2 import IPRoute

from r2ccl.errors import UsageError
from r2ccl.lab import Lab
from r2ccl.protocol.health import Health, LinkHealth
from r2ccl.transport.interface import PathSample
from r2ccl.transport.tcp_info import sample
from tests.lab import wires

pytestmark = pytest.mark.namespaces

SOON_S = 0.15


def carrier_file(lab: Lab, host: int, nic: int) -> str:
    """What a program on the host reads."""
    shown = lab.popen(host, ["cat", f"/sys/class/net/nic{nic}/carrier"], stdout=subprocess.PIPE, text=True)
    out, _ = shown.communicate()
    return str(out).strip()


def addresses(lab: Lab, host: int, nic: int) -> list[str]:
    """IPv4 addresses of a NIC."""

    def inside() -> list[str]:
        with IPRoute() as netlink:
            (index,) = netlink.link_lookup(ifname=f"nic{nic}")
            return [address.get("IFA_ADDRESS") for address in netlink.get_addr(family=socket.AF_INET, index=index)]

    return lab.call(host, inside)


def test_a_link_down_takes_the_carrier_of_that_nic_only(lab: Lab):
    lab.link_down(0, 0)
    assert not lab.has_carrier(0, 0)
    assert carrier_file(lab, 0, 0) == "0"
    assert lab.has_carrier(0, 1)
    assert lab.has_carrier(1, 0)
    assert carrier_file(lab, 0, 1) == "1"


def test_nothing_passes_a_link_that_is_down(lab: Lab):
    lab.link_down(0, 0)
    assert not wires.carries(lab, 0, 1, 0, SOON_S)
    assert not wires.carries(lab, 1, 0, 0, SOON_S)
    assert wires.carries(lab, 0, 1, 1)


def test_a_link_that_comes_up_again_carries_as_before(lab: Lab):
    lab.link_down(0, 0)
    lab.link_up(0, 0)
    assert lab.has_carrier(0, 0)
    assert wires.carries(lab, 0, 1, 0)
    assert wires.carries(lab, 1, 0, 0)
    assert 0.90 * 200 <= wires.rate_mbit_s(*wires.stream(lab, 0, 1, 0)) <= 1.02 * 200


def test_a_silent_drop_keeps_the_carrier_and_lets_nothing_through(lab: Lab):
    assert wires.carries(lab, 0, 1, 0)
    lab.silent_drop(0, 0)
    assert lab.has_carrier(0, 0)
    assert carrier_file(lab, 0, 0) == "1"
    assert not wires.carries(lab, 0, 1, 0, SOON_S)
    assert not wires.carries(lab, 1, 0, 0, SOON_S)
    assert wires.carries(lab, 0, 1, 1)


def test_a_silent_drop_freezes_a_stream_and_its_end_lets_it_go_on(lab: Lab):
    sender, receiver = wires.stream(lab, 0, 1, 0)
    with sender, receiver:
        lab.silent_drop(1, 0)
        sender.sendall(b"into the void")
        receiver.settimeout(SOON_S)
        with pytest.raises(TimeoutError):
            receiver.recv(100)
        lab.undrop(1, 0)
        receiver.settimeout(wires.PATIENCE_S)
        assert receiver.recv(100) == b"into the void"


def test_a_silent_drop_outlasts_a_link_that_goes_down_and_up(lab: Lab):
    lab.silent_drop(0, 0)
    lab.link_down(0, 0)
    lab.link_up(0, 0)
    assert lab.has_carrier(0, 0)
    assert not wires.carries(lab, 0, 1, 0, SOON_S)
    lab.undrop(0, 0)
    assert wires.carries(lab, 0, 1, 0)


def test_a_cut_says_when_it_was_made(lab: Lab):
    moments = [lab.link_down(0, 0), lab.link_up(0, 0), lab.silent_drop(0, 0), lab.undrop(0, 0)]
    assert moments == sorted(moments)


def test_a_near_end_that_is_down_carries_nothing_until_it_is_up_again(lab: Lab):
    lab.near_end_down(0, 0)
    assert not lab.has_carrier(0, 0)
    assert wires.carries(lab, 0, 1, 1)
    lab.near_end_up(0, 0)
    assert lab.has_carrier(0, 0)
    assert wires.carries(lab, 0, 1, 0)


def test_a_deaf_nic_is_heard_and_hears_nothing(lab: Lab):
    # Once, so that neither has to ask for the other's hardware address.
    assert wires.carries(lab, 0, 1, 0)
    lab.deafen(0, 0)
    assert wires.carries(lab, 0, 1, 0)
    assert not wires.carries(lab, 1, 0, 0, SOON_S)
    assert wires.carries(lab, 1, 0, 1)
    lab.hear(0, 0)
    assert wires.carries(lab, 1, 0, 0)


def test_a_nic_loses_the_share_of_packets_that_it_is_told_to(lab: Lab):
    if shutil.which("nft") is None:
        with pytest.raises(UsageError, match="nftables"):
            lab.lose(0, 0, 0.5)
        return
    assert wires.carries(lab, 0, 1, 0)
    lab.lose(0, 0, 0.5)
    with wires.datagram_socket(lab, 0, 0) as sender, wires.datagram_socket(lab, 1, 0) as receiver:
        for number in range(200):
            sender.sendto(number.to_bytes(2, "big"), receiver.getsockname())
        receiver.settimeout(SOON_S)
        arrived = 0
        try:
            while receiver.recv(10):
                arrived += 1
        except TimeoutError:
            assert 40 < arrived < 160  # 100 are to be expected; six standard deviations
    lab.unlose(0, 0)
    assert all(wires.carries(lab, 0, 1, 0) for _ in range(20))


def test_the_kernel_tells_what_it_takes_for_lost_and_no_more_when_that_has_arrived(lab: Lab):
    sender, receiver = wires.stream(lab, 0, 1, 0)
    with sender, receiver:
        lab.silent_drop(1, 0)
        sender.sendall(bytes(100))
        until_s = time.monotonic() + 60
        while not (told := sample(sender, 0)).missing_segments and time.monotonic() < until_s:
            assert told.in_flight_bytes > 0
            time.sleep(0.01)
        assert told.missing_segments == 1
        lab.undrop(1, 0)
        while (told := sample(sender, 0)).in_flight_bytes and time.monotonic() < until_s:
            time.sleep(0.01)
        assert (told.missing_segments, told.in_flight_bytes) == (0, 0)


def test_an_address_is_taken_and_given_back(lab: Lab):
    assert wires.carries(lab, 0, 1, 0)
    lab.take_address(0, 0)
    assert addresses(lab, 0, 0) == []
    lab.give_address(0, 0)
    assert addresses(lab, 0, 0) == [lab.address(0, 0)]
    assert wires.carries(lab, 0, 1, 0)


def test_the_kernel_tells_that_nobody_answers_whether_a_closed_window_is_open(lab: Lab):
    sender, receiver = wires.stream(lab, 0, 1, 0)
    with sender, receiver:
        sender.setblocking(False)
        full_s = time.monotonic()
        while time.monotonic() - full_s < 0.2:  # nobody reads: in the end all buffers are full
            try:
                sender.send(bytes(1 << 16))
                full_s = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        answered = 0
        judge, idle = LinkHealth(0.06, 0.5), PathSample(0, 0, 60.0, 0.0, True)
        asked_until_s = time.monotonic() + 60
        while answered < 2 and time.monotonic() < asked_until_s:
            told = sample(sender, 0)
            assert (told.in_flight_bytes, told.limited) == (0, True)
            assert told.unsent_bytes > 0
            assert not told.probing or told.silence_s > 0.1, "what was answered is not asked any more"
            # The far kernel ignores the second question, which comes too soon after the first.
            assert judge.judge(idle, told, time.monotonic()) is Health.GREEN
            if told.silence_s < 0.02:
                answered += 1
                time.sleep(0.05)
            time.sleep(0.001)
        assert answered == 2
        lab.silent_drop(1, 0)
        while not (told := sample(sender, 0)).probing and time.monotonic() < asked_until_s:
            time.sleep(0.01)
        time.sleep(0.1)
        told = sample(sender, 0)
        assert (told.probing, told.limited) == (True, True)
        assert told.silence_s > 0.1
        lab.undrop(1, 0)
