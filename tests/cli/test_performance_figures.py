"""From turns to medians, ratios, intervals and goals."""

from __future__ import annotations

import json
import math

import pytest

from r2ccl.cli import performance_parts as parts
from r2ccl.cli.bench_report import Spread
from r2ccl.cli.performance_figures import Results, interval_of_median, quantile
from r2ccl.cli.performance_goals import goals, price, size_text
from tests.cli.performances import everything, measured, part


def test_a_ratio_is_that_of_turns_of_the_same_round():
    one = part(parts.TCP_2, measured("a", 4, [10, 20, 90]), measured("b", 4, [20, 20, 30]))
    assert one.ratios("a", "b", 4) == pytest.approx([0.5, 1.0, 3.0])
    assert one.ratio("a", "b", 4) == Spread.of(one.ratios("a", "b", 4))
    assert one.ratio("a", "c", 4) is None
    assert one.ratio("a", "b", 8) is None


def test_bandwidth_and_processor_time_are_of_the_bytes_that_ranks_must_send():
    one = measured("a", 4_000_000, [2000, 1000, 4000], cpu_s=(0.006, 0.012, 0.012))
    two, four = part("x", one), part("x", one, ranks=4)
    assert two.busbw_gb_s(one) == pytest.approx(2.0)
    assert four.busbw_gb_s(one) == pytest.approx(3.0)
    assert two.cpu_s_per_gb(one) == pytest.approx(0.012 / 0.008)
    assert four.cpu_s_per_gb(one) == pytest.approx(0.012 / 0.024)


def test_a_rate_counts_all_operations_of_a_window_and_all_time():
    one = measured("a", 1024, [1, 1], means_s=(0.010, 0.030))
    assert part("x", one, window=64).rate(one) == pytest.approx(64 / 0.020)


def test_a_quantile_is_a_value_that_so_many_do_not_exceed():
    values = [float(value) for value in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([7.0], 0.5) == 7.0


@pytest.mark.parametrize("number", range(1, 60))
def test_an_interval_covers_the_true_median_as_surely_as_it_says_and_none_within_it_does(number: int):
    values = [float(value) for value in range(number)]
    spread = interval_of_median(values)

    def misses(cut: int) -> float:
        """How probably the true median lies beyond, with so many values cut off at each end."""
        return 2 * sum(math.comb(number, k) for k in range(cut + 1)) / float(2**number)

    cut = int(spread.smallest)
    assert spread.largest == number - 1 - cut
    assert number < 6 or misses(cut) <= 0.05
    assert misses(cut + 1) > 0.05 or number < 6


def test_results_survive_json():
    results = everything()
    results.left_out["gloo in lab"] = "no torch"
    assert Results.parse(json.loads(json.dumps(results.as_json()))) == results


@pytest.mark.parametrize(("size", "text"), [(4, "4 B"), (1024, "1 KiB"), (1 << 20, "1 MiB"), (1 << 30, "1 GiB"),
                                            (1536, "1536 B"), (12 << 20, "12 MiB")])  # fmt: skip
def test_a_size_is_written_as_people_do(size: int, text: str):
    assert size_text(size) == text


# Goals.


def reached(results: Results) -> dict[tuple[str, str], bool]:
    return {(goal.where, goal.wanted): goal.reached for goal in goals(results)}


def only(one: object, key: str) -> Results:
    return Results({key: one})  # type: ignore[dict-item]


def test_the_worst_size_decides():
    good = [measured(parts.OURS, size, [10]) for size in (4, 1024)] + [measured(parts.GLOO, 4, [30])]
    fast = part(parts.TCP_2, *good, measured(parts.GLOO, 1024, [21]))
    slow = part(parts.TCP_2, *good, measured(parts.GLOO, 1024, [19]))
    wanted = ("loopback TCP, 2 ranks", "time / gloo's at most 0.5 up to 64 KiB")
    assert reached(only(fast, parts.TCP_2))[wanted]
    assert not reached(only(slow, parts.TCP_2))[wanted]
    (goal,) = [goal for goal in goals(only(slow, parts.TCP_2)) if (goal.where, goal.wanted) == wanted]
    assert goal.found == "0.53 (0.53 to 0.53) at 1 KiB"


def test_without_a_peer_nothing_is_said_about_it():
    alone = part(parts.TCP_2, measured(parts.OURS, 4, [49]))
    assert reached(only(alone, parts.TCP_2)) == {("loopback TCP, 2 ranks", "at most 50 us at 4 B"): True}


@pytest.mark.parametrize(("us", "good"), [(101.9, True), (102.5, False)])
def test_between_hosts_98_percent_of_plain_streams_are_wanted(us: float, good: bool):
    size = 16 * parts.MIB
    lab = part(parts.LAB, measured(parts.OURS, size, [us]), measured(parts.STREAMS, size, [100]))
    assert list(reached(only(lab, parts.LAB)).values()) == [good]


def test_gaps_are_judged_by_their_99th_percentile_and_the_thread_by_how_late_it_is():
    def server(side: str, gap_s: float) -> Results:
        gaps = tuple([0.005] * 90 + [gap_s] * 10)
        return only(part(parts.SERVER, measured(side, 4, [1], gaps_s=gaps), tick_s=0.005), parts.SERVER)

    for side, good_s, bad_s in ((parts.OURS, 0.0099, 0.0101), (parts.SHARED_THREAD, 0.0069, 0.0071)):
        assert list(reached(server(side, good_s)).values()) == [True]
        assert list(reached(server(side, bad_s)).values()) == [False]


def test_a_ticker_that_never_had_its_turn_says_nothing():
    assert goals(only(part(parts.SERVER, measured(parts.OURS, 4, [1]), tick_s=0.005), parts.SERVER)) == []


def test_many_small_operations_are_compared_by_rate():
    def small(gloo_us: float) -> Results:
        both = (measured(parts.OURS, 1024, [100]), measured(parts.GLOO, 1024, [gloo_us]))
        return only(part(parts.SMALL, *both, window=64), parts.SMALL)

    assert list(reached(small(501)).values()) == [True]
    assert list(reached(small(499)).values()) == [False]


def test_a_price_is_what_the_dearer_side_takes_longer():
    one = everything().parts[parts.PRICE]
    found = price(one, parts.OURS, parts.UNCHECKED, parts.MIB)
    assert found is not None
    median, least, most = found
    assert least < median < most
    assert median == pytest.approx(0.0099, abs=1e-4)
    assert price(one, parts.OURS, parts.GLOO, parts.MIB) is None


def test_prices_are_judged_each_by_its_own_limit():
    found = {where: good for (where, _), good in reached(everything()).items() if where.startswith("price")}
    assert found == {"price of ledger and acknowledgements": False, "price of checksums": True}


@pytest.mark.parametrize(("us", "good"), [(1019, True), (1021, False)])
def test_checksums_are_judged_by_what_they_add_to_a_rank_without(us: float, good: bool):
    one = part(parts.PRICE, measured(parts.OURS, parts.MIB, [us] * 6), measured(parts.UNCHECKED, parts.MIB, [1000] * 6))
    assert reached(only(one, parts.PRICE)) == {("price of checksums", "at most 2 %"): good}


def test_every_part_has_a_goal():
    for key, one in everything().parts.items():
        assert goals(only(one, key)), key
