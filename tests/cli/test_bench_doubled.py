"""The rank that pays for exactly-once twice keeps right books, and says acknowledgements, and only those, twice."""

from __future__ import annotations

from typing import Any

from r2ccl.actors.courier import Courier
from r2ccl.cli.bench_doubled import ENTRIES, Shadows, doubled, doubled_entry, doubled_tell
from r2ccl.protocol.ledger import Ledger, Offer
from r2ccl.protocol.wire import Kind


def test_an_entry_is_made_in_both_books_and_the_answer_is_that_of_the_first():
    shadows, ledger = Shadows(), Ledger()
    offer, accept = (doubled_entry(getattr(Ledger, name), shadows) for name in ("offer", "accept"))
    assert offer(ledger, 0, 0, 1, 0, "writer") is Offer.FIRST
    assert accept(ledger, 0, 0, 1, 0) == (True, "writer")
    assert ledger.has(0, 0, 1, 0)
    assert shadows.of(ledger).has(0, 0, 1, 0)
    assert (ledger.duplicates, shadows.of(ledger).duplicates) == (0, 0)


def test_each_ledger_has_a_shadow_of_its_own():
    shadows, one, two = Shadows(), Ledger(), Ledger()
    assert shadows.of(one) is shadows.of(one)
    assert shadows.of(one) is not shadows.of(two)


def test_the_shadow_forgets_what_is_finished_as_the_ledger_does():
    shadows, ledger = Shadows(), Ledger()
    twice = {name: doubled_entry(getattr(Ledger, name), shadows) for name in ENTRIES}
    for operation in range(3):
        twice["accept"](ledger, operation, 0, 1, 0)
        twice["acknowledge"](ledger, 1)
        twice["finish"](ledger, operation)
    assert ledger.completed == shadows.of(ledger).completed == 3
    assert shadows.of(ledger).acknowledge_all(1) == ()


def test_acknowledgements_are_said_twice_and_everything_else_once():
    said: list[tuple[int, Kind]] = []

    def tell(self: Any, peer: int, kind: Kind, body: list[Any]) -> bool:
        said.append((peer, kind))
        return True

    twice: Any = doubled_tell(tell)
    assert twice(None, 3, Kind.ACK, [])
    assert twice(None, 4, Kind.NOTICE, [])
    assert said == [(3, Kind.ACK), (3, Kind.ACK), (4, Kind.NOTICE)]


def test_nothing_is_doubled_before_it_is_put_in_place():
    before = [getattr(Ledger, name) for name in ENTRIES] + [Courier.tell]
    replacements = doubled()
    assert [getattr(Ledger, name) for name in ENTRIES] + [Courier.tell] == before
    assert set(replacements) == {*((Ledger, name) for name in ENTRIES), (Courier, "tell")}
    assert all(replacement not in before for replacement in replacements.values())
