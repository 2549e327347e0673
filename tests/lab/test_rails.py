"""What the wires carry, and how fast."""

from __future__ import annotations

import socket
import threading

import pytest

from r2ccl.errors import UsageError
from r2ccl.lab import Lab, rails
from tests.lab import wires

pytestmark = pytest.mark.namespaces


def test_every_pair_of_hosts_is_connected_on_every_rail():
    with Lab(hosts=3, nics=2) as lab:
        pairs = [(source, target) for source in range(3) for target in range(3) if source != target]
        assert all(wires.carries(lab, source, target, nic) for source, target in pairs for nic in range(2))


def test_a_rail_does_not_reach_the_addresses_of_another(lab: Lab):
    """Not even when the sender insists: the far host doesn't answer on one NIC for the address of another."""
    with wires.datagram_socket(lab, 0, 0) as sender, wires.datagram_socket(lab, 1, 1) as receiver:
        lab.call(0, sender.setsockopt, socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"nic0")
        receiver.settimeout(0.15)
        sender.sendto(b"astray", receiver.getsockname())
        with pytest.raises(TimeoutError):
            receiver.recv(100)


def test_a_host_talks_to_itself(lab: Lab):
    with lab.call(0, socket.create_server, ("127.0.0.1", 0)) as listener:
        lab.call(0, socket.create_connection, listener.getsockname(), 1.0).close()


@pytest.mark.parametrize("rate_mbit_s", [200, 500])
def test_a_stream_fills_the_rate_and_no_more(rate_mbit_s: int):
    with Lab(hosts=2, nics=1, rate_mbit_s=rate_mbit_s) as lab:
        reached = wires.rate_mbit_s(*wires.stream(lab, 0, 1, 0))
    assert 0.90 * rate_mbit_s <= reached <= 1.02 * rate_mbit_s


def test_two_nics_carry_twice_as_much(lab: Lab):
    reached: dict[int, float] = {}

    def measure(nic: int) -> None:
        reached[nic] = wires.rate_mbit_s(*wires.stream(lab, 0, 1, nic))

    threads = [threading.Thread(target=measure, args=(nic,)) for nic in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.90 * 400 <= sum(reached.values()) <= 1.02 * 400


def test_what_a_host_receives_from_several_is_limited_too():
    with Lab(hosts=3, nics=1, rate_mbit_s=200) as lab:
        reached: dict[int, float] = {}
        streams = {source: wires.stream(lab, source, 0, 0) for source in (1, 2)}
        together = threading.Barrier(len(streams))

        def measure(source: int) -> None:
            together.wait()
            reached[source] = wires.rate_mbit_s(*streams[source])

        threads = [threading.Thread(target=measure, args=(source,)) for source in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(reached.values()) <= 1.05 * 200


def test_the_rate_of_one_nic_can_be_changed(lab: Lab):
    lab.set_rate(1, 0, 50)
    changed = wires.rate_mbit_s(*wires.stream(lab, 0, 1, 0))
    unchanged = wires.rate_mbit_s(*wires.stream(lab, 0, 1, 1))
    assert 0.90 * 50 <= changed <= 1.02 * 50
    assert 0.90 * 200 <= unchanged <= 1.02 * 200


def test_a_lab_without_hosts_is_refused():
    with pytest.raises(UsageError, match="1 to 250 hosts"):
        Lab(hosts=0)


def test_a_rate_that_falls_under_a_stream_leaves_it_running():
    """What stood in the queue is larger than the burst of the lower rate, and would have stood there for good."""
    with Lab(hosts=2, nics=1, rate_mbit_s=500) as lab:
        sender, receiver = wires.stream(lab, 0, 1, 0)
        threading.Timer(0.6, lab.set_rate, (0, 0, 50)).start()
        carried = wires.rate_mbit_s(sender, receiver, 2.0)
    # 0.4 s of 500 Mbit/s, and the rest at 50.
    assert carried > 1.15 * 500 * 0.4 / 2.0


def test_a_burst_is_never_smaller_than_a_packet_that_the_queue_may_hold():
    assert rails.bucket(50)["burst"] == rails.BURST_BYTES_MIN
    assert rails.bucket(50, burst_before=125_000)["burst"] == rails.PACKET_BYTES_MAX
    assert rails.bucket(50, burst_before=20_000)["burst"] == 20_000
    assert rails.bucket(2000, burst_before=20_000)["burst"] == 500_000
