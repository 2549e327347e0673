"""Several lanes over one NIC. Pure.

A host with one NIC has one link to a peer, and a network with several ways (ECMP) carries each connection by the one
that its ports hash to: when a switch on that way drops silently, all is lost that a fresh socket might save. So a NIC
may be announced several times, as NICs with indices of their own on the same device and address, each with a listening
port of its own and its part of the speed. Everything above sees several NICs with rails of their own, and fails over
between them as it always does; when the device itself is lost, all of them are.

By default that is done for a host whose only NIC is a real one. Where there are more, the other NICs are better paths;
loopback has no ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from r2ccl.topology import Nic

#: For a host with one real NIC, unless it is said otherwise: with two, one carries while the other finds another way.
LANES_OF_A_SINGLE_NIC = 2


def with_lanes(nics: Sequence[Nic], lanes_per_nic: int) -> tuple[Nic, ...]:
    """Each NIC ``lanes_per_nic`` times; 0: as is best. Rails stay rails: all NICs come once, then all again."""
    lanes = lanes_per_nic or (LANES_OF_A_SINGLE_NIC if _is_single_and_real(nics) else 1)
    return tuple(
        dataclasses.replace(nic, index=lane * len(nics) + nic.index, speed_mbit_s=nic.speed_mbit_s // lanes)
        for lane in range(lanes)
        for nic in nics
    )


def _is_single_and_real(nics: Sequence[Nic]) -> bool:
    return len(nics) == 1 and not nics[0].endpoint.host.startswith("127.")
