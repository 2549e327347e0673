"""What topology-check prints, as whole pages."""

from __future__ import annotations

import dataclasses
import json
import textwrap

from r2ccl.cli.topology_check import judged
from r2ccl.planner.network_picture import ClockOffset, Outcome, Pair, PathMtu, Picture, Rate
from tests.planner.pictures import healthy, without_nic


def seen(picture: Picture) -> Picture:
    """With rates and clocks."""
    rates = tuple(
        Rate(reach.pair, 1.25e8)
        for reach in picture.reaches
        if reach.outcome is Outcome.REACHED and not reach.pair.source
    )
    return dataclasses.replace(picture, rates=rates, clocks=(ClockOffset(1, -0.0123, 0.0001, 0.0002, 0.00025),))


def test_a_healthy_network_is_a_page() -> None:
    code, text = judged(seen(healthy(hosts=2)), as_json=False)
    assert code == 0
    assert text == textwrap.dedent("""\
        rank  host   NIC   device  address        speed         MTU   driver  state
        0     host0  nic0  eth0    10.200.0.1/24  10000 Mbit/s  1500  -       up
        0     host0  nic1  eth1    10.200.1.1/24  10000 Mbit/s  1500  -       up
        1     host1  nic0  eth0    10.200.0.2/24  10000 Mbit/s  1500  -       up
        1     host1  nic1  eth1    10.200.1.2/24  10000 Mbit/s  1500  -       up

        reach (median connect time, ms; rows reach columns; across rails it takes a route, and serves as backup):
                  0.nic0  0.nic1  1.nic0  1.nic1
          0.nic0  .       -       0.20    silent
          0.nic1  -       .       silent  0.20
          1.nic0  0.20    silent  .       -
          1.nic1  silent  0.20    -       .

        rails:
          nic0: symmetric: every rank reaches every other
          nic1: symmetric: every rank reaches every other

        path MTU:
          nic0 to nic0, 2 pairs: interface MTU 1500, which passes whole
          nic1 to nic1, 2 pairs: interface MTU 1500, which passes whole

        rate (one stream, a lower bound):
          rank 0 nic0 to rank 1 nic0: 1000 Mbit/s
          rank 0 nic1 to rank 1 nic1: 1000 Mbit/s

        clocks, against rank 0's:
          rank 1: -12.300 ms, give or take 0.100 ms; round trip 0.200 ms at least, 0.250 ms in the median

        does a job survive the loss of:
          rank 0 nic0 (eth0): yes, every two ranks still have a link
          rank 0 nic1 (eth1): yes, every two ranks still have a link
          rank 1 nic0 (eth0): yes, every two ranks still have a link
          rank 1 nic1 (eth1): yes, every two ranks still have a link
          rail 0 (nic0 of all ranks): yes, every two ranks still have a link
          rail 1 (nic1 of all ranks): yes, every two ranks still have a link

        fine: no problem, 0 notes""")


def test_a_broken_one_says_what_and_why() -> None:
    picture = without_nic(healthy(), 1, 1)
    mtus = tuple(
        dataclasses.replace(mtu, path_bytes=1400) if mtu.pair == Pair(0, 0, 2, 0) else mtu for mtu in picture.mtus
    )
    code, text = judged(dataclasses.replace(picture, mtus=mtus), as_json=False)
    assert code == 1
    lines = [line.strip() for line in text.splitlines()]
    assert "nic1: NOT symmetric" in lines
    assert "nic0 to nic0, 1 pair: interface MTU 1500, path MTU 1400, SILENT" in lines
    assert "rank 1 nic0 (eth0): no, because rank 0 reaches rank 1, rank 1 reaches rank 2 only by it" in lines
    assert (
        "rank 0 nic0 (eth0): yes, by relay, rank 0 reaches rank 1 only through another rank, which is slower" in lines
    )
    assert "! rank 1 nic1 (eth1) reaches no NIC of its rail, and none reaches it" in lines
    assert lines[-1] == "3 problems, 0 notes"


def test_a_path_whose_mtu_is_told_or_not_known_is_worded_so() -> None:
    picture = healthy(hosts=2)
    mtus = (PathMtu(Pair(0, 0, 1, 0), 1400, told=True), PathMtu(Pair(0, 1, 1, 1), 0))
    _, text = judged(dataclasses.replace(picture, mtus=mtus), as_json=False)
    assert "nic0 to nic0, 1 pair: interface MTU 1500, path MTU 1400, said by the network" in text
    assert "nic1 to nic1, 1 pair: interface MTU 1500, path MTU not known" in text


def test_a_matrix_that_no_screen_holds_is_a_line() -> None:
    _, text = judged(healthy(hosts=9, nics=2), as_json=False)
    assert "  144 of 288 pairs of NICs; all of them with --json" in text.splitlines()
    assert "0.nic0" not in text


def test_json_holds_all_of_it() -> None:
    picture = seen(without_nic(healthy(), 1, 1))
    code, text = judged(picture, as_json=True)
    told = json.loads(text)
    assert code == told["exit_code"] == 1
    assert len(told["reach"]) == len(picture.reaches) == 24
    assert told["reach"][0] == {
        "source": 0, "source_nic": 0, "target": 1, "target_nic": 0, "outcome": "reached", "detail": "",
        "connect_min_s": 0.0001, "connect_median_s": 0.0002,
    }  # fmt: skip
    assert told["rails_symmetric"] == {"nic0": True, "nic1": False}
    assert {(mtu["interface_bytes"], mtu["path_bytes"]) for mtu in told["mtu"]} == {(1500, 1500)}
    assert told["clocks"][0]["offset_s"] == -0.0123
    assert told["findings"][0]["problem"] is True
    survival = {each["loss"]: each for each in told["survival"]}
    assert survival["rank 1 nic0 (eth0)"]["survived"] is False
    assert survival["rank 1 nic0 (eth0)"]["nics"] == [[1, 0]]
    assert survival["rank 0 nic0 (eth0)"]["verdict"] == "by relay"
    assert survival["rank 0 nic0 (eth0)"]["survived"] is True
    assert told["hosts"][1]["nics"][0]["address"] == "10.200.0.2"


def test_a_single_rank_has_nothing_to_reach() -> None:
    code, text = judged(healthy(hosts=1), as_json=False)
    assert code == 0
    assert "reach" not in text
    assert text.splitlines()[-1].startswith("fine")
