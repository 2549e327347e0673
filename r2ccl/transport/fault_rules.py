"""What the ``faulty`` transport can do to a frame: small rules, each of which sees a frame and gives a verdict.

A rule is any callable from :class:`Passage` to :data:`Verdict`. Rules are asked in the order of their installation and
the first that does not let pass decides. Installing gives a :class:`Guard`, which takes the rule out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final

from r2ccl.protocol.wire import HEADER_BYTES, Header
from r2ccl.transport.interface import Connection


@dataclass(frozen=True, slots=True)
class Passage:
    """A frame on its way out."""

    connection: Connection
    header: Header
    payload_bytes: int
    now: float


class Pass:
    """The frame goes on at once."""


class Corrupt:
    """One bit of the payload flips. The header, and so the checksum in it, stays as it was."""


class Drop:
    """The path loses the frame for as long as any rule says so.

    A stream comes in order or not at all, so everything behind the frame waits with it, as it would for a segment that
    a kernel sends again and again.
    """


@dataclass(frozen=True, slots=True)
class Delay:
    """The frame goes on after this long, and nothing overtakes it."""

    seconds: float


Verdict = Pass | Corrupt | Drop | Delay
Rule = Callable[[Passage], Verdict]
PASS: Final = Pass()
CORRUPT: Final = Corrupt()
DROP: Final = Drop()


class Guard:
    """A fault that is in force until ``remove`` is called or its ``with`` block ends."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove: Callable[[], None] | None = remove

    def remove(self) -> None:
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def delay(seconds: float) -> Rule:
    """Every frame takes this much longer."""
    return lambda _: Delay(seconds)


def rate(bytes_s: float) -> Rule:
    """All frames together go no faster than this."""
    free_at = 0.0

    def pace(passage: Passage) -> Verdict:
        nonlocal free_at
        free_at = max(free_at, passage.now) + (HEADER_BYTES + passage.payload_bytes) / bytes_s
        return Delay(free_at - passage.now)

    return pace


def corrupt_chunk(number: int) -> Rule:
    """The ``number``-th frame with a payload, counted from 1, is corrupted; once."""
    seen = 0

    def flip(passage: Passage) -> Verdict:
        nonlocal seen
        if passage.payload_bytes == 0:
            return PASS
        seen += 1
        return CORRUPT if seen == number else PASS

    return flip


def corrupt(share: float, rng: Random) -> Rule:
    """A share of the frames with a payload is corrupted, at random."""
    return lambda passage: CORRUPT if passage.payload_bytes and rng.random() < share else PASS


#: How long a kernel waits at least until it sends again what nobody acknowledges.
RESENT_AFTER_S: Final = 0.2


def lose(share: float, rng: Random) -> Rule:
    """A share of the frames is lost, at random: it comes as late as what a kernel sends again, and all behind it."""
    return lambda _: Delay(RESENT_AFTER_S) if rng.random() < share else PASS
