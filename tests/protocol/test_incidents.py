"""What was lost together is told together: grouping, dividing, joining later, repair times, bounds, and the words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pytest

from r2ccl.ids import LinkId
from r2ccl.protocol.diagnosis import (
    ArmTimer,
    AskThird,
    DiagnosisTimes,
    Event,
    Knock,
    KnockAnswered,
    OtherRail,
    OwnNicChanged,
    Scene,
    ThirdAnswered,
    TimerFired,
)
from r2ccl.protocol.incidents import (
    EXAMINED_MAX,
    JOINS_WITHIN_S,
    KEPT,
    NAMED_MAX,
    For,
    Incident,
    IncidentBook,
    LostLink,
    Tell,
)
from r2ccl.protocol.verdict import Said, Third, Verdict

TIMES: Final = DiagnosisTimes(0.002, 0.01, 0.03, 0.3)
S, A = Said.SILENT, Said.ANSWERED


@dataclass(slots=True)
class Office:
    """A book, and a network that answers knocks at once: ``dead`` names NICs (rank, index) that do not; we are 0."""

    dead: set[tuple[int, int]] = field(default_factory=set)
    carriers_down: set[int] = field(default_factory=set)
    ranks: int = 8
    now: float = 100.0
    book: IncidentBook = field(init=False)
    timers: list[tuple[float, LinkId, int]] = field(default_factory=list)
    told: list[Incident] = field(default_factory=list)
    knocks: int = 0
    asks: int = 0

    def __post_init__(self) -> None:
        self.book = IncidentBook(TIMES, self.scene_of)

    def scene_of(self, link: LinkId) -> Scene:
        thirds = [Third(rank, link.local_nic) for rank in range(1, self.ranks) if rank != link.peer]
        other = 1 - link.local_nic
        rail = OtherRail(other, other, Third(thirds[0].rank, other))
        return Scene(link.local_nic not in self.carriers_down, True, (rail,), tuple(thirds[:2]))

    def lose(
        self, peer: int, nic: int = 0, cause: str = "silence", silent_s: float = 0.06, carried: bool = True
    ) -> None:
        lost = LostLink(LinkId(peer, nic, nic), cause, silent_s, carried, by_peer=False)
        self.take(self.book.lost(lost, self.now))

    def take(self, effects: Iterable[For | Tell]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self.told.append(effect.incident)
            else:
                self.do(effect)

    def do(self, told: For) -> None:
        match told.effect:
            case ArmTimer(token, delay_s):
                self.timers.append((self.now + delay_s, told.link, token))
            case Knock(local, rank, remote) as knock:
                self.knocks += 1
                self.hear(told.link, KnockAnswered(knock, self.passes((0, local), (rank, remote))))
            case AskThird(third):
                self.asks += 1
                there, here = (told.link.peer, told.link.remote_nic), (0, told.link.local_nic)
                point = (third.rank, third.nic)
                self.hear(told.link, ThirdAnswered(third.rank, self.passes(point, there), self.passes(point, here)))

    def passes(self, one: tuple[int, int], other: tuple[int, int]) -> Said:
        return S if one in self.dead or other in self.dead else A

    def hear(self, link: LinkId, event: Event) -> None:
        self.take(self.book.handle(link, event, self.now))

    def run(self, seconds: float = 1.0) -> None:
        until = self.now + seconds
        while self.timers and min(self.timers)[0] <= until:
            self.timers.sort()
            self.now, link, token = self.timers.pop(0)
            self.hear(link, TimerFired(token))
        self.now = until


def test_a_nic_that_takes_all_its_links_is_one_incident() -> None:
    office = Office(dead={(0, 0)})
    for peer in (1, 2, 3):
        office.lose(peer)
    office.run()
    (incident,) = office.told
    assert (incident.words, incident.links_total) == ("our NIC (nic0)", 3)
    assert [link.peer for link in incident.links] == [1, 2, 3]


def test_a_node_that_takes_all_its_links_is_one_incident() -> None:
    office = Office(dead={(2, 0), (2, 1)})
    office.lose(2, 0)
    office.lose(2, 1)
    office.run()
    (incident,) = office.told
    assert incident.words == "their node (rank 2)"


def test_two_faults_at_once_are_two_incidents_though_they_share_a_nic() -> None:
    office = Office(dead={(2, 0), (3, 0)})
    office.lose(2)
    office.lose(3, carried=False)
    office.book.repaired(2, office.now)
    office.run()
    assert [(incident.number, incident.words) for incident in office.told] == [
        (1, "their NIC (rank 2 nic0)"),
        (2, "their NIC (rank 3 nic0)"),
    ]
    assert [incident.links for incident in office.told] == [[LinkId(2, 0, 0)], [LinkId(3, 0, 0)]]
    assert [incident.carried for incident in office.told] == [True, False]
    assert [incident.repaired_s for incident in office.told] == [100.0, None]
    assert [incident.down for incident in office.told] == [{LinkId(2, 0, 0)}, {LinkId(3, 0, 0)}]


def test_of_two_faults_at_once_each_is_repaired_in_its_own_time() -> None:
    office = Office(dead={(2, 0), (3, 0)})
    office.lose(2)
    office.lose(3)
    office.run()
    office.book.repaired(3, office.now)
    assert [incident.repaired_s for incident in office.told] == [None, 101.0]
    assert [incident.waiting for incident in office.told] == [{LinkId(2, 0, 0)}, set()]


def test_faults_that_share_nothing_are_told_apart_from_the_start() -> None:
    office = Office(dead={(2, 0), (3, 1)})
    office.lose(2, 0)
    office.lose(3, 1)
    assert len(office.book.incidents) == 2
    office.run()
    assert sorted(incident.words for incident in office.told) == ["their NIC (rank 2 nic0)", "their NIC (rank 3 nic1)"]


def test_a_switch_that_takes_a_thousand_links_costs_no_more_than_a_few_knocks_and_one_line() -> None:
    office = Office(dead={(rank, 0) for rank in range(1001)}, ranks=1001)
    for peer in range(1, 1001):
        office.lose(peer)
    office.run()
    (incident,) = office.told
    assert incident.verdict is Verdict.AMBIGUOUS
    assert incident.links_total == 1000
    assert len(incident.links) == NAMED_MAX
    assert office.knocks == EXAMINED_MAX * 5
    assert office.asks == EXAMINED_MAX * 2
    assert "1000 links of our nic0" in incident.report()


def test_links_that_were_not_examined_go_with_their_kin() -> None:
    office = Office(dead={(0, 0), *((rank, 1) for rank in (5, 6))})
    for peer in (1, 2, 5):
        office.lose(peer)
    office.lose(5, 1)
    office.lose(6, 0)
    office.run()
    blamed = {incident.words: [str(link) for link in incident.links] for incident in office.told}
    assert blamed == {
        "our NIC (nic0)": ["nic0->rank1.nic0", "nic0->rank2.nic0", "nic0->rank5.nic0", "nic0->rank6.nic0"],
        "their NIC (rank 5 nic1)": ["nic1->rank5.nic1"],
    }


def test_an_idle_link_that_is_found_out_later_joins_without_a_second_line() -> None:
    office = Office(dead={(0, 0)})
    office.lose(1)
    office.run(1.0)
    asked = office.asks
    office.lose(2, carried=False)
    office.run(1.0)
    (incident,) = office.told
    assert [link.peer for link in incident.links] == [1, 2]
    assert office.asks == asked


def test_much_later_it_is_another_incident() -> None:
    office = Office(dead={(0, 0)})
    office.lose(1)
    office.run(1.0 + JOINS_WITHIN_S)
    office.lose(2)
    office.run()
    assert [incident.number for incident in office.told] == [1, 2]


def test_a_link_that_the_known_culprit_does_not_explain_is_another_incident() -> None:
    office = Office(dead={(2, 0)})
    office.lose(2)
    office.run(1.0)
    office.dead.add((3, 0))
    office.lose(3)
    office.run()
    assert [incident.words for incident in office.told] == ["their NIC (rank 2 nic0)", "their NIC (rank 3 nic0)"]


def test_the_same_link_lost_again_is_another_incident() -> None:
    office = Office(dead={(0, 0)})
    for _ in range(2):
        office.lose(1)
        office.run(0.5)
        office.take(office.book.returned(LinkId(1, 0, 0), office.now))
        office.run(0.1)
    assert [incident.number for incident in office.told] == [1, 2]


def test_a_link_that_is_back_before_the_verdict_is_nothing_any_more() -> None:
    office = Office()
    office.lose(1, cause="reset", silent_s=0.0)
    office.now += 0.001
    office.take(office.book.returned(LinkId(1, 0, 0), office.now))
    office.run()
    (incident,) = office.told
    assert (incident.words, incident.evidence) == ("nothing wrong any more", ["the link is back"])
    assert office.knocks == 0


def test_times_count_from_the_first_evidence() -> None:
    office = Office(carriers_down={0})
    office.lose(1, silent_s=0.0, cause="carrier")
    office.lose(2, silent_s=0.04)
    office.now += 0.002
    office.book.repaired(1, office.now)
    assert office.book.incidents[0].repaired_s is None
    office.now += 0.001
    office.book.repaired(2, office.now)
    office.run()
    told = office.told[0].as_dict()
    assert told["started"] == 100.0
    assert told["first_evidence_s"] == pytest.approx(99.96)
    assert told["repaired_after_s"] == pytest.approx(0.043)
    assert told["verdict_after_s"] == pytest.approx(0.07)


def test_repair_after_the_verdict_is_noted_too() -> None:
    office = Office(carriers_down={0})
    office.lose(1)
    office.run(2.0)
    assert "lanes not repaired yet" in office.told[0].report()
    assert office.told[0].as_dict()["repaired_after_s"] is None
    office.book.repaired(1, office.now)
    assert office.told[0].as_dict()["repaired_after_s"] == pytest.approx(2.06)


def test_nothing_is_repaired_for_a_peer_that_is_gone() -> None:
    office = Office(dead={(2, 0), (2, 1)})
    office.lose(2)
    office.book.gone(2)
    office.run()
    assert "no lane is needed any more" in office.told[0].report()


def test_what_is_known_of_a_peer_is_the_newest_verdict_on_a_link_that_is_still_down() -> None:
    office = Office(dead={(2, 0)})
    office.lose(2)
    assert office.book.about(2) is None
    office.run()
    assert office.book.about(2) is office.told[0]
    assert office.book.about(3) is None
    office.take(office.book.returned(LinkId(2, 0, 0), office.now))
    assert office.book.about(2) is None


def test_no_more_is_kept_than_has_a_place() -> None:
    office = Office(dead={(2, 0)})
    for _ in range(KEPT + 5):
        office.lose(2)
        office.run(1.0)
    assert [incident.number for incident in office.book.incidents] == list(range(6, KEPT + 6))


def test_an_entry_is_ready_for_json_before_and_after_its_verdict() -> None:
    office = Office(dead={(2, 0)})
    office.lose(2)
    before = json.loads(json.dumps(office.book.incidents[0].as_dict()))
    assert (before["verdict"], before["verdict_after_s"], before["nic"], before["peer"]) == (None, None, "nic0", 2)
    office.run()
    after = json.loads(json.dumps(office.book.incidents[0].as_dict()))
    assert after["verdict"] == "their NIC (rank 2 nic0)"
    assert after["links"] == ["nic0->rank2.nic0"]


def test_the_report_is_in_an_operators_words() -> None:
    office = Office(dead={(2, 0)}, ranks=3)
    office.lose(2, silent_s=0.061)
    office.now += 0.0014
    office.book.repaired(2, office.now)
    office.run()
    assert office.told[0].report() == (
        "link nic0->rank 2 nic0: silent for 61 ms; we reach rank 2 nic0: no; we reach rank 2 nic1: yes; "
        "our nic0 reaches rank 1 nic0: yes; rank 1 reaches rank 2 nic0: no; rank 1 reaches our nic0: yes; "
        "lanes repaired after 62 ms; verdict after 91 ms: their NIC (rank 2 nic0)"
    )


def test_the_report_of_a_lost_carrier_is_one_line_for_all_its_links() -> None:
    office = Office(carriers_down={0})
    for peer in (1, 2, 3):
        office.lose(peer, cause="carrier", silent_s=0.0)
    office.hear(LinkId(1, 0, 0), OwnNicChanged(up=False))
    office.now += 0.0021
    for peer in (1, 2, 3):
        office.book.repaired(peer, office.now)
    office.run()
    assert office.told[0].report() == (
        "our nic0 lost its carrier, 3 links; lanes repaired after 2.1 ms; verdict after 30 ms: our NIC (nic0)"
    )
    assert office.told[0].evidence == ["our nic0 is down"]
