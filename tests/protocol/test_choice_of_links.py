"""Which link which lane takes: where ranks have unlike numbers of NICs, and over all sets of links that may be up."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from r2ccl.ids import SHARED_NIC, LinkId
from r2ccl.protocol.lanes import Lane, adds_to, choose_link, takes_link
from r2ccl.protocol.paths import backups, is_rail, rails


@dataclass(frozen=True, slots=True)
class FakeLink:
    """As much of a link as lanes look at."""

    id: LinkId
    is_rail: bool
    is_up: bool = True


def link(local_nic: int, remote_nic: int, is_rail: bool = True) -> FakeLink:
    return FakeLink(LinkId(1, local_nic, remote_nic), is_rail)


def lane(index: int = 0) -> Lane:
    return Lane(index, 1, 1 << 18, 1e9)


def test_of_rails_a_lane_takes_one_by_a_nic_of_ours_that_serves_no_other_lane() -> None:
    assert choose_link(0, [link(0, 2), link(1, 1)], [link(0, 0)]).id == LinkId(1, 1, 1)
    assert choose_link(1, [link(0, 2)], [link(0, 0)]).id == LinkId(1, 0, 2)


def test_a_lane_that_shares_our_nic_goes_to_a_rail_by_one_that_serves_none_and_no_two_go_at_once() -> None:
    sharing, other = lane(), lane(1)
    for own, others, offered, taken in (
        (link(0, 2), link(0, 0), link(1, 1), True),
        (link(0, 2), link(1, 0), link(1, 1), False),
        (link(1, 2), link(2, 2), link(0, 0), False),
        (link(0, 2), link(0, 0), link(1, 3, False), False),
    ):
        sharing.link, other.link = own, others
        assert takes_link(sharing, offered, stands_by=False, lanes=[sharing, other]) is taken
    sharing.link, other.link = link(0, 2), link(0, 0)
    other.is_leaving = True
    assert not takes_link(sharing, link(1, 1), stands_by=False, lanes=[sharing, other])
    sharing.link = link(0, 1)
    sharing.is_leaving, other.is_leaving = True, False
    assert not takes_link(sharing, link(0, 0), stands_by=False, lanes=[sharing, other]), "it goes elsewhere already"


def test_a_lane_takes_shared_memory_before_any_nic_and_leaves_it_for_none() -> None:
    memory, moving, other = link(SHARED_NIC, SHARED_NIC), lane(), lane(1)
    assert choose_link(0, [link(0, 0), memory, link(1, 1)], []) is memory
    assert choose_link(0, [link(0, 0), memory], [memory]).id == LinkId(1, 0, 0)
    moving.link, other.link = link(0, 0), link(1, 1)
    assert takes_link(moving, memory, stands_by=False, lanes=[moving, other])
    moving.link, other.link = memory, link(1, 1)
    assert not takes_link(moving, link(0, 0), stands_by=False, lanes=[moving, other])
    moving.link, moving.is_leaving = link(0, 0), True
    assert not takes_link(moving, memory, stands_by=False, lanes=[moving, other])


SIZES = [(ours, theirs) for ours in range(1, 5) for theirs in range(1, 5)]


@pytest.mark.parametrize(("ours", "theirs"), SIZES)
def test_whatever_links_are_up_some_lane_takes_one_and_none_that_adds_something_is_left(ours: int, theirs: int) -> None:
    """All pairs of up to three NICs each; of more the rails, and as many backups as are ever kept."""
    pairs = list(itertools.product(range(ours), range(theirs)))
    if len(pairs) > 9:
        hosts = [[f"{end}{nic}" for nic in range(count)] for end, count in (("a", ours), ("b", theirs))]
        pairs = [*rails(ours, theirs), *backups(hosts[0], hosts[1], 4, we_are_first=True)]
    links = [link(*pair, is_rail(*pair, ours, theirs)) for pair in pairs]
    for number in range(1, 1 << len(links)):
        up = [one for index, one in enumerate(links) if number >> index & 1]
        taken: list[FakeLink] = []
        for home in range(ours):
            chosen = choose_link(home, up, taken)
            taken += [chosen] if chosen is not None else []
        assert taken, up
        assert len(taken) == ours or not [one for one in up if adds_to(taken, one)], up
        if any(one.is_rail for one in up):
            assert taken[0].is_rail
        by_rail = {one.id.local_nic for one in up if one.is_rail}
        assert by_rail <= {one.id.local_nic for one in taken}, "a NIC of ours has a rail and stands idle"
