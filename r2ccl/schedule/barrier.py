"""Dissemination barrier: news of who has entered spreads to twice as many ranks with each step.

In step k a rank tells the one 2^k places on, once it has been told in all steps before. After step k it has heard from
the 2^(k+1) - 1 ranks before it. Messages carry no elements.

phase          steps          sends          elements
dissemination  ceil(log2(n))  ceil(log2(n))  0

Per rank, for n ranks.
"""

from __future__ import annotations

from r2ccl.schedule.ir import Program, Receive, Send, Shape


def dissemination(ranks: int, rank: int, shape: Shape) -> Program:
    """The program of ``rank``, whatever the shape."""
    steps = range((ranks - 1).bit_length())
    return Program(
        rank,
        0,
        tuple(
            Send(k, (rank + (1 << k)) % ranks, 0, 0, tuple(range(k)), needs_ack=not _comes_back(ranks, k))
            for k in steps
        ),
        tuple(Receive(k, (rank - (1 << k)) % ranks, 0, 0) for k in steps),
    )


def _comes_back(ranks: int, step: int) -> bool:
    """Whether news of the arrival of this step's message returns to its sender.

    It is 2^k places on and can travel only by the steps behind k, so by any multiple of 2^(k+1) below 2^steps. One of
    these closes the circle exactly if ranks is an odd multiple of 2^k.
    """
    return ranks & -ranks == 1 << step
