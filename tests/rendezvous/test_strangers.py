"""Whom the store does not want, and peers on other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Purpose, Target
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meet import meet
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.topology import pack_member
from tests.rendezvous.parties import (
    PATIENCE_S,
    attend,
    attend_when_the_first_is_gone,
    free_ports,
    invitation,
    member,
    outcomes,
    serving,
    stranger,
)


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    return free_ports(request.node.name)


# Strangers at the store.


async def test_half_open_connections_are_bounded_and_the_oldest_are_sent_away(port, monkeypatch):
    monkeypatch.setattr("r2ccl.rendezvous.store._HALF_OPEN_BASE", 16)
    async with serving(port, size=2):
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * 2 + 16 + 3)]
        for reader, _ in crowd[:3]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        # A right Hello is heard all the same, and nobody has to go for it.
        rank = await asyncio.wait_for(stranger(invitation(1, 2, port)), PATIENCE_S)
        assert not crowd[4][0].at_eof()
        for _, writer in crowd:
            writer.close()
        rank.writer.close()


async def test_who_says_nothing_is_sent_away(port, monkeypatch):
    monkeypatch.setattr("r2ccl.rendezvous.store.HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving(port, size=2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        writer.close()


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00", b"\xff" * 5000])
async def test_garbage_is_hung_up_on_and_the_meeting_goes_on(port, nonsense):
    async with serving(port, size=2) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        writer.close()
        books = await asyncio.gather(host, attend(invitation(1, 2, port)))
    assert books[0] == books[1]


FORGED = {
    "a body that is no msgpack": b"\0\0\0\1\xc1",
    "a length over the limit": b"\xff\xff\xff\xff",
    "an unknown request": b"\0\0\0\1\x90",
    "connected before announced": messages.pack(messages.Connected()),
    "a member that is none": messages.pack(messages.Announce(3, b"\xc1")),
    "a member of another rank": messages.pack(messages.Announce(3, pack_member(member(2)))),
    "a member of another incarnation": messages.pack(messages.Announce(3, pack_member(member(1, 5)))),
    "announced twice": 2 * messages.pack(messages.Announce(3, pack_member(member(1)))),
    "connected before the book": messages.pack(messages.Announce(3, pack_member(member(1))))
    + messages.pack(messages.Connected()),
}


@pytest.mark.parametrize("case", FORGED)
async def test_a_proven_rank_that_talks_nonsense_is_hung_up_on_and_the_meeting_goes_on(port, case):
    async with serving(port, size=3) as host:
        liar = await stranger(invitation(1, 3, port))
        liar.writer.write(FORGED[case])
        assert all(isinstance(answer, messages.Waiting) for answer in await liar.hear_all())
        books = await asyncio.gather(
            host, attend_when_the_first_is_gone(invitation(1, 3, port)), attend(invitation(2, 3, port))
        )
    assert books[0] == books[1] == books[2]


async def test_a_rank_beyond_the_size_is_refused_and_the_meeting_goes_on(port):
    async with serving(port, size=2) as host:
        with pytest.raises(RendezvousError, match="rank 7 at 127.0.0.1 is impossible in a job of 2 ranks"):
            await attend(invitation(7, 2, port))
        books = await asyncio.gather(host, attend(invitation(1, 2, port)))
    assert books[0] == books[1]


async def test_a_purpose_other_than_the_store_is_not_served(port):
    async with serving(port, size=2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        machine = Dialler(invitation(1, 2, port).identity, 0, Target(0, 0), Purpose.BULK, b"n" * 32)
        writer.write(machine.start())
        with pytest.raises(HandshakeRefused, match="purpose"):
            machine.receive_data(await reader.read(4096))
        writer.close()


# Peers on other hosts, which a fixture pretends.


@pytest.fixture
def all_peers_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2ccl.rendezvous.store.is_same_host", lambda transport: False)
    monkeypatch.setattr("r2ccl.rendezvous.search.is_same_host", lambda transport: False)


@pytest.mark.usefixtures("all_peers_are_elsewhere")
async def test_without_a_secret_a_rank_does_not_talk_to_another_host_and_says_the_way_out(port):
    async with serving(port, size=2, secret=b""):
        with pytest.raises(AuthenticationError, match="R2CCL_INSECURE=1"):
            await attend(invitation(1, 2, port, secret=b""))


@pytest.mark.usefixtures("all_peers_are_elsewhere")
async def test_without_a_secret_the_store_refuses_another_host_and_both_say_the_way_out(port):
    results = await outcomes(invitation(0, 2, port, secret=b""), invitation(1, 2, port, secret=b"", insecure=True))
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "R2CCL_SECRET_FILE" in str(result)
        assert "R2CCL_INSECURE=1" in str(result)


@pytest.mark.usefixtures("all_peers_are_elsewhere")
@pytest.mark.parametrize("changes", [{"secret": b"", "insecure": True}, {}])
@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.3.4"])
async def test_an_address_that_means_another_machine_elsewhere_is_never_handed_out(port, changes, host):
    async def come(meeting: Meeting) -> None:
        await (await meet(meeting, member(meeting.rank, host=host))).aclose()

    results = await asyncio.gather(
        *(come(invitation(rank, 2, port, **changes)) for rank in range(2)), return_exceptions=True
    )
    for result in results:
        assert isinstance(result, RendezvousError)
        assert f"announced the address {host}" in str(result)


@pytest.mark.usefixtures("all_peers_are_elsewhere")
async def test_hosts_with_addresses_of_their_own_meet(port):
    parties = await asyncio.gather(
        *(meet(invitation(rank, 2, port), member(rank, host=f"10.0.0.{rank + 1}")) for rank in range(2))
    )
    await asyncio.gather(*(party.all_connected() for party in parties))
    assert parties[0].book == parties[1].book


async def test_without_a_secret_ranks_on_one_host_meet(port):
    books = await outcomes(*(invitation(rank, 2, port, secret=b"") for rank in range(2)))
    assert books[0] == books[1]


async def test_the_secret_is_in_no_log_and_no_repr(port, caplog):
    caplog.set_level(logging.DEBUG)
    meetings = [invitation(rank, 2, port, secret=secret) for rank, secret in enumerate((b"hush-hush", b"wrong-one"))]
    results = await outcomes(*meetings)
    for secret in ("hush-hush", "wrong-one"):
        assert secret not in caplog.text + repr(meetings) + repr(results)
