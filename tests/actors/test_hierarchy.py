"""Worlds in which some ranks share a node: plans are hierarchical, bits are the same, and NICs carry no byte twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.errors import CollectiveMismatch
from r2ccl.ids import SHARED_NIC
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from tests.simulated import together

UNEVEN = (0, 0, 1, 1, 2)
TWO_BY_TWO = (0, 0, 1, 1)
COUNT = 40_003


def on_nodes(
    nodes: tuple[int, ...],
    story: Callable[[World], Awaitable[None]],
    one_sided: bool = False,
    **settings: Any,
) -> None:
    async def main() -> None:
        chosen = Settings(**{"backup_paths": 0, "chunk_bytes": 4096, **settings})
        world = World(Shape(len(nodes), 2, one_sided=one_sided, settings=chosen, nodes=nodes))
        await world.start()
        await story(world)
        await world.close()

    run(main())


def values(rank: int, count: int = COUNT) -> np.ndarray:
    """Sums of these depend on the order of operands."""
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


async def sum_up(world: World, count: int = COUNT) -> list[np.ndarray]:
    async def call(communicator: Communicator) -> np.ndarray:
        x = values(communicator.rank, count)
        await communicator.all_reduce(x)
        return x

    return await together(world, call)


def plans(communicator: Communicator) -> list[str]:
    told: list[str] = communicator.stats()["plans"]
    return told


def by_nics(world: World, ranks: tuple[int, ...]) -> int:
    """Payload that has left a node."""
    counted = [world.communicators[rank].stats()["counters"]["nics"] for rank in ranks]
    return sum(row["sent_bytes"] for nics in counted for nic, row in nics.items() if nic != "memory")


@pytest.mark.parametrize("nodes", [TWO_BY_TWO, UNEVEN, (0, 1, 0, 1), (0, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("one_sided", [False, True])
def test_all_ranks_get_the_same_right_bits_and_each_byte_leaves_a_node_once(
    nodes: tuple[int, ...], one_sided: bool
) -> None:
    async def story(world: World) -> None:
        results = await sum_up(world)
        assert all(np.array_equal(results[0], other) for other in results[1:])
        exact = sum(values(rank).astype(np.float64) for rank in range(len(nodes)))
        np.testing.assert_allclose(results[0], exact, atol=1e-5)
        number = max(nodes) + 1
        for node in range(number if not one_sided else 0):  # one-sided NICs share no memory here
            left = by_nics(world, tuple(rank for rank, on in enumerate(nodes) if on == node))
            assert left == pytest.approx(2 * (number - 1) / number * 4 * COUNT, rel=0.001)

    on_nodes(nodes, story, one_sided, hierarchy="on")


@pytest.mark.parametrize("nodes", [TWO_BY_TWO, UNEVEN], ids=str)
@pytest.mark.parametrize("one_sided", [False, True])
def test_a_repaired_operation_has_the_bits_of_an_unharmed_one(nodes: tuple[int, ...], one_sided: bool) -> None:
    unharmed: list[np.ndarray] = []

    async def in_peace(world: World) -> None:
        unharmed.extend(await sum_up(world))

    async def in_trouble(world: World) -> None:
        running = asyncio.ensure_future(sum_up(world))
        await asyncio.sleep(0.0002)
        world.fabric.cut((2, 0))
        if not one_sided:
            world.fabric.silent_drop_link((0, SHARED_NIC), (1, SHARED_NIC))
        repaired = await running
        assert all(np.array_equal(one, other) for one, other in zip(repaired, unharmed, strict=True))
        assert sum(one.stats()["counters"]["failovers"] for one in world.communicators) > 0

    on_nodes(nodes, in_peace, one_sided, hierarchy="on")
    on_nodes(nodes, in_trouble, one_sided, hierarchy="on")


@pytest.mark.parametrize("nodes", [TWO_BY_TWO, UNEVEN], ids=str)
def test_parts_and_broadcasts_are_right_on_nodes_too(nodes: tuple[int, ...]) -> None:
    size = len(nodes)

    async def call(communicator: Communicator) -> None:
        mine = values(communicator.rank, 1001)
        every = [np.empty(1001, np.float32) for _ in range(size)]
        await communicator.all_gather_into(every, mine)
        assert all(np.array_equal(got, values(rank, 1001)) for rank, got in enumerate(every))
        parts = [np.arange(3 * rank + 700, dtype=np.int64) + communicator.rank for rank in range(size)]
        own = np.empty_like(parts[communicator.rank])
        await communicator.reduce_scatter(own, parts)
        assert np.array_equal(own, np.arange(len(own)) * size + sum(range(size)))
        for root in range(size):
            x = values(communicator.rank, 5000)
            await communicator.broadcast(x, root)
            assert np.array_equal(x, values(root, 5000))
        assert sum(": " in plan and plan.startswith("hierarchical") for plan in plans(communicator)) == size + 2

    async def story(world: World) -> None:
        await together(world, call)

    on_nodes(nodes, story, hierarchy="on")


def test_stats_say_which_algorithm_was_taken_and_on_which_nodes() -> None:
    async def story(world: World) -> None:
        await sum_up(world, 1 << 20)
        (plan,) = plans(world.communicators[3])
        assert plan.startswith("hierarchical: all_reduce of 4194304 bytes over 5 ranks on 3 nodes of 1 to 2 ranks in ")
        assert " against " in plan
        assert "ring" in plan

    on_nodes(UNEVEN, story)


def test_whoever_wants_no_hierarchy_gets_none() -> None:
    async def story(world: World) -> None:
        await sum_up(world, 1 << 20)
        assert "hierarchical" not in plans(world.communicators[0])[0]

    on_nodes(UNEVEN, story, hierarchy="off")


def test_a_group_knows_the_nodes_of_its_own_members() -> None:
    """In the order of its own ranks; and a group within a node needs no hierarchy."""

    async def call(communicator: Communicator) -> None:
        across = await communicator.split(0 if communicator.rank != 1 else None, key=-communicator.rank)
        if across is not None:  # the members 4, 3, 2, 0, on the nodes 2, 1, 1, 0
            x = values(across.rank)
            await across.all_reduce(x)
            assert " over 4 ranks on 3 nodes of 1 to 2 ranks " in plans(across)[-1]
            assert plans(across)[-1].startswith("hierarchical")
        within = await communicator.split(communicator.rank // 2)
        assert within is not None
        y = np.ones(100_000, np.float32)
        await within.all_reduce(y)
        assert np.all(y == within.size)
        assert not any("hierarchical" in plan for plan in plans(within))

    async def story(world: World) -> None:
        await together(world, call)

    on_nodes(UNEVEN, story, hierarchy="on")


def test_ranks_that_see_other_nodes_are_told_apart_before_they_mix_sums() -> None:
    async def main() -> None:
        world = World(Shape(4, 1, settings=Settings(backup_paths=0), nodes=TWO_BY_TWO))
        other = World(Shape(4, 1, settings=Settings(backup_paths=0, hierarchy="on"), nodes=TWO_BY_TWO))
        marks = [made.communicators[0]._epochs.newest._agreement for made in (world, other)]
        assert marks[0].replace("HIERARCHY auto", "HIERARCHY on") == marks[1] != marks[0]
        for made in (world, other):
            await made.start()
            await made.close()

    run(main())


def test_one_rank_without_hierarchy_is_a_mismatch_that_says_so() -> None:
    async def main() -> None:
        world = World(Shape(4, 1, settings=Settings(backup_paths=0), nodes=TWO_BY_TWO))
        wrong = world.communicators[2]
        flat = World(Shape(4, 1, settings=Settings(backup_paths=0, hierarchy="off"), nodes=TWO_BY_TWO))
        wrong._epochs.newest._agreement = flat.communicators[2]._epochs.newest._agreement
        await world.start()
        await flat.start()
        calls = [one.all_reduce(np.ones(8, np.float32)) for one in world.communicators]
        for done in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(done, CollectiveMismatch)
            assert "R2CCL_HIERARCHY auto, 2 nodes" in str(done)
        for made in (flat, world):
            await made.close()

    run(main())
