"""What counts as a change of a NIC's bandwidth: coarse, and for a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.steadiness import (
    FORGET_S,
    HOLD_S,
    STEP_MAX,
    Steadiness,
    bandwidth_of,
    pack_steps,
    read_steps,
    step_of,
)

GBIT = 125e6
bandwidths = st.floats(1e3, 1e12)
noise = st.floats(0.95, 1.05)


@given(bandwidths, noise, st.lists(noise, min_size=1, max_size=40))
def test_five_percent_of_noise_never_change_a_step(bandwidth: float, first: float, later: list[float]) -> None:
    nic = Steadiness(step_of(bandwidth * first))
    for count, factor in enumerate(later):
        assert not nic.measured(bandwidth * factor, count * 0.5)
        assert nic.due_s is None


@given(bandwidths, st.floats(0.05, 0.55), noise)
def test_a_half_less_that_holds_for_a_second_is_a_change(bandwidth: float, left: float, factor: float) -> None:
    nic = Steadiness(step_of(bandwidth))
    changes = [nic.measured(bandwidth * left * factor, count / 4) for count in range(5)]
    assert changes == [False, False, False, False, True]
    assert bandwidth_of(nic.step or 0) == pytest.approx(max(1.0, bandwidth * left * factor), rel=0.1)


def test_a_spike_is_no_change() -> None:
    nic = Steadiness(step_of(GBIT))
    assert not nic.measured(GBIT / 10, 0.0)
    assert nic.due_s == HOLD_S
    assert not nic.measured(GBIT / 10, 0.9)
    assert not nic.measured(GBIT, 0.95)
    assert nic.due_s is None
    assert not nic.measured(GBIT / 10, 1.0)
    assert not nic.measured(GBIT / 10, 1.9)
    assert nic.step == step_of(GBIT)


def test_a_ramp_is_told_when_it_ends() -> None:
    nic = Steadiness(step_of(GBIT))
    told = [nic.measured(GBIT / (1 + count), count * 0.25) for count in range(10)]
    assert not any(told)
    assert [nic.measured(GBIT / 10, 2.5 + count * 0.25) for count in range(4)].count(True) == 1
    assert nic.step == step_of(GBIT / 10)


def test_what_comes_back_and_carries_about_what_it_did_is_what_it_was() -> None:
    nic = Steadiness(step_of(GBIT))
    assert [nic.measured(None, at_s) for at_s in (0.0, HOLD_S)] == [False, True]
    assert nic.step is None
    back = [nic.measured(GBIT * factor, 2.0 + count / 4) for count, factor in enumerate((0.8, 1.2, 0.85, 1.1, 0.8))]
    assert back == [False, False, False, False, True]
    assert nic.step == step_of(GBIT)
    assert [nic.measured(None, at_s) for at_s in (5.0, 6.0)] == [False, True]
    slow = [nic.measured(GBIT / 3, 7.0 + count / 4) for count in range(5)]
    assert slow[-1]
    assert nic.step == step_of(GBIT / 3)


def test_two_measurements_make_no_bandwidth() -> None:
    nic = Steadiness(step_of(GBIT))
    assert not nic.measured(GBIT / 10, 0.0)
    assert not nic.settle(1.0)
    assert not nic.measured(GBIT / 10, 1.5)
    assert nic.measured(GBIT / 10, 1.6)


def test_too_few_measurements_are_forgotten_and_waited_for_no_more() -> None:
    nic = Steadiness(step_of(GBIT))
    assert not nic.measured(GBIT / 10, 0.0)
    assert not nic.measured(GBIT / 10, 0.5)
    assert not nic.settle(0.5 + FORGET_S - 0.01)
    assert nic.due_s is not None
    assert not nic.settle(0.5 + FORGET_S)
    assert nic.due_s is None
    assert not nic.measured(GBIT / 10, 3.0)
    assert nic.step == step_of(GBIT)


def test_down_needs_one_word_and_a_second() -> None:
    nic = Steadiness(step_of(GBIT))
    assert not nic.measured(None, 3.0)
    assert nic.due_s == 3.0 + HOLD_S
    assert not nic.settle(3.9)
    assert nic.settle(4.0)
    assert nic.step is None
    assert not nic.settle(5.0)
    assert not nic.measured(None, 5.0)


def test_a_flap_within_the_second_is_no_change() -> None:
    nic = Steadiness(step_of(GBIT))
    for flap in range(20):
        assert not nic.measured(None, flap * 0.5)
        assert not nic.measured(GBIT, flap * 0.5 + 0.25)
    assert nic.step == step_of(GBIT)


def test_a_nic_comes_back_like_any_other_change() -> None:
    nic = Steadiness(None)
    assert [nic.measured(GBIT, count * 0.5) for count in range(3)] == [False, False, True]
    assert nic.step == step_of(GBIT)


@given(st.floats(0, 1e30))
def test_a_step_is_near_its_bandwidth_within_the_scale(bandwidth: float) -> None:
    step = step_of(bandwidth)
    assert 0 <= step <= STEP_MAX
    if 1 <= bandwidth <= bandwidth_of(STEP_MAX):
        assert bandwidth_of(step) == pytest.approx(bandwidth, rel=0.1)


@given(st.lists(st.none() | st.integers(0, STEP_MAX), max_size=20))
def test_reports_are_read_as_they_were_packed(steps: list[int | None]) -> None:
    assert read_steps(pack_steps(steps)) == tuple(steps)


@given(st.binary(max_size=64))
def test_every_string_of_bytes_is_a_report(report: bytes) -> None:
    assert pack_steps(read_steps(report)) == report
