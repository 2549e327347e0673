"""Who is in which operation, as far as one rank has heard."""

from __future__ import annotations

from r2ccl.protocol.roll_call import CALLS_MAX, Presence, RollCall
from r2ccl.protocol.wire import Entered

OURS = 11


def entered(operation: int, fingerprint: int = OURS, call: str = "barrier()", finished: bool = False) -> Entered:
    return Entered(0, operation, fingerprint, call, finished)


def test_who_was_not_heard_has_not_entered() -> None:
    assert RollCall([1, 2]).presence(0) == Presence((1, 2), (), ())


def test_whoever_is_in_an_operation_has_entered_all_before_it_and_need_not_have_finished_them() -> None:
    roll = RollCall([1, 2])
    roll.heard(1, entered(4))
    assert roll.presence(3) == roll.presence(4) == Presence((2,), (1,), ())
    assert roll.presence(5) == Presence((1, 2), (), ())


def test_whoever_finished_is_no_longer_among_the_entered() -> None:
    roll = RollCall([1, 2, 3])
    roll.heard(1, entered(4, finished=True))
    roll.heard(2, entered(4))
    assert roll.presence(4) == Presence((3,), (2,), (1,))


def test_old_news_takes_nothing_back() -> None:
    roll = RollCall([1])
    roll.heard(1, entered(4, finished=True))
    roll.heard(1, entered(2))
    roll.reached(1, 1)
    assert roll.presence(4) == Presence((), (), (1,))


def test_a_chunk_shows_where_its_sender_is_without_saying_what_it_called() -> None:
    roll = RollCall([1])
    roll.reached(1, 3)
    assert roll.presence(3) == Presence((), (1,), ())
    assert roll.calls(3) == {}
    roll.reached(1, -1)
    assert roll.presence(3) == Presence((), (1,), ())


def test_calls_that_differ_are_named_with_their_callers() -> None:
    roll = RollCall([1, 2, 3])
    roll.heard(1, entered(0, OURS, "barrier()"))
    roll.heard(2, entered(0, 99, "broadcast(uint8[1], root=0)"))
    roll.heard(3, entered(1, 98, "barrier()"))
    assert roll.differing(0, OURS) == {2: "broadcast(uint8[1], root=0)"}
    assert roll.calls(0) == {1: "barrier()", 2: "broadcast(uint8[1], root=0)"}
    assert roll.differing(2, OURS) == {}


def test_of_many_calls_the_oldest_are_forgotten() -> None:
    roll = RollCall([1])
    for operation in reversed(range(CALLS_MAX + 2)):
        roll.heard(1, entered(operation))
    assert roll.calls(0) == roll.calls(1) == {}
    assert roll.calls(2) == roll.calls(CALLS_MAX + 1) == {1: "barrier()"}
