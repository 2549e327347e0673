"""Where a fault is put: an interface, and the network namespace that it is in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """``namespace``: path of a network namespace, such as /proc/PID/task/TID/ns/net or /proc/PID/fd/N; None: this
    process's own."""

    namespace: str | None
    interface: str

    def __str__(self) -> str:
        return self.interface if self.namespace is None else f"{self.interface} in {self.namespace}"
