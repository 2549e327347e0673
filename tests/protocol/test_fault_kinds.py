"""Faults as a person writes them: what is understood, and what is refused with the right way to write it."""

from __future__ import annotations

import math

import pytest

from r2ccl.protocol.fault_kinds import (
    VALUES,
    Direction,
    Kind,
    Phase,
    Request,
    duration,
    pattern,
    rate,
    request,
    share,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("0.25", 0.25), ("250us", 0.00025), (" 3 s ", 3)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "10 years", "1e3", "9999h", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 10s"):
        duration(text)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0.1 %", 0.001)])
def test_shares_are_read(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "bits_s"), [("100mbit", 1e8), ("2gbit", 2e9), ("64Kbit/s", 64e3), ("8000bit", 8e3), ("1.5Gbps", None)]
)
def test_rates_are_read_as_tc_writes_them(text: str, bits_s: float | None) -> None:
    if bits_s is None:
        with pytest.raises(ValueError, match="bits, not bytes"):
            rate(text)
    else:
        assert rate(text) == pytest.approx(bits_s)


def test_a_pattern_is_phases_in_order() -> None:
    assert pattern("0.1s down, 400ms up") == (Phase(True, 0.1), Phase(False, 0.4))


@pytest.mark.parametrize("text", ["", "down", "0.1s", "0.1s sideways", "0.1s down,", "down 0.1s"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        pattern(text)


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_asks_for_the_value_that_it_needs_and_for_no_other(kind: Kind) -> None:
    phases = "1s down" if kind is Kind.FLAP else None
    if kind in VALUES:
        assert request(kind, VALUES[kind]).value > 0
        with pytest.raises(ValueError, match="needs a value"):
            request(kind)
    else:
        assert request(kind, flap_pattern=phases).value == 0
        with pytest.raises(ValueError, match="takes no value"):
            request(kind, "5%", flap_pattern=phases)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.LOSS, 0.0), (Kind.LOSS, 1.01), (Kind.CORRUPT, -0.1), (Kind.RATE, 1.0), (Kind.RATE, 2e12),
        (Kind.DELAY, 61.0), (Kind.DELAY, math.nan), (Kind.RATE, math.inf), (Kind.STOP, 1.0),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(kind: Kind, value: float) -> None:
    with pytest.raises(ValueError, match=kind):
        Request(kind, value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": Kind.FLAP},
        {"kind": Kind.SILENT_DROP, "phases": (Phase(True, 1),)},
        {"kind": Kind.FLAP, "phases": (Phase(False, 1),)},
        {"kind": Kind.FLAP, "phases": (Phase(True, 0),)},
        {"kind": Kind.FLAP, "phases": (Phase(True, math.nan),)},
        {"kind": Kind.FLAP, "phases": (Phase(True, 1),) * 65},
        {"kind": Kind.FLAP, "phases": (Phase(True, 1),), "times": 0},
        {"kind": Kind.FLAP, "phases": (Phase(True, 1),), "flapping": Kind.LOSS},
        {"kind": Kind.LINK_DOWN, "direction": Direction.IN},
    ],
)
def test_a_fault_that_makes_no_sense_cannot_be_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pattern|phase|flap|direction"):
        Request(**wrong)  # type: ignore[arg-type]


def test_only_a_flap_is_repeated() -> None:
    with pytest.raises(ValueError, match="only a flap"):
        request(Kind.SILENT_DROP, times=2)


def test_a_flap_knows_how_long_it_takes_and_others_end_when_they_are_undone() -> None:
    flap = request(Kind.FLAP, flap_pattern="0.1s down, 0.4s up", times=20)
    assert flap.seconds == pytest.approx(10)
    assert request(Kind.LINK_DOWN).seconds is None


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (request(Kind.LOSS, "5%"), "loss 5%"),
        (request(Kind.RATE, "2gbit", direction=Direction.OUT), "rate 2000mbit (out only)"),
        (request(Kind.DELAY, "5ms"), "delay 5ms"),
        (request(Kind.FLAP, flap_pattern="1s down, 2s up", times=3), "flap of link-down, 1s down, 2s up, 3 times"),
    ],
)
def test_a_fault_says_what_it_is(asked: Request, text: str) -> None:
    assert str(asked) == text


def test_only_a_flap_is_made_with_another_fault() -> None:
    assert request(Kind.FLAP, flap_pattern="1s down").flapping is Kind.LINK_DOWN
    assert request(Kind.FLAP, flap_pattern="1s down", flapping=Kind.SILENT_DROP).flapping is Kind.SILENT_DROP
    with pytest.raises(ValueError, match="leave out --with"):
        request(Kind.LOSS, "5%", flapping=Kind.LINK_DOWN)
