"""One fault under a stream: let it run, make the fault, watch, end the fault, and say what was seen.

The ranks may be r2ccl's, plain streams or gloo's: they all report alike. A rank that fails is a result and no reason to
stop: what was seen up to then counts, and the next trial has new ranks.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from r2ccl.cli import faults_figures as figures
from r2ccl.cli.demo_ranks import RankFailed, RankProgram, Ranks, tails
from r2ccl.cli.demo_report import bus_bandwidth_gbit_s
from r2ccl.cli.faults_figures import Happening, Trial
from r2ccl.cli.faults_kinds import Fault, Victim
from r2ccl.cli.faults_stage import Hosts
from r2ccl.clock import MonotonicClock

START_TIMEOUT_S: Final = 60.0
#: All NICs are there, and the rate is measured.
BEFORE_S: Final = 1.0
#: What ranks report comes twenty times a second.
REPORTS_S: Final = 0.15
#: The survivors of a killed rank hear of it much earlier, or never.
LOST_TIMEOUT_S: Final = 10.0
#: Quiet times end earlier.
RETURN_TIMEOUT_S: Final = 10.0
#: gloo may be late by its own threads.
DEATH_SLACK_S: Final = 5.0
_WAIT_S: Final = 0.05
_LINK: Final = re.compile(r"\blink=(\S+)")


class Watch:
    """Running ranks, and the events that they report."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.happenings: list[Happening] = []
        #: Links that are not in service, as their ranks see them.
        self.down: set[tuple[int, str]] = set()

    def until(self, deadline_s: float) -> None:
        """Let them run. Raises :class:`RankFailed`."""
        while (left_s := deadline_s - MonotonicClock.now()) > 0:
            self.ranks.wait(min(left_s, _WAIT_S))
            self._take_events()

    def ready(self) -> None:
        """Until all ranks run at full speed. Raises :class:`RankFailed`."""
        deadline_s = MonotonicClock.now() + START_TIMEOUT_S
        while not all(rank.is_ready for rank in self.ranks.all):
            self.until(MonotonicClock.now() + _WAIT_S)
            if MonotonicClock.now() > deadline_s:
                raise RankFailed(f"not all ranks started within {START_TIMEOUT_S:g} s{tails(self.ranks.all)}")

    def all_links_return(self) -> bool:
        """Wait for it; whether they did."""
        deadline_s = MonotonicClock.now() + RETURN_TIMEOUT_S
        while self.down and MonotonicClock.now() < deadline_s:
            self.until(MonotonicClock.now() + _WAIT_S)
        return not self.down

    def until_lost(self, ranks: list[int]) -> list[float]:
        """Wait for these ranks to be told of a loss; when each was, so far."""
        deadline_s = MonotonicClock.now() + LOST_TIMEOUT_S
        while True:
            told = [self.ranks.all[rank].lost for rank in ranks]
            if all(told) or MonotonicClock.now() > deadline_s:
                return [lost[0] for lost in told if lost is not None]
            self.until(MonotonicClock.now() + _WAIT_S)

    def forget(self) -> None:
        """What was before this trial."""
        self.happenings.clear()
        for record in self.ranks.records:
            record.arrivals.clear()
            record.completions.clear()

    def wrong_elements(self) -> int:
        """Of all ranks since they started."""
        return sum(record.wrong_elements for record in self.ranks.records)

    def _take_events(self) -> None:
        for rank in self.ranks.all:
            rank.samples.clear()
            while rank.events:
                happening = Happening(*_with_rank(rank.events.popleft(), rank.number))
                self.happenings.append(happening)
                self._follow_link(happening)

    def _follow_link(self, happening: Happening) -> None:
        found = _LINK.search(happening.text)
        if happening.name == "link" and found is not None:
            key = (happening.rank, found[1])
            if happening.is_return:
                self.down.discard(key)
            elif "UP->DOWN" in happening.text:
                self.down.add(key)


def _with_rank(event: tuple[float, str, str], rank: int) -> tuple[float, int, str, str]:
    time_s, name, text = event
    return time_s, rank, name, text


@contextlib.contextmanager
def running(hosts: Hosts, program: RankProgram) -> Iterator[Watch]:
    """Ranks on all hosts, ready; killed in the end. Raises :class:`RankFailed`."""
    hosts.ranks = ranks = Ranks(hosts, hosts.lab.hosts, program)
    try:
        watch = Watch(ranks)
        watch.ready()
        yield watch
    finally:
        hosts.ranks = None
        ranks.close()


def perform(hosts: Hosts, watch: Watch, fault: Fault, victim: Victim, operation_bytes: int) -> Trial:
    """One fault, healed at the end. ``operation_bytes``: 0 of streams, which have no operations."""
    watch.forget()
    wrong_before = watch.wrong_elements()
    begin_s = fault_s = end_s = MonotonicClock.now()
    error, detail, told = "", "", list[float]()
    undone = list(fault.steps)
    try:
        watch.until(begin_s + BEFORE_S)
        fault_s = end_s = undone.pop(0).act(hosts, victim)
        while undone:
            watch.until(fault_s + undone[0].at_s)
            end_s = undone.pop(0).act(hosts, victim)
        if fault.is_death:
            told = watch.until_lost([rank for rank in range(hosts.lab.hosts) if rank != victim.rank])
        watch.until(max(end_s, fault_s + fault.gap_window_s) + REPORTS_S)
    except RankFailed as failed:
        error, detail = why(watch, failed), str(failed)
        end_s = MonotonicClock.now()
        if undone and len(undone) < len(fault.steps):
            undone[-1].act(hosts, victim)
    seen = _seen(watch, fault, victim, (begin_s, fault_s, end_s), operation_bytes)
    if fault.is_death:
        complete = len(told) == hosts.lab.hosts - 1
        seen = replace(seen, repair_ms=1e3 * (max(told) - fault_s) if complete else None)
        error = error or ("" if complete else "not all ranks were told")
    return replace(seen, error=error, detail=detail, wrong_elements=watch.wrong_elements() - wrong_before)


def why(watch: Watch, failed: RankFailed) -> str:
    """In few words, so that alike ones can be counted."""
    told = [rank.lost[1] for rank in watch.ranks.all if rank.lost is not None]
    return told[0].partition(":")[0] if told else str(failed).partition("\n")[0]


def _seen(watch: Watch, fault: Fault, victim: Victim, times: tuple[float, float, float], operation_bytes: int) -> Trial:
    begin_s, fault_s, end_s = times
    records = watch.ranks.records
    until_s = MonotonicClock.now()
    # A death is told of after its only step; of the others nothing counts that the end of the fault causes.
    evidence_until_s = until_s if fault.is_death else end_s
    first = figures.first_evidence(watch.happenings, (fault_s, evidence_until_s), fault.hit(victim))
    repaired = figures.last_repair(watch.happenings, (fault_s, min(evidence_until_s, fault_s + fault.repair_window_s)))
    has_gap = not fault.is_death
    gap_of = (records, fault_s, until_s, fault.gap_window_s)
    gap_ms = figures.arrival_gap_ms(*gap_of) if has_gap else None
    # What is left is measured once things go on, however long that took.
    before, during = (begin_s, fault_s), (fault_s + max(fault.settling_s, (gap_ms or 0.0) / 1e3), end_s)
    if operation_bytes:
        before_gbit_s = bus_bandwidth_gbit_s(records, [before], operation_bytes)
        during_gbit_s = bus_bandwidth_gbit_s(records, [during], operation_bytes)
    else:
        before_gbit_s, during_gbit_s = (
            figures.received_gbit_s(records, window) if window[1] > window[0] else 0.0 for window in (before, during)
        )
    return Trial(
        detected_by=f"{first.name}: {first.cause}" if first is not None else "",
        detection_ms=figures.since_ms(fault_s, first),
        repair_ms=figures.since_ms(fault_s, repaired),
        gap_ms=gap_ms,
        operation_gap_ms=figures.operation_gap_ms(*gap_of) if has_gap and operation_bytes else None,
        before_gbit_s=before_gbit_s,
        during_gbit_s=during_gbit_s if fault.is_of_the_network else None,
        operations=figures.completed(records, (begin_s, until_s)) if operation_bytes else 0,
    )


def recovered(watch: Watch, fault: Fault) -> bool:
    """Whether all is as before, so that the next fault may come. Raises :class:`RankFailed`."""
    returned = watch.all_links_return()
    watch.until(MonotonicClock.now() + fault.recovery_s)
    return returned and not watch.down


def perform_on_gloo(hosts: Hosts, watch: Watch, fault: Fault, victim: Victim, timeout_s: float) -> Trial:
    """gloo goes on, or hangs until its timeout and dies. ``repair_ms`` is then how long it took to die."""
    watch.forget()
    for rank in watch.ranks.all:
        rank.may_end = True
    begin_s = MonotonicClock.now()
    watch.until(begin_s + BEFORE_S)
    fault_s = fault.steps[0].act(hosts, victim)
    limit_s = fault_s + max(fault.lasts_s, timeout_s + DEATH_SLACK_S)
    while MonotonicClock.now() < limit_s and not any(rank.lost for rank in watch.ranks.all):
        watch.until(MonotonicClock.now() + _WAIT_S)
        recent = (MonotonicClock.now() - 1.0, MonotonicClock.now())
        if recent[1] > fault_s + fault.lasts_s and figures.completed(watch.ranks.records, recent):
            break
    end_s = MonotonicClock.now()
    fault.steps[-1].act(hosts, victim)
    records = watch.ranks.records
    deaths = [rank.lost[0] for rank in watch.ranks.all if rank.lost is not None]
    return Trial(
        repair_ms=1e3 * (min(deaths) - fault_s) if deaths else None,
        gap_ms=None if deaths else figures.arrival_gap_ms(records, fault_s, end_s, fault.gap_window_s),
        before_gbit_s=_gloo_gbit_s(watch, (begin_s, fault_s)),
        during_gbit_s=None if deaths else _gloo_gbit_s(watch, (fault_s + fault.settling_s, end_s)),
        operations=figures.completed(records, (begin_s, end_s)),
        wrong_elements=watch.wrong_elements(),
        error="died" if deaths else "",
    )


def _gloo_gbit_s(watch: Watch, window: tuple[float, float]) -> float:
    sizes = [size for _, _, size in watch.ranks.records[0].arrivals]
    return bus_bandwidth_gbit_s(watch.ranks.records, [window], sizes[0]) if sizes else 0.0
