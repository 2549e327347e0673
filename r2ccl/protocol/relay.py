"""How two ranks that no direct link joins are joined by a third: frames within frames, and what each end knows of them.

Theory of operation. Rank A lost its nic0 and rank B its nic1, and rails are networks of their own: no packet passes
between A and B, but rank C has a link to each. Then A and B are joined by a *circuit*: a connection whose frames C
carries, one hop, in frames of kind RELAYED, from the link with A to the link with B. C keeps nothing of a circuit: it
looks at who sends and to whom, passes on or drops, and never acknowledges. Whatever is acknowledged, or allowed by
credit, is so from end to end, as on any other path (ARCHITECTURE.md, decision 15).

All that a circuit needs is in the header of the outer frame, which has a check of its own; its payload is the inner
frame, header and all.

    word       from      says
    DIAL       A         to B, through several ranks at once: who hears it first may answer
    ANSWER     B         through the rank by which the first DIAL came: it carries the circuit from now on
    FRAME      A or B    an inner frame, the ``number``-th that this end sends on the circuit
    RECEIPT    A or B    so many bytes of frames have come (``received``, as in every word)
    END        A or B    this end has no such circuit (any more)
    NO_ROUTE   C         in B's name, to A: C has no link to B
    TRIMMED    C         in A's name, to B: a FRAME of which C had room for the inner header only
    ASK, HERE  A, B      ``relays: are you there?`` and the answer, through ranks that do not carry the circuit

A relay that is full drops chunks, but not their names: of each it passes on the header, and the receiver asks its
source for that chunk again, as for one that came with a wrong checksum. So a full relay goes on carrying as much as its
second leg takes. To end the circuit instead, which lanes would survive, too, was tried: the dials and resends that
follow keep the relay full, and a peer was taken for unreachable while its relay carried nothing but those.

What is lost otherwise, with a link of the relay, shows as a gap in the numbers, and a circuit with a gap ends: its link
is made anew, through whoever answers first, and lanes send again what was not acknowledged.

Silence on a circuit accuses nobody. Behind it is a process, not a kernel: one that computes for a second sends no
receipt for a second. Each of the two legs is a link, watched by the ranks at its ends like any other, and a relay that
lost its second leg says so. What remains is a relay that stands still while the peer does not. So if nothing came for
a while, other ranks are asked whether they reach the peer; only if *it* answers there, and still nothing has come
through the relay, the circuit is given up for a new one. A peer that computes answers nobody, and nothing changes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from r2ccl.protocol.wire import HEADER_BYTES, BadFrame, Header, Kind, pack_header

#: How many ranks carry a DIAL at a time. More would be a storm where all pairs of a large job lose their paths at once;
#: the next attempt, a redial period later, asks the next ones.
CANDIDATES_MAX = 8
_PURPOSES = (1, 2, 4)


class Word(enum.IntEnum):
    """See the table above."""

    DIAL = 1
    ANSWER = 2
    FRAME = 3
    RECEIPT = 4
    END = 5
    NO_ROUTE = 6
    TRIMMED = 7
    ASK = 8
    HERE = 9


#: What a relay answers when it cannot pass it on; the others are answers themselves.
EXPECTING = frozenset((Word.DIAL, Word.FRAME, Word.RECEIPT, Word.ASK))


class RelayedFrame(NamedTuple):
    """The outer header of a relayed frame, read."""

    word: Word
    source: int
    target: int
    circuit: int
    #: Of a DIAL: what the circuit is for.
    purpose: int
    number: int
    received: int


def read_relayed(header: Header) -> RelayedFrame:
    """Raises :class:`BadFrame`."""
    try:
        word = Word(header.step)
    except ValueError:
        raise BadFrame(f"a relayed frame with the word {header.step}") from None
    if word is Word.DIAL and header.chunk not in _PURPOSES:
        raise BadFrame(f"a circuit for purpose {header.chunk}")
    return RelayedFrame(
        word, header.source, header.target, header.communicator, header.chunk, header.operation, header.acknowledged
    )


def pack_relayed(
    word: Word,
    source: int,
    target: int,
    circuit: int,
    *,
    purpose: int = 0,
    number: int = 0,
    received: int = 0,
    payload_bytes: int = 0,
) -> bytes:
    """The outer header."""
    return pack_header(Kind.RELAYED, 0, payload_bytes, circuit, number, word, source, target, purpose, 0, received)


def trim(frame: RelayedFrame) -> bytes:
    """The outer header of a FRAME of which only the inner header goes on."""
    return pack_relayed(
        Word.TRIMMED, frame.source, frame.target, frame.circuit,
        purpose=frame.purpose, number=frame.number, received=frame.received, payload_bytes=HEADER_BYTES,
    )  # fmt: skip


def check_hop(header: Header, carrier: int, rank: int, size: int) -> None:
    """One hop: a relay carries for its neighbour and nobody else. Raises :class:`BadFrame`.

    ``carrier``: the rank that a link brought the frame from; ``rank``: who looks.
    """
    source, target = header.source, header.target
    if not (source < size and target < size) or source in (target, rank):
        raise BadFrame(f"a relayed frame from {source} to {target}")
    if (source == carrier) is (target == rank):
        raise BadFrame(f"rank {carrier} relays from {source} to {target}: not one hop")


class Circuit:
    """What one end knows of the frames of a circuit, both ways."""

    __slots__ = (
        "_asked_at_s",
        "_heard_at_s",
        "_owed_since_s",
        "_told_bytes",
        "is_asking",
        "received_bytes",
        "received_frames",
        "reported_bytes",
        "sent_bytes",
        "sent_frames",
    )

    def __init__(self, now: float) -> None:
        self.sent_frames = 0
        self.sent_bytes = 0
        #: Of these, what the other end said that it has.
        self.reported_bytes = 0
        self.received_frames = 0
        self.received_bytes = 0
        #: Of these, what the other end was told of.
        self._told_bytes = 0
        self._heard_at_s = now
        #: Since when something has been in flight without a pause.
        self._owed_since_s = now
        self._asked_at_s = 0.0
        #: Others were asked for the peer, and nothing has come through the relay since.
        self.is_asking = False

    @property
    def in_flight_bytes(self) -> int:
        return self.sent_bytes - self.reported_bytes

    @property
    def owes_receipt(self) -> bool:
        """Has something come that the other end does not know to have come?"""
        return self.received_bytes > self._told_bytes

    def silence_s(self, now: float) -> float:
        """Since anything came."""
        return now - self._heard_at_s

    def send(self, size: int, now: float) -> int:
        """A frame of so many bytes goes out: its number. Its header carries :meth:`told`."""
        if not self.in_flight_bytes:
            self._owed_since_s = now
        self.sent_bytes += size
        self.sent_frames += 1
        return self.sent_frames

    def told(self) -> int:
        """What the other end is told now to have come."""
        self._told_bytes = self.received_bytes
        return self.received_bytes

    def take(self, number: int, size: int) -> bool:
        """A frame came, of so many bytes when it was sent. False: one before it was lost, so the circuit must end."""
        if number != self.received_frames + 1:
            return False
        self.received_frames = number
        self.received_bytes += size
        return True

    def hear(self, received: int, now: float) -> None:
        """Anything came from the other end, through the relay. Raises :class:`BadFrame`."""
        if received > self.sent_bytes:
            raise BadFrame(f"{received} bytes are said to have come, of {self.sent_bytes} sent")
        self.reported_bytes = max(self.reported_bytes, received)
        self._heard_at_s = now
        self.is_asking = False

    def should_ask(self, patience_s: float, now: float) -> bool:
        """Is it time to ask others whether they reach the peer?"""
        if not self.in_flight_bytes:
            return False
        waited_since_s = max(self._heard_at_s, self._owed_since_s)
        if self.is_asking:
            waited_since_s = max(waited_since_s, self._asked_at_s)
        return now - waited_since_s >= patience_s

    def ask(self, now: float) -> None:
        """Others are asked."""
        self._asked_at_s = now
        self.is_asking = True


class Candidates:
    """Whom to ask to carry a circuit: a few at a time, others at each attempt, and different ones first for different
    pairs, so that one rank does not carry for all."""

    __slots__ = ("_asked", "_rank")

    def __init__(self, rank: int) -> None:
        self._rank = rank
        #: peer -> how many were asked so far. Bounded by the number of ranks.
        self._asked: dict[int, int] = {}

    def choose(self, peer: int, reached: Sequence[int]) -> list[int]:
        """The next ones of those that are reached, ascending ranks."""
        count = min(CANDIDATES_MAX, len(reached))
        if not count:
            return []
        asked = self._asked.get(peer, 0)
        self._asked[peer] = asked + count
        first = (self._rank + peer + asked) % len(reached)
        return [reached[(first + index) % len(reached)] for index in range(count)]
