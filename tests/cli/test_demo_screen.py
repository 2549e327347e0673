"""What the demo's screen shows."""

from __future__ import annotations

import io
from types import MappingProxyType

import pytest
from rich.console import Console

from r2ccl.cli import demo_screen
from r2ccl.cli.demo_ranks import NicSample, Rank
from r2ccl.cli.demo_report import RankRecord
from r2ccl.cli.demo_screen import Screen
from r2ccl.cli.demo_worker import in_words
from r2ccl.telemetry.event_log import Event


def rank_with(samples: dict[int, list[NicSample]]) -> Rank:
    rank = Rank(0, None, -1, RankRecord(0))  # type: ignore[arg-type]
    rank.samples = samples
    return rank


def samples_at(mbit_s: float, count: int = 10) -> list[NicSample]:
    return [NicSample(0.05 * index, 0, round(mbit_s * 1e6 / 8 * 0.05 * index)) for index in range(count)]


def test_a_rate_is_the_busier_direction_over_the_time_between_samples():
    samples = [NicSample(0.0, 0, 0), NicSample(0.1, 1_000_000, 0), NicSample(0.3, 1_000_000, 5_000_000)]
    assert demo_screen.rates_mbit_s(samples) == pytest.approx([80.0, 200.0])


def test_one_sample_is_no_rate_yet():
    assert demo_screen.rates_mbit_s([NicSample(0.0, 0, 0)]) == []


def test_a_sparkline_goes_from_empty_to_full_and_no_further():
    assert demo_screen.sparkline([0, 50, 100, 200], full=100) == " ▄██"


def test_the_digest_leaves_links_out_and_tells_of_lanes_that_fared_alike_once():
    rank = rank_with({})
    rank.events += [(1.0, "nic", "nic=nic0 UP->DOWN"), (1.1, "link", "link=nic0->rank1.nic0 state=DOWN")]
    rank.events += [(1.2, "lane_dissolved", "lane_dissolved lane=0 peer=1"), (1.3, "lane_dissolved", "and so on")]
    assert demo_screen.digest(rank) == [
        (1.0, "rank 0: nic=nic0 UP->DOWN"),
        (1.2, "rank 0: lane_dissolved lane=0 peer=1 (and 1 alike)"),
    ]
    assert demo_screen.digest(rank) == []


def test_an_incident_is_shown_by_its_report_alone():
    fields = MappingProxyType({"incident": 3, "verdict": "our NIC (nic0)", "report": "our nic0 lost its carrier"})
    assert in_words(Event(7, 1.0, "incident", fields)) == "incident 3: our nic0 lost its carrier"
    assert (
        in_words(Event(8, 1.0, "nic", MappingProxyType({"nic": "nic0", "change": "UP->DOWN"}))) == "nic=nic0 UP->DOWN"
    )


def drawn(is_terminal: bool, cut: set[tuple[int, int]]) -> str:
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=120, color_system=None)
    with Screen(console, "a demo", 500, nics=3, spares=1, cut=cut) as screen:
        screen.begin(100.0)
        screen.say(101.5, "CUT: rank 0 loses NIC 1")
        rank = rank_with({0: samples_at(480), 1: samples_at(0)})
        rank.events.append((101.6, "nic", "nic=nic1 UP->DOWN"))
        screen.draw([rank], operations=12, wrong_elements=0)
    return written.getvalue()


def test_a_terminal_shows_each_nic_with_its_rate_and_state():
    shown = drawn(is_terminal=True, cut={(0, 1)})
    assert "480" in shown
    assert "CUT" in shown
    assert "spare" in shown
    assert "12 all-reduces, every element checked on every rank: 0 wrong" in shown
    assert "1.600 s  rank 0: nic=nic1 UP->DOWN" in shown


def test_elsewhere_events_are_printed_once_each_and_nothing_else():
    lines = drawn(is_terminal=False, cut=set()).splitlines()
    assert lines == ["a demo", "   1.500 s  CUT: rank 0 loses NIC 1", "   1.600 s  rank 0: nic=nic1 UP->DOWN"]
