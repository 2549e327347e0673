"""When a peer counts as gone: every event in every state, and the stories that the table is for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.liveness import (
    PROBE_INTERVAL_S,
    PROBE_INTERVAL_SLOW_S,
    PROBES_FAST,
    ArmTimer,
    Declare,
    Effect,
    PeerLiveness,
    PeerState,
    Probe,
)

GRACE_S = 5.0
DEAD = Declare("dead", "connection ended (reset) and a new one is refused")
UNREACHABLE = Declare("unreachable", "no path for 5 s")


def peer_in(state: PeerState) -> PeerLiveness:
    """A peer that came to the state by the shortest way, with the timer ``1`` armed where the state has one."""
    peer = PeerLiveness(1, GRACE_S)
    match state:
        case PeerState.DOUBTED:
            peer.connection_ended("reset")
        case PeerState.CUT_OFF:
            peer.no_path()
        case PeerState.LEFT:
            peer.said_goodbye()
        case PeerState.GONE:
            peer.connection_ended("reset")
            peer.refused()
    assert peer.state is state
    return peer


Act = Callable[[PeerLiveness], list[Effect] | None]
ACTS: dict[str, Act] = {
    "connection_ended": lambda peer: peer.connection_ended("reset"),
    "refused": lambda peer: peer.refused(),
    "answered": lambda peer: peer.answered(),
    "path_found": lambda peer: peer.path_found(),
    "no_path": lambda peer: peer.no_path(),
    "nic_returned": lambda peer: peer.nic_returned(),
    "said_goodbye": lambda peer: peer.said_goodbye(),
    "timer": lambda peer: peer.timer_fired(1),
    "stale timer": lambda peer: peer.timer_fired(0),
}
ALIVE, DOUBTED, CUT_OFF, LEFT, GONE = PeerState
PROBE_SOON: list[Effect] = [Probe(), ArmTimer(1, PROBE_INTERVAL_S)]
PROBE_NEXT: list[Effect] = [Probe(), ArmTimer(2, PROBE_INTERVAL_S)]
TABLE: dict[PeerState, dict[str, tuple[PeerState, list[Effect]]]] = {
    ALIVE: {
        "connection_ended": (DOUBTED, PROBE_SOON),
        "refused": (ALIVE, []),
        "answered": (ALIVE, []),
        "path_found": (ALIVE, []),
        "no_path": (CUT_OFF, PROBE_SOON),
        "nic_returned": (ALIVE, []),
        "said_goodbye": (LEFT, []),
        "timer": (ALIVE, []),
        "stale timer": (ALIVE, []),
    },
    DOUBTED: {
        "connection_ended": (DOUBTED, []),
        "refused": (GONE, [DEAD]),
        "answered": (ALIVE, []),
        "path_found": (ALIVE, []),
        "no_path": (CUT_OFF, PROBE_NEXT),
        "nic_returned": (DOUBTED, [Probe()]),
        "said_goodbye": (LEFT, []),
        "timer": (DOUBTED, PROBE_NEXT),
        "stale timer": (DOUBTED, []),
    },
    CUT_OFF: {
        "connection_ended": (CUT_OFF, [Probe()]),
        "refused": (CUT_OFF, []),
        "answered": (CUT_OFF, []),
        "path_found": (ALIVE, []),
        "no_path": (CUT_OFF, []),
        "nic_returned": (CUT_OFF, [Probe()]),
        "said_goodbye": (LEFT, []),
        "timer": (CUT_OFF, PROBE_NEXT),
        "stale timer": (CUT_OFF, []),
    },
    LEFT: {act: (LEFT, []) for act in ACTS},
    GONE: {act: (GONE, []) for act in ACTS},
}


@pytest.mark.parametrize("state", PeerState, ids=lambda state: state.value)
@pytest.mark.parametrize("act", ACTS)
def test_every_event_in_every_state(state: PeerState, act: str) -> None:
    peer = peer_in(state)
    effects = ACTS[act](peer)
    assert (peer.state, effects or []) == TABLE[state][act]
    assert peer.is_over is (peer.state in (LEFT, GONE))


def run_out(peer: PeerLiveness, armed: ArmTimer) -> tuple[list[float], list[Effect]]:
    """Let timers fire until none is armed; the delays, and the last effects."""
    delays: list[float] = []
    effects: list[Effect] = [armed]
    while effects and isinstance(effects[-1], ArmTimer) and len(delays) < 1000:
        delays.append(effects[-1].delay_s)
        effects = peer.timer_fired(effects[-1].token)
    return delays, effects


def test_a_peer_without_a_path_is_probed_until_the_grace_time_is_used_up_and_is_unreachable_then() -> None:
    peer = PeerLiveness(1, GRACE_S)
    (probe, armed) = peer.no_path()
    assert probe == Probe()
    assert isinstance(armed, ArmTimer)
    delays, effects = run_out(peer, armed)
    assert effects == [UNREACHABLE]
    assert sum(delays) == pytest.approx(GRACE_S)
    assert delays[:PROBES_FAST] == [PROBE_INTERVAL_S] * PROBES_FAST
    assert set(delays[PROBES_FAST:-1]) == {PROBE_INTERVAL_SLOW_S}


@pytest.mark.parametrize("grace_s", [0.0, 0.004, 0.095, 0.3])
def test_the_last_period_ends_with_the_grace_time(grace_s: float) -> None:
    peer = PeerLiveness(1, grace_s)
    armed = peer.no_path()[-1]
    assert isinstance(armed, ArmTimer)
    delays, effects = run_out(peer, armed)
    assert sum(delays) == pytest.approx(grace_s)
    assert [type(effect) for effect in effects] == [Declare]


def test_a_doubted_peer_is_probed_fast_and_then_slowly_without_an_end() -> None:
    peer = PeerLiveness(1, GRACE_S)
    armed = peer.connection_ended("reset")[-1]
    assert isinstance(armed, ArmTimer)
    delays, _ = run_out(peer, armed)
    assert len(delays) == 1000
    assert delays[: PROBES_FAST + 1] == [PROBE_INTERVAL_S] * PROBES_FAST + [PROBE_INTERVAL_SLOW_S]
    assert peer.state is DOUBTED


def test_a_refusal_counts_as_a_death_only_after_a_connection_ended() -> None:
    peer = peer_in(CUT_OFF)
    assert peer.refused() == []
    assert peer.connection_ended("reset") == [Probe()]
    assert peer.refused() == [DEAD]
    assert peer.refused() == []


def test_an_answer_takes_the_doubt_away_and_its_timers_are_stale() -> None:
    peer = PeerLiveness(1, GRACE_S)
    armed = peer.connection_ended("end of file")[-1]
    assert isinstance(armed, ArmTimer)
    peer.answered()
    assert peer.timer_fired(armed.token) == []
    assert peer.refused() == []
    assert peer.state is ALIVE


def test_a_path_found_in_time_ends_the_grace_time_and_the_next_begins_anew() -> None:
    peer = PeerLiveness(1, GRACE_S)
    armed = peer.no_path()[-1]
    assert isinstance(armed, ArmTimer)
    for _ in range(20):
        armed = peer.timer_fired(armed.token)[-1]
        assert isinstance(armed, ArmTimer)
    peer.path_found()
    assert peer.timer_fired(armed.token) == []
    armed = peer.no_path()[-1]
    assert isinstance(armed, ArmTimer)
    assert sum(run_out(peer, armed)[0]) == pytest.approx(GRACE_S)


def test_the_end_of_a_connection_and_the_loss_of_all_paths_are_judged_alike_in_either_order() -> None:
    one, other = PeerLiveness(1, GRACE_S), PeerLiveness(1, GRACE_S)
    one.connection_ended("reset")
    one.no_path()
    other.no_path()
    other.connection_ended("reset")
    assert one.state is other.state is CUT_OFF
    assert one.refused() == other.refused() == [DEAD]


@given(st.lists(st.sampled_from([*ACTS, "armed timer"]), max_size=60))
def test_in_any_story_a_peer_in_doubt_or_cut_off_has_exactly_one_timer_that_counts(story: list[str]) -> None:
    peer = PeerLiveness(1, GRACE_S)
    armed: ArmTimer | None = None
    declared = 0
    for act in story:
        effects = (
            peer.timer_fired(armed.token if armed is not None else -1)
            if act == "armed timer"
            else ACTS[act](peer) or []
        )
        armed = next((effect for effect in effects if isinstance(effect, ArmTimer)), armed)
        declared += sum(isinstance(effect, Declare) for effect in effects)
    if peer.state in (DOUBTED, CUT_OFF):
        assert armed is not None
        assert peer.timer_fired(armed.token) != []
    assert declared == (peer.state is GONE)
