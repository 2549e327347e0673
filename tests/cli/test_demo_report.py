"""Gaps, phases, bandwidths and the closing words, from records made by hand."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from r2ccl.cli import demo_report
from r2ccl.cli.demo_report import Cut, RankRecord, Summary


def steady(begin_s: float, end_s: float, every_s: float) -> list[float]:
    count = round((end_s - begin_s) / every_s)
    return [begin_s + index * every_s for index in range(count)]


def record(rank: int, arrivals: list[float], completions: list[float] | None = None) -> RankRecord:
    return RankRecord(rank, [(time_s, 0, 1) for time_s in arrivals], completions or [])


def test_a_gap_is_the_longest_wait_after_the_cut_less_the_usual_one_before():
    times = [*steady(9.0, 10.0, 0.004), 10.0, *steady(10.020, 12.0, 0.008)]
    assert demo_report.stall_s(times, 10.0, 12.0) == pytest.approx(0.020 - 0.004)


def test_a_wait_that_had_begun_before_the_cut_counts_in_full():
    times = [*steady(9.0, 9.996, 0.004), *steady(10.030, 12.0, 0.004)]
    assert demo_report.stall_s(times, 10.0, 12.0) == pytest.approx(10.030 - 9.992 - 0.004)


def test_a_pause_later_than_a_second_after_the_cut_is_another_matter():
    times = [*steady(9.0, 11.1, 0.004), *steady(11.5, 12.0, 0.004)]
    assert demo_report.stall_s(times, 10.0, 12.0) == pytest.approx(0.0, abs=1e-9)


def test_a_stall_that_goes_on_beyond_the_second_counts_in_full():
    times = [*steady(9.0, 10.2, 0.004), 15.0]
    assert demo_report.stall_s(times, 10.0, 16.0) == pytest.approx(4.8, abs=0.01)


def test_a_rank_that_never_goes_on_has_a_gap_to_the_end_of_the_record():
    assert demo_report.stall_s(steady(9.0, 10.0, 0.004), 10.0, 20.0) == pytest.approx(10.0, abs=0.01)
    assert demo_report.stall_s([], 10.0, 20.0) == 10.0


def test_a_cut_that_nobody_noticed_has_no_gap():
    assert demo_report.stall_s(steady(9.0, 12.0, 0.004), 10.0, 12.0) == pytest.approx(0.0, abs=1e-9)


def test_a_stall_may_be_looked_for_in_a_longer_window():
    times = [*steady(9.0, 12.0, 0.004), *steady(12.5, 14.0, 0.004)]
    assert demo_report.stall_s(times, 10.0, 14.0) == pytest.approx(0.0, abs=1e-9)
    assert demo_report.stall_s(times, 10.0, 14.0, 3.0) == pytest.approx(0.5, abs=0.01)


def test_only_the_ranks_next_to_the_cut_are_looked_at():
    calm, stalled = steady(9.0, 12.0, 0.004), [*steady(9.0, 10.0, 0.004), *steady(10.05, 12.0, 0.004)]
    records = [record(rank, stalled if rank == 2 else calm) for rank in range(5)]
    cuts = [Cut(rank, 0, 10.0, 11.5) for rank in range(5)]
    gaps = demo_report.failover_gaps_ms(records, cuts, 12.0)
    assert [gap > 40 for gap in gaps] == [False, True, True, True, False]


@pytest.mark.parametrize(("ranks", "expected"), [(2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 3]), (8, [0, 1, 7])])
def test_the_ranks_next_to_a_rank_are_its_neighbours_on_the_ring(ranks: int, expected: list[int]):
    assert demo_report.ranks_next_to(0, ranks) == expected


def test_a_cut_is_survived_when_every_rank_completed_more_than_was_in_flight():
    cut = Cut(0, 0, 10.0, 11.0)
    enough = steady(10.05, 10.9, 0.1)
    in_flight_only = [10.01, 10.02, 10.03]
    assert demo_report.survived([record(0, [], enough), record(1, [], enough)], cut)
    assert not demo_report.survived([record(0, [], enough), record(1, [], in_flight_only)], cut)
    assert not demo_report.survived([record(0, [], enough), record(1, [], steady(11.1, 12.0, 0.1))], cut)


def test_bus_bandwidth_counts_what_a_ring_must_move():
    records = [record(rank, [], steady(0.0, 1.0001, 0.1)) for rank in range(4)]
    reached = demo_report.bus_bandwidth_gbit_s(records, [(0.0, 1.0)], 10_000_000)
    assert reached == pytest.approx(10 * 10_000_000 * 8 * 1.5 / 1e9)


def test_bus_bandwidth_leaves_out_what_lies_between_the_windows():
    completions = [*steady(0.0, 1.0, 0.1), *steady(5.0, 6.0, 0.1)]
    reached = demo_report.bus_bandwidth_gbit_s([record(0, [], completions)] * 2, [(0.0, 1.0), (5.0, 6.0)], 10**9)
    assert reached == pytest.approx(10 * 8 * 1.0)


def test_bus_bandwidth_of_no_operation_is_nothing():
    assert demo_report.bus_bandwidth_gbit_s([record(0, [], [1.0]), record(1, [])], [(0.0, 2.0)], 8) == 0.0


def test_phases_leave_the_transitions_out():
    cuts = [Cut(0, 0, 12.0, 14.0), Cut(1, 1, 17.0, 19.0)]
    before, degraded, after = demo_report.phases(cuts, 10.0, 22.0)
    assert before == [(10.0, 12.0)]
    assert degraded == [(12.25, 14.0), (17.25, 19.0)]
    assert after == [(15.25, 17.0), (20.25, 22.0)]


def test_without_cuts_all_is_before():
    assert demo_report.phases([], 1.0, 2.0) == ([(1.0, 2.0)], [], [])


@pytest.mark.parametrize("count", [1, 3, 20])
def test_planned_cuts_never_overlap_and_leave_time_to_measure(count: int):
    seconds = count * demo_report.SLOT_S_MIN + demo_report.LAST_LOOK_S
    for seed in range(20):
        planned = demo_report.plan_cuts(random.Random(seed), count, seconds, ranks=4, nics=2)
        assert len(planned) == count
        assert all(cut.restore_s - cut.cut_s >= demo_report.GAP_WINDOW_S for cut in planned)
        ends = [0.0, *(cut.restore_s for cut in planned)]
        assert all(cut.cut_s - end >= 0.8 for cut, end in zip(planned, ends, strict=False))
        assert ends[-1] + demo_report.SETTLING_AFTER_RETURN_S < seconds
        assert {(cut.rank, cut.nic) for cut in planned} <= {(rank, nic) for rank in range(4) for nic in range(2)}


def test_no_nic_is_cut_twice_before_all_were_cut():
    planned = demo_report.plan_cuts(random.Random(3), 12, 36.0, ranks=3, nics=2)
    first, second = ({(cut.rank, cut.nic) for cut in half} for half in (planned[:6], planned[6:]))
    assert len(first) == len(second) == 6


def test_the_same_seed_plans_the_same_cuts():
    first, second = (demo_report.plan_cuts(random.Random(7), 3, 12.0, 4, 2) for _ in range(2))
    assert first == second
    assert first != demo_report.plan_cuts(random.Random(8), 3, 12.0, 4, 2)


def test_no_cuts_are_no_plan():
    assert demo_report.plan_cuts(random.Random(0), 0, 4.0, 4, 2) == []


def a_summary(wrong: int = 0) -> Summary:
    records = [record(rank, steady(9.0, 14.0, 0.004), steady(9.0, 14.0, 0.05)) for rank in range(4)]
    for number, one in enumerate(records):
        one.resent_bytes = 10 * number
        one.wrong_elements = wrong if number == 2 else 0
    cuts = [Cut(0, 1, 10.0, 11.5)]
    return demo_report.summarise(
        records, cuts, (9.0, 14.0), nics_per_rank=2, operation_bytes=4 << 20, emulation="namespaces"
    )


def test_the_json_object_has_the_documented_fields_and_no_others():
    told = json.loads(json.dumps(a_summary().as_json()))
    assert list(told) == [
        "ranks",
        "nics_per_rank",
        "operations",
        "wrong_elements",
        "failovers",
        "failover_gap_ms",
        "failover_gaps_ms",
        "resent_bytes",
        "busbw_gbit_s_before",
        "busbw_gbit_s_degraded",
        "busbw_gbit_s_after",
        "emulation",
    ]
    assert told["ranks"] == 4
    assert told["operations"] == 100
    assert told["failovers"] == 1
    assert told["failover_gaps_ms"] == [0.0]
    assert told["resent_bytes"] == 60
    assert told["busbw_gbit_s_before"] == pytest.approx((4 << 20) * 1.5 * 8 / 1e9 / 0.05, abs=0.001)


def test_the_closing_line_tells_the_median_gap_in_seconds():
    summary = a_summary()
    line = demo_report.closing_line(dataclasses.replace(summary, failover_gap_ms=12.3), cuts=1)
    assert line == "[R2CCL] Successfully recovered in 0.012s"
    assert demo_report.is_success(summary, cuts=1)


def test_wrong_elements_are_the_first_thing_that_is_told():
    summary = a_summary(wrong=3)
    assert demo_report.closing_line(summary, cuts=1) == "[R2CCL] 3 elements were wrong"
    assert not demo_report.is_success(summary, cuts=1)


def test_a_cut_without_recovery_is_no_success():
    summary = a_summary()
    assert demo_report.closing_line(summary, cuts=2) == "[R2CCL] Recovered from 1 of 2 cuts only"
    assert not demo_report.is_success(summary, cuts=2)
