"""What passes between rails through a router, and how connections spread over equal ways."""

from __future__ import annotations

import socket

import pytest

from r2ccl.errors import UsageError
from r2ccl.lab import Lab
from tests.lab import wires

pytestmark = pytest.mark.namespaces


def reaches(lab: Lab, source: tuple[int, int], target: tuple[int, int], patience_s: float = wires.PATIENCE_S) -> bool:
    """Whether a connection stands between two NICs, by sockets that are bound to address and device."""

    def listen() -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, f"nic{target[1]}".encode())
        listener.bind((lab.address(*target), 0))
        listener.listen()
        return listener

    def dial(address: tuple[str, int]) -> bool:
        with socket.socket() as dialling:
            dialling.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, f"nic{source[1]}".encode())
            dialling.bind((lab.address(*source), 0))
            dialling.settimeout(patience_s)
            try:
                dialling.connect(address)
            except OSError:
                return False
            return True

    with lab.call(target[0], listen) as listener:
        return lab.call(source[0], dial, listener.getsockname())


def test_a_router_joins_every_nic_with_every_other():
    with Lab(hosts=3, nics=2, router=True) as lab:
        ends = [(host, nic) for host in range(3) for nic in range(2)]
        pairs = [(one, other) for one in ends for other in ends if one[0] != other[0]]
        assert [pair for pair in pairs if not reaches(lab, *pair)] == []


def test_across_rails_each_end_uses_the_nic_that_it_is_bound_to():
    """So that the loss of the others is no loss to this connection."""
    with Lab(hosts=2, nics=2, router=True) as lab:
        lab.link_down(0, 0)
        lab.link_down(1, 1)
        assert reaches(lab, (0, 1), (1, 0))
        assert reaches(lab, (1, 0), (0, 1))
        for dead in (((0, 0), (1, 0)), ((0, 1), (1, 1)), ((0, 0), (1, 1))):
            assert not reaches(lab, *dead, patience_s=0.3)


def test_a_nic_that_was_taken_down_has_its_routes_again_when_it_is_up():
    """The kernel drops them with the interface."""
    with Lab(hosts=2, nics=2, router=True) as lab:
        lab.near_end_down(0, 0)
        assert not reaches(lab, (0, 0), (1, 1), patience_s=0.3)
        lab.near_end_up(0, 0)
        assert reaches(lab, (0, 0), (1, 1))
        assert reaches(lab, (1, 1), (0, 0))
    with Lab(hosts=2, nics=1, ways=2) as lab:
        lab.near_end_down(0, 0)
        assert not reaches(lab, (0, 0), (1, 0), patience_s=0.3)
        lab.near_end_up(0, 0)
        assert reaches(lab, (0, 0), (1, 0))


def test_without_a_router_there_is_no_route_across_rails(lab: Lab):
    assert reaches(lab, (0, 1), (1, 1))
    assert not reaches(lab, (0, 0), (1, 1), patience_s=0.3)


def test_a_refusal_comes_back_across_rails():
    with Lab(hosts=2, nics=2, router=True) as lab:

        def dial() -> None:
            with socket.socket() as dialling:
                dialling.bind((lab.address(0, 1), 0))
                dialling.settimeout(wires.PATIENCE_S)
                dialling.connect((lab.address(1, 0), 9))

        with pytest.raises(ConnectionRefusedError):
            lab.call(0, dial)


def test_connections_spread_over_ways_by_their_ports_and_a_silent_one_drops_its_own():
    with Lab(hosts=2, nics=1, ways=2) as lab:
        assert all(reaches(lab, (0, 0), (1, 0)) for _ in range(12))
        before = lab.forwarded_bytes()
        assert all(reaches(lab, (0, 0), (1, 0)) for _ in range(12))
        assert all(late > early for early, late in zip(before, lab.forwarded_bytes(), strict=True))
        lab.silent_way(0)
        # The way back is chosen as freely as the way there: a quarter of all gets through.
        got_through = [reaches(lab, (0, 0), (1, 0), patience_s=0.1) for _ in range(40)]
        assert any(got_through)
        assert not all(got_through)
        lab.restore_way(0)
        assert all(reaches(lab, (0, 0), (1, 0)) for _ in range(12))


def test_ways_are_for_hosts_with_one_nic():
    for hosts, nics, ways, router in ((2, 2, 2, False), (2, 1, 2, True), (2, 1, 251, False), (61, 1, 2, False)):
        with pytest.raises(UsageError, match="ways lie between"):
            Lab(hosts, nics, ways=ways, router=router)
