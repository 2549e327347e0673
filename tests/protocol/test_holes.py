"""What stands still behind a lost packet, and what only waits for its answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from r2ccl.protocol.holes import Holes

#: A power of two, so that sums are exact.
PATIENCE_S = 1 / 64


@dataclass(frozen=True, slots=True)
class Look:
    """What a connection says at one moment."""

    acked_bytes: int = 0
    missing_segments: int = 0
    in_flight_bytes: int = 64
    rtt_s: float = 0.001
    limited: bool = False


IDLE = Look(in_flight_bytes=0)


def watch(looks: list[Look], holes: Holes | None = None, began_s: float = 0.0) -> list[str]:
    """A look in each of these times: "u" where it is unanswered, "h" where it is held up."""
    holes = holes or Holes(PATIENCE_S)
    said = []
    for number, look in enumerate(looks):
        holes.look(look, began_s + number * PATIENCE_S)
        said.append("u" * holes.is_unanswered + "h" * holes.is_held_up)
    return said


def test_what_is_not_acknowledged_for_a_beat_is_unanswered_and_no_more() -> None:
    assert watch([Look()] * 4) == ["", "u", "u", "u"]


def test_what_is_acknowledged_in_order_is_neither() -> None:
    assert watch([Look(number, missing_segments=1) for number in range(10)]) == [""] * 10


def test_a_hole_that_is_not_filled_holds_up() -> None:
    assert watch([Look(7, 1)] * 4) == ["", "uh", "uh", "uh"]


def test_a_hole_is_reckoned_from_when_packets_are_missing() -> None:
    assert watch([Look(7), Look(7), Look(7, 1), Look(7, 1)]) == ["", "u", "u", "uh"]


def test_a_hole_that_is_filled_holds_up_no_longer_and_the_next_begins_anew() -> None:
    assert watch([Look(7, 1), Look(7, 1), Look(8, 1), Look(8, 1)]) == ["", "uh", "", "uh"]


def test_packets_that_are_found_after_all_are_no_hole() -> None:
    assert watch([Look(7, 1), Look(7, 0), Look(7, 1), Look(7, 1)]) == ["", "u", "u", "uh"]


def test_on_a_long_path_a_hole_may_take_two_round_trips() -> None:
    assert watch([Look(7, 1, rtt_s=0.95 * PATIENCE_S)] * 4) == ["", "", "uh", "uh"]


def test_on_a_long_path_an_answer_may_take_its_time_and_beats_do_not_ask_for_ever() -> None:
    """Each look a beat goes out and an answer comes to the one of three looks ago, as long as there are beats."""
    rtt_s = 3 * PATIENCE_S
    assert watch([Look(number // 3, rtt_s=rtt_s) for number in range(30)]) == [""] * 30
    assert watch([Look(rtt_s=rtt_s)] * 8) == [""] * 6 + ["u", "u"]


@pytest.mark.parametrize("pause", [IDLE, Look(7, 1, limited=True)])
def test_nothing_in_flight_and_a_closed_window_begin_anew(pause: Look) -> None:
    assert watch([Look(7, 1), Look(7, 1), pause, Look(7, 1), Look(7, 1)]) == ["", "uh", "", "", "uh"]


def test_a_connection_that_is_never_looked_at_in_flight_is_neither() -> None:
    assert watch([IDLE] * 5) == [""] * 5


def test_what_was_gathered_before_an_absence_is_void() -> None:
    holes = Holes(PATIENCE_S)
    assert watch([Look(7, 1)] * 2, holes) == ["", "uh"]
    holes.void()
    assert not holes.is_unanswered
    assert not holes.is_held_up
    assert watch([Look(7, 1)] * 2, holes, began_s=5.0) == ["", "uh"]
