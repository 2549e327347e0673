"""Where a fault works: an interface, and the network namespace that it is in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """One interface of this machine or of an emulated host on it."""

    #: Path of a network namespace, such as ``/proc/PID/task/TID/ns/net``; None: the one that we are in.
    namespace: str | None
    interface: str
