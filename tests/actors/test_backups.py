"""Links across rails: ready where there is a route, unheard of where there is none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.first_dials import PACE_S
from r2ccl.actors.link import Link
from r2ccl.actors.transport_actor import TransportActor
from r2ccl.config import Settings
from r2ccl.protocol.lanes import Lane
from r2ccl.protocol.liveness import PeerState
from r2ccl.protocol.session_events import BULK, Dial
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.interface import Loss, Purpose
from r2ccl.transport.memory_path import Model
from tests.simulated import simulate, together


def pairs(links: list[Link]) -> set[tuple[int, int]]:
    return {(link.id.local_nic, link.id.remote_nic) for link in links}


def up(world: World, rank: int, peer: int) -> set[tuple[int, int]]:
    return pairs(world.runtimes[rank].courier.links_up(peer))


def bound(world: World, rank: int, peer: int) -> set[tuple[int, int]]:
    return pairs([lane.link for lane in world.runtimes[rank].courier.lanes[peer] if lane.link is not None])


def test_backups_are_up_soon_after_the_start_and_carry_nothing() -> None:
    async def story(world: World) -> None:
        assert up(world, 0, 1) == {(0, 0), (1, 1)}
        await asyncio.sleep(3 * PACE_S)
        for rank in range(3):
            for peer in world.runtimes[rank].shared.peers:
                assert up(world, rank, peer) == {(0, 0), (1, 1), (0, 1), (1, 0)}
                assert bound(world, rank, peer) == {(0, 0), (1, 1)}
        await together(world, lambda comm: comm.all_reduce(np.ones(1 << 18, np.float32)))
        assert bound(world, 0, 1) == {(0, 0), (1, 1)}

    simulate(story, ranks=3, backup_paths=2)


@pytest.mark.parametrize("count", [0, 1])
def test_no_more_backups_are_kept_than_asked_for(count: int) -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(3 * PACE_S)
        assert len(up(world, 0, 1)) == len(up(world, 1, 0)) == 2 + count

    simulate(story, backup_paths=count)


def test_peers_get_their_backups_one_after_another_each_rank_beginning_with_the_one_behind_it() -> None:
    async def story(world: World) -> None:
        wanted: list[tuple[int, int]] = []
        for runtime in world.runtimes:
            for port in runtime.ports:
                port.want = lambda peer, remote, rank=runtime.shared.rank: wanted.append((rank, peer))  # type: ignore[method-assign,misc]
        # ``simulate`` has started them: what is left now are the later peers.
        await asyncio.sleep(3 * PACE_S)
        of_two = [peer for rank, peer in wanted if rank == 2]
        assert of_two == [0, 0, 1, 1]

    simulate(story, ranks=4, backup_paths=2)


def connected_after_s(backup_paths: int, routed: bool) -> float:
    async def main() -> float:
        settings, model = Settings(backup_paths=backup_paths), Model(rails_apart=not routed)
        world = World(Shape(ranks=3, nics=2, settings=settings, model=model))
        began_s = world.clock.now()
        await world.start()
        took_s = world.clock.now() - began_s
        await world.close()
        return took_s

    return run(main())


def test_backups_delay_nobody() -> None:
    alone_s = connected_after_s(0, routed=True)
    for routed in (True, False):
        assert connected_after_s(2, routed) == pytest.approx(alone_s, abs=1e-6)


def test_where_there_is_no_route_nothing_is_heard_of_backups_and_no_peer_is_doubted() -> None:
    async def main() -> None:
        world = World(Shape(ranks=2, nics=2, model=Model(rails_apart=True)))
        await world.start()
        told = [len(runtime.shared.events.since(0)) for runtime in world.runtimes]
        await asyncio.sleep(600.0)
        assert up(world, 0, 1) == {(0, 0), (1, 1)}
        backup = world.runtimes[0].ports[0].links[1, 1]
        assert not backup.session.served
        for rank, runtime in enumerate(world.runtimes):
            assert len(runtime.shared.events.since(0)) == told[rank]
            assert runtime.health.peers[1 - rank].state is PeerState.ALIVE
        await world.close()

    run(main())


@pytest.mark.parametrize("served", [False, True])
def test_a_refusal_speaks_against_the_peer_only_where_a_link_has_stood(served: bool) -> None:
    """Elsewhere a router's firewall may have refused, or whoever else has that address in another network."""

    async def story(world: World) -> None:
        runtime = world.runtimes[0]
        port = runtime.ports[0]
        link = port.link(1, 0 if served else 1)
        assert link.session.served is served
        # A connection of the peer's ended: one proof of two.
        runtime.health.peers[1].connection_ended("reset")
        refused: Any = SimpleNamespace(peer=1, remote_nic=link.id.remote_nic, purpose=Purpose.PROBE)
        link.dials.append(refused)
        port.lost(refused, Loss.REFUSED, "nobody listens")
        assert link.dials == []
        await asyncio.sleep(0.001)
        assert (runtime.health.peers[1].state is PeerState.GONE) is served

    simulate(story)


def test_a_lane_whose_rail_did_not_come_takes_no_backup() -> None:
    async def main() -> None:
        world = World(Shape(ranks=2, nics=2))
        world.fabric.silent_drop_link((0, 1), (1, 1))
        await world.start()
        await asyncio.sleep(1.0)
        assert up(world, 0, 1) == {(0, 0), (0, 1), (1, 0)}
        assert world.runtimes[0].first_dials.rails_lacking(1) == 1
        assert bound(world, 0, 1) == bound(world, 1, 0) == {(0, 0)}
        world.fabric.restore_link((0, 1), (1, 1))
        await asyncio.sleep(3.0)
        assert bound(world, 0, 1) == bound(world, 1, 0) == {(0, 0), (1, 1)}
        await world.close()

    run(main())


def test_control_goes_by_rails_as_long_as_there_are_any() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(3 * PACE_S)
        courier = world.runtimes[0].courier
        world.fabric.cut((1, 0))
        await asyncio.sleep(0.01)
        path = courier.path(1)
        assert path is not None
        assert pairs([path]) == {(1, 1)}
        world.fabric.cut((0, 1))
        await asyncio.sleep(0.01)
        path = courier.path(1)
        assert path is not None
        assert pairs([path]) == {(0, 1)}
        world.fabric.restore((1, 0))
        world.fabric.restore((0, 1))
        await asyncio.sleep(2.0)

    simulate(story, backup_paths=2)


@pytest.mark.parametrize("backup_paths", [0, 2])
def test_without_any_rail_left_operations_go_on_across_rails_also_if_no_backup_was_ready(backup_paths: int) -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(3 * PACE_S)
        world.fabric.cut((0, 0))
        world.fabric.cut((1, 1))
        x = [np.full(1 << 18, rank + 1, np.float32) for rank in range(2)]
        await asyncio.gather(*(c.all_reduce(x[c.rank]) for c in world.communicators))
        assert all((one == 3).all() for one in x)
        assert bound(world, 0, 1) == {(1, 0)}
        world.fabric.restore((0, 0))
        world.fabric.restore((1, 1))
        await asyncio.sleep(2.0)
        assert bound(world, 0, 1) == bound(world, 1, 0) == {(0, 0), (1, 1)}

    simulate(story, backup_paths=backup_paths)


def sent_on_nic_0(world: World) -> int:
    return int(world.runtimes[0].shared.counters.snapshot()["nics"]["nic0"]["sent_chunks"])


def test_a_lane_goes_back_to_its_rail_in_the_middle_of_an_operation_and_nothing_is_sent_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    #: What each lane that went back had on its way.
    left: list[int] = []
    bind = TransportActor._bind

    def watched(actor: TransportActor, lane: Lane, link: Link, change: str, cause: str) -> None:
        if change.startswith("BACKUP"):
            left.append(len(lane.outstanding))
        bind(actor, lane, link, change, cause)

    monkeypatch.setattr(TransportActor, "_bind", watched)

    async def story(world: World) -> None:
        await asyncio.sleep(3 * PACE_S)
        world.fabric.cut((0, 0))
        world.fabric.cut((1, 1))
        await asyncio.sleep(2.0)
        assert bound(world, 0, 1) == {(1, 0)}
        assert bound(world, 1, 0) == {(0, 1)}
        x = [np.full(1 << 27, rank + 1, np.uint8) for rank in range(2)]
        works = [c.all_reduce(x[c.rank]) for c in world.communicators]
        await asyncio.sleep(0.01)
        world.fabric.restore((0, 0))
        world.fabric.restore((1, 1))
        while bound(world, 0, 1) != {(0, 0), (1, 1)}:
            assert not works[0].done(), "make the operation longer"
            await asyncio.sleep(0.001)
        sent_before = sent_on_nic_0(world)
        await asyncio.gather(*works)
        assert all((one == 3).all() for one in x)
        for runtime in world.runtimes:
            assert runtime.shared.counters.snapshot()["total"]["resent_chunks"] == 0
        assert sent_on_nic_0(world) > sent_before
        assert 2 <= len(left) <= 4, "the other lane may have found refuge, too, before its rail was back"
        assert not any(left)

    simulate(story, backup_paths=2, quiet_s=0.01)


def test_a_fresh_socket_for_one_connection_replaces_its_dial_and_leaves_the_other_alone() -> None:
    async def story(world: World) -> None:
        port = world.runtimes[0].ports[0]
        link = port.link(1, 1)
        port._perform(link, Dial())
        control, bulk = link.dials
        port._perform(link, Dial(frozenset((BULK,))))
        assert link.dials[0] is control
        assert [dial.purpose for dial in link.dials] == [Purpose.CONTROL, Purpose.BULK]
        assert bulk not in link.dials
        assert bulk not in world.fabric._devices[0].connections

    simulate(story)
