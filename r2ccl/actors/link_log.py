"""What the event log keeps of links: when each came into service and went out of it, and why."""

from __future__ import annotations

import logging

from r2ccl.actors.link import Link
from r2ccl.actors.links import DIRECT_AGAIN, PEER_LEFT
from r2ccl.protocol.nic_session import SURRENDERED
from r2ccl.telemetry.event_log import EventLog

#: Out of service without any fault of the path.
NO_LOSS = (PEER_LEFT, SURRENDERED, DIRECT_AGAIN)


def record_up(events: EventLog, link: Link) -> None:
    """A link is in service: for the first time, or again."""
    first = not link.session.incident
    change, cause = ("ABSENT->UP", "connected") if first else ("DOWN->UP", "readmitted")
    events.record("link", link=str(link.id), change=change, cause=cause)


def record_down(events: EventLog, link: Link, cause: str) -> None:
    """A link is out of service. Where that is no fault of the path, nobody needs to be warned."""
    level = logging.INFO if cause in NO_LOSS else logging.WARNING
    events.record("link", level=level, link=str(link.id), change="UP->DOWN", cause=cause)
