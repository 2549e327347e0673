"""Which links from a peer are slow, by what arrives on them: acknowledgements and other control go by the others.

On a slow NIC control queues behind chunks, for longer than a chunk takes on a fast one. Were the acknowledgements of
all lanes to go by it, the fast ones would stand idle until theirs came, and look slow themselves. A rank that sends
measures how fast its links are. One that only receives does not, but the sender shares its chunks out by what it
measures: where little comes, the link is slow, and in both directions as a rule, for it is NICs that are slow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

#: Looked at after so much has arrived, and so many chunks: a few for each link, else chance decides.
LOOK_BYTES = 1 << 20
LOOK_CHUNKS = 4
#: A link that brought less than this part of what the best one did is slow; one that brought more than twice that is
#: slow no longer.
SLOW_SHARE = 0.4


class LinkSpeeds:
    """Of all links with one peer."""

    __slots__ = ("_before", "_slow", "_unseen_bytes")

    def __init__(self) -> None:
        self._unseen_bytes = 0
        #: Link -> bytes that it had brought when last looked at.
        self._before: dict[Hashable, int] = {}
        self._slow: frozenset[Hashable] = frozenset()

    def arrived(self, size: int) -> bool:
        """Bytes came. Returns whether to look at the links again."""
        self._unseen_bytes += size
        return self._unseen_bytes >= LOOK_BYTES and self._unseen_bytes >= LOOK_CHUNKS * size

    def slow(self, links: Sequence[tuple[Hashable, int, float]]) -> frozenset[Hashable]:
        """``links``: those in service, each with all bytes that it ever brought, and the rate at which it carries what
        we send, 0 if that was not measured. Returns those that are slow."""
        self._unseen_bytes = 0
        brought = {link: total - self._before.get(link, total) for link, total, _ in links}
        self._before = {link: total for link, total, _ in links}
        best = max(brought.values(), default=0)
        best_bytes_s = max((rate for _, _, rate in links), default=0.0)
        now_slow = []
        for link, _, rate in links:
            share = 2 * SLOW_SHARE if link in self._slow else SLOW_SHARE
            if brought[link] < share * best or 0 < rate < share * best_bytes_s:
                now_slow.append(link)
        self._slow = frozenset(now_slow)
        return self._slow
