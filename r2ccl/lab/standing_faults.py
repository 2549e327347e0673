"""The faults that stand in a lab: which, on which NIC, until when, and how each is undone.

| kind | layer | reach | undone by |
|---|---|---|---|
| link-down | the far end of the wire | the NIC loses its carrier and its host is told | link up |
| near-end-down | the host's own interface | as by ``ip link set nic0 down`` | link up, and its routes |
| silent-drop | the far end leaves its bridge | everything vanishes, both ways, nobody is told | back on its bridge |
| loss | nftables, where packets come in | a share of the packets vanishes, both ways | the rule goes |
| rate | the token buckets at both ends | the NIC is so fast and no faster, both ways | the lab's rate |

At most one of each kind stands on a NIC: another one takes its place. None outlives the lab. ``now`` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from r2ccl.errors import UsageError
from r2ccl.lab.quantities import RATE_MBIT_S_MAX, RATE_MBIT_S_MIN, rate_text


class Breakable(Protocol):
    """What is needed of a lab."""

    rate_mbit_s: float

    def link_down(self, host: int, nic: int) -> float: ...
    def link_up(self, host: int, nic: int) -> float: ...
    def near_end_down(self, host: int, nic: int) -> float: ...
    def near_end_up(self, host: int, nic: int) -> float: ...
    def silent_drop(self, host: int, nic: int) -> float: ...
    def undrop(self, host: int, nic: int) -> float: ...
    def lose(self, host: int, nic: int, share: float) -> float: ...
    def unlose(self, host: int, nic: int) -> float: ...
    def set_rate(self, host: int, nic: int, rate_mbit_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    #: The least and the most of it; None where there is nothing to say how much of.
    amounts: tuple[float, float] | None
    apply: Callable[[Breakable, int, int, float], Any]
    undo: Callable[[Breakable, int, int], Any]
    text: Callable[[float], str]
    example: str = ""


KINDS: Final = MappingProxyType(
    {
        "link-down": Kind(
            None, lambda lab, h, n, _: lab.link_down(h, n), lambda lab, h, n: lab.link_up(h, n), lambda _: "link-down"
        ),
        "near-end-down": Kind(
            None,
            lambda lab, h, n, _: lab.near_end_down(h, n),
            lambda lab, h, n: lab.near_end_up(h, n),
            lambda _: "near-end-down",
        ),
        "silent-drop": Kind(
            None,
            lambda lab, h, n, _: lab.silent_drop(h, n),
            lambda lab, h, n: lab.undrop(h, n),
            lambda _: "silent-drop",
        ),
        "loss": Kind(
            (0.0001, 1.0),
            lambda lab, h, n, share: lab.lose(h, n, share),
            lambda lab, h, n: lab.unlose(h, n),
            lambda share: f"loss {share * 100:g}%",
            "such as 5%, and no less than 0.01%",
        ),
        "rate": Kind(
            (RATE_MBIT_S_MIN, RATE_MBIT_S_MAX),
            lambda lab, h, n, rate: lab.set_rate(h, n, rate),
            lambda lab, h, n: lab.set_rate(h, n, lab.rate_mbit_s),
            lambda rate: f"rate {rate_text(rate)}",
            "such as 200mbit",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Standing:
    """One fault on one NIC."""

    kind: str
    host: int
    nic: int
    amount: float | None
    #: None: until it is healed.
    until_s: float | None

    def text(self, now: float) -> str:
        """For people."""
        what = KINDS[self.kind].text(self.amount or 0.0)
        return what if self.until_s is None else f"{what} for {max(0.0, self.until_s - now):.1f}s more"


@dataclass(slots=True)
class StandingFaults:
    """All of a lab."""

    lab: Breakable
    #: In the order in which they were made; at most one of each kind on a NIC.
    standing: list[Standing] = field(default_factory=list)

    def put(self, fault: Standing) -> None:
        """Make it. Raises :class:`UsageError`; what the lab raises goes through, and then the fault does not stand."""
        kind = KINDS.get(fault.kind)
        if kind is None:
            raise UsageError(f"there is no fault {fault.kind!r}; there are {', '.join(KINDS)}")
        if kind.amounts is None and fault.amount is not None:
            raise UsageError(f"{fault.kind} wants nothing behind the NIC")
        if kind.amounts is not None and not kind.amounts[0] <= (fault.amount or 0.0) <= kind.amounts[1]:
            raise UsageError(f"{fault.kind} wants an amount behind the NIC: {kind.example}")
        for other in self.on(fault.host, fault.nic):
            if other.kind == fault.kind:
                self._undo(other)
        kind.apply(self.lab, fault.host, fault.nic, fault.amount or 0.0)
        self.standing.append(fault)

    def heal(self, host: int | None, nic: int | None) -> list[Standing]:
        """Undo those of a NIC, of a host, or all; the last first. Returns which."""
        found = [one for one in self.standing if host in (None, one.host) and nic in (None, one.nic)]
        for one in reversed(found):
            self._undo(one)
        return found

    def heal_due(self, now: float) -> list[Standing]:
        """Undo those whose time is over."""
        due = [one for one in self.standing if one.until_s is not None and one.until_s <= now]
        for one in due:
            self._undo(one)
        return due

    def next_due_s(self) -> float | None:
        """When :meth:`heal_due` has something to do."""
        return min((one.until_s for one in self.standing if one.until_s is not None), default=None)

    def on(self, host: int, nic: int) -> list[Standing]:
        """What stands on a NIC."""
        return [one for one in self.standing if (one.host, one.nic) == (host, nic)]

    def _undo(self, fault: Standing) -> None:
        # Forgotten first: what cannot be undone once is not tried for ever.
        self.standing.remove(fault)
        KINDS[fault.kind].undo(self.lab, fault.host, fault.nic)
