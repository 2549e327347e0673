"""What a cut does, and what the host can see of it."""

from __future__ import annotations

import subprocess

import pytest

from r2ccl.lab import Lab
from tests.lab import wires

pytestmark = pytest.mark.namespaces

SOON_S = 0.15


def carrier_file(lab: Lab, host: int, nic: int) -> str:
    """What a program on the host reads."""
    shown = lab.popen(host, ["cat", f"/sys/class/net/nic{nic}/carrier"], stdout=subprocess.PIPE, text=True)
    out, _ = shown.communicate()
    return str(out).strip()


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
