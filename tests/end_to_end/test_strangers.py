"""Strangers come to the ports of a running job, in all manners: it goes on, with right bits, and says in few lines that
they were there."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest

from r2ccl.cli.launcher import loopback_nics
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Identity, Purpose, Reason, Target
from r2ccl.rendezvous.free_port import free_port
from r2ccl.transport.tcp import HALF_OPEN_MAX
from tests.end_to_end.ranks import PATIENCE_S, Ranks, RunningStream, loopback, wait_until
from tests.end_to_end.strangers import Address, connect, drip, flood, say, scan
from tests.strangers import SPEECHES

pytestmark = pytest.mark.end_to_end

#: 256 KiB of float32, less the vote.
ELEMENTS = (1 << 16) - 1
#: A stranger's own address.
STRANGE = "127.9.9.9"


def listeners(ranks: Ranks) -> list[Address]:
    """Of all ranks and NICs."""
    places = [nic["address"].rpartition(":") for stats in ranks.ask("stats") for nic in stats["nics"].values()]
    return [(host, int(port)) for host, _, port in places]


def refused(ranks: Ranks, reason: str) -> int:
    """By all ranks together."""
    return sum(stats["counters"]["strangers"].get(reason, 0) for stats in ranks.ask("stats"))


def refused_in_all(ranks: Ranks) -> int:
    """For whatever reason."""
    return sum(sum(stats["counters"]["strangers"].values()) for stats in ranks.ask("stats"))


def told(ranks: Ranks, rank: int) -> list[str]:
    """What a rank logged of strangers."""
    return re.findall(r"stranger refused=.*", ranks[rank].said())


def guess(place: Address) -> HandshakeRefused:
    """Speaks our protocol perfectly, knows job, rank and NIC, and has guessed the secret."""
    identity = Identity("another job", b"guessed", 1, 1, "0")
    machine = Dialler(identity, 0, Target(0, 0), Purpose.BULK, b"n" * 32)
    with connect(place, STRANGE) as sock:
        sock.sendall(machine.start())
        try:
            machine.receive_data(sock.recv(4096))
        except HandshakeRefused as caught:
            return caught
    raise AssertionError("somebody who has guessed the secret was not refused")


def test_whoever_looks_in_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    with loopback(3, tmp_path, nics=2, env={"R2CCL_DEBUG": "INFO"}) as ranks:
        ranks.connect()
        before = refused_in_all(ranks)
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        places = listeners(ranks)
        assert len(places) == 6
        visits = 0
        for place in places:
            for reset in (False, True):
                scan(place, STRANGE, reset)
            for name, speech in SPEECHES.items():
                if len(speech) > 60:
                    assert say(place, STRANGE, speech) == b"", name
                    visits += 1
            assert guess(place).reason is Reason.JOB
            visits += 3
        assert drip(places[0], STRANGE, 1.0, PATIENCE_S) > 1.0
        visits += 1
        wait_until(lambda: refused_in_all(ranks) >= before + visits, "all strangers being counted")
        assert refused(ranks, "slow") == 1
        assert refused(ranks, "job") == 6
        assert refused(ranks, "left") >= 12
        stream.go_on(3)
        assert stream.stop() > 6
        assert ranks.failovers() == 0
        ranks.end_well()
        for rank in range(3):
            # One line a reason, and one with the number of the others; the run is short.
            assert 2 <= len(told(ranks, rank)) <= 12
            assert "Traceback" not in ranks[rank].said()


@pytest.mark.parametrize("sources", [[STRANGE], ["127.9.9.9", "127.9.9.8", "127.0.0.1"]], ids=["one", "several"])
def test_a_flood_of_half_open_connections_lets_a_lost_link_come_back_and_the_job_goes_on(
    sources: list[str], tmp_path: Path
) -> None:
    env = {"R2CCL_QUIET": "0.1", "R2CCL_STABLE": "0.5"}
    with loopback(3, tmp_path, nics=2, env=env) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, ELEMENTS)
        stream.go_on(3)
        with flood(listeners(ranks), sources, kept=6000) as crowd:
            crowd.wait_for(3000)
            # A NIC goes and comes back meanwhile: ranks dial one another through the crowd.
            ranks[1].ask("carrier", nic=0, up=False)
            stream.go_on(2)
            ranks[1].ask("carrier", nic=0, up=True)
            back_s = wait_until(lambda: links_of(ranks, 1, 0) == {"up"}, "the links of the NIC being back")
            crowd.wait_for(5000)
            stream.go_on(3)
            held = [usage["descriptors"] for usage in ranks.ask("usage")]
            made = crowd.made
        print(f"{made} connections; the NIC's links were back after {back_s:.1f} s; {max(held)} descriptors at most")
        assert max(held) < 2 * HALF_OPEN_MAX + 200
        assert refused(ranks, "crowded") > 1000
        assert stream.stop() > 8
        ranks.end_well()
        for rank in range(3):
            assert len(told(ranks, rank)) < 25
            assert "Traceback" not in ranks[rank].said()


def links_of(ranks: Ranks, rank: int, nic: int) -> set[str]:
    """The states of the links of a NIC along its rail."""
    links = ranks[rank].ask("stats")["links"]
    return {links[name]["state"] for name in links if name.startswith(f"nic{nic}->") and name.endswith(f".nic{nic}")}


def test_a_rank_comes_to_a_store_that_is_flooded(tmp_path: Path) -> None:
    port = free_port()
    with loopback(2, tmp_path, env={"MASTER_PORT": str(port)}) as ranks:
        first = ranks[0].tell("connect")
        with flood([("127.0.0.1", port)], [STRANGE, loopback_nics(1, 1)[0]], kept=6000) as crowd:
            crowd.wait_for(2000)
            began_s = time.monotonic()
            ranks[1].ask("connect")
            first.value()
            print(f"met {time.monotonic() - began_s:.1f} s after the second rank came, in {crowd.made} connections")
        assert ranks.ask("collectives") == [0, 0]
        assert refused(ranks, "crowded") > 500
        ranks.end_well()
    with contextlib.suppress(ConnectionRefusedError), connect(("127.0.0.1", port), STRANGE):
        raise AssertionError("the store is still there")
