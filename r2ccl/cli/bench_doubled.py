"""One rank of the benchmark that pays for exactly-once twice: what the second payment adds is the price.

    python -m r2ccl.cli.bench_doubled CONTROL_SOCKET

A rank without a ledger and acknowledgements would be no measure: acknowledgements also open the sender's window, share
chunks out over NICs, and say when an operation may return, so without them it would move other bytes at other times.
They may be said twice, though, for they are idempotent, and a second ledger may keep the same books. So here every
acknowledgement goes out twice (made, sent, read and looked up twice), and every entry of the ledger is made in a shadow
besides. That is done to this process alone, from here; nobody else can switch it on.

What is not doubled: the sender settles a chunk once, as the second acknowledgement finds nothing left to settle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import uvloop

from r2ccl.actors.courier import Courier
from r2ccl.cli.bench_rank import serve
from r2ccl.protocol.ledger import Ledger
from r2ccl.protocol.wire import Kind

#: What a chunk does to the ledger on its way in; each calls none of the others.
ENTRIES: Final = ("offer", "accept", "finish", "acknowledge")


class Shadows:
    """A second set of books for each ledger."""

    def __init__(self) -> None:
        #: By the id of the ledger, which is kept too, so that no other gets its id.
        self._of: dict[int, tuple[Ledger, Ledger]] = {}

    def of(self, ledger: Ledger) -> Ledger:
        """The same books again."""
        if id(ledger) not in self._of:
            self._of[id(ledger)] = (ledger, Ledger())
        return self._of[id(ledger)][1]


def doubled_entry(entry: Callable[..., Any], shadows: Shadows) -> Callable[..., Any]:
    """The same method, which makes its entry twice."""

    def twice(self: Ledger, *arguments: Any) -> Any:
        entry(shadows.of(self), *arguments)
        return entry(self, *arguments)

    return twice


def doubled_tell(tell: Callable[..., bool]) -> Callable[..., bool]:
    """The same method, which says an acknowledgement twice."""

    def twice(self: Courier, peer: int, kind: Kind, body: list[Any]) -> bool:
        if kind is Kind.ACK:
            tell(self, peer, kind, body)
        return tell(self, peer, kind, body)

    return twice


def doubled() -> MappingProxyType[tuple[type, str], Callable[..., Any]]:
    """What replaces which method."""
    shadows = Shadows()
    entries = {(Ledger, name): doubled_entry(getattr(Ledger, name), shadows) for name in ENTRIES}
    return MappingProxyType({**entries, (Courier, "tell"): doubled_tell(Courier.tell)})


if __name__ == "__main__":
    for (owner, method), replacement in doubled().items():
        setattr(owner, method, replacement)
    uvloop.run(serve(*sys.argv[1:]))
