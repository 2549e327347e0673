"""How evidence on one lost link is gathered: who is asked when, and that a verdict comes in any case, once, in time."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Final

import pytest

from r2ccl.ids import LinkId
from r2ccl.protocol.diagnosis import (
    EXTENSION_S,
    EXTENSIONS_MAX,
    ArmTimer,
    AskThird,
    Conclude,
    Diagnosis,
    DiagnosisTimes,
    Effect,
    Event,
    Knock,
    KnockAnswered,
    LinkReturned,
    OtherRail,
    OwnNicChanged,
    PeerDied,
    Scene,
    TheirNicAnnounced,
    ThirdAnswered,
    TimerFired,
)
from r2ccl.protocol.verdict import Said, Third, Verdict

S, A, R, U = Said.SILENT, Said.ANSWERED, Said.REFUSED, Said.UNKNOWN
LINK: Final = LinkId(1, 0, 0)
TIMES: Final = DiagnosisTimes(0.002, 0.01, 0.03, 0.3)
DIRECT: Final = Knock(0, 1, 0)
OTHER: Final = Knock(1, 1, 1)
AT_THIRD: Final = Knock(0, 3, 0)
THIRD: Final = Third(3, 0)
CONTROL: Final = Knock(1, 3, 1)
RAIL: Final = OtherRail(1, 1, Third(3, 1))
RAIL_OF_TWO: Final = OtherRail(1, 1, None)
FULL: Final = Scene(True, True, (RAIL,), (THIRD,))
TWO_RANKS: Final = Scene(True, True, (RAIL_OF_TWO,), ())


@dataclass(slots=True)
class Desk:
    """Runs one machine on time of its own."""

    scene: Scene = FULL
    now: float = 10.0
    machine: Diagnosis = field(init=False)
    done: list[Effect] = field(default_factory=list)
    timer: ArmTimer | None = None
    due_s: float = 0.0

    def __post_init__(self) -> None:
        self.machine = Diagnosis(LINK, self.scene, TIMES)
        self.take(self.machine.begin(self.now))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ArmTimer):
                self.timer, self.due_s = effect, self.now + effect.delay_s
            else:
                self.done.append(effect)

    def hear(self, event: Event) -> None:
        self.take(self.machine.handle(event, self.now))

    def fire(self, late_s: float = 0.0) -> None:
        assert self.timer is not None
        self.now = self.due_s + late_s
        token, self.timer = self.timer.token, None
        self.hear(TimerFired(token))

    def run_until(self, passed_s: float) -> None:
        while self.timer is not None and self.due_s <= 10.0 + passed_s + 1e-9:
            self.fire()
        self.now = 10.0 + passed_s

    @property
    def verdicts(self) -> list[Verdict]:
        return [effect.finding.verdict for effect in self.done if isinstance(effect, Conclude)]


def test_repair_has_a_start_then_we_knock_and_only_then_others_are_asked() -> None:
    desk = Desk()
    assert desk.done == []
    desk.run_until(TIMES.knock_s)
    assert desk.done == [DIRECT, OTHER, CONTROL, AT_THIRD]
    desk.run_until(TIMES.ask_s)
    assert desk.done[4:] == [AskThird(THIRD)]
    desk.run_until(TIMES.deadline_s)
    assert desk.verdicts == [Verdict.AMBIGUOUS]


@pytest.mark.parametrize(
    ("news", "verdict"),
    [
        (OwnNicChanged(up=False), Verdict.OUR_NIC),
        (TheirNicAnnounced(up=False), Verdict.THEIR_NIC),
        (LinkReturned(), Verdict.NOTHING),
        (PeerDied(), Verdict.THEIR_PROCESS),
    ],
)
def test_where_an_owner_speaks_at_once_nobody_is_troubled(news: Event, verdict: Verdict) -> None:
    desk = Desk()
    desk.hear(news)
    desk.run_until(TIMES.settle_s)
    assert [type(effect) for effect in desk.done] == [Conclude]
    assert desk.verdicts == [verdict]


@pytest.mark.parametrize("scene", [Scene(False, True, (RAIL,), (THIRD,)), Scene(True, False, (RAIL,), (THIRD,))])
def test_what_was_known_before_troubles_nobody_either(scene: Scene) -> None:
    desk = Desk(scene)
    desk.run_until(TIMES.settle_s)
    assert [type(effect) for effect in desk.done] == [Conclude]


def test_who_answers_our_knock_spares_others_the_ask() -> None:
    desk = Desk()
    desk.run_until(TIMES.knock_s)
    desk.hear(KnockAnswered(DIRECT, R))
    desk.run_until(TIMES.settle_s)
    assert AskThird(THIRD) not in desk.done
    assert desk.verdicts == [Verdict.THEIR_PROCESS]


def test_no_verdict_falls_before_slower_news_had_time_to_come() -> None:
    desk = Desk(TWO_RANKS)
    desk.run_until(TIMES.knock_s)
    desk.hear(KnockAnswered(DIRECT, S))
    desk.hear(KnockAnswered(OTHER, A))
    desk.run_until(TIMES.settle_s - 0.001)
    assert desk.verdicts == []
    desk.hear(OwnNicChanged(up=False))
    desk.run_until(TIMES.settle_s)
    assert desk.verdicts == [Verdict.OUR_NIC]


def test_the_verdict_falls_with_the_last_answer() -> None:
    desk = Desk()
    desk.run_until(0.08)
    desk.hear(KnockAnswered(DIRECT, S))
    desk.hear(KnockAnswered(OTHER, A))
    desk.hear(KnockAnswered(CONTROL, A))
    desk.hear(KnockAnswered(AT_THIRD, A))
    assert desk.verdicts == []
    desk.hear(ThirdAnswered(3, S, A))
    assert desk.verdicts == [Verdict.THEIR_NIC]
    desk.run_until(1.0)
    desk.hear(LinkReturned())
    assert desk.verdicts == [Verdict.THEIR_NIC]


def test_news_after_settling_is_enough_by_itself() -> None:
    desk = Desk()
    desk.run_until(0.05)
    desk.hear(TheirNicAnnounced(up=False))
    assert desk.verdicts == [Verdict.THEIR_NIC]


def test_a_carrier_that_comes_back_does_not_undo_that_it_was_gone() -> None:
    desk = Desk()
    desk.hear(OwnNicChanged(up=False))
    desk.hear(OwnNicChanged(up=True))
    desk.run_until(TIMES.settle_s)
    assert desk.verdicts == [Verdict.OUR_NIC]


def test_an_answer_of_somebody_who_was_not_asked_counts_nothing() -> None:
    desk = Desk(TWO_RANKS)
    desk.run_until(TIMES.ask_s)
    desk.hear(ThirdAnswered(7, A, A))
    desk.run_until(TIMES.deadline_s)
    assert desk.verdicts == [Verdict.AMBIGUOUS]


def test_a_second_answer_of_the_same_third_counts_nothing() -> None:
    desk = Desk()
    desk.run_until(TIMES.ask_s)
    desk.hear(KnockAnswered(AT_THIRD, A))
    desk.hear(ThirdAnswered(3, S, A))
    desk.hear(ThirdAnswered(3, A, A))
    desk.run_until(TIMES.deadline_s)
    assert desk.verdicts == [Verdict.THEIR_NIC]


def test_a_stale_timer_does_nothing() -> None:
    desk = Desk()
    stale = desk.timer
    assert stale is not None
    desk.run_until(TIMES.knock_s)
    before = list(desk.done)
    desk.hear(TimerFired(stale.token))
    assert desk.done == before


def test_after_our_own_absence_answers_that_lie_unread_are_read_first() -> None:
    desk = Desk()
    desk.run_until(TIMES.settle_s)
    desk.fire(late_s=30.0)
    assert desk.verdicts == []
    desk.hear(KnockAnswered(DIRECT, A))
    assert desk.verdicts == [Verdict.NOTHING]


def test_who_is_always_late_comes_to_a_verdict_all_the_same() -> None:
    desk = Desk()
    fired = 0
    while not desk.verdicts:
        desk.fire(late_s=1.0)
        fired += 1
        assert fired <= 4 + EXTENSIONS_MAX
    assert desk.verdicts == [Verdict.AMBIGUOUS]


def endings(scene: Scene) -> list[list[Event]]:
    """Each a way in which all may be answered, or not."""
    knocks = [DIRECT, *(Knock(rail.local_nic, 1, rail.remote_nic) for rail in scene.others)]
    at_thirds = [Knock(0, third.rank, third.nic) for third in scene.thirds]
    ways: list[list[Event | None]] = [
        [None, *(KnockAnswered(knock, said) for said in Said)] for knock in [*knocks, *at_thirds]
    ]
    for third in scene.thirds:
        told = itertools.product((S, A, U), repeat=2)
        ways.append([None, *(ThirdAnswered(third.rank, *said) for said in told)])
    return [[event for event in way if event is not None] for way in itertools.product(*ways)]


SCENES: Final = [
    Scene(own, theirs, others, thirds)
    for own in (True, False)
    for theirs in (True, False)
    for others in ((), (RAIL_OF_TWO,), (RAIL,))
    for thirds in ((), (THIRD,))
]


@pytest.mark.parametrize("scene", SCENES, ids=str)
@pytest.mark.parametrize("news", [None, OwnNicChanged(False), TheirNicAnnounced(False), LinkReturned(), PeerDied()])
def test_whatever_is_said_or_not_there_is_one_verdict_in_time(scene: Scene, news: Event | None) -> None:
    rng = random.Random(5)
    for answers in endings(scene):
        events = [*answers, *([news] if news else [])]
        rng.shuffle(events)
        desk = Desk(scene)
        for number, event in enumerate(events):
            desk.run_until(0.005 + 0.02 * number)
            desk.hear(event)
        desk.run_until(TIMES.deadline_s)
        assert len(desk.verdicts) == 1, events
        assert desk.timer is None or desk.machine.handle(TimerFired(desk.timer.token), desk.now) == []


def test_with_two_thirds_too() -> None:
    scene = Scene(True, True, (), (THIRD, Third(4, 0)))
    for answers in endings(scene):
        desk = Desk(scene)
        desk.run_until(TIMES.ask_s)
        for event in answers:
            desk.hear(event)
        desk.run_until(TIMES.deadline_s)
        assert len(desk.verdicts) == 1, answers


def test_the_order_of_answers_does_not_change_the_verdict() -> None:
    answers: list[Event] = [
        KnockAnswered(DIRECT, S), KnockAnswered(OTHER, A), KnockAnswered(CONTROL, A), KnockAnswered(AT_THIRD, S),
        ThirdAnswered(3, A, S),
    ]  # fmt: skip
    for order in itertools.permutations(answers):
        desk = Desk()
        desk.run_until(0.05)
        for event in order:
            desk.hear(event)
        assert desk.verdicts == [Verdict.OUR_NIC]


def test_a_nic_of_ours_that_serves_several_ways_knocks_at_a_third_once() -> None:
    desk = Desk(Scene(True, True, (OtherRail(0, 1, THIRD), OtherRail(0, 2, THIRD)), (THIRD,)))
    desk.run_until(TIMES.knock_s)
    assert desk.done == [DIRECT, Knock(0, 1, 1), AT_THIRD, Knock(0, 1, 2)]


def test_extensions_are_bounded_in_time() -> None:
    desk = Desk()
    desk.fire(late_s=0.2)
    assert desk.timer is not None
    assert desk.timer.delay_s == EXTENSION_S
