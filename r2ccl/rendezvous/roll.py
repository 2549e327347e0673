"""Who has come, who is missing, and when waiting makes no sense any more. Pure: the store acts on what this decides.

A meeting gathers until every rank has announced itself; then the book is closed. From there on everyone is needed: a
rank that leaves before all are connected ends the meeting for all, because its address is in everyone's book.

A peer that was refused for its version, secret or idea of the job's size may have claimed a rank. Its claim is not
proven, so it is no ground to end the meeting while other ranks are still on their way. But once nobody is missing
except ranks that were refused, waiting out the deadline would only keep the operator from the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from r2ccl.errors import AuthenticationError, RendezvousError
from r2ccl.topology import AddressBook, Member

#: Ranks named in one sentence; of more, the number is told.
_NAMED_MAX = 32


@dataclass(frozen=True, slots=True)
class _Present:
    member: Member
    #: Where the rank came from, for messages, and whether that is another host.
    place: str
    elsewhere: bool


class Roll:
    """The state of one meeting."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._present: dict[int, _Present] = {}
        self._connected: set[int] = set()
        #: Rank to why it was refused when it last tried; a rank that came is not in it.
        self._refused: dict[int, RendezvousError] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not announced themselves."""
        return tuple(rank for rank in range(self._size) if rank not in self._present)

    @property
    def unconnected(self) -> tuple[int, ...]:
        """Ranks that have not said that they are connected."""
        return tuple(rank for rank in range(self._size) if rank not in self._connected)

    @property
    def book(self) -> AddressBook:
        """All members in rank order; only when nobody is missing."""
        return tuple(self._present[rank].member for rank in range(self._size))

    def announce(self, member: Member, size: int, place: str, elsewhere: bool) -> None:
        """A rank is here. Raises :class:`RendezvousError` if it cannot be admitted."""
        rank = member.rank
        if size != self._size:
            refusal = RendezvousError(
                f"rank {rank} at {place} was told that the job has {size} ranks, rank 0 that it has {self._size}; "
                "WORLD_SIZE (size=) must be the same everywhere"
            )
            self.refuse(rank, refusal)
            raise refusal
        if rank >= self._size:
            raise RendezvousError(f"rank {rank} at {place} is impossible in a job of {self._size} ranks")
        if rank in self._present:
            raise RendezvousError(
                f"rank {rank} at {place} came a second time: it is already here, from {self._present[rank].place}; "
                "each process needs its own RANK, each job on the same port its own R2CCL_JOB"
            )
        self._present[rank] = _Present(member, place, elsewhere)
        self._refused.pop(rank, None)

    def leave(self, rank: int) -> RendezvousError | None:
        """A rank's connection ended. Returns why the meeting is over, if it is."""
        if not self.missing:
            if not self.unconnected:
                return None
            return RendezvousError(f"rank {rank} at {self._present[rank].place} left before all ranks were connected")
        self._present.pop(rank, None)
        return None

    def refuse(self, rank: int | None, why: RendezvousError) -> None:
        """A peer that claimed to be that rank was refused."""
        if rank is not None and rank < self._size and rank not in self._present:
            self._refused[rank] = why

    def connected(self, rank: int) -> None:
        """A rank has its connections."""
        assert not self.missing, "nobody connects before the book is closed"
        self._connected.add(rank)

    def verdict(self) -> RendezvousError | None:
        """Why the meeting can no longer succeed, or None."""
        missing = self.missing
        if missing:
            return self._all_refused(missing) if all(rank in self._refused for rank in missing) else None
        elsewhere = [rank for rank, present in sorted(self._present.items()) if present.elsewhere]
        if not elsewhere:
            return None
        for rank, present in sorted(self._present.items()):
            for nic in present.member.nics:
                if _only_here(nic.endpoint.host):
                    other = self._present[elsewhere[0]].place
                    return RendezvousError(
                        f"rank {rank} announced the address {nic.endpoint.host}, which other hosts cannot reach, "
                        f"and rank {elsewhere[0]} is on another host ({other}); set R2CCL_NICS on rank {rank}"
                    )
        return None

    def expired(self, timeout_s: float) -> RendezvousError:
        """What to say when the deadline has come."""
        if self.missing:
            refused = "".join(f"; rank {rank}: {self._refused[rank]}" for rank in sorted(self._refused))
            return RendezvousError(f"{did_not_come(self.missing)} within {timeout_s:g} s{refused}")
        return RendezvousError(f"{name_ranks(self.unconnected)} could not connect to all peers within {timeout_s:g} s")

    def _all_refused(self, missing: tuple[int, ...]) -> RendezvousError:
        reasons = [self._refused[rank] for rank in missing]
        text = "; ".join(f"rank {rank}: {why}" for rank, why in zip(missing, reasons, strict=True))
        stranger = any(isinstance(why, AuthenticationError) for why in reasons)
        error = AuthenticationError if stranger else RendezvousError
        return error(f"nobody is left to wait for but ranks that were refused: {text}")


def did_not_come(ranks: Iterable[int]) -> str:
    return f"{name_ranks(ranks)} did not come"


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 3, 5``."""
    listed = list(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    more = f" and {len(listed) - _NAMED_MAX} more" if len(listed) > _NAMED_MAX else ""
    return f"ranks {', '.join(map(str, listed[:_NAMED_MAX]))}{more}"


def _only_here(host: str) -> bool:
    return host.startswith(("127.", "169.254.")) or host == "::1" or host.lower().startswith("fe80:")
