"""A hundred cuts at random while four ranks compute: not one wrong element, not one error.

``r2ccl faults`` makes many more of the same.
"""

from __future__ import annotations

import pytest

from r2ccl.cli import faults_random
from r2ccl.cli.faults_stage import Hosts
from r2ccl.lab import Lab

#: The faulthandler's own limit is for tests that hang; this one takes long.
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.timeout(280),
]

CUTS = 100
ELEMENTS = 1 << 20


@pytest.mark.parametrize("seed", [20260])
def test_a_hundred_random_cuts_leave_no_wrong_element_and_no_error(seed: int) -> None:
    with Lab(hosts=4, nics=2, rate_mbit_s=500) as lab:
        came_to = faults_random.play(Hosts(lab), seed, CUTS, ELEMENTS)
    print(came_to)
    assert came_to.errors == ()
    assert came_to.wrong_elements == 0
    assert came_to.cuts == CUTS
    assert came_to.felt > 0
    assert came_to.operations > CUTS
