"""The drawing of a soak's faults: what may last at once, what each leaves, and that all kinds come."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from r2ccl.cli import soak_storm
from r2ccl.cli.faults_kinds import FAULTS
from r2ccl.cli.soak_storm import OUTAGE, OUTAGE_S, Storm, Trouble

HOSTS, NICS = 3, 2
NO_DIRECT_PATH = ("two-nics", OUTAGE)


def drawn(seed: int, troubles: int = 600) -> list[Trouble]:
    storm = Storm(random.Random(seed), HOSTS, NICS)
    found = [storm.draw(second * soak_storm.EVERY_S) for second in range(troubles)]
    return [trouble for trouble in found if trouble is not None]


def at_once(troubles: list[Trouble]) -> list[list[Trouble]]:
    """Those that last together, at the begin of each."""
    return [[other for other in troubles if other.begin_s <= one.begin_s < other.end_s] for one in troubles]


@pytest.mark.parametrize("seed", range(5))
def test_every_two_ranks_keep_a_rail_but_for_a_fault_that_is_alone(seed: int):
    seen = Counter[int]()
    for together in at_once(drawn(seed)):
        broken = [trouble for trouble in together if trouble.key not in ("slow", "loss", "stopped")]
        seen[len(broken)] += 1
        if any(trouble.key in NO_DIRECT_PATH for trouble in broken):
            assert len(broken) == 1
            continue
        nics = set().union(*(trouble.nics for trouble in broken)) if broken else set()
        for one, other in itertools.combinations(range(HOSTS), 2):
            assert any(not {(one, rail), (other, rail)} & nics for rail in range(NICS))
    assert seen[2] > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_nic_and_a_process_have_one_fault_at_a_time(seed: int):
    for together in at_once(drawn(seed)):
        hit = [nic for trouble in together for nic in trouble.nics]
        assert len(hit) == len(set(hit))
        stopped = [trouble for trouble in together if trouble.key == "stopped"]
        assert len(stopped) <= 1
        assert not (stopped and any(trouble.key == OUTAGE for trouble in together))


def test_all_kinds_come_on_all_nics_nearly_every_second():
    troubles = drawn(1, 1000)
    assert len(troubles) > 950
    assert {trouble.key for trouble in troubles} == set(soak_storm.WEIGHTS)
    assert {nic for trouble in troubles for nic in trouble.nics} == set(itertools.product(range(HOSTS), range(NICS)))
    assert set(soak_storm.WEIGHTS) - {OUTAGE} == {key for key, fault in FAULTS.items() if not fault.is_death}


def test_each_fault_ends_with_what_undoes_it():
    for trouble in drawn(2):
        assert trouble.steps[0].at_s == 0.0
        assert [step.at_s for step in trouble.steps] == sorted(step.at_s for step in trouble.steps)
        if trouble.key != OUTAGE:
            assert trouble.steps[0].act is FAULTS[trouble.key].steps[0].act
            assert trouble.steps[-1].act is FAULTS[trouble.key].steps[-1].act
        if trouble.key == "flaps":
            acts = [step.act for step in trouble.steps]
            assert len(acts) >= 2 * soak_storm.FLAPS[0]
            assert all(one is not other for one, other in itertools.pairwise(acts))
        if trouble.key == OUTAGE:
            assert trouble.steps[-1].at_s <= OUTAGE_S[1]


def test_two_ranks_that_lose_nics_lose_unlike_ones():
    pairs = [trouble.victim for trouble in drawn(3) if trouble.key == "two-nics"]
    assert pairs
    assert all(victim.rank != victim.other_rank and victim.nic != victim.other_nic for victim in pairs)


def test_where_nobody_can_relay_two_ranks_are_apart_for_no_longer_than_a_host_without_nics():
    storm = Storm(random.Random(8), 2, NICS)
    found = [storm.draw(second * 4.0) for second in range(600)]
    apart = [trouble.steps[-1].at_s for trouble in found if trouble is not None and trouble.key == "two-nics"]
    assert max(apart) <= OUTAGE_S[1]
    assert any(trouble.steps[-1].at_s > OUTAGE_S[1] for trouble in drawn(8) if trouble.key == "two-nics")


def test_the_same_seed_draws_the_same_storm():
    assert list(map(str, drawn(5, 50))) == list(map(str, drawn(5, 50)))
    assert list(map(str, drawn(5, 50))) != list(map(str, drawn(6, 50)))


def test_a_host_without_nics_loses_and_gets_back_all_of_them():
    class Lab:
        nics = NICS

        def __init__(self) -> None:
            self.silent: set[tuple[int, int]] = set()

        def silent_drop(self, host: int, nic: int) -> float:
            self.silent.add((host, nic))
            return float(nic)

        def undrop(self, host: int, nic: int) -> float:
            self.silent.remove((host, nic))
            return 10.0 + nic

    class Field:
        lab = Lab()

    trouble = next(trouble for trouble in drawn(4) if trouble.key == OUTAGE)
    field = Field()
    assert trouble.steps[0].act(field, trouble.victim) == 1.0  # type: ignore[arg-type]
    assert field.lab.silent == {(trouble.victim.rank, nic) for nic in range(NICS)} == trouble.nics
    assert trouble.steps[-1].act(field, trouble.victim) == 11.0  # type: ignore[arg-type]
    assert not field.lab.silent


def test_every_kind_has_a_title():
    assert set(soak_storm.TITLES) == set(soak_storm.WEIGHTS)
