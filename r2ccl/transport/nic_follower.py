"""Which of our NICs a change of a link or address is about, and what it means for that NIC. Pure.

A NIC is known by its index in the job and, to the kernel, by its address: the interface that has it may be taken away
and another one, with another name and number, may be given the address instead. A container that is disconnected from
a network and connected again sees exactly that: its eth1 vanishes, and eth2 has the address (decision 20). The other
way round, an interface that stays and is given another address is the same NIC too. Several NICs may be lanes over one
interface with one address: what befalls it befalls all of them.

Interfaces are matched by number, for one that is removed may be told by a name that it never had here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from r2ccl.topology import Nic
from r2ccl.transport.link_events import AddressEvent, LinkEvent


@dataclass(frozen=True, slots=True)
class NicChanged:
    """A NIC can or cannot be used, where it is."""

    index: int
    up: bool
    cause: str


@dataclass(frozen=True, slots=True)
class NicMoved:
    """A NIC is at another address, or another interface has its address. ``up``: whether it can be used already."""

    index: int
    host: str
    interface_name: str
    up: bool


News = NicChanged | NicMoved


@dataclass(slots=True)
class _Place:
    """Where a NIC is."""

    host: str
    #: As it was last told.
    interface_name: str
    #: None until the kernel has told of the interface.
    interface_index: int | None = None
    #: Its address is gone, and with it the NIC, until it has one again.
    homeless: bool = False


class NicFollower:
    """Follows the NICs of one rank. Hears of everything that a :class:`LinkWatcher` tells, in that order."""

    def __init__(self, nics: Iterable[Nic]) -> None:
        self._places = {nic.index: _Place(nic.endpoint.host, nic.name) for nic in nics}
        #: By number; interfaces that were removed are not in it.
        self._links: dict[int, LinkEvent] = {}

    def hear_link(self, event: LinkEvent) -> list[News]:
        """What a link's new state means."""
        number = event.interface_index
        if event.removed:
            self._links.pop(number, None)
        else:
            self._links[number] = event
        news: list[News] = []
        for index, place in self._places.items():
            if place.interface_index is None and place.interface_name == event.interface_name:
                place.interface_index = number
            if place.interface_index == number and not place.homeless:
                news.append(self._link_changed(index, place, event))
        return news

    def _link_changed(self, index: int, place: _Place, event: LinkEvent) -> News:
        if event.removed:
            place.homeless = True
            return NicChanged(index, False, "removed")
        # One that is down may be renamed on its way out. It is moved to when there is something to move to.
        if event.up and event.interface_name != place.interface_name:
            place.interface_name = event.interface_name
            return NicMoved(index, place.host, event.interface_name, event.up)
        return NicChanged(index, event.up, "carrier")

    def hear_address(self, event: AddressEvent) -> list[News]:
        """What an address that came or went means."""
        known = [(index, place) for index, place in self._places.items() if place.host == event.host]
        if known:
            return [new for index, place in known for new in self._own_address(index, place, event)]
        return [] if event.removed else self._other_address(event)

    def _own_address(self, index: int, place: _Place, event: AddressEvent) -> list[News]:
        if event.removed:
            if event.interface_index != place.interface_index and place.interface_index is not None:
                return []  # it has moved on already
            place.homeless = True
            return [NicChanged(index, False, "address")]
        if not place.homeless:
            return []
        if event.interface_index != place.interface_index:
            return [self._settle(index, place, event)]
        place.homeless = False
        return [NicChanged(index, self._is_up(event.interface_index), "address")]

    def _other_address(self, event: AddressEvent) -> list[News]:
        """Of several that were at one address all go to the new one: they are lanes over one NIC."""
        number = event.interface_index
        places = self._places.items()
        homeless = [(index, place) for index, place in places if place.homeless and place.interface_index == number]
        was = homeless[0][1].host if homeless else ""
        return [self._settle(index, place, event) for index, place in homeless if place.host == was]

    def _settle(self, index: int, place: _Place, event: AddressEvent) -> NicMoved:
        link = self._links.get(event.interface_index)
        place.homeless = False
        place.host = event.host
        place.interface_index = event.interface_index
        # Of an interface that was not told yet the name follows, and is then news.
        place.interface_name = link.interface_name if link is not None else ""
        return NicMoved(index, place.host, place.interface_name, self._is_up(event.interface_index))

    def _is_up(self, interface_index: int) -> bool:
        link = self._links.get(interface_index)
        return link is not None and link.up
