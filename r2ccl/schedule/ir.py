"""Collectives as data: who sends which segment to whom, in which step, after what. Knows no NIC, no byte, no time.

A *program* is one rank's part. It is a list of sends and a list of receives over one buffer of ``count`` elements. All
positions are in elements. A transfer's name is (step, source, target); no two transfers of a schedule share all three.

Order comes only from ``after``: a send or receive waits for the receives it lists (indices into the same program's
``receives``). If a listed receive covers exactly the same segment, the wait is chunk by chunk, which is what makes
pipelines flow; otherwise it is for the whole receive. What has no ``after`` may go at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """``buffer[start:stop]`` goes to ``target``."""

    step: int
    target: int
    start: int
    stop: int
    after: tuple[int, ...] = ()
    #: The operation may not end before this send is acknowledged, because nothing this rank receives later proves
    #: that it arrived. ``schedule.check`` proves that the other sends are covered by causality.
    needs_ack: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """What ``source`` sends lands in ``buffer[start:stop]``: copied, or reduced into what is there."""

    step: int
    source: int
    start: int
    stop: int
    reduce: bool = False
    #: With ``reduce``: the received operand is the left one. Bits depend on it (max(0.0, -0.0), sums of NaNs).
    received_first: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's part of a schedule."""

    rank: int
    count: int
    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]
    #: Every send must go out from a copy made when it is ready, because the same elements are reduced into meanwhile.
    #: Only for messages up to the eager limit.
    sends_from_copies: bool = False


def segments(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``count`` elements into ``parts`` segments whose lengths differ by at most one; some may be empty."""
    base, longer = divmod(count, parts)
    bounds = [index * base + min(index, longer) for index in range(parts + 1)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))
