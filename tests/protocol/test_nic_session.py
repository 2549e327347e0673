"""The life of one link: every event in every state, whole effect lists compared."""

from __future__ import annotations

import pytest

from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.session_events import (
    BULK,
    CONTROL,
    AbortConnections,
    ArmTimer,
    ConnectionFailed,
    Dismissed,
    Echoed,
    Effect,
    Encouraged,
    Event,
    LeftAlone,
    Surrendered,
    TimerFired,
    Wanted,
    WentDown,
    Withdrawn,
)
from tests.protocol.link_driver import (
    ABSENT,
    BULK_UP,
    CONTROL_UP,
    DIALLING,
    DOWN,
    PROBATION,
    TIMES,
    UP,
    Driver,
    dialled,
    link_in,
    lost,
)

EVENTS: dict[str, Event] = {
    "wanted": Wanted(),
    "control stands": CONTROL_UP,
    "bulk stands": BULK_UP,
    "control failed": ConnectionFailed(CONTROL, "reset"),
    "bulk failed": ConnectionFailed(BULK, "reset"),
    "withdrawn": Withdrawn("silence"),
    "surrendered": Surrendered(),
    "dismissed": Dismissed("not needed"),
    "encouraged": Encouraged(usable=True),
    "discouraged": Encouraged(usable=False),
    "left alone": LeftAlone(),
    "echoed": Echoed(),
    "timer": TimerFired(-1),
    "stale timer": TimerFired(-2),
}


def told(link: Driver, event: str) -> list[Effect]:
    return link.ring() if event == "timer" else link.tell(EVENTS[event])


#: What changes the state of a link that this end dials. All else does nothing.
DIALLER: dict[LinkState, dict[str, tuple[LinkState, str]]] = {
    ABSENT: {"wanted": (DIALLING, "dial"), "left alone": (DIALLING, "dial in a hurry")},
    DIALLING: {
        "control failed": (DOWN, "lose"),
        "bulk failed": (DOWN, "lose"),
        "withdrawn": (DOWN, "lose"),
        "surrendered": (DIALLING, "lose and dial"),
        "dismissed": (DOWN, "let go"),
        "encouraged": (DIALLING, "dial anew"),
        "timer": (DOWN, "lose"),
    },
    PROBATION: {
        "control stands": (DOWN, "lose"),
        "bulk stands": (DOWN, "lose"),
        "control failed": (DOWN, "lose"),
        "bulk failed": (DOWN, "lose"),
        "withdrawn": (DOWN, "lose"),
        "surrendered": (DIALLING, "lose and dial"),
        "dismissed": (DOWN, "let go"),
        "left alone": (PROBATION, "wait for the echo"),
        "timer": (PROBATION, "wait for the echo"),
    },
    UP: {
        "control stands": (DOWN, "lose"),
        "bulk stands": (DOWN, "lose"),
        "control failed": (DOWN, "lose"),
        "bulk failed": (DOWN, "lose"),
        "withdrawn": (DOWN, "lose"),
        "surrendered": (DIALLING, "lose and dial"),
        "dismissed": (DOWN, "let go"),
    },
    DOWN: {
        "encouraged": (DIALLING, "dial"),
        "left alone": (DIALLING, "dial in a hurry"),
        "timer": (DIALLING, "dial"),
    },
}
#: The same for a link that the peer dials. It is never DIALLING.
DIALLED: dict[LinkState, dict[str, tuple[LinkState, str]]] = {
    ABSENT: {},
    PROBATION: {
        event: (DOWN, "lose")
        for event in ("control stands", "bulk stands", "control failed", "bulk failed", "withdrawn", "surrendered")
    }
    | {"dismissed": (DOWN, "let go")}
    | {"left alone": (PROBATION, "wait for the echo"), "timer": (PROBATION, "wait for the echo")},
    UP: {
        event: (DOWN, "lose")
        for event in ("control stands", "bulk stands", "control failed", "bulk failed", "withdrawn", "surrendered")
    }
    | {"dismissed": (DOWN, "let go")},
    DOWN: {},
}
CAUSES = {
    "control stands": "replaced by the peer",
    "bulk stands": "replaced by the peer",
    "withdrawn": "silence",
    "surrendered": "a buffer was given back",
    "timer": "dial timed out",
}


def expected(link: Driver, was: LinkState, event: str, reaction: str) -> list[Effect]:
    token = link.armed.token
    match reaction:
        case "dial":
            return dialled(link)
        case "dial in a hurry":
            return dialled(link, TIMES.redial_s)
        case "dial anew":
            return [AbortConnections(), *dialled(link)]
        case "lose":
            return lost(link, CAUSES.get(event, "reset"), was is UP)
        case "let go":
            return [AbortConnections(), *([WentDown("not needed")] if was is UP else [])]
        case "lose and dial":
            redial = ArmTimer(token - 1, TIMES.redial_s)
            return [*lost(link, CAUSES[event], was is UP)[:-1], redial, *dialled(link)]
        case "wait for the echo":
            return [ArmTimer(token, TIMES.dial_timeout_s)]
    return []


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    ("dialler", "state"),
    [*((True, state) for state in LinkState), *((False, state) for state in LinkState if state is not DIALLING)],
    ids=lambda value: value.value if isinstance(value, LinkState) else "dialler" if value else "dialled",
)
def test_every_event_in_every_state(dialler: bool, state: LinkState, event: str) -> None:
    link = link_in(state, dialler)
    table = DIALLER if dialler else DIALLED
    after, reaction = table[state].get(event, (state, ""))
    effects = told(link, event)
    assert link.state is after
    assert effects == expected(link, state, event, reaction)
