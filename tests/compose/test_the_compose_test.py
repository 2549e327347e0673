"""The compose test's own parts that need no engine: what it reads, what it judges, and what compose.yaml promises."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from examples.all_reduce_stream import Payload
from tests.compose import cuts, engine
from tests.compose.records import RankFailed, Ranks, Record, gap_ms, went_on

ADDRESSES: list[dict[str, Any]] = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
    {"ifname": "eth0", "link_index": 21, "addr_info": [{"local": "10.213.101.11"}]},
    {"ifname": "eth2", "link_index": 27, "addr_info": [{"local": "fe80::1"}, {"local": "10.213.102.11"}]},
]


def report(kind: str = "sample", **changes: object) -> str:
    """A line as examples/all_reduce_stream.py prints it."""
    nothing = {"operations": 0, "wrong_elements": 0, "completions": [], "nics": {}, "events": []}
    return json.dumps({"kind": kind, "rank": 0, "time_s": 1.0, **nothing, **changes})


def test_an_interface_is_found_by_its_address_whatever_it_is_called_now():
    assert cuts.interface_at(ADDRESSES, engine.address(1, 1)) == cuts.Interface("eth2", 27)
    with pytest.raises(LookupError, match=r"10\.213\.102\.12.*eth2"):
        cuts.interface_at(ADDRESSES, engine.address(2, 1))


def test_the_other_end_of_a_cable_is_found_by_its_number():
    assert cuts.name_of([{"ifname": "lo", "ifindex": 1}, {"ifname": "veth7", "ifindex": 27}], 27) == "veth7"


def test_a_record_adds_up_what_a_rank_tells():
    record = Record(0)
    nics = {"nic1": {"sent_bytes": 5, "received_bytes": 7}}
    record.hear(report(operations=2, completions=[1.0, 1.5], nics=nics, events=[[1.2, "nic=nic1 UP->DOWN"]]))
    record.hear("Traceback (most recent call last):\n")
    record.hear(report("done", operations=3, completions=[2.0], nics=nics))
    assert (record.operations, record.completions) == (3, [1.0, 1.5, 2.0])
    assert (record.moved(1), record.moved(0)) == ((5, 7), (0, 0))
    assert record.events == [(1.2, "nic=nic1 UP->DOWN")]
    assert list(record.other_lines) == ["Traceback (most recent call last):"]
    assert record.is_done
    assert record.complaint() is None


def test_one_wrong_element_on_one_rank_is_a_failure():
    ranks = Ranks(2)
    ranks.follow(1, [report(operations=9, wrong_elements=1)])
    with pytest.raises(RankFailed, match="rank 1: 1 wrong elements in 9 operations"):
        ranks.wait_until(lambda: True, 1.0, "nothing")


def test_a_rank_that_ends_before_it_said_so_is_a_failure():
    ranks = Ranks(1)
    ranks.follow(0, [report(), "r2ccl.errors.PeerLost: rank 3"])
    with pytest.raises(RankFailed, match="rank 0 ended in the middle"):
        ranks.wait_until(lambda: True, 1.0, "nothing")
    assert "PeerLost: rank 3" in ranks.account()


def test_what_does_not_come_true_in_time_is_a_failure():
    with pytest.raises(RankFailed, match=r"not within 0\.01 s: rank 0 starts"):
        Ranks(1).wait_until(lambda: False, 0.01, "rank 0 starts")


def test_a_rank_goes_on_when_more_ends_during_the_outage_than_was_in_flight():
    record = Record(0, completions=[1.0, 1.1, 1.2, 1.3, 2.5])
    assert went_on(record, 1.05, 2.0)
    assert not went_on(record, 1.15, 2.0)


def test_the_gap_is_that_of_the_rank_that_waited_longest():
    steady = [number * 0.01 for number in range(300)]
    waited = [time_s for time_s in steady if not 1.0 < time_s < 1.2]
    gap = gap_ms([Record(0, completions=steady), Record(1, completions=waited)], 1.05, 3.0)
    assert gap == pytest.approx(190.0)


def test_compose_and_the_test_agree_on_names_and_addresses():
    text = (engine.ROOT / "compose.yaml").read_text()
    for rank in range(engine.RANKS):
        assert f"container_name: ${{CLUSTER:-r2ccl}}-rank{rank}\n" in text
        assert len(re.findall(rf"ipv4_address: \"\$\{{NET_[AB]:-[0-9.]+\}}\.{10 + rank}\"", text)) == 2
    assert re.findall(r"name: \$\{CLUSTER:-r2ccl\}-([ab])\n", text) == ["a", "b"]
    assert [network.rpartition("-")[2] for network in engine.NETWORKS] == ["a", "b"]


def test_the_stream_knows_every_element_of_a_sum():
    payloads = [Payload(rank, 3, elements=1000) for rank in range(3)]
    given = [np.empty(1001, np.float32) for _ in payloads]
    for payload, x in zip(payloads, given, strict=True):
        payload.fill(x, 7, vote=False)
    total = np.add.reduce(given)
    assert payloads[0].wrong_elements(total, 7, 3) == 0
    assert payloads[0].wrong_elements(total, 8, 3) > 900  # another operation's
    assert payloads[0].wrong_elements(total + given[1], 7, 3) > 900  # one added twice
    total[[3, -1]] += (1, 4)  # no data, no possible count of votes
    assert payloads[0].wrong_elements(total, 7, 3) == 2


def test_no_secret_is_written_down():
    text = (engine.ROOT / "compose.yaml").read_text()
    assert re.findall(r"R2CCL_SECRET:(.*)", text) == [""]
    assert "R2CCL_INSECURE" not in text


def test_missing_tools_are_named_with_the_way_to_get_them(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(
        engine.Missing, match=r"not found: docker, ip, nft, nsenter, docker compose.*\n.*apt-get install"
    ):
        engine.look_round()


def test_two_tests_do_not_take_each_others_containers_away():
    with engine.alone(), pytest.raises(engine.Missing, match="another one is running"), engine.alone():
        pass
    with engine.alone():
        pass  # the first is over


def test_who_is_not_root_is_told_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(engine.Missing, match="run it as root"):
        engine.look_round()


def test_a_command_that_fails_says_what_it_printed():
    with pytest.raises(engine.CommandFailed, match=r"(?s)exit code 3.*out.*err"):
        engine.run("sh", "-c", "echo out; echo err >&2; exit 3")
    with pytest.raises(engine.CommandFailed, match=r"not done after 0\.05 s"):
        engine.run("sleep", "9", timeout_s=0.05)
