"""What the demo's command accepts, and where it decides to run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from r2ccl.cli import demo
from r2ccl.cli.demo import DemoOptions
from r2ccl.errors import UsageError

OPTIONS = DemoOptions(ranks=4, nics=2, spares=0, rate_mbit_s=500, cuts=3, seconds=12, fault="link-down", seed=1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ranks": 1}, "at least 2 ranks"),
        ({"nics": 1}, "nothing to fail over to"),
        ({"nics": 1, "spares": 1}, "nothing to fail over to"),
        ({"rate_mbit_s": 0.0}, "rate"),
        ({"rate_mbit_s": float("nan")}, "rate"),
        ({"rate_mbit_s": 1e12}, "rate"),
        ({"seed": -1}, "seed"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": float("inf")}, "seconds"),
        ({"cuts": 10}, "10 cuts need 26.5 s"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(changes: dict[str, Any], complaint: str):
    with pytest.raises(UsageError, match=complaint):
        demo.checked_options(dataclasses.replace(OPTIONS, **changes))


def test_one_nic_and_a_spare_are_enough():
    options = dataclasses.replace(OPTIONS, nics=2, spares=1)
    assert demo.checked_options(options) is options
    assert options.carrying == 1


def test_faster_nics_get_bigger_all_reduces_within_bounds():
    sizes = [dataclasses.replace(OPTIONS, rate_mbit_s=rate).elements for rate in (1, 500, 1000, 100_000)]
    assert sizes == [demo.ELEMENTS_MIN, 1000 << 9, 2000 << 9, demo.ELEMENTS_MAX]


def test_loopback_on_request_says_so():
    _, title = demo.choose_stage(OPTIONS, force_loopback=True)
    assert "loopback addresses" in title
    assert "as you asked" in title
