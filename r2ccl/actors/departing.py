"""What a rank waits for before it says that it leaves a communicator: that its messages have arrived.

A goodbye says how many operations of each communicator and channel the rank has called, so whoever waits for a certain
source knows whether more comes. A receive from any does not know of a channel before something of it comes: all it can
go by is that everybody has left. A small message goes out from a copy, so its send has ended when it may still be lost
with its path; were the goodbye to arrive first, on another one, the receive would be told that nobody sends to it. So
messages are acknowledged before a goodbye is said. What the peer's credit holds back is not waited for: it may never be
called for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from r2ccl.actors.courier import Courier


async def messages_arrived(
    courier: Courier, loop: asyncio.AbstractEventLoop, channels: Sequence[int], timeout_s: float
) -> None:
    """Wait until nothing is under way in these channels, at most ``timeout_s``."""

    def is_under_way() -> bool:
        return any(courier.is_under_way(channel) for channel in channels)

    if not is_under_way():
        return
    done: asyncio.Future[None] = loop.create_future()

    def look() -> None:
        if not done.done() and not is_under_way():
            done.set_result(None)

    courier.on_settled.append(look)
    try:
        await asyncio.wait([done], timeout=timeout_s)
    finally:
        courier.on_settled.remove(look)
