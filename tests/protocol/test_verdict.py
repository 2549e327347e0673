"""From evidence to verdict: every row of the table, and that there is a row for everything."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Final

import pytest

from r2ccl.protocol.verdict import Evidence, Finding, OtherNic, Said, Third, ThirdPoint, Verdict, judge

S, A, R, U = Said.SILENT, Said.ANSWERED, Said.REFUSED, Said.UNKNOWN
C, D = Third(3, 0), Third(4, 0)
#: Nobody has said anything yet.
NOTHING_SAID = Evidence(True, True, False, False, U, (), ())


def by(
    c: tuple[Said, Said, Said],
    others: Said | None = None,
    d: tuple[Said, Said, Said] | None = None,
    control: Said = A,
) -> Evidence:
    """Our own knock is silent. ``c``, ``d``: what we reach of them, what they reach of theirs, and of ours."""
    thirds = [ThirdPoint(third, *said) for third, said in ((C, c), (D, d)) if said is not None]
    return dataclasses.replace(
        NOTHING_SAID, direct=S, thirds=tuple(thirds), others=() if others is None else (OtherNic(1, others, control),)
    )


ROWS: Final = [
    # What owners say.
    pytest.param(dataclasses.replace(NOTHING_SAID, is_back=True, own_nic_up=False), Verdict.NOTHING, id="back"),
    pytest.param(dataclasses.replace(NOTHING_SAID, own_nic_up=False), Verdict.OUR_NIC, id="our carrier"),
    pytest.param(
        dataclasses.replace(NOTHING_SAID, own_nic_up=False, their_nic_up=False), Verdict.AMBIGUOUS, id="both carriers"
    ),
    pytest.param(dataclasses.replace(NOTHING_SAID, their_nic_up=False), Verdict.THEIR_NIC, id="their notice"),
    pytest.param(dataclasses.replace(NOTHING_SAID, has_died=True), Verdict.THEIR_PROCESS, id="known to be dead"),
    pytest.param(dataclasses.replace(NOTHING_SAID, direct=R), Verdict.THEIR_PROCESS, id="refused"),
    pytest.param(dataclasses.replace(NOTHING_SAID, direct=A), Verdict.NOTHING, id="answered"),
    # What a third says.
    pytest.param(by((A, A, A)), Verdict.PATH, id="third reaches both"),
    pytest.param(by((S, A, A)), Verdict.PATH, id="third reaches both, one way of asking suffices"),
    pytest.param(by((A, R, U)), Verdict.PATH, id="a refusal is a sign"),
    pytest.param(by((A, S, A)), Verdict.THEIR_NIC, id="third reaches us only"),
    pytest.param(by((A, S, A), others=A), Verdict.THEIR_NIC, id="and other NICs of theirs answer"),
    pytest.param(by((A, S, A), others=S), Verdict.THEIR_NODE, id="and no NIC of theirs answers"),
    pytest.param(
        by((A, S, A), others=S, control=S), Verdict.THEIR_NIC, id="our other NIC is dead, which proves nothing"
    ),
    pytest.param(by((A, S, A), others=S, control=U), Verdict.THEIR_NIC, id="our other NIC may be dead"),
    pytest.param(by((A, U, U), others=S), Verdict.THEIR_NODE, id="no NIC of theirs, ours is whole, third is busy"),
    pytest.param(by((A, U, U), others=A), Verdict.AMBIGUOUS, id="ours is whole, third is busy"),
    pytest.param(by((S, A, S)), Verdict.OUR_NIC, id="third reaches them only"),
    pytest.param(by((U, A, U)), Verdict.AMBIGUOUS, id="third reaches them, and says nothing of us"),
    pytest.param(by((S, S, S)), Verdict.AMBIGUOUS, id="third reaches nobody"),
    pytest.param(by((S, S, S), others=S), Verdict.AMBIGUOUS, id="nobody reaches anybody"),
    pytest.param(by((S, U, U)), Verdict.AMBIGUOUS, id="third is not reached and did not say"),
    # A second third.
    pytest.param(by((S, S, S), d=(A, A, A)), Verdict.PATH, id="one third has lost its own NIC, the other reaches both"),
    pytest.param(by((S, S, S), d=(A, S, A)), Verdict.THEIR_NIC, id="the other reaches us only"),
    pytest.param(by((S, S, S), d=(S, A, S)), Verdict.OUR_NIC, id="the other reaches them only"),
    pytest.param(by((S, S, S), d=(A, U, U)), Verdict.AMBIGUOUS, id="who lost its own NIC accuses nobody"),
    pytest.param(by((S, A, S), d=(A, S, A)), Verdict.PATH, id="each reaches one of us"),
]


@pytest.mark.parametrize(("evidence", "verdict"), ROWS)
def test_a_row_of_the_table(evidence: Evidence, verdict: Verdict) -> None:
    assert judge(evidence).verdict is verdict


def test_with_two_ranks_what_can_be_said_is_said() -> None:
    alone = dataclasses.replace(NOTHING_SAID, direct=S)
    assert judge(alone) == Finding(Verdict.AMBIGUOUS, "either NIC, or the path between")
    answers = dataclasses.replace(alone, others=(OtherNic(1, A, U),))
    assert judge(answers) == Finding(Verdict.AMBIGUOUS, "either NIC, or the path between")
    silent = dataclasses.replace(alone, others=(OtherNic(1, S, U), OtherNic(2, S, U)))
    assert judge(silent) == Finding(Verdict.AMBIGUOUS, "their node, or all that lies between")
    assert judge(dataclasses.replace(silent, own_nic_up=False)).verdict is Verdict.OUR_NIC
    assert judge(dataclasses.replace(silent, their_nic_up=False)).verdict is Verdict.THEIR_NIC


POINTS: Final = [(one, two, three) for one in Said for two in Said for three in Said]


def test_everything_has_a_verdict_and_an_ambiguous_one_says_between_what() -> None:
    kinds = set()
    flags = itertools.product((True, False), repeat=4)
    for (own, theirs, back, died), direct, others in itertools.product(flags, Said, (None, *Said)):
        for first, second in itertools.product((None, *POINTS), repeat=2):
            thirds = [ThirdPoint(third, *said) for third, said in ((C, first), (D, second)) if said is not None]
            elsewhere = () if others is None else (OtherNic(1, others, A),)
            finding = judge(Evidence(own, theirs, back, died, direct, elsewhere, tuple(thirds)))
            assert (finding.verdict is Verdict.AMBIGUOUS) is bool(finding.reason)
            kinds.add(finding.verdict)
    assert kinds == set(Verdict)


def test_nobody_is_accused_who_was_reached() -> None:
    """Over all that thirds may say: our NIC is not blamed if it exchanged a packet with anybody, nor theirs."""
    for c, d, others in itertools.product(POINTS, POINTS, (None, *Said)):
        evidence = by(c, others, d)
        verdict = judge(evidence).verdict
        we_work = any(said.is_sign for point in (c, d) for said in (point[0], point[2]))
        they_work = any(point[1].is_sign for point in (c, d))
        if we_work:
            assert verdict is not Verdict.OUR_NIC
        if they_work:
            assert verdict not in (Verdict.THEIR_NIC, Verdict.THEIR_NODE)
        if verdict is Verdict.PATH:
            assert we_work
            assert they_work
        if verdict is Verdict.OUR_NIC:
            assert they_work
        if verdict in (Verdict.THEIR_NIC, Verdict.THEIR_NODE):
            assert we_work
        if verdict is Verdict.THEIR_NODE:
            assert others is S


def test_a_nic_that_answers_speaks_for_its_node_whatever_others_do() -> None:
    one_answers = dataclasses.replace(by((A, S, A)), others=(OtherNic(1, S, A), OtherNic(2, A, A)))
    assert judge(one_answers).verdict is Verdict.THEIR_NIC


def test_the_order_of_thirds_does_not_matter() -> None:
    for c, d in itertools.product(POINTS, repeat=2):
        assert judge(by(c, d=d)) == judge(by(d, d=c))
