"""Knocks are few at a time, shared by all who want to know the same, sent twice, and answered in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from r2ccl.actors.knocking import AT_ONCE_MAX, WAITING_MAX, Knocker
from r2ccl.actors.timers import Timers
from r2ccl.protocol.diagnosis import Knock
from r2ccl.protocol.verdict import Said
from r2ccl.sim.loop import run
from r2ccl.transport.interface import Answer

WAIT_S = 0.06


@dataclass(slots=True, eq=False)
class Knocked:
    """A probe that the test answers."""

    heard: Callable[[Answer], None]
    is_open: bool = True

    def answer(self, answer: Answer) -> None:
        assert self.is_open
        self.is_open = False
        self.heard(answer)

    def abort(self) -> None:
        self.is_open = False


@dataclass(slots=True)
class Door:
    """A device on which everybody knocks."""

    probes: list[Knocked] = field(default_factory=list)

    def reach(self, peer: int, nic: int, endpoint: object, wait_s: float, heard: Callable[[Answer], None]) -> Knocked:
        assert wait_s == WAIT_S
        self.probes.append(Knocked(heard))
        return self.probes[-1]

    @property
    def open(self) -> list[Knocked]:
        return [probe for probe in self.probes if probe.is_open]


def knocker(door: Door, is_up: bool = True) -> Knocker:
    shared: Any = SimpleNamespace(
        timers=Timers(asyncio.get_running_loop()),
        settings=SimpleNamespace(silence_s=WAIT_S),
        endpoint=lambda rank, nic: None,
    )
    port: Any = SimpleNamespace(device=door, is_up=is_up)
    return Knocker(shared, [port])


def story(play: Callable[[Door, Knocker], Any], is_up: bool = True) -> None:
    async def main() -> None:
        door = Door()
        await play(door, knocker(door, is_up))
        assert door.open == []

    run(main())


def test_a_sign_is_told_at_once_and_no_second_packet_goes_out() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: list[Said] = []
        asks.knock(Knock(0, 1, 0), heard.append)
        door.probes[0].answer(Answer.REFUSED)
        await asyncio.sleep(1)
        assert (heard, len(door.probes)) == ([Said.REFUSED], 1)

    story(play)


def test_a_second_packet_may_be_the_one_that_comes_through() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: list[Said] = []
        asks.knock(Knock(0, 1, 0), heard.append)
        await asyncio.sleep(WAIT_S / 2)
        assert len(door.open) == 2
        door.probes[1].answer(Answer.ANSWERED)
        assert heard == [Said.ANSWERED]

    story(play)


def test_silence_is_what_both_packets_met() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: list[Said] = []
        asks.knock(Knock(0, 1, 0), heard.append)
        door.probes[0].answer(Answer.SILENT)
        assert heard == []
        await asyncio.sleep(WAIT_S / 2)
        door.probes[1].answer(Answer.UNTRIED)
        assert heard == [Said.SILENT]

    story(play)


def test_what_could_not_be_tried_at_all_is_not_known() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: list[Said] = []
        asks.knock(Knock(0, 1, 0), heard.append)
        door.probes[0].answer(Answer.UNTRIED)
        await asyncio.sleep(WAIT_S / 2)
        door.probes[1].answer(Answer.UNTRIED)
        assert heard == [Said.UNKNOWN]

    story(play)


def test_from_a_nic_that_is_down_nothing_goes_out() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: list[Said] = []
        asks.knock(Knock(0, 1, 0), heard.append)
        assert heard == []
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert (heard, door.probes) == ([Said.UNKNOWN], [])

    story(play, is_up=False)


def test_who_wants_to_know_the_same_shares_a_knock() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: list[Said] = []
        for _ in range(50):
            asks.knock(Knock(0, 1, 0), heard.append)
        (probe,) = door.probes
        probe.answer(Answer.ANSWERED)
        assert heard == [Said.ANSWERED] * 50
        asks.knock(Knock(0, 1, 0), heard.append)
        door.probes[1].answer(Answer.SILENT)
        await asyncio.sleep(WAIT_S / 2)
        door.probes[2].answer(Answer.SILENT)
        assert heard[50:] == [Said.SILENT]

    story(play)


def test_knocks_are_few_at_a_time_and_those_beyond_all_bounds_are_not_known() -> None:
    async def play(door: Door, asks: Knocker) -> None:
        heard: dict[int, Said] = {}
        count = AT_ONCE_MAX + WAITING_MAX + 10
        for rank in range(count):
            asks.knock(Knock(0, rank, 0), lambda said, rank=rank: heard.__setitem__(rank, said))  # type: ignore[misc]
        await asyncio.sleep(0.001)
        assert heard == dict.fromkeys(range(AT_ONCE_MAX + WAITING_MAX, count), Said.UNKNOWN)
        assert len(door.open) == AT_ONCE_MAX
        while door.open:
            assert len(door.open) <= AT_ONCE_MAX
            door.open[0].answer(Answer.ANSWERED)
        assert list(heard.values()).count(Said.ANSWERED) == AT_ONCE_MAX + WAITING_MAX

    story(play)
