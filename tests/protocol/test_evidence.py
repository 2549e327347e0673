"""What speaks against a link and when that ends; the shadow route: when new chunks leave it and when they are back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from r2ccl.protocol.baseline import Strictness
from r2ccl.protocol.evidence import (
    Began,
    Divert,
    Effect,
    Ended,
    Evidence,
    EvidenceLimits,
    Kind,
    LinkEvidence,
    Look,
    Restore,
    Suspicion,
    SwitchBudget,
    load_level,
)

LIMITS = EvidenceLimits(
    Strictness(), latency_excess=0.25, latency_excess_s=0.0002, share_least=0.5, resent_excess=0.005
)
HOLD_DOWN_S = LIMITS.strictness.hold_down_s
MILLISECOND = 0.001
#: Enough for a history; a path without a spiky past is accused by three samples.
LEARNING = 600

Story = list[tuple[int, Effect]]


def budget(burst: int = 4) -> SwitchBudget:
    return SwitchBudget(refill_s=60.0, burst=burst)


def healthy(rng: random.Random) -> Look:
    """A millisecond to answer, a little more or less."""
    return Look(
        rtt_s=MILLISECOND * rng.gauss(1, 0.05),
        backup_rtt_s=MILLISECOND,
        throughput=1e8 * rng.gauss(1, 0.05),
        fair_share=1e8,
        resent_ratio=0.0,
        errors=0,
    )


def link(switches: SwitchBudget | None = None) -> LinkEvidence:
    """A link with a healthy past that ends at second nought."""
    made, rng = LinkEvidence(LIMITS, switches or budget()), random.Random(1)
    assert watch(made, lambda: healthy(rng), -LEARNING, LEARNING) == []
    return made


def watch(subject: LinkEvidence, look: Callable[[], Look], start: int, looks: int) -> Story:
    """One look a second: what came of it, and when."""
    return [(second, effect) for second in range(start, start + looks) for effect in subject.sample(look(), second)]


def constantly(look: Look) -> Callable[[], Look]:
    return lambda: look


def kinds(story: Story) -> list[tuple[int, type[Effect]]]:
    return [(second, type(effect)) for second, effect in story]


SLOW = Look(rtt_s=2 * MILLISECOND, backup_rtt_s=MILLISECOND)
USUAL = Look(rtt_s=MILLISECOND, backup_rtt_s=MILLISECOND)


# Evidence.


def test_a_doubled_latency_is_evidence_at_the_third_sample_with_what_it_was_judged_by() -> None:
    subject = link()
    (second, effect), *_ = watch(subject, constantly(SLOW), 0, 5)
    assert isinstance(effect, Began)
    evidence = effect.evidence
    assert second == 2
    assert (evidence.kind, evidence.value, evidence.since_s) == (Kind.LATENCY, 2 * MILLISECOND, 2)
    assert evidence.baseline == pytest.approx(MILLISECOND, rel=0.02)
    assert evidence.limit == pytest.approx(1.25 * MILLISECOND, rel=0.02)
    assert subject.standing == {Kind.LATENCY: evidence}
    assert subject.suspicion is Suspicion.SUSPECT


def test_what_began_ends_with_the_same_words() -> None:
    subject = link()
    begun = watch(subject, constantly(SLOW), 0, 5)[0][1]
    ended = watch(subject, constantly(USUAL), 5, 30)[0][1]
    assert isinstance(begun, Began)
    assert ended == Ended(begun.evidence)
    assert subject.suspicion is Suspicion.CLEAR


@pytest.mark.parametrize(
    ("look", "kind"),
    [
        (Look(throughput=0.3e8, fair_share=1e8), Kind.THROUGHPUT),
        (Look(resent_ratio=0.02), Kind.RESENT),
        (Look(errors=3), Kind.ERRORS),
    ],
)
def test_each_other_kind_is_evidence_and_moves_no_traffic(look: Look, kind: Kind) -> None:
    subject = link()
    story = watch(subject, constantly(look), 0, 20)
    assert kinds(story) == [(2, Began)]
    assert list(subject.standing) == [kind]
    assert not subject.is_diverted


def test_several_kinds_stand_at_once_and_end_each_for_itself() -> None:
    subject = link()
    watch(subject, constantly(Look(resent_ratio=0.02, errors=3)), 0, 5)
    assert set(subject.standing) == {Kind.RESENT, Kind.ERRORS}
    watch(subject, constantly(Look(resent_ratio=0.0, errors=3)), 5, 30)
    assert set(subject.standing) == {Kind.ERRORS}
    assert subject.suspicion is Suspicion.SUSPECT


def test_a_path_that_always_resends_a_seventh_is_healthy_and_one_that_never_did_is_not() -> None:
    lossy, rng = LinkEvidence(LIMITS, budget()), random.Random(2)
    assert watch(lossy, lambda: Look(resent_ratio=rng.gauss(0.14, 0.01)), 0, 1000) == []
    assert kinds(watch(lossy, lambda: Look(resent_ratio=rng.gauss(0.25, 0.01)), 1000, 5)) == [(1002, Began)]
    assert kinds(watch(link(), constantly(Look(resent_ratio=0.015)), 0, 5)) == [(2, Began)]


def test_a_link_that_never_had_its_fair_share_is_accused_before_it_has_a_history() -> None:
    stories = [
        watch(LinkEvidence(LIMITS, budget()), constantly(Look(throughput=share * 1e8, fair_share=1e8)), 0, 6)
        for share in (0.4, 0.6)
    ]
    assert kinds(stories[0]) == [(3, Began)]
    assert stories[1] == []


def test_a_link_that_always_has_less_than_its_share_is_judged_by_its_own_history() -> None:
    subject, rng = LinkEvidence(LIMITS, budget()), random.Random(3)
    weak = [0.6, 0.25]

    def at(share: float) -> Callable[[], Look]:
        return lambda: Look(throughput=1e8 * share * rng.gauss(1, 0.05), fair_share=1e8)

    assert watch(subject, at(weak[0]), 0, 1000) == []
    assert watch(subject, at(0.45), 1000, 20) == []
    assert kinds(watch(subject, at(weak[1]), 1020, 20))[0][1] is Began


def test_an_interface_that_always_counts_some_errors_is_accused_when_it_counts_many_more() -> None:
    subject, rng = LinkEvidence(LIMITS, budget()), random.Random(4)
    assert watch(subject, lambda: Look(errors=rng.randrange(4, 9)), 0, 600) == []
    assert kinds(watch(subject, lambda: Look(errors=60), 600, 10))[0][1] is Began


def test_a_difference_of_microseconds_accuses_nobody() -> None:
    subject = LinkEvidence(LIMITS, budget())
    assert watch(subject, constantly(Look(rtt_s=30e-6)), 0, 600) == []
    assert watch(subject, constantly(Look(rtt_s=150e-6)), 600, 20) == []
    assert watch(subject, constantly(Look(rtt_s=400e-6)), 620, 20) != []


def test_a_limited_sample_says_nothing_of_the_path_and_the_interface_counts_all_the_same() -> None:
    look = Look(0.1, MILLISECOND, throughput=1.0, fair_share=1e8, resent_ratio=0.9, errors=3, limited=True)
    subject = link()
    watch(subject, constantly(look), 0, 20)
    assert list(subject.standing) == [Kind.ERRORS]


def test_what_was_not_measured_changes_nothing() -> None:
    subject = link()
    assert watch(subject, constantly(Look()), 0, 100) == []
    watch(subject, constantly(SLOW), 100, 5)
    assert [effect for _, effect in watch(subject, constantly(Look(backup_rtt_s=MILLISECOND)), 105, 100)] == []


def test_our_own_stall_voids_what_was_gathered() -> None:
    subject = link()
    watch(subject, constantly(SLOW), 0, 2)
    subject.void()
    assert kinds(watch(subject, constantly(SLOW), 2, 5)) == [(4, Began), (4, Divert)]


def test_load_has_three_levels_and_a_full_link_may_be_slow() -> None:
    assert [load_level(outstanding, 1000) for outstanding in (0, 1, 500, 501, 5000)] == [0, 1, 1, 2, 2]
    subject = LinkEvidence(LIMITS, budget())
    looks = [Look(rtt_s=(1 + 4 * load) * MILLISECOND, load=load) for load in range(3)]
    assert [effect for second in range(600) for effect in subject.sample(looks[second % 3], second)] == []
    idle_but_slow = Look(rtt_s=9 * MILLISECOND, load=0)
    assert kinds(watch(subject, constantly(idle_but_slow), 600, 5)) == [(602, Began)]


def among_others(factor: float) -> Look:
    """An answer that met others' bytes, and a backup that did not."""
    return Look(rtt_s=factor * MILLISECOND, backup_rtt_s=MILLISECOND, among_others=True)


def test_a_link_whose_nic_others_fill_is_not_accused_of_their_queue_however_they_change() -> None:
    subject = link()
    for start, factor in ((0, 1.0), (300, 20.0), (600, 200.0)):
        assert watch(subject, constantly(among_others(factor)), start, 300) == []
    # Nothing of that was learned: when they end it is the link that it was.
    assert watch(subject, constantly(USUAL), 900, 30) == []
    assert kinds(watch(subject, constantly(SLOW), 930, 5)) == [(932, Began), (932, Divert)]


def test_others_hide_latency_alone() -> None:
    subject = link()
    look = Look(rtt_s=20 * MILLISECOND, resent_ratio=0.2, errors=5, among_others=True)
    story = watch(subject, constantly(look), 0, 10)
    assert {effect.evidence.kind for _, effect in story if isinstance(effect, Began)} == {Kind.RESENT, Kind.ERRORS}


def test_prompt_answers_among_others_bring_a_link_home_and_late_ones_do_not_keep_it_away() -> None:
    subject = link()
    watch(subject, constantly(SLOW), 0, 5)
    assert watch(subject, constantly(among_others(20)), 5, 100) == []
    assert subject.is_diverted
    # Four of five meet the others' queue.
    factors = [20, 20, 20, 20, 1] * 20
    story = watch(subject, lambda: among_others(factors.pop()), 105, 60)
    assert [effect for _, effect in story][1:] == [Restore("latency as usual")]


def test_an_accused_link_is_not_left_because_of_others_nor_before_it_is_found_slow_without_them() -> None:
    subject = link()
    assert kinds(watch(subject, constantly(Look(rtt_s=2 * MILLISECOND)), 0, 5)) == [(2, Began)]
    assert watch(subject, constantly(among_others(20)), 5, 20) == []
    assert kinds(watch(subject, constantly(SLOW), 25, 1)) == [(25, Divert)]


# The shadow route.


def test_new_chunks_leave_a_slow_link_at_once_and_come_back_when_it_was_clean_for_the_hold_down() -> None:
    subject = link()
    assert kinds(watch(subject, constantly(SLOW), 0, 10)) == [(2, Began), (2, Divert)]
    assert subject.is_diverted
    story = watch(subject, constantly(USUAL), 10, 30)
    clean_from = 12
    assert kinds(story) == [(clean_from + HOLD_DOWN_S, Ended), (clean_from + HOLD_DOWN_S, Restore)]
    assert story[1][1] == Restore("latency as usual")
    assert not subject.is_diverted


def test_nothing_is_diverted_to_a_backup_that_is_no_better_or_not_there_until_there_is_a_better_one() -> None:
    subject = link()
    slow = 2 * MILLISECOND
    assert kinds(watch(subject, constantly(Look(rtt_s=slow, backup_rtt_s=0.9 * slow)), 0, 10)) == [(2, Began)]
    assert watch(subject, constantly(Look(rtt_s=slow)), 10, 10) == []
    assert kinds(watch(subject, constantly(SLOW), 20, 10)) == [(20, Divert)]


def test_switches_have_a_budget_for_the_whole_rank_that_time_refills() -> None:
    shared = budget(burst=2)
    links = [link(shared) for _ in range(4)]
    stories = [kinds(watch(subject, constantly(SLOW), 0, 10)) for subject in links]
    assert [(2, Divert) in story for story in stories] == [True, True, False, False]
    assert kinds(watch(links[2], constantly(SLOW), 10, 80)) == [(62, Divert)]


def test_the_budget_saves_up_no_more_than_a_burst() -> None:
    subject = budget(burst=2)
    assert [subject.take(1e6) for _ in range(3)] == [True, True, False]
    assert not subject.take(1e6 + 59)
    assert subject.take(1e6 + 61)


def test_a_link_comes_home_when_the_backup_is_gone_or_confirmed_slower() -> None:
    for look, cause, looks in (
        (Look(rtt_s=2 * MILLISECOND), "no other link", 1),
        (Look(rtt_s=2 * MILLISECOND, backup_rtt_s=4 * MILLISECOND), "the other link is slower", 5),
    ):
        subject = link()
        watch(subject, constantly(SLOW), 0, 5)
        assert watch(subject, constantly(look), 5, looks) == [(4 + looks, Restore(cause))]
        assert subject.suspicion is Suspicion.SUSPECT


def test_a_backup_that_is_slower_for_a_moment_keeps_the_traffic() -> None:
    subject = link()
    watch(subject, constantly(SLOW), 0, 5)
    for second in range(5, 60):
        backup = MILLISECOND if second % 5 == 0 else 4 * MILLISECOND
        assert subject.sample(Look(rtt_s=2 * MILLISECOND, backup_rtt_s=backup), second) == []


def test_a_link_that_is_slow_again_and_again_stays_away_longer_each_time() -> None:
    subject, now = link(budget(burst=100)), 0
    away: list[int] = []
    for _ in range(4):
        watch(subject, constantly(SLOW), now, 10)
        assert subject.is_diverted
        now += 10
        began = now
        while subject.is_diverted:
            subject.sample(USUAL, now)
            now += 1
        away.append(now - began)
    assert away == pytest.approx([10, 20, 40, 80], abs=4)


def test_a_link_in_the_shadow_is_not_accused_of_carrying_nothing() -> None:
    subject = link()
    watch(subject, constantly(SLOW), 0, 5)
    idle = Look(rtt_s=2 * MILLISECOND, backup_rtt_s=MILLISECOND, throughput=0.0, fair_share=1e8)
    assert watch(subject, constantly(idle), 5, 50) == []


def test_a_lost_link_ends_its_evidence_and_begins_anew() -> None:
    subject = link()
    watch(subject, constantly(SLOW), 0, 5)
    latency = subject.standing[Kind.LATENCY]
    assert subject.link_lost() == [Ended(latency), Restore("link lost")]
    assert subject.link_lost() == []
    assert subject.suspicion is Suspicion.CLEAR
    assert watch(subject, constantly(SLOW), 5, 500) == []


# For people.


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (
            Evidence(Kind.LATENCY, 0.0021, 0.0008, 0.00123, 0.0),
            "latency 2.1 ms, usually 0.8 ms, limit 1.23 ms",
        ),
        (
            Evidence(Kind.THROUGHPUT, 0.31, 0.97, 0.48, 0.0),
            "throughput 31% of the fair share, usually 97%, limit 48%",
        ),
        (
            Evidence(Kind.RESENT, 0.02, 0.0, 0.005, 0.0),
            "resent 2.00% of what was sent, usually 0.00%, limit 0.50%",
        ),
        (Evidence(Kind.ERRORS, 3.0, 0.0, 0.5, 0.0), "3 interface errors in a sample, usually 0"),
    ],
)
def test_evidence_reads_as_a_sentence(evidence: Evidence, words: str) -> None:
    assert str(evidence) == words
