"""Rank 0 asks all: what it puts together, and whom it names when an answer is missing or makes no sense."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from r2ccl.cli import topology_conductor
from r2ccl.cli.topology_codec import (
    pack_mtus,
    pack_pairs,
    pack_reaches,
    pack_view,
    unpack_mtus,
    unpack_pairs,
    unpack_reaches,
    unpack_view,
)
from r2ccl.cli.topology_conductor import CheckFailed, Conductor, links_of, pairs_to_try
from r2ccl.cli.topology_wire import Ended, Messages
from r2ccl.cli.topology_worker import Worker
from r2ccl.clock import MonotonicClock
from r2ccl.planner.network_findings import findings
from r2ccl.planner.network_picture import Outcome, Pair, PathMtu, Picture, Reach
from r2ccl.planner.survival import Verdict, survival
from r2ccl.protocol.handshake import Identity
from r2ccl.topology import Endpoint, Member, Nic
from tests.planner.pictures import hosts_with

HOSTS = hosts_with([2, 2])


class Answering(Worker):
    """Answers without a network: every pair of equal NICs works."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    async def perform(self, order: list[Any]) -> list[Any]:
        match order:
            case ["look"]:
                return ["view", pack_view(HOSTS[self._rank])]
            case ["clock"]:
                return ["clock", 1e9]
            case ["reach", pairs]:
                found = [
                    Reach(pair, Outcome.REACHED if pair.source_nic == pair.target_nic else Outcome.NO_ROUTE)
                    for pair in unpack_pairs(pairs)
                ]
                return ["reaches", pack_reaches(found)]
            case ["mtu", pairs]:
                return ["mtus", pack_mtus([PathMtu(pair, 1500) for pair in unpack_pairs(pairs)])]
            case ["rate", _, seconds]:
                return ["rate", 1e6 * seconds]
        raise AssertionError(order)


Answer = Callable[[list[Any]], Any]


@contextlib.asynccontextmanager
async def conducting(odd: dict[str, list[Any] | None] | None = None) -> AsyncIterator[tuple[Conductor, list[str], Any]]:
    """Rank 0 and one guest, who answers some orders oddly: None hangs up."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    said: list[str] = []
    heard: list[list[Any]] = []
    guest = Answering(1)

    async def serve() -> None:
        desk = Messages(theirs, b"")
        with contextlib.suppress(Ended):
            while (order := await desk.receive())[0] != "end":
                heard.append(order)
                if odd is not None and order[0] in odd:
                    answer = odd[order[0]]
                    if answer is None:
                        desk.close()
                        return
                    if answer:
                        await desk.send(answer)
                else:
                    await desk.send(await guest.perform(order))
            heard.append(order)

    with ours, theirs:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(serve())
            try:
                yield Conductor(Answering(0), {1: Messages(ours, b"")}, MonotonicClock(), said.append), said, heard
            finally:
                ours.shutdown(socket.SHUT_WR)
                task.cancel()


async def test_the_picture_is_what_all_saw() -> None:
    async with conducting() as (conductor, said, heard):
        picture = await conductor.picture(backup_paths=2, rate_s=0.5)
        await conductor.end(1)
        async with asyncio.timeout(20):
            while heard[-1] != ["end", 1]:  # noqa: ASYNC110  the guest tells nobody
                await asyncio.sleep(0)
    assert picture.hosts == HOSTS
    assert len(picture.reaches) == 8
    assert len(picture.mtus) == 4, "of pairs that were reached"
    assert {(rate.pair.source, rate.pair.source_nic, rate.bytes_s) for rate in picture.rates} == {
        (rank, nic, 5e5) for rank in range(2) for nic in range(2)
    }
    assert [clock.rank for clock in picture.clocks] == [1]
    assert [line.partition(":")[0] for line in said] == [
        "looking at NICs", "comparing clocks", "reaching", "finding MTUs", "measuring nic0", "measuring nic1",
    ]  # fmt: skip


async def test_without_rates_nobody_is_asked_to_send() -> None:
    async with conducting() as (conductor, _, heard):
        picture = await conductor.picture(backup_paths=2, rate_s=0)
        assert picture.rates == ()
        assert "rate" not in [order[0] for order in heard]


@pytest.mark.parametrize("order", ["look", "clock", "reach", "mtu", "rate"])
async def test_who_leaves_is_named_with_what_was_going_on(order: str) -> None:
    async with conducting({order: None}) as (conductor, _, _heard):
        with pytest.raises(CheckFailed, match=r"^rank 1, while .*: (it left|the connection broke)"):
            await conductor.picture(backup_paths=2, rate_s=0.5)


@pytest.mark.parametrize("order", ["look", "clock", "reach", "mtu", "rate"])
@pytest.mark.parametrize("answer", [["other", 1], ["view"], [7, 7, 7], ["reaches", [[1]]], ["mtus", "x"]])
async def test_who_answers_what_makes_no_sense_is_named(order: str, answer: list[Any]) -> None:
    async with conducting({order: answer}) as (conductor, _, _heard):
        with pytest.raises(CheckFailed, match="^rank 1"):
            await conductor.picture(backup_paths=2, rate_s=0.5)


@pytest.mark.parametrize("order", ["look", "clock", "reach", "mtu", "rate"])
async def test_who_does_not_answer_is_named_after_the_deadline(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("STEP_WAIT_S", 0.05), ("_REACH_S", 0.0), ("_MTU_S", 0.0), ("SAY_SO_EVERY_S", 0.01)):
        monkeypatch.setattr(topology_conductor, name, seconds)
    async with conducting({order: []}) as (conductor, said, _heard):
        with pytest.raises(CheckFailed, match=r"^rank 1 did not answer within 0\.\d+ s while"):
            await conductor.picture(backup_paths=2, rate_s=0.01)
    if order != "clock":
        assert any("not yet rank 1" in line for line in said), "long work says so"


def test_every_pair_of_nics_of_different_hosts_is_tried_beginning_with_the_next_rank() -> None:
    pairs = pairs_to_try(hosts_with([2, 1, 1]))
    assert pairs[1] == [Pair(1, 0, 2, 0), Pair(1, 0, 0, 0), Pair(1, 0, 0, 1)]
    assert sum(map(len, pairs.values())) == 2 * 2 + 2 * 1 * 2 + 2


def test_links_are_those_that_r2ccl_would_make() -> None:
    links = links_of(hosts_with([2, 2]), 2)
    assert set(links) == {Pair(0, 0, 1, 0), Pair(0, 1, 1, 1), Pair(0, 0, 1, 1), Pair(0, 1, 1, 0)}
    assert set(links_of(hosts_with([2, 2]), 0)) == {Pair(0, 0, 1, 0), Pair(0, 1, 1, 1)}


def test_ranks_of_one_node_are_joined_by_nothing_that_could_fail() -> None:
    one = hosts_with([2])[0]
    hosts = (one, dataclasses.replace(one, rank=1))
    assert links_of(hosts, 2) == ()
    assert pairs_to_try(hosts) == {0: [], 1: []}
    picture = Picture(hosts, (), ())
    survivals = survival(picture)
    assert findings(picture, survivals) == []
    assert {each.verdict for each in survivals} == {Verdict.DIRECT}


def test_what_is_packed_is_unpacked() -> None:
    pairs = [Pair(0, 1, 2, 3), Pair(3, 2, 1, 0)]
    reaches = [Reach(pairs[0], Outcome.STRANGER, "who", 0.5, 1.5)]
    mtus = [PathMtu(pairs[1], 1400, told=True)]
    assert unpack_view(pack_view(HOSTS[0])) == HOSTS[0]
    assert unpack_pairs(pack_pairs(pairs)) == pairs
    assert unpack_reaches(pack_reaches(reaches)) == reaches
    assert unpack_mtus(pack_mtus(mtus)) == mtus
    assert Picture(HOSTS, (), ()).nic(1, 1) == HOSTS[1].nics[1]


@pytest.mark.parametrize(
    "order",
    [
        ["jump"],
        [],
        ["rate", [0, 0, 1, 0], 1e9],
        ["rate", [0, 0, 1, 0], -1.0],
        ["rate", [0, 0, 1, 0], "x"],
        ["reach", [[1, 0, 0, 0]]],
        ["reach", [[0, 5, 1, 0]]],
        ["reach", [[0, 0, 7, 0]]],
        ["reach", [[0, 0, 1, -1]]],
        ["mtu", [[0, 0]]],
        ["mtu", 7],
    ],
)
async def test_a_worker_does_nothing_that_makes_no_sense(order: list[Any]) -> None:
    from r2ccl.cli.topology_probes import Prober

    nics = tuple(Nic(index, "lo", Endpoint("inet", "127.0.0.1", 1)) for index in range(2))
    book = tuple(Member(rank, rank, "node", nics) for rank in range(2))
    worker = Worker(HOSTS[0], Prober(Identity("job", b"", 0, 0, "1"), nics, book, b"", MonotonicClock()), book)
    with pytest.raises(Ended):
        await worker.perform(order)
