"""Rates, shares and times as they are typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.errors import UsageError
from r2ccl.lab import quantities


@pytest.mark.parametrize(
    ("text", "mbit_s"),
    [("2gbit", 2000), ("2.5 Gbit/s", 2500), ("500mbit", 500), ("200", None), ("100kbit", 0.1), ("10Gbps", None)],
)
def test_a_rate_says_its_unit(text: str, mbit_s: float | None):
    if mbit_s is None:
        with pytest.raises(UsageError, match="no rate"):
            quantities.rate_mbit_s(text)
    else:
        assert quantities.rate_mbit_s(text) == pytest.approx(mbit_s)


@pytest.mark.parametrize("text", ["", "fast", "0", "-1gbit", "1kbit", "101gbit", "2gibit", "2g bit", "nan", "1e3"])
def test_what_is_no_rate_is_refused(text: str):
    with pytest.raises(UsageError, match="no rate"):
        quantities.rate_mbit_s(text)


def test_a_share_is_a_percentage_or_a_fraction():
    assert quantities.share("5%") == pytest.approx(0.05)
    assert quantities.share("0.5") == 0.5
    assert quantities.share("100%") == 1


@pytest.mark.parametrize("text", ["0%", "101%", "5", "half", "5 percent", "-1%", ""])
def test_what_is_no_share_is_refused(text: str):
    with pytest.raises(UsageError, match="no share"):
        quantities.share(text)


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600)])
def test_a_time_has_a_unit_or_is_in_seconds(text: str, seconds: float):
    assert quantities.time_s(text) == pytest.approx(seconds)
    assert quantities.time_s("3") == 3


@pytest.mark.parametrize("text", ["0", "0s", "25h", "soon", "-1s", "1 week", ""])
def test_what_is_no_time_up_to_a_day_is_refused(text: str):
    with pytest.raises(UsageError, match="no time"):
        quantities.time_s(text)


@given(st.floats(quantities.RATE_MBIT_S_MIN, quantities.RATE_MBIT_S_MAX))
def test_a_rate_that_is_shown_can_be_typed_again(mbit_s: float):
    shown = quantities.rate_text(mbit_s)
    assert "e" in shown or quantities.rate_mbit_s(shown) == pytest.approx(mbit_s, rel=1e-4)
