"""What ``connect`` refuses before it opens anything, and what it does on a job of one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import r2ccl
from r2ccl.bootstrap import refuse_open_listeners
from r2ccl.config import Settings
from r2ccl.rendezvous.launch import Placement
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.link_statistics import NicErrors
from r2ccl.transport.link_traffic import NicTraffic

LOOPBACK = Nic(0, "lo", Endpoint("inet", "127.0.1.1", 0))
ETHERNET = Nic(1, "eth0", Endpoint("inet", "192.0.2.7", 0))


def placement(size: int) -> Placement:
    return Placement(0, size, None, "127.0.0.1", 29500, "arguments")


def test_without_a_secret_a_nic_beyond_loopback_is_refused_and_the_error_says_the_way_out():
    with pytest.raises(r2ccl.ConfigurationError, match=r"eth0 \(192\.0\.2\.7\).*R2CCL_SECRET.*R2CCL_INSECURE"):
        refuse_open_listeners(placement(2), Settings(), (LOOPBACK, ETHERNET), b"")


@pytest.mark.parametrize(
    ("size", "settings", "nics", "secret"),
    [
        (2, Settings(), (LOOPBACK,), b""),
        (2, Settings(), (ETHERNET,), b"secret"),
        (2, Settings(insecure=True), (ETHERNET,), b""),
        (1, Settings(), (ETHERNET,), b""),
    ],
    ids=["loopback", "secret", "insecure", "alone"],
)
def test_otherwise_nothing_is_refused(size, settings, nics, secret):
    refuse_open_listeners(placement(size), settings, nics, secret)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0, "size": 2, "progress": "warp"}, "progress='warp'"),
        ({"rank": 0, "size": 2, "chunk_byte": 1}, "did you mean 'chunk_bytes'"),
        ({"rank": 2, "size": 2, "rendezvous": "tcp://127.0.0.1:1"}, "rank 2 of 2 is impossible"),
        ({"rank": 0, "size": 2, "rendezvous": "carrier pigeon"}, "tcp://"),
        ({"rank": 0, "size": 2, "rendezvous": 29500}, "tcp://"),
        ({"rank": "0", "size": 2}, "rank='0' must be an int"),
        ({"rank": 0, "size": 1, "nics": ["lo"]}, "nics must be str, not list"),
        ({"rank": 0, "size": 1, "secret": b"x"}, "secret must be str, not bytes"),
        ({"rank": 0, "size": 1, "timeout": "5"}, "connect_timeout_s must be float, not str"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(r2ccl.ConfigurationError, match=message):
        r2ccl.connect(**arguments)


def test_a_job_of_one_needs_nobody():
    async def scenario() -> None:
        async with r2ccl.connect(rank=0, size=1) as comm:
            x = np.arange(5)
            assert await comm.all_reduce(x) is x
            assert x.tolist() == [0, 1, 2, 3, 4]
            await comm.broadcast(x, 0)
            await comm.barrier()
        with pytest.raises(r2ccl.CommunicatorClosed):
            comm.barrier()

    asyncio.run(scenario())


def test_a_job_asks_the_kernel_for_the_errors_and_bytes_of_its_interfaces(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    counted: list[int] = []

    def new_bytes(_traffic: NicTraffic, nic: Nic) -> None:
        counted.append(nic.index)

    def new_errors(_errors: NicErrors, nic: Nic) -> int:
        asked.append(nic.index)
        return 7

    monkeypatch.setattr(NicErrors, "new_errors", new_errors)
    monkeypatch.setattr(NicTraffic, "new_bytes", new_bytes)

    async def main():
        async with r2ccl.connect(rank=0, size=1, nics="lo") as comm:
            assert comm._runtime.shared.new_errors(LOOPBACK) == 7
            comm._runtime.evidence.look(0.0)

    asyncio.run(main())
    assert asked == [0, 0]
    assert counted == [0]
