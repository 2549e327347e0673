"""The soak in virtual time: a few minutes of it are clean, and what would be wrong with a longer one is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from r2ccl.actors import arrivals
from r2ccl.actors.arrivals import ArrivalsDesk
from r2ccl.clock import MonotonicClock
from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.sim import rounds, soak
from r2ccl.sim.checkers import Complaints
from r2ccl.sim.gauges import Reading, Track
from r2ccl.sim.history import History
from r2ccl.sim.performance import Room
from r2ccl.sim.soaked import JUDGED_FROM_S, Soaked
from r2ccl.sim.world import World
from tests.simulated import simulate

CHUNK_BYTES, BYTES_MAX = 4096, 64 << 10
RANKS = 3


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_some_virtual_minutes_of_faults_lose_nothing_and_leave_nothing():
    soaked = soak.run(seed=20261, seconds=120.0)
    assert soaked.complaints == []
    assert soaked.growing() == []
    assert soaked.is_good
    assert soaked.faults.total() > 60
    assert soaked.failovers > 60
    assert soaked.operations > 1000
    assert len(soaked.tracks[0].measures["tasks"].values) > 100


def test_what_a_world_raises_is_a_complaint(monkeypatch: pytest.MonkeyPatch):
    async def play(self: rounds.Player, world: Communicator) -> None:
        await asyncio.sleep(3.0)
        raise RuntimeError("made up")

    monkeypatch.setattr(rounds.Player, "play", play)
    soaked = soak.run(seed=1, seconds=5.0)
    assert not soaked.is_good
    assert any("made up" in text for text in soaked.complaints)
    assert soaked.story


# Rounds.


def drawn(number: int, seed: int = 3) -> rounds.Round:
    return rounds.draw_round(seed, number, RANKS, CHUNK_BYTES, BYTES_MAX)


def with_groups(by_split: bool) -> rounds.Round:
    return next(one for one in map(drawn, range(200)) if len(one.teams) > 1 and bool(one.colors) is by_split)


def play(one: rounds.Round, spoil: Any = None) -> tuple[list[str], int]:
    """A round in a world without faults: complaints, and how many operations ended."""
    tally = rounds.Tally()
    found: list[str] = []

    async def story(world: World) -> None:
        complaints = Complaints(History(MonotonicClock()))
        answers = rounds.answers_of(one, complaints)
        if spoil is not None:
            spoil(answers)
        players = [rounds.Player(one, answers, complaints, tally) for _ in range(RANKS)]
        await asyncio.gather(*(p.play(c) for p, c in zip(players, world.communicators, strict=True)))
        for player in players:
            player.look_back()
        found.extend(complaints.texts)
        await asyncio.sleep(1.0)
        groups = [r.communicators.coordinators.keys() for r in world.runtimes]
        assert all(set(keys) == set(groups[0]) or len(keys) < 200 for keys in groups)

    simulate(story, ranks=RANKS)
    return found, tally.operations


@pytest.mark.parametrize("by_split", [True, False])
def test_a_round_with_groups_compares_clean(by_split: bool):
    found, operations = play(with_groups(by_split))
    assert found == []
    assert operations > 10


def test_a_wrong_result_is_found():
    def spoil(answers: Any) -> None:
        expected = answers._wanted

        def wrong(*arguments: Any) -> Any:
            right = expected(*arguments)
            return right if right is None or not len(right) else np.concatenate([right[:-1], right[-1:] ^ True])

        answers._wanted = lambda *a: wrong(*a) if a[2].dtype in ("int32", "int64", "int8", "uint8") else expected(*a)

    one = next(
        r for r in map(drawn, range(200)) if any(c.dtype in ("int32", "int8") and c.count for c in r.teams[0].calls)
    )
    found, _ = play(one, spoil)
    assert found
    assert any("wrong" in text for text in found)


def test_memory_that_is_written_after_it_was_given_back_is_found():
    complaints = Complaints(History(MonotonicClock()))
    one = drawn(0)
    player = rounds.Player(one, rounds.answers_of(one, complaints), complaints, rounds.Tally())
    room = Room(np.zeros(4))
    room.rewrite()
    player._given_back.append(("here", room))
    player.look_back()
    assert complaints.texts == []
    room.array[1] = 1.0
    player.look_back()
    assert len(complaints.texts) == 1


def test_a_round_is_the_same_on_all_ranks_and_its_calls_come_again_with_other_payloads():
    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(5, seed=4)
    again = drawn(5 + rounds.PROGRAMS)
    assert again.teams == drawn(5).teams
    assert again.seed != drawn(5).seed


def test_the_programs_of_a_soak_have_all_kinds_of_calls():
    kinds = {call.kind for number in range(rounds.PROGRAMS) for team in drawn(number).teams for call in team.calls}
    assert len(kinds) >= 12
    assert any(drawn(number).colors for number in range(rounds.PROGRAMS))


# What it says of what it measured.


def track_of(seconds: int, **growth: float) -> Track:
    """A process that keeps what it keeps, but for these."""
    track = Track("rank 0")
    for second in range(seconds):
        levels = {"memory": 9e7, "descriptors": 26.0, "tasks": 3.0, "timers": 9.0, "objects": 5e4}
        levels |= {name: levels[name] + slope * second for name, slope in growth.items() if name in levels}
        entries = {name: int(slope * second) + 1 for name, slope in growth.items() if name not in levels}
        track.add(Reading(float(second), **levels, entries=Counter(entries)))
    return track


@pytest.mark.parametrize("name", ["memory", "descriptors", "tasks", "timers", "objects", "Ledger._open"])
def test_whatever_grows_is_named(name: str):
    soaked = Soaked(seconds=600.0, tracks=[track_of(600, **{name: 1e5 if name == "memory" else 20.0})])
    assert not soaked.is_good
    (text,) = soaked.growing()
    assert name in text
    assert Soaked(seconds=600.0, tracks=[track_of(600, **{name: 0.0})]).is_good


def test_a_short_soak_judges_what_is_flat_from_the_start_and_no_more():
    short = JUDGED_FROM_S / 2
    assert Soaked(seconds=short, tracks=[track_of(60, memory=1e6, objects=500.0)]).is_good
    assert not Soaked(seconds=short, tracks=[track_of(60, descriptors=1.0)]).is_good


def test_a_table_with_a_limit_may_grow_up_to_it():
    name = "ArrivalsDesk._retired"
    assert Soaked(seconds=600.0, tracks=[track_of(600, **{name: 5.0})]).is_good
    too_many = arrivals.RETIRED_MAX / 500  # a second
    assert not Soaked(seconds=600.0, tracks=[track_of(600, **{name: too_many})]).is_good


def test_a_table_with_a_limit_for_each_holder_may_fill_up_and_stand_still_at_it():
    track, over = Track("rank 0"), Track("rank 1")
    each = Settings().running_max
    for second in range(600):
        # Steep for long, then at the limit: a line through it ends far above.
        kept = min(30 * each, 12 * each + 2 * second)
        for where, amount in ((track, kept), (over, kept + (31 * each - kept) * (second == 599))):
            entries = Counter({"Differences._finished": amount, "Communicators.coordinators": 30})
            where.add(Reading(float(second), 9e7, 26.0, 3.0, 9.0, 5e4, entries))
    assert Soaked(seconds=600.0, tracks=[track]).is_good
    assert not Soaked(seconds=600.0, tracks=[over]).is_good


def test_a_kind_of_entries_that_is_new_had_none_before():
    track = Track("rank 0")
    for second in range(20):
        entries = Counter({"A.b": 4}) if second >= 10 else Counter[str]()
        track.add(Reading(float(second), 1.0, 2.0, 3.0, 4.0, 5.0, entries))
    assert list(track.entries["A.b"].values) == [0.0] * 10 + [4.0] * 10
    assert len(track.entries["A.b"].times_s) == 20


def test_a_reading_survives_json():
    reading = Reading(12.0, 1.0, 2.0, 3.0, 4.0, 5.0, Counter({"A.b": 6}))
    assert Reading.parse(reading.as_json(), 10.0) == Reading(2.0, 1.0, 2.0, 3.0, 4.0, 5.0, Counter({"A.b": 6}))


def test_ended_communicators_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    """They never were forgotten: a job that makes groups for ever would have kept them all."""
    monkeypatch.setattr("r2ccl.actors.arrivals.RETIRED_MAX", 3)
    desk = ArrivalsDesk.__new__(ArrivalsDesk)
    desk._retired = {}
    inboxes: Any = dict.fromkeys(range(5))
    desk._inboxes = inboxes
    for number in range(5):
        desk.retire(number)
    assert [number for number in range(5) if desk.is_retired(number)] == [2, 3, 4]
