"""What is made of events, arrivals and completions around a fault."""

from __future__ import annotations

import pytest

from r2ccl.cli import faults_figures as figures
from r2ccl.cli.demo_report import RankRecord
from r2ccl.cli.faults_figures import Figures, Happening, Spread, Trial

LINK_DOWN = "link=nic0->rank2.nic0 UP->DOWN cause=silence epoch=0 op=412"


def test_a_cause_is_read_from_an_events_line():
    assert Happening(1.0, 0, "link", LINK_DOWN).cause == "silence"
    assert Happening(1.0, 0, "link", 'link=nic0->rank2.nic0 UP->DOWN cause="end of file"').cause == "end of file"


def test_which_rank_or_nic_it_was_makes_no_other_cause():
    withdrawn = 'link=nic0->rank2.nic0 UP->DOWN cause="rank 2 nic0 is down"'
    assert Happening(1.0, 0, "link", withdrawn).cause == "rank N nic N is down"


def test_an_event_without_a_cause_is_called_by_its_name():
    assert Happening(1.0, 0, "suspected", "suspected nic=nic0").cause == "suspected"


@pytest.mark.parametrize(
    ("text", "is_return"),
    [
        (LINK_DOWN, False),
        ("link=nic0->rank2.nic0 DOWN->UP cause=readmitted", True),
        ("link=nic0->rank2.nic0 ABSENT->UP cause=connected", True),
        ("lane_bound lane=0 peer=1 DISSOLVED->BOUND cause=readmitted", True),
        ("lane_bound lane=0 peer=1 MOVING->BOUND cause=carrier", False),
        ("waiting op=7", False),
    ],
)
def test_what_comes_back_is_told_from_what_goes(text: str, is_return: bool):
    assert Happening(1.0, 0, "link", text).is_return is is_return


HAPPENINGS = [
    Happening(0.9, 1, "link", LINK_DOWN),  # before the fault
    Happening(1.1, 0, "lane_dissolved", "lane_dissolved lane=0 peer=1 BOUND->DISSOLVED cause=carrier survivors=a"),
    Happening(1.2, 2, "link", "link=nic0->rank1.nic0 DOWN->UP cause=readmitted"),
    Happening(1.4, 0, "link", LINK_DOWN),
    Happening(1.3, 1, "nic", "nic=nic0 UP->DOWN cause=carrier"),
    Happening(1.5, 1, "lane_bound", "lane_bound lane=0 peer=1 MOVING->BOUND cause=carrier"),
    Happening(1.6, 1, "lane_bound", "lane_bound lane=0 peer=1 DISSOLVED->BOUND cause=readmitted"),
    Happening(9.0, 1, "lane_dissolved", "lane_dissolved lane=0 peer=1 BOUND->DISSOLVED cause=carrier survivors=a"),
]


def test_the_first_evidence_is_no_lane_no_return_and_nothing_from_before():
    found = figures.first_evidence(HAPPENINGS, (1.0, 2.0), [(1, 0)])
    assert found is HAPPENINGS[4]
    assert figures.since_ms(1.0, found) == pytest.approx(300)


@pytest.mark.parametrize(
    ("rank", "text", "concerns"),
    [
        (1, "link=nic0->rank2.nic0 UP->DOWN cause=silence", True),
        (1, "link=nic1->rank2.nic1 UP->DOWN cause=silence", False),
        (2, "link=nic0->rank1.nic0 UP->DOWN cause=silence", True),
        (2, "link=nic0->rank0.nic0 UP->DOWN cause=silence", False),
        (2, "link=nic1->rank1.nic1 UP->DOWN cause=silence", False),
        (2, 'link=nic3->rank0.nic3 UP->DOWN cause="rank 1 nic0 is down"', True),
        (0, "peer_gone peer=1 ALIVE->GONE cause=dead", True),
        (0, "peer_gone peer=2 ALIVE->GONE cause=dead", False),
        (1, "nic=nic0 UP->DOWN cause=carrier", True),
        (2, "nic=nic0 UP->DOWN cause=carrier", False),
    ],
)
def test_an_event_is_about_the_nic_that_was_hit_or_not(rank: int, text: str, concerns: bool):
    assert Happening(1.0, rank, "event", text).concerns(1, 0) is concerns


def test_where_a_rank_is_hit_all_its_nics_are():
    assert Happening(1.0, 2, "link", "link=nic1->rank1.nic1 UP->DOWN cause=reset").concerns(1, None)
    assert not Happening(1.0, 2, "link", "link=nic1->rank0.nic1 UP->DOWN cause=reset").concerns(1, None)


def test_events_of_other_nics_are_no_evidence():
    assert figures.first_evidence(HAPPENINGS, (1.0, 2.0), [(1, 1), (3, None)]) is None


def test_the_repair_ends_with_the_last_lane_that_moved():
    assert figures.last_repair(HAPPENINGS, (1.0, 2.0)) is HAPPENINGS[5]


def test_where_a_lane_found_no_other_link_nothing_was_repaired():
    stranded = Happening(1.2, 2, "lane_dissolved", "lane_dissolved lane=1 peer=0 cause=carrier survivors=none")
    assert figures.last_repair([*HAPPENINGS, stranded], (1.0, 2.0)) is None


def test_nothing_happened_is_no_time():
    assert figures.since_ms(1.0, figures.first_evidence([], (1.0, 2.0), [(1, 0)])) is None


def test_the_longest_gap_of_all_ranks_counts_less_the_usual():
    steady = RankRecord(0, arrivals=[(0.1 * k, 0, 100) for k in range(40)])
    stalled = RankRecord(1, arrivals=[(0.1 * k, 0, 100) for k in range(40) if not 10 < k < 16])
    assert figures.arrival_gap_ms([steady, stalled], 1.05, 4.0, 2.0) == pytest.approx(500)


def test_the_rate_is_that_of_the_rank_that_received_least():
    one, other = RankRecord(0), RankRecord(1)
    one.arrivals = [(1.0, 0, 250_000_000), (1.5, 1, 250_000_000), (2.0, 0, 1)]
    other.arrivals = [(1.5, 0, 125_000_000), (0.9, 1, 1 << 40)]
    assert figures.received_gbit_s([one, other], (1.0, 2.0)) == pytest.approx(1.0)


def test_the_worst_of_rates_is_the_smallest_and_of_times_the_largest():
    assert Spread.of([3.0, None, 1.0, 2.0]) == Spread(2.0, 3.0, 3)
    assert Spread.of([3.0, 1.0, 2.0], low_is_bad=True) == Spread(2.0, 1.0, 3)
    assert Spread.of([None]) is None


def test_trials_come_to_medians_and_sums():
    trials = [
        Trial("nic: carrier", 1.0, wrong_elements=2, operations=10),
        Trial("nic: carrier", 3.0, error="PeerLost(dead)", operations=5),
        Trial("link: silence", 60.0, wrong_elements=1),
    ]
    told = Figures.of(figures.trials_of([trial.as_json() for trial in trials]))
    assert told.detected_by == (("nic: carrier", 2), ("link: silence", 1))
    assert told.detection_ms == Spread(3.0, 60.0, 3)
    assert (told.wrong_elements, told.operations, told.trials) == (3, 15, 3)
    assert told.errors == (("PeerLost(dead)", 1),)
    assert told.gap_ms is None
