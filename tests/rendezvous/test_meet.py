"""Ranks that meet over loopback: each a coroutine, with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.rendezvous import messages
from r2ccl.rendezvous.meet import Rendezvous, meet
from r2ccl.rendezvous.meeting import PORTS_TRIED
from tests.rendezvous.parties import (
    IMPATIENCE_S,
    admitted,
    attend,
    attend_when_the_first_is_gone,
    free_ports,
    invitation,
    is_free_to_connect,
    knock_until_open,
    member,
    occupied,
    outcomes,
    serving,
)


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    return free_ports(request.node.name)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
async def test_all_ranks_get_the_same_book_in_rank_order(port, size):
    books = await outcomes(*(invitation(rank, size, port) for rank in reversed(range(size))))
    assert books == [tuple(member(rank) for rank in range(size))] * size


async def test_a_rank_that_is_there_first_finds_rank_zero_later(port):
    early = asyncio.ensure_future(attend(invitation(1, 2, port)))
    with occupied(port + 1) as somebody:
        somebody.setblocking(False)
        connection, _ = await asyncio.get_running_loop().sock_accept(somebody)  # the early rank is searching
        connection.close()
        books = await asyncio.gather(attend(invitation(0, 2, port)), early)
    assert books[0] == books[1]


async def test_the_store_moves_on_when_the_port_belongs_to_somebody_else_who_keeps_silent(port):
    with occupied(port), occupied(port + 1):
        books = await outcomes(*(invitation(rank, 3, port) for rank in range(3)))
    assert books == [tuple(member(rank) for rank in range(3))] * 3


async def test_no_free_port_is_said_at_once(port):
    with contextlib.ExitStack() as others:
        for taken in range(port, port + PORTS_TRIED):
            others.enter_context(occupied(taken))
        with pytest.raises(RendezvousError, match=f"ports {port} to {port + 15} free"):
            await attend(invitation(0, 2, port))


async def test_two_jobs_with_overlapping_ports_do_not_mix(port):
    books = await outcomes(
        *(invitation(rank, 2, port, job="one", secret=b"1") for rank in range(2)),
        *(invitation(rank, 2, port, job="two", secret=b"2", incarnation=200 + rank) for rank in range(2)),
    )
    assert [[m.incarnation for m in book] for book in books if not isinstance(book, BaseException)] == [
        [100, 101],
        [100, 101],
        [200, 201],
        [200, 201],
    ]


async def test_unlike_versions_are_refused_at_once_on_both_sides_naming_both(port):
    results = await outcomes(invitation(0, 2, port), invitation(1, 2, port, package_version="9.9.9"))
    for result in results:
        assert isinstance(result, AuthenticationError)
        assert "0.1.0" in str(result)
        assert "9.9.9" in str(result)


async def test_another_secret_is_refused_at_once_on_both_sides(port):
    results = await outcomes(invitation(0, 2, port), invitation(1, 2, port, secret=b"guess"))
    for result in results:
        assert isinstance(result, AuthenticationError)
        assert "R2CCL_SECRET" in str(result)


async def test_a_refused_rank_does_not_end_the_meeting_while_others_are_on_their_way(port):
    host = asyncio.ensure_future(attend(invitation(0, 3, port)))
    with pytest.raises(AuthenticationError):
        await attend(invitation(2, 3, port, secret=b"guess"))
    mended = await admitted(invitation(2, 3, port))
    books = await asyncio.gather(host, attend(invitation(1, 3, port)), mended.attend())
    assert books[0] == books[1]


async def test_unlike_sizes_are_refused_on_both_sides(port):
    results = await outcomes(invitation(0, 2, port), invitation(1, 4, port))
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "WORLD_SIZE" in str(result)


async def test_a_second_process_of_a_rank_is_refused_and_the_first_goes_on(port):
    host = asyncio.ensure_future(attend(invitation(0, 3, port)))
    first = await admitted(invitation(1, 3, port))
    with pytest.raises(RendezvousError, match=r"rank 1 at 127\.0\.0\.1 came a second time"):
        await attend(invitation(1, 3, port, incarnation=999))
    books = await asyncio.gather(host, first.attend(), attend(invitation(2, 3, port)))
    assert books[0] == books[2]


async def test_a_second_rank_zero_is_refused_and_the_first_goes_on(port):
    async with serving(port, size=2) as first:
        with pytest.raises(RendezvousError, match="rank 0 came a second time"):
            await attend(invitation(0, 2, port, incarnation=999))
        books = await asyncio.gather(first, attend(invitation(1, 2, port)))
    assert books[0] == books[1]


async def test_a_rank_that_leaves_before_all_came_may_come_again(port):
    async with serving(port, size=3) as host:
        gone = await admitted(invitation(1, 3, port))
        gone.writer.close()
        again = attend_when_the_first_is_gone(invitation(1, 3, port, incarnation=555))
        books = await asyncio.gather(host, again, attend(invitation(2, 3, port)))
    assert books[0] == books[1] == books[2]
    assert books[0][1].incarnation == 555


async def test_a_rank_that_leaves_after_the_book_ends_the_meeting_for_all(port):
    host = asyncio.ensure_future(attend(invitation(0, 3, port)))
    gone = await admitted(invitation(1, 3, port))
    other = asyncio.ensure_future(attend(invitation(2, 3, port)))
    assert isinstance(await gone.hear(), messages.Book)
    gone.writer.close()
    for result in await asyncio.gather(host, other, return_exceptions=True):
        assert isinstance(result, RendezvousError)
        assert "rank 1 at 127.0.0.1 left before all ranks were connected" in str(result)


async def test_rank_zero_that_leaves_after_the_book_ends_the_meeting_for_all(port):
    host, guest = await asyncio.gather(*(meet(invitation(rank, 2, port), member(rank)) for rank in range(2)))
    await host.aclose()
    with pytest.raises(RendezvousError, match="rank 0 left before all ranks were connected"):
        await guest.all_connected()
    await guest.aclose()


async def test_a_cancelled_rank_zero_is_named_when_the_others_wait_for_all_to_be_connected(port):
    host, guest = await asyncio.gather(*(meet(invitation(rank, 2, port), member(rank)) for rank in range(2)))
    waiting = asyncio.ensure_future(host.all_connected())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    with pytest.raises(RendezvousError, match="rank 0 left before all ranks were connected"):
        await guest.all_connected()


async def test_nobody_goes_before_everybody_is_connected(port):
    parties = await asyncio.gather(*(meet(invitation(rank, 3, port), member(rank)) for rank in range(3)))
    went: list[int] = []

    async def connect(rank: int, party: Rendezvous) -> None:
        await party.all_connected()
        went.append(rank)

    eager = [asyncio.ensure_future(connect(rank, parties[rank])) for rank in (0, 1)]
    with contextlib.closing(socket.socket()) as probe:
        probe.setblocking(False)
        await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", port))  # some turns of the loop
    assert went == []
    await asyncio.gather(*eager, connect(2, parties[2]))
    assert sorted(went) == [0, 1, 2]


async def test_after_the_meeting_the_port_is_free_again(port):
    await outcomes(*(invitation(rank, 3, port) for rank in range(3)))
    assert is_free_to_connect(port)


async def test_a_time_out_names_the_ranks_that_did_not_come_on_every_rank(port):
    results = await outcomes(*(invitation(rank, 4, port, timeout_s=IMPATIENCE_S) for rank in (0, 2)))
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "ranks 1, 3 did not come within 0.4 s" in str(result)


async def test_a_time_out_names_the_ranks_that_could_not_connect(port):
    impatient = [invitation(rank, 3, port, timeout_s=IMPATIENCE_S) for rank in range(3)]
    parties = await asyncio.gather(*(meet(meeting, member(meeting.rank)) for meeting in impatient))
    results = await asyncio.gather(*(party.all_connected() for party in parties[:2]), return_exceptions=True)
    await parties[2].aclose()
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "rank 2 could not connect to all peers within 0.4 s" in str(result)


async def test_a_rank_that_finds_nobody_says_where_it_looked(port):
    with pytest.raises(
        RendezvousError, match=rf"rank 0 at 127.0.0.1, ports {port} to {port + 15}.*rank 0 did not come"
    ):
        await attend(invitation(1, 2, port, timeout_s=IMPATIENCE_S))


async def test_a_name_that_does_not_resolve_yet_is_waited_for_and_said(port, monkeypatch):
    """A container's name comes up after its neighbours do."""
    loop = asyncio.get_running_loop()
    asked = 0

    async def getaddrinfo(host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    books = await outcomes(invitation(0, 2, port), invitation(1, 2, port, host="store.example"))
    assert books[0] == books[1]
    assert asked == 2


async def test_a_name_that_never_resolves_is_in_the_error(port, monkeypatch):
    async def getaddrinfo(host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(RendezvousError, match="'store.example' does not resolve"):
        await attend(invitation(1, 2, port, host="store.example", timeout_s=IMPATIENCE_S))


async def test_a_cancelled_rank_leaves_nothing_open(port):
    for rank in (0, 1):
        waiting = asyncio.ensure_future(attend(invitation(rank, 2, port)))
        if rank == 0:
            _, writer = await knock_until_open(port)
            writer.close()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    assert is_free_to_connect(port)


@pytest.mark.parametrize("turns", range(8))
async def test_rank_zero_that_is_cancelled_while_it_opens_its_store_leaves_the_port_free(port, turns):
    host = asyncio.ensure_future(attend(invitation(0, 2, port)))
    for _ in range(turns):
        await asyncio.sleep(0)
    host.cancel()
    with pytest.raises(asyncio.CancelledError):
        await host
    assert is_free_to_connect(port)
