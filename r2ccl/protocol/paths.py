"""Which links join two ranks. Both ends compute the same, so nothing is negotiated.

*Rails* join NICs of equal index. They stand from the start and carry; where one end has fewer NICs, its NICs serve
several rails. *Backups* are further pairs, which stand by and carry nothing until a lane has lost its link: when one
end lost NIC 0 and the other NIC 1, no rail is left, and a backup may be. It needs a route between rails, which most
networks do not have, so a backup that cannot be made is no fault.

Backups are spread over the NICs: whichever single one is lost, one of two backups is left. A pair that would join the
same two devices as a rail does (several lanes over one NIC) is no backup: it shares their fate.
"""

from __future__ import annotations

from collections.abc import Sequence


def rails(ours: int, theirs: int) -> list[tuple[int, int]]:
    """The rails between two ranks with so many NICs: (own NIC, peer's NIC)."""
    return [(rail % ours, rail % theirs) for rail in range(max(ours, theirs))]


def is_rail(local_nic: int, remote_nic: int, ours: int, theirs: int) -> bool:
    """Does a rail join these two?"""
    return local_nic == remote_nic % ours if theirs > ours else remote_nic == local_nic % theirs


def backups(ours: Sequence[str], theirs: Sequence[str], count: int, *, we_are_first: bool) -> list[tuple[int, int]]:
    """Up to ``count`` backups: (own NIC, peer's NIC). NICs are given by the address of the device that each is on.

    ``we_are_first``: our rank is the lower one, so that both ends see the pairs in one order.
    """
    if not we_are_first:
        return [(local, remote) for remote, local in backups(theirs, ours, count, we_are_first=True)]
    joined = {(ours[local], theirs[remote]) for local, remote in rails(len(ours), len(theirs))}
    left = [
        (local, (local + shift) % len(theirs))
        for shift in range(len(theirs))
        for local in range(len(ours))
        if (ours[local], theirs[(local + shift) % len(theirs)]) not in joined
    ]
    chosen: list[tuple[int, int]] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda pair: _uses(pair, chosen, ours, theirs))
        chosen.append(best)
        left.remove(best)
    return chosen


def _uses(pair: tuple[int, int], chosen: Sequence[tuple[int, int]], ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How often its two devices are in backups already."""
    return sum((ours[pair[0]] == ours[local]) + (theirs[pair[1]] == theirs[remote]) for local, remote in chosen)
