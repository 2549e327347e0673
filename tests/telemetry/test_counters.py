"""The counters: cheap to write, summed only when read."""

from __future__ import annotations

import json

import pytest

from r2ccl.telemetry.counters import Counters, no_traffic, retransmit_ratio


def test_a_link_is_made_once_and_kept() -> None:
    counters = Counters()
    link = counters.link(0, 3)
    link.sent_bytes += 100
    assert counters.link(0, 3) is link
    assert counters.link(1, 3) is not link
    assert counters.link(0, 2) is not link


def test_a_snapshot_sums_per_nic_and_over_all() -> None:
    counters = Counters(failovers=2)
    for nic, peer, sent in [(0, 1, 10), (0, 2, 20), (1, 1, 300)]:
        link = counters.link(nic, peer)
        link.sent_bytes += sent
        link.sent_chunks += 1
    snapshot = counters.snapshot()
    assert snapshot["failovers"] == 2
    nics = snapshot["nics"]
    assert isinstance(nics, dict)
    assert {name: (row["sent_bytes"], row["sent_chunks"]) for name, row in nics.items()} == {
        "nic0": (30, 2),
        "nic1": (300, 1),
    }
    links = snapshot["links"]
    assert isinstance(links, dict)
    assert {name: row["sent_bytes"] for name, row in links.items()} == {
        "nic0->rank1": 10,
        "nic0->rank2": 20,
        "nic1->rank1": 300,
    }
    peers = {name: row["sent_bytes"] for name, row in snapshot["peers"].items()}
    assert peers == {"rank1": 310, "rank2": 20}
    total = snapshot["total"]
    assert isinstance(total, dict)
    assert total["sent_bytes"] == 330


def test_what_a_nic_carried_is_the_sum_over_its_peers() -> None:
    counters = Counters()
    for nic, peer, size in ((0, 1, 10), (0, 2, 20), (1, 1, 400)):
        counters.link(nic, peer).received_bytes = size
        counters.link(nic, peer).sent_bytes = 2 * size
    assert counters.bytes_by_nic() == {0: (60, 30), 1: (800, 400)}


def test_without_traffic_a_snapshot_is_all_noughts() -> None:
    snapshot = Counters().snapshot()
    assert snapshot["total"] == no_traffic()
    assert not any(no_traffic().values())
    assert (snapshot["nics"], snapshot["peers"], snapshot["links"]) == ({}, {}, {})


def test_the_retransmit_ratio_is_resent_bytes_by_sent_bytes() -> None:
    assert retransmit_ratio(no_traffic()) == 0.0
    assert retransmit_ratio({**no_traffic(), "sent_bytes": 200, "resent_bytes": 50}) == 0.25


def test_a_snapshot_survives_json_unchanged_and_does_not_move_any_more() -> None:
    counters = Counters()
    counters.link(1, 0).received_bytes = 7
    snapshot = counters.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    before = json.dumps(snapshot)
    counters.link(1, 0).received_bytes += 1
    counters.failovers += 1
    assert json.dumps(snapshot) == before
    assert json.dumps(counters.snapshot()) != before


def test_arrivals_are_kept_only_when_asked_for_and_the_oldest_go_first() -> None:
    counters = Counters()
    assert counters.arrivals is None
    counters.record_arrivals(2)
    assert counters.arrivals is not None
    for arrival in [(0.1, 0, 10), (0.2, 1, 20), (0.3, 0, 30)]:
        counters.arrivals.append(arrival)
    assert list(counters.arrivals) == [(0.2, 1, 20), (0.3, 0, 30)]


def test_a_record_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps nothing"):
        Counters().record_arrivals(0)


def test_a_misspelt_counter_is_an_error_and_not_a_new_counter() -> None:
    with pytest.raises(AttributeError):
        Counters().link(0, 1).sent_byte = 1  # type: ignore[attr-defined]
