"""What is made of the steps of trainings: which step was hit, by how much, and what the page and the picture say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from r2ccl.cli.training_figures import Interval, Step, Training, pair, parts, step_time
from r2ccl.cli.training_page import Results, Setting, figures, page
from r2ccl.cli.training_plot import plot, require_matplotlib

STEPS, CUT, RESTORED = 80, 40, 60
FACTS = {
    "system": "Linux", "release": "6", "architecture": "x86_64", "cores": 2, "python": "3.11", "torch": "2.13.0",
    "numpy": "2.0", "r2ccl": "0.1", "cores_used_by_others": 0.25,
}  # fmt: skip
SETTING = Setting(hosts=4, rate_mbit_s=500, steps=STEPS, parameters=1234)


def training(
    ms: float = 10.0,
    *,
    cut: bool = False,
    slow: dict[int, float] | None = None,
    epochs: dict[int, int] | None = None,
    other_bits_from: int = STEPS + 1,
    backend: str = "r2ccl",
) -> Training:
    """Steps of ``ms`` each, by number; some slower, some with another epoch or other bits."""
    steps, now_s, epoch = [], 100.0, 0
    for number in range(1, STEPS + 1):
        epoch = (epochs or {}).get(number, epoch)
        seconds = (slow or {}).get(number, ms) / 1e3
        loss = 3.0 - number / 100 + (1e-6 if number >= other_bits_from else 0.0)
        steps.append(Step(number, loss, loss.hex(), now_s, seconds, epoch, 7000 * (number > CUT)))
        now_s += seconds + 0.001
    if not cut:
        return Training(backend, tuple(steps))
    # In the middle of the step after.
    return Training(backend, tuple(steps), steps[CUT].began_s + 0.005, steps[RESTORED].began_s + 0.005)


def test_a_step_is_read_from_what_a_rank_tells():
    told = {"step": 3, "loss": 2.5, "bits": "0x1.4p+1", "began": 9.0, "seconds": 0.25, "epoch": 2, "resent_bytes": 5}
    assert Step.of(told) == Step(3, 2.5, "0x1.4p+1", 9.0, 0.25, 2, 5)
    assert Step.of({name: told[name] for name in list(told)[:5]}) == Step(3, 2.5, "0x1.4p+1", 9.0, 0.25)


def test_a_moment_belongs_to_the_step_that_is_under_way_or_comes_next():
    steps = training().steps
    whole = Training("r2ccl", steps)
    assert whole.step_at(steps[5].began_s + 0.002) == 5
    assert whole.step_at(steps[5].began_s + 0.0105) == 6, "between two steps"
    assert whole.step_at(0.0) == 0
    assert whole.step_at(1e9) == STEPS - 1


def test_the_hit_step_is_the_slower_of_two_and_told_by_those_before():
    for hit in (CUT + 1, CUT + 2):
        found = pair(training(), training(cut=True, slow={hit: 42.0, CUT + 3: 99.0}))
        assert found.cut.step == CUT + 1
        assert found.cut.longer_ms == pytest.approx(32.0)
        assert found.cut.beside_ms == pytest.approx(0.0)
    one_before = pair(training(), training(cut=True, slow={CUT: 30.0, CUT + 1: 42.0}))
    assert one_before.cut.longer_ms == pytest.approx(32.0), "what is usual is no single step"
    found = pair(training(slow={RESTORED + 1: 15.0}), training(cut=True, slow={RESTORED + 2: 20.0}))
    assert found.restored.step == RESTORED + 1
    assert found.restored.longer_ms == pytest.approx(10.0)
    assert found.restored.beside_ms == pytest.approx(5.0)


def test_parts_leave_out_the_warm_up_and_the_steps_that_are_hit():
    before, without, again, all_of_them = parts(training(cut=True)).values()
    assert before == range(10, CUT)
    assert without == range(CUT + 2, RESTORED)
    assert again == range(RESTORED + 2, STEPS)
    assert all_of_them == (*before, *without, *again)


def test_a_training_without_a_cut_has_no_parts():
    with pytest.raises(ValueError, match="nothing was cut"):
        parts(training())


def test_medians_are_of_the_same_steps_of_both():
    slower_without = dict.fromkeys(range(CUT + 3, RESTORED + 1), 15.0)
    found = pair(training(10.0), training(10.0, cut=True, slow=slower_without))
    assert found.medians_ms["before the cut"] == pytest.approx((10.0, 10.0))
    assert found.medians_ms["without the NIC"] == pytest.approx((10.0, 15.0))
    assert found.medians_ms["with it again"] == pytest.approx((10.0, 10.0))
    assert step_time([found, found], "without the NIC").mean == pytest.approx(0.5)


def test_a_bit_may_differ_only_when_the_ranks_have_planned_anew():
    unharmed = training()
    same = pair(unharmed, training(cut=True))
    assert (same.first_different_step, same.replanned_step, same.is_true) == (None, None, True)
    after = pair(unharmed, training(cut=True, epochs={44: 1}, other_bits_from=46))
    assert (after.first_different_step, after.replanned_step, after.is_true) == (46, 44, True)
    assert after.largest_difference == pytest.approx(1e-6)
    before = pair(unharmed, training(cut=True, epochs={44: 1}, other_bits_from=43))
    assert not before.is_true
    assert not pair(unharmed, training(cut=True, other_bits_from=43)).is_true
    # The unharmed one may plan anew, too: what its NICs carry is measured.
    assert pair(training(epochs={20: 1}), training(cut=True, other_bits_from=20)).is_true


def test_trainings_of_unlike_lengths_are_not_compared():
    short = replace(training(), steps=training().steps[:-1])
    with pytest.raises(ValueError, match="shorter"):
        pair(short, training(cut=True))


def test_an_interval_is_students():
    # The mean of these is 3, their standard deviation sqrt(2.5): 2.776 * sqrt(2.5 / 5).
    five = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (five.mean, five.high - 3.0, 3.0 - five.low) == pytest.approx((3.0, 1.9629, 1.9629), abs=1e-3)
    assert not five.has_zero
    assert Interval.of([-1.0, 1.0]).has_zero
    assert Interval.of([-1.0, 1.0]).high == pytest.approx(12.706)
    many = Interval.of([0.0, 1.0] * 50)
    assert many.high - many.mean == pytest.approx(1.96 * math.sqrt(0.25 * 100 / 99) / 10)
    alone = Interval.of([2.0])
    assert (alone.mean, alone.low, alone.high) == (2.0, -math.inf, math.inf)


def results(pairs: int = 5, gloo: bool = True, **harmed: object) -> Results:
    died = training(cut=True, backend="gloo")
    died = replace(died, steps=died.steps[: CUT + 1], trouble="the ranks ended with 1", ended_s=(died.cut_s or 0) + 30)
    return Results(
        tuple(training(10.0 + number / 100) for number in range(pairs)),
        tuple(training(10.01, cut=True, **harmed) for _ in range(pairs)),  # type: ignore[arg-type]
        tuple(training(20.0, cut=True, backend="gloo") for _ in range(pairs)) if gloo else (),
        died if gloo else None,
    )


def test_the_page_has_every_figure():
    hit = {CUT + 1: 40.0, RESTORED + 1: 12.0}
    text = page(SETTING, results(slow=hit, epochs={43: 1}), FACTS, "the command", "images/it.svg")
    assert "    the command\n" in text
    assert "4 ranks" in text
    assert "1,234 parameters" in text
    assert "0.25 cores" in text
    assert "![Loss and step time, with and without the cut](images/it.svg)" in text
    assert "| 1 | none | 43 | 0.0e+00 | 2.20000 | 2.20000 | 7 kB |" in text
    assert "In no pair does a bit differ" in text
    assert "| the NIC goes | 30.0 ms | 30.0 ms | 0.0 ms | 0.0 ms |" in text
    assert "| it comes back | 2.0 ms | 2.0 ms | 0.0 ms | 0.0 ms |" in text
    assert re.search(
        r"\| before the cut \| 10.0 ms \| 10.0 ms \| -0.1 % \(-0.3 % to \+0.1 %\): inside the noise \|", text
    )
    assert re.search(r"\| both NICs \| 10.0 ms \| 20.0 ms \| -50\.0 % \(-50\.0 % to -50\.0 %\) \|", text)
    assert "| one of two cut; gloo on the other | 10.0 ms | 20.0 ms |" in text
    assert "gloo on the NIC that is cut made no step after 41; 30.0 s after the cut the ranks ended with 1." in text


def test_the_page_tells_the_usual_hit_and_the_worst():
    hits = [training(cut=True, slow={CUT + 1: ms}) for ms in (20.0, 90.0, 30.0)]
    text = page(SETTING, replace(results(3, gloo=False), harmed=tuple(hits)), FACTS, "c", None)
    assert "| the NIC goes | 20.0 ms | 80.0 ms | 0.0 ms | 0.0 ms |" in text


def test_the_page_does_not_hide_what_is_wrong_or_missing():
    broken = page(SETTING, results(other_bits_from=30), FACTS, "c", None)
    assert "**In pair 1, 2, 3, 4, 5 a bit differs before the ranks have planned anew.**" in broken
    assert "![" not in broken
    alone = page(SETTING, results(1, gloo=False), FACTS, "c", None)
    assert "one pair has no interval" in alone
    assert "Beside gloo" not in alone
    lives = replace(results(), gloo_cut=training(cut=True, backend="gloo"))
    assert "went on to the end" in page(SETTING, lives, FACTS, "c", None)


def test_programs_get_the_same_figures():
    found = figures(results(slow={CUT + 1: 40.0}))
    assert len(found["pairs"]) == 5
    assert found["pairs"][0]["cut"]["longer_ms"] == pytest.approx(30.0, abs=0.1)
    assert found["pairs"][0]["is_true"]
    assert found["step_time"]["with it again"]["count"] == 5
    assert found["beside_gloo"]["without the NIC"]["gloo_ms"] == pytest.approx(20.0)
    assert found["gloo_cut"]["died_after_s"] == pytest.approx(30.0)
    assert set(figures(results(gloo=False))) == {"pairs", "step_time"}


def test_the_picture_has_both_trainings_and_where_gloo_died(tmp_path: Path):
    require_matplotlib()
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    plot(one, results())
    plot(other, results())
    assert one.read_bytes() == other.read_bytes()
    drawn = one.read_text()
    plot(other, results(gloo=False))
    assert len(other.read_text()) < len(drawn)
    assert "<svg" in drawn
