"""Rings of plain streams on emulated hosts, and what is done to them."""

from __future__ import annotations

import pytest

from r2ccl.cli import bench_mptcp, faults_figures
from r2ccl.cli.faults_kinds import FAULTS, Fault, Step, Victim
from r2ccl.cli.faults_stage import Hosts, add_mptcp_endpoints, stream_program
from r2ccl.cli.faults_trial import perform, running
from r2ccl.clock import MonotonicClock
from r2ccl.lab import Lab

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

RATE_MBIT_S = 100.0
#: Where the kernel has no MPTCP, the table leaves it out.
PROTOCOLS = (False, True) if bench_mptcp.is_available() else (False,)


@pytest.mark.parametrize("multipath", PROTOCOLS)
def test_a_ring_of_streams_goes_on_over_the_rail_that_is_left(multipath: bool) -> None:
    cut = FAULTS["link-down"]
    short = Fault(cut.key, cut.title, (cut.steps[0], Step(1.0, cut.steps[1].act)), settling_s=0.3)
    with Lab(hosts=2, nics=2, rate_mbit_s=RATE_MBIT_S) as lab:
        if multipath:
            add_mptcp_endpoints(lab)
        with running(Hosts(lab), stream_program(lab, multipath=multipath)) as watch:
            begin_s = MonotonicClock.now()
            watch.until(begin_s + 1.0)
            received = faults_figures.received_gbit_s(watch.ranks.records, (begin_s + 0.3, begin_s + 0.9))
            trial = perform(Hosts(lab, ranks=watch.ranks), watch, short, Victim.of(0, 2, 2), 0)
            watch.ranks.stop()
    assert received > 0.3 * RATE_MBIT_S / 1e3
    assert trial.error == ""
    assert trial.before_gbit_s
    assert trial.during_gbit_s is not None
    assert trial.during_gbit_s < 1.1 * RATE_MBIT_S / 1e3
    if not multipath:
        assert trial.during_gbit_s > 0.3 * RATE_MBIT_S / 1e3
