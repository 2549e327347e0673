"""Twenty seconds of faults on real interfaces under mixed work: nothing lost, nothing left. See ``r2ccl soak``."""

from __future__ import annotations

import pytest

from r2ccl.cli import soak_lab
from r2ccl.lab import Lab

#: The faulthandler's own limit is for tests that hang; this one takes long.
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.timeout(280),
]

SECONDS = 20.0


@pytest.mark.parametrize("seed", [20261])
def test_a_fault_every_second_loses_nothing_and_leaves_nothing(seed: int) -> None:
    with Lab(hosts=3, nics=2, rate_mbit_s=500, name="soak") as lab:
        soaked = soak_lab.play(lab, seed, SECONDS)
    print(soaked.as_json())
    print(soaked.story)
    assert soaked.complaints == []
    assert soaked.growing() == []
    assert soaked.faults.total() > SECONDS / 2
    assert soaked.failovers > 0
    assert soaked.rounds > 0
    assert soaked.operations > 0
    assert [len(track.measures["memory"].values) >= SECONDS / 2 for track in soaked.tracks] == [True] * 3
