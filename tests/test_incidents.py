"""What users see of diagnosis: in simulated worlds with every kind of fault, who is blamed and when."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.diagnosing import Diagnosing
from r2ccl.actors.knocking import Knocker
from r2ccl.errors import PeerLost
from r2ccl.ids import LinkId
from r2ccl.protocol.diagnosis import Knock
from r2ccl.protocol.diagnosis_messages import ASKS_BURST
from r2ccl.protocol.verdict import Said
from r2ccl.protocol.wire import Kind, pack_control
from r2ccl.sim.world import World
from tests.simulated import simulate

#: From the first evidence to the verdict where nobody is asked, and where somebody has to be.
KNOWN_BY_OWNER_S = 0.05
KNOWN_BY_ASKING_S = 0.5
ELEMENTS = 1 << 16
PAUSE_S = 0.02


async def all_reduce(world: World) -> None:
    size = len(world.communicators)
    buffers = [np.full(ELEMENTS, rank + 1, np.int64) for rank in range(size)]
    works = [comm.all_reduce(buffer) for comm, buffer in zip(world.communicators, buffers, strict=True)]
    await asyncio.gather(*works)
    assert all((buffer == size * (size + 1) // 2).all() for buffer in buffers)


async def traffic(world: World, seconds: float) -> None:
    """All-reduces again and again, each of them right."""
    until = world.loop.time() + seconds
    while world.loop.time() < until:
        await all_reduce(world)
        await asyncio.sleep(PAUSE_S)


def incidents(world: World, rank: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = world.communicators[rank].stats()["incidents"]
    return told


def verdicts(world: World, rank: int) -> list[str]:
    return [incident["verdict"] for incident in incidents(world, rank)]


def reports(world: World, rank: int) -> list[str]:
    events = world.communicators[rank].events.since(0)
    return [str(event.fields["report"]) for event in events if event.name == "incident"]


def test_without_a_fault_there_is_no_incident() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.5)
        assert [incidents(world, rank) for rank in range(3)] == [[], [], []]

    simulate(story, ranks=3)


def test_a_carrier_that_is_lost_is_one_incident_for_all_its_links() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        cut_s = world.clock.now()
        world.fabric.cut((1, 0))
        await traffic(world, 0.3)
        (own,) = incidents(world, 1)
        assert own["verdict"] == "our NIC (nic0)"
        assert (own["links_total"], own["nic"], own["peer"], own["cause"]) == (3, "nic0", None, "carrier")
        assert own["started"] == own["first_evidence_s"] == pytest.approx(cut_s, abs=1e-3)
        assert own["repaired_after_s"] < 0.01
        assert own["verdict_after_s"] < KNOWN_BY_OWNER_S
        assert reports(world, 1)[0].startswith("our nic0 lost its carrier, 3 links; lanes repaired after ")
        for other in (0, 2, 3):
            assert verdicts(world, other) == ["their NIC (rank 1 nic0)"]
            assert incidents(world, other)[0]["evidence"] == ["rank 1 says that its nic0 is down"]

    simulate(story, ranks=4)


@pytest.mark.parametrize("one_sided", [False, True])
def test_a_nic_that_goes_silently_is_named_by_all(one_sided: bool) -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        world.fabric.silent_drop((2, 0))
        await traffic(world, 2.5)
        assert verdicts(world, 2) == ["our NIC (nic0)"]
        for other in (0, 1, 3):
            assert verdicts(world, other) == ["their NIC (rank 2 nic0)"]
        for rank in range(4):
            (incident,) = incidents(world, rank)
            assert incident["verdict_after_s"] < KNOWN_BY_ASKING_S
            if incident["cause"] == "silence":
                assert 0.05 < incident["started"] - incident["first_evidence_s"] <= 0.11
                assert 0.05 < incident["repaired_after_s"] < 0.3
        assert any(incident["cause"] == "silence" for rank in range(4) for incident in incidents(world, rank))

    simulate(story, ranks=4, one_sided=one_sided)


def test_a_path_between_two_ports_only_is_blamed_by_both_ends() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        world.fabric.silent_drop_link((0, 1), (1, 1))
        await traffic(world, 1.0)
        assert verdicts(world, 0) == ["the path between (nic1 and rank 1 nic1)"]
        assert verdicts(world, 1) == ["the path between (nic1 and rank 0 nic1)"]
        assert verdicts(world, 2) == []
        assert "rank 2 reaches our nic1: yes" in incidents(world, 0)[0]["evidence"]

    simulate(story, ranks=3)


def test_a_path_that_is_dead_one_way_is_blamed_too() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        world.fabric.silent_drop_direction((0, 0), (1, 0))
        await traffic(world, 1.0)
        assert verdicts(world, 0) == ["the path between (nic0 and rank 1 nic0)"]
        assert verdicts(world, 1) == ["the path between (nic0 and rank 0 nic0)"]

    simulate(story, ranks=3)


def test_a_node_without_power_is_named_in_the_error_too() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        works = [comm.all_reduce(np.ones(ELEMENTS, np.float32)) for comm in world.communicators[:3]]
        world.fabric.freeze(3)
        for nic in (0, 1):
            world.fabric.silent_drop((3, nic))
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        assert all(isinstance(outcome, PeerLost) for outcome in outcomes)
        assert "their node (rank 3)" in str(outcomes[0])
        await asyncio.sleep(2)
        blamed = [verdicts(world, rank) for rank in range(3)]
        assert [] != sum(blamed, []) == ["their node (rank 3)"] * len(sum(blamed, []))

    simulate(story, ranks=4, unreachable_after_s=1.0)


def test_a_stopped_process_is_no_incident() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        works = [comm.all_reduce(np.ones(ELEMENTS, np.float32)) for comm in world.communicators]
        world.fabric.freeze(1)
        await asyncio.sleep(20)
        assert [incidents(world, rank) for rank in (0, 2)] == [[], []]
        world.fabric.thaw(1)
        await asyncio.gather(*works)
        assert [incidents(world, rank) for rank in range(3)] == [[], [], []]

    simulate(story, ranks=3)


def test_a_stopped_peer_behind_a_dead_path_is_not_blamed() -> None:
    """Its kernel answers a third's knock, though the process does nothing."""

    async def story(world: World) -> None:
        await traffic(world, 0.01)
        works = [comm.all_reduce(np.ones(ELEMENTS, np.float32)) for comm in world.communicators]
        world.fabric.freeze(1)
        world.fabric.silent_drop_link((0, 0), (1, 0))
        await asyncio.sleep(1)
        assert verdicts(world, 0) == ["the path between (nic0 and rank 1 nic0)"]
        world.fabric.thaw(1)
        world.fabric.restore_link((0, 0), (1, 0))
        await asyncio.gather(*works)

    simulate(story, ranks=3)


def test_a_third_that_is_stopped_leaves_it_to_the_next_and_delays_nothing_for_ever() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        works = [comm.all_reduce(np.ones(ELEMENTS, np.float32)) for comm in world.communicators]
        world.fabric.freeze(2)
        world.fabric.silent_drop_link((0, 0), (1, 0))
        await asyncio.sleep(1)
        (incident,) = incidents(world, 0)
        assert incident["verdict"] == "the path between (nic0 and rank 1 nic0)"
        assert "rank 2 did not say in time" in incident["evidence"]
        assert incident["verdict_after_s"] < KNOWN_BY_ASKING_S
        world.fabric.thaw(2)
        await asyncio.gather(*works)

    simulate(story, ranks=4)


def test_with_two_ranks_it_says_what_can_be_said() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        world.fabric.silent_drop((1, 0))
        await traffic(world, 1.0)
        for rank in (0, 1):
            (incident,) = incidents(world, rank)
            assert incident["verdict"] == "ambiguous (either NIC, or the path between)"
            peer = 1 - rank
            assert incident["evidence"] == [
                f"we reach rank {peer} nic0: no",
                f"we reach rank {peer} nic1: yes",
                "our nic0 has its carrier",
                f"rank {peer} gave no notice of its nic0",
                "there is no third rank to ask",
            ]

    simulate(story, ranks=2)


def test_with_two_ranks_a_carrier_is_evidence_enough() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        world.fabric.cut((1, 0))
        await traffic(world, 0.3)
        assert (verdicts(world, 0), verdicts(world, 1)) == (["their NIC (rank 1 nic0)"], ["our NIC (nic0)"])

    simulate(story, ranks=2)


def test_a_switch_that_takes_a_rail_is_one_ambiguous_incident_each() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        for rank in range(4):
            world.fabric.silent_drop((rank, 0))
        await traffic(world, 2.5)
        for rank in range(4):
            (incident,) = incidents(world, rank)
            assert incident["verdict"].startswith("ambiguous")
            assert incident["links_total"] == 3

    simulate(story, ranks=4)


def test_a_dead_process_is_no_fault_of_the_network() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        world.fabric.kill(2)
        await asyncio.sleep(1)
        for rank in (0, 1):
            assert verdicts(world, rank) == ["their process (rank 2)"]

    simulate(story, ranks=3)


def test_a_goodbye_is_no_incident() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        first = asyncio.ensure_future(world.communicators[1].close())
        await asyncio.sleep(0.5)
        second = asyncio.ensure_future(world.communicators[2].close())
        await asyncio.sleep(0.5)
        assert not world.runtimes[0].courier.links_up(1)
        assert incidents(world, 0) == []
        await asyncio.gather(first, second, world.communicators[0].close())
        assert [incidents(world, rank) for rank in range(3)] == [[], [], []]

    simulate(story, ranks=3, close_timeout_s=0.3)


def test_an_answer_counts_only_if_it_comes_from_who_was_asked() -> None:
    """Rank 2 is stopped, so that its answer is late; rank 3 answers in its name, which changes nothing."""

    async def story(world: World) -> None:
        await traffic(world, 0.01)
        works = [comm.all_reduce(np.ones(ELEMENTS, np.float32)) for comm in world.communicators]
        world.fabric.freeze(2)
        world.fabric.silent_drop_link((0, 0), (1, 0))
        for _ in range(1000):
            await asyncio.sleep(0.001)
            if incidents(world, 0):
                break
        await asyncio.sleep(0.02)
        asked = dict(world.runtimes[0].diagnosing._asks)
        assert [rank for rank, _ in asked.values()] == [2]
        for number in asked:
            world.runtimes[3].courier.tell(0, Kind.REACHED, [number, Said.SILENT, Said.SILENT])
        await asyncio.sleep(0.01)
        world.fabric.thaw(2)
        await asyncio.gather(*works)
        await asyncio.sleep(1)
        assert "rank 2 reaches our nic0: yes" in incidents(world, 0)[0]["evidence"]

    simulate(story, ranks=4)


def test_rather_those_are_asked_that_have_a_link_on_the_rail_and_then_the_next_ones() -> None:
    async def story(world: World) -> None:
        await traffic(world, 0.01)
        thirds = world.runtimes[4].diagnosing._thirds
        link = LinkId(1, 0, 0)
        assert [third.rank for third in thirds(link)] == [5, 0]
        assert [third.rank for third in thirds(LinkId(5, 0, 0))] == [0, 1]
        world.fabric.cut((5, 0))
        await asyncio.sleep(0.01)
        assert [third.rank for third in thirds(link)] == [0, 2]
        for rank in (0, 2, 3):
            world.fabric.cut((rank, 0))
        await asyncio.sleep(0.01)
        assert [third.rank for third in thirds(link)] == [5, 0]
        assert [third.nic for third in thirds(LinkId(1, 1, 1))] == [1, 1]
        shared, runtime = world.runtimes[4].shared, world.runtimes[4]
        nodes = ["a", "b", "c", "d", "a", "b"]
        members = tuple(
            dataclasses.replace(member, node=node) for member, node in zip(shared.members, nodes, strict=True)
        )
        grouped = Diagnosing(dataclasses.replace(shared, members=members), runtime.ports, runtime.courier)
        assert [third.rank for third in grouped._thirds(LinkId(1, 1, 1))] == [2, 3]

    simulate(story, ranks=6)


def test_operations_do_not_wait_for_a_verdict() -> None:
    """The same world with and without anybody who diagnoses: all ends at the same moments."""

    async def run(world: World, diagnoses: bool) -> list[float]:
        if not diagnoses:
            for runtime in world.runtimes:
                runtime.diagnosing.link_went_down = lambda link, cause: None  # type: ignore[method-assign]
        await traffic(world, 0.01)
        world.fabric.cut((1, 0))
        ends = []
        for _ in range(20):
            await all_reduce(world)
            ends.append(world.loop.time())
        assert bool(incidents(world, 1)) is diagnoses
        return ends

    ends: list[list[float]] = []
    for diagnoses in (True, False):

        async def story(world: World, diagnoses: bool = diagnoses) -> None:
            ends.append(await run(world, diagnoses))

        simulate(story, ranks=3)
    assert ends[0] == ends[1]


def test_a_flood_of_asks_is_bounded_and_one_that_makes_no_sense_ends_the_connection() -> None:
    async def story(world: World) -> None:
        answered = []
        courier = world.runtimes[1].courier
        tell = courier.tell

        def counted(peer: int, kind: Kind, body: list[Any]) -> bool:
            answered.append(kind)
            return tell(peer, kind, body)

        courier.tell = counted  # type: ignore[method-assign]
        for number in range(10 * ASKS_BURST):
            world.runtimes[0].courier.tell(1, Kind.REACH, [number, 2, number % 2, 0])
        await asyncio.sleep(0.5)
        assert answered.count(Kind.REACHED) == ASKS_BURST
        control = world.runtimes[0].ports[0].links[1, 0].control
        assert control is not None
        control.send(*pack_control(Kind.REACH, 0, 1, [1, 9, 0, 0]))
        await asyncio.sleep(0.01)
        assert world.runtimes[1].ports[0].links[0, 0].control is not None  # dialled anew, or about to be
        events = [event for event in world.communicators[1].events.since(0) if event.name == "link"]
        assert any("bad frame" in str(event) for event in events)

    simulate(story, ranks=3)


def test_one_lost_packet_is_not_taken_for_a_dead_nic() -> None:
    async def story(world: World) -> None:
        runtime = world.runtimes[0]
        knocker = Knocker(runtime.shared, runtime.ports)
        heard: list[Said] = []
        world.fabric.silent_drop((1, 0))
        knocker.knock(Knock(0, 1, 0), heard.append)
        await asyncio.sleep(0.001)
        world.fabric.restore((1, 0))
        await asyncio.sleep(0.1)
        assert heard == [Said.ANSWERED]

    simulate(story)
