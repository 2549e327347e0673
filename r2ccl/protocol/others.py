"""Whether a NIC also carries what others send: other programs, other ranks of the host, a storage client.

Their bytes stand in the same queue as ours, and an answer of an idle link that meets them takes as long as one on a
full link does. That is the load's doing and not the path's, so a late answer accuses nobody then; a prompt one speaks
for its link as ever. Left out, a link whose NIC another program filled while ours had nothing to send was in the shadow
for 39 s, and ours had half of its bandwidth left. Considered and declined: a history of its own for such looks. How
late an answer is among others depends on what they do: small messages to and fro leave no queue and streams do.

What a peer's NIC carries for others is not seen from here, but as far as it meets our own.
"""

from __future__ import annotations

from typing import Final

#: An interface counts headers and acknowledgements, too: of frames of 1500 bytes about a twentieth.
WITH_HEADERS: Final = 1.1


def are_among(counted: tuple[int, int], own: tuple[int, int], most_bytes: float) -> bool:
    """``counted``: bytes that the interface sent and received; ``own``: those of ours; ``most_bytes``: others that send
    or receive no more than this are met so seldom that the confirmations see to it."""
    others = max(all_bytes - WITH_HEADERS * own_bytes for all_bytes, own_bytes in zip(counted, own, strict=True))
    return others > most_bytes
