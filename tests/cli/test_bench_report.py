"""From timed iterations to table and JSON."""

from __future__ import annotations

import json

import pytest

from r2ccl.cli import bench_report
from r2ccl.cli.bench_collectives import IN, OUT
from r2ccl.cli.bench_machine import Load, busy_s, cores_used_by_others, machine
from r2ccl.cli.bench_options import Asked, check
from r2ccl.cli.bench_report import Row, Spread, Timing, Traffic, TurnResult
from r2ccl.cli.bench_turns import Answer

TRAFFIC = Traffic({"nic0": 300, "nic1": 100}, 20, 1)


def timed(us: float, wrong: int | None = 0) -> Timing:
    return Timing(Spread(us / 1e6, us / 2e6, us * 2 / 1e6), wrong)


def a_row(peer: Timing | None = None, wrong: int | None = 0) -> Row:
    ratio = None if peer is None else Spread(0.5, 0.4, 0.6)
    return Row(1 << 20, 1 << 18, 20, {IN: timed(1000, wrong)}, peer, ratio)


def test_an_iteration_takes_as_long_as_its_slowest_rank_and_a_turn_as_its_median_iteration():
    answers = [Answer([0, 0, 0], [1.0, 5.0, 2.0], 1), Answer([0, 0, 0], [3.0, 1.0, 2.0], 2)]
    assert bench_report.turn_result(answers) == TurnResult(3.0, 3)


def test_a_rank_that_leaves_a_barrier_before_the_last_has_entered_it_is_counted():
    honest = [Answer([0.0, 10.0], [2.0, 2.0]), Answer([1.0, 11.0], [1.5, 1.5])]
    assert bench_report.turn_result(honest, is_barrier=True, checks=1).wrong == 0
    early = [Answer([0.0, 10.0], [0.5, 2.0]), Answer([1.0, 11.0], [1.5, 1.5])]
    assert bench_report.turn_result(early, is_barrier=True, checks=1).wrong == 1
    assert bench_report.turn_result(early, is_barrier=True, checks=0).wrong == 0


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("all_to_all", 0.75),
        ("sendrecv", 1.0),
    ],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(collective, factor):
    options = check(Asked(collective, ranks=4))
    assert bench_report.algbw_gb_s(2_000_000_000, 0.5) == 4.0
    assert bench_report.busbw_gb_s(options, 2_000_000_000, 0.5) == 4.0 * factor


def test_rounds_become_median_least_and_most_and_the_ratio_is_that_of_each_round():
    ours, theirs = [TurnResult(2.0, 0), TurnResult(4.0, 1), TurnResult(3.0, 0)], [TurnResult(4.0, 0)] * 3
    assert bench_report.timing(ours, 1) == Timing(Spread(3.0, 2.0, 4.0), 1)
    assert bench_report.timing(ours, 0).wrong is None
    assert bench_report.ratio(ours, theirs) == Spread(0.75, 0.5, 1.0)


def test_a_line_has_the_columns_of_nccl_tests():
    options = check(Asked("all_reduce"))
    cells = bench_report.line(options, a_row()).split()
    assert cells[:5] == ["1048576", "262144", "float32", "sum", "-1"]
    assert cells[5:9] == ["N/A"] * 4
    assert cells[9:] == ["1000.0", "1.049", "1.049", "0"]
    titles = bench_report.heading(options)[1].split()
    assert titles[1:] == ["size", "count", "type", "redop", "root"] + ["time", "algbw", "busbw", "#wrong"] * 2


def test_titles_stand_above_their_columns():
    for asked in (Asked("all_reduce", peer="gloo"), Asked("all_reduce"), Asked("all_reduce", rounds=3)):
        options = check(asked)
        row = a_row(timed(2000) if options.peer else None)
        titles, units = bench_report.heading(options)[1:]
        line = bench_report.line(options, row)
        assert len(titles) == len(line)
        assert len(units) <= len(line)
        assert [i for i, c in enumerate(titles) if c == "|"] == [i for i, c in enumerate(line) if c == "|"]


def test_beside_a_peer_there_are_its_columns_with_spreads_and_the_ratio():
    options = check(Asked("all_reduce", peer="gloo"))
    _, ours, theirs, ratio = bench_report.line(options, a_row(timed(2000, 3))).split("|")
    assert ours.split() == ["500.0", "..", "2000.0"]
    assert theirs.split() == ["2000.0", "1000.0", "..", "4000.0", "0.524", "0.524", "3"]
    assert ratio.split() == ["0.50", "(0.40", "..", "0.60)"]


def test_below_the_table_are_shares_resent_bytes_wrong_elements_and_the_average():
    options = check(Asked("all_reduce", peer="gloo"))
    said = "\n".join(bench_report.closing(options, [a_row(timed(2000, 3), wrong=2)], TRAFFIC))
    assert "nic0 300 bytes (75.0%), nic1 100 bytes (25.0%)" in said
    assert "# Resent bytes : 20 (1 failovers)" in said
    assert "# Out of bounds values : 2 FAILED" in said
    assert "# Out of bounds values of gloo : 3 FAILED" in said
    assert "# Avg bus bandwidth : 1.0486" in said
    unchecked = check(Asked("all_reduce", checks=0))
    said = "\n".join(bench_report.closing(unchecked, [a_row(wrong=None)], TRAFFIC))
    assert "not checked" in said
    assert bench_report.line(unchecked, a_row(wrong=None)).split()[-1] == "N/A"


def test_the_average_is_over_rows_and_forms():
    options = check(Asked("all_gather"))
    row = Row(1 << 20, 1 << 17, 20, {OUT: timed(1000), IN: timed(500)})
    assert bench_report.average_busbw_gb_s(options, [row]) == pytest.approx(0.5 * 1.048576 * 1.5)


def test_traffic_is_what_was_sent_in_between_by_all_ranks():
    before = [{"nics": {"nic0": [10, 0], "nic1": [0, 0]}, "failovers": 0}] * 2
    after = [
        {"nics": {"nic0": [110, 5], "nic1": [50, 0]}, "failovers": 1},
        {"nics": {"nic0": [60, 0], "nic1": [50, 0]}, "failovers": 0},
    ]
    traffic = Traffic.between(before, after)
    assert traffic == Traffic({"nic0": 150, "nic1": 100}, 5, 1)
    assert traffic.share("nic0") == 0.6
    assert Traffic({"nic0": 0}, 0, 0).share("nic0") == 0.0


def test_the_json_has_the_promised_keys():
    options = check(Asked("all_reduce", peer="gloo"))
    printed = json.dumps(bench_report.as_json(options, [a_row(timed(2000))], TRAFFIC, machine()))
    told = json.loads(printed)
    [row] = told["rows"]
    assert {key: row[key] for key in ("size", "count", "type", "wrong")} == {
        "size": 1 << 20, "count": 1 << 18, "type": "float32", "wrong": 0,
    }  # fmt: skip
    assert row["time_us"] == pytest.approx(1000)
    assert row["algbw_gb_s"] == pytest.approx(1.048576)
    assert row["busbw_gb_s"] == pytest.approx(1.048576)
    assert row["in_place"]["time_us_range"] == pytest.approx([500, 2000])
    assert row["out_of_place"] is None
    assert (row["peer"]["name"], row["peer"]["time_us"]) == ("gloo", pytest.approx(2000))
    assert row["peer"]["algbw_gb_s"] == pytest.approx(0.524288)
    assert (row["ratio"], row["ratio_range"]) == (0.5, [0.4, 0.6])
    assert told["machine"]["cores"] >= 1
    assert told["nics"]["nic0"] == {"sent_bytes": 300, "share": 0.75}
    assert (told["resent_bytes"], told["failovers"], told["wrong"]) == (20, 1, 0)


def test_what_others_used_is_the_machines_time_less_our_own():
    assert cores_used_by_others(Load(0.0, 100.0, 1.0), Load(10.0, 120.0, 6.0)) == pytest.approx(1.5)
    assert cores_used_by_others(Load(0.0, 100.0, 1.0), Load(10.0, 101.0, 6.0)) == 0.0
    assert cores_used_by_others(Load(0.0, None, 1.0), Load(10.0, None, 6.0)) is None
    once = busy_s("cpu  100 10 50 9999 77 1 2 3 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    twice = busy_s("cpu  200 20 100 9999 99 2 4 6 0 0\n")
    assert twice == 2 * once > 0
