"""What each rank of ``r2ccl topology-check`` does when rank 0 asks, rank 0 itself included.

order                       answer
["look"]                    ["view", host and NICs]
["clock"]                   ["clock", seconds since 1970]
["reach", pairs]            ["reaches", outcomes]
["mtu", pairs]              ["mtus", sizes]
["rate", pair, seconds]     ["rate", bytes per second]
["end", exit code]          nothing: it is over
"""

from __future__ import annotations

import platform
from typing import Any

from r2ccl.cli.topology_codec import pack_mtus, pack_reaches, pack_view, unpack_pairs
from r2ccl.cli.topology_posts import STREAM_S_MAX
from r2ccl.cli.topology_probes import Prober
from r2ccl.cli.topology_wire import Ended
from r2ccl.clock import wall_clock_s
from r2ccl.planner.network_picture import HostView, NicView, Pair
from r2ccl.topology import AddressBook, Nic
from r2ccl.transport.nic_facts import NicFacts


class Worker:
    """One rank."""

    def __init__(self, view: HostView, prober: Prober, book: AddressBook) -> None:
        self._view = view
        self._prober = prober
        self._book = book

    async def perform(self, order: list[Any]) -> list[Any]:
        """Do what is asked. Raises :class:`Ended` if that makes no sense."""
        match order:
            case ["look"]:
                return ["view", pack_view(self._view)]
            case ["clock"]:
                return ["clock", wall_clock_s()]
            case ["reach", pairs]:
                return ["reaches", pack_reaches(await self._prober.reach(self._checked(unpack_pairs(pairs))))]
            case ["mtu", pairs]:
                return ["mtus", pack_mtus(await self._prober.mtus(self._checked(unpack_pairs(pairs))))]
            case ["rate", pair, float(seconds)] if 0 < seconds < STREAM_S_MAX:
                (checked,) = self._checked(unpack_pairs([pair]))
                return ["rate", await self._prober.rate(checked, seconds)]
        raise Ended(f"it asked for what makes no sense: {order[:1]}")

    def _checked(self, pairs: list[Pair]) -> list[Pair]:
        for pair in pairs:
            mine = pair.source == self._view.rank and 0 <= pair.source_nic < len(self._view.nics)
            there = 0 <= pair.target < len(self._book) and 0 <= pair.target_nic < len(self._book[pair.target].nics)
            if not (mine and there):
                raise Ended(f"it asked for a pair that is none of ours: {pair}")
        return pairs


def own_view(rank: int, node: str, nics: tuple[Nic, ...], facts: dict[str, NicFacts]) -> HostView:
    """This rank, its host and its NICs."""
    return HostView(
        rank, platform.node(), node, tuple(nic_view(nic, facts.get(nic.name, NicFacts(nic.name))) for nic in nics)
    )


def nic_view(nic: Nic, facts: NicFacts) -> NicView:
    """What was chosen and what is known of it, put together."""
    address = nic.endpoint.host
    # Loopback answers no ARP.
    alone = facts.answers_for_itself or address.startswith("127.")
    return NicView(
        nic.index, nic.name, address, facts.prefix_length(address), facts.mac, nic.speed_mbit_s, nic.mtu_bytes,
        facts.driver, facts.bus_address, facts.numa_node, facts.state == "up", alone,
    )  # fmt: skip
