"""The roll: who has come, and when waiting is over."""

from __future__ import annotations

import pytest

from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.rendezvous.roll import Roll, name_ranks
from r2ccl.topology import Endpoint, Member, Nic


def member(rank: int, host: str = "10.0.0.1") -> Member:
    return Member(rank, 7, "node", (Nic(0, "eth0", Endpoint("inet", host, 5)),))


def roll_of(size: int, *present: int) -> Roll:
    roll = Roll(size)
    for rank in present:
        roll.announce(member(rank), size, f"host{rank}", elsewhere=rank > 0)
    return roll


def test_the_book_is_in_rank_order_whatever_the_order_of_coming():
    roll = roll_of(3, 2, 0)
    assert roll.missing == (1,)
    roll.announce(member(1), 3, "host1", elsewhere=True)
    assert not roll.missing
    assert roll.book == (member(0), member(1), member(2))
    assert roll.verdict() is None


def test_the_meeting_ends_when_nobody_is_missing_but_the_refused():
    roll = roll_of(4, 0)
    roll.refuse(3, AuthenticationError("wrong secret"))
    roll.refuse(2, RendezvousError("wrong size"))
    assert roll.verdict() is None
    roll.announce(member(1), 4, "host1", elsewhere=True)
    verdict = roll.verdict()
    assert isinstance(verdict, AuthenticationError)
    assert "rank 2: wrong size; rank 3: wrong secret" in str(verdict)


def test_a_refused_rank_that_comes_after_all_is_forgiven():
    roll = roll_of(3, 0)
    roll.refuse(1, AuthenticationError("wrong secret"))
    roll.announce(member(1), 3, "host1", elsewhere=True)
    roll.leave(1)
    roll.announce(member(2), 3, "host2", elsewhere=True)
    assert roll.verdict() is None
    assert roll.missing == (1,)


@pytest.mark.parametrize("claim", [None, 0, 4, 1 << 63])
def test_a_claim_to_a_rank_that_is_here_or_does_not_exist_changes_nothing(claim):
    roll = roll_of(2, 0)
    roll.refuse(claim, AuthenticationError("stranger"))
    assert roll.verdict() is None
    assert "stranger" not in str(roll.expired(1.0))


def test_leaving_is_fatal_only_between_the_book_and_the_last_connection():
    roll = roll_of(3, 0, 1)
    assert roll.leave(1) is None
    assert roll.missing == (1, 2)
    roll = roll_of(2, 0, 1)
    roll.connected(0)
    assert "rank 1 at host1 left" in str(roll.leave(1))
    roll.connected(1)
    assert roll.leave(1) is None


def test_the_time_out_names_who_is_missing_and_who_was_refused():
    roll = roll_of(4, 0, 1)
    roll.refuse(3, AuthenticationError("wrong secret"))
    assert str(roll.expired(60.0)) == "ranks 2, 3 did not come within 60 s; rank 3: wrong secret"


def test_the_time_out_names_who_could_not_connect():
    roll = roll_of(3, 0, 1, 2)
    roll.connected(1)
    assert str(roll.expired(1.5)) == "ranks 0, 2 could not connect to all peers within 1.5 s"


def test_many_ranks_are_counted_and_not_all_listed():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks(range(1000)).endswith("31 and 968 more")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.3", "169.254.0.9", "::1", "fe80::1"])
def test_an_address_that_only_works_here_is_refused_as_soon_as_one_rank_is_elsewhere(host):
    roll = Roll(2)
    roll.announce(member(0, host), 2, "rank 0's own process", elsewhere=False)
    roll.announce(member(1), 2, "10.0.0.2", elsewhere=True)
    assert f"rank 0 announced the address {host}" in str(roll.verdict())
    same_host = Roll(2)
    for rank in range(2):
        same_host.announce(member(rank, host), 2, "127.0.0.1", elsewhere=False)
    assert same_host.verdict() is None
