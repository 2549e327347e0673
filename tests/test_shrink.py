"""shrink(): who is left goes on with an agreed membership; who is too few, or was lost to the others, does not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from r2ccl.communicator import Communicator
from r2ccl.errors import CollectiveTimeout, CommunicatorClosed, NoQuorum, PeerLost, R2cclError
from r2ccl.protocol.wire import Kind, read_shrunk
from r2ccl.sim.world import World
from tests.simulated import simulate, together


async def outcome(awaitable: object) -> object:
    try:
        return await awaitable  # type: ignore[misc]
    except R2cclError as error:
        return error


async def failed(world: World, survivors: list[int], elements: int = 100_000) -> None:
    """Every survivor's operation ends with the loss."""
    works = {rank: world.communicators[rank].all_reduce(np.ones(elements)) for rank in survivors}
    for work in works.values():
        with pytest.raises(PeerLost):
            await work


async def shrink(handles: list[Communicator]) -> list[object]:
    return await asyncio.gather(*(outcome(handle.shrink()) for handle in handles))


async def sums(handles: list[Communicator]) -> list[float]:
    arrays = [np.full(50_000, handle.rank + 1.0) for handle in handles]
    await asyncio.gather(*(handle.all_reduce(x) for handle, x in zip(handles, arrays, strict=True)))
    assert all((x == x[0]).all() for x in arrays)
    return [float(x[0]) for x in arrays]


def cut(world: World, one: list[int], other: list[int]) -> None:
    """No path of any kind between these ranks, and no word about it."""
    nics = range(len(world.runtimes[0].ports))
    for a, b in itertools.product(one, other):
        for mine, theirs in itertools.product(nics, nics):
            world.fabric.silent_drop_link((a, mine), (b, theirs))


@pytest.mark.parametrize("one_sided", [False, True])
def test_the_survivors_of_a_dead_rank_go_on_under_new_numbers(one_sided: bool) -> None:
    async def story(world: World) -> None:
        await together(world, lambda comm: comm.barrier())
        world.fabric.kill(1)
        survivors = [0, 2, 3]
        await failed(world, survivors)
        made = [one for one in await shrink([world.communicators[rank] for rank in survivors])]
        assert all(isinstance(one, Communicator) for one in made)
        handles = [one for one in made if isinstance(one, Communicator)]
        assert [(one.rank, one.size, one.members) for one in handles] == [(i, 3, (0, 2, 3)) for i in range(3)]
        for one in handles:
            assert one.recovery is not None
            assert (one.recovery.completed_by_all, one.recovery.completed_by_any) == (1, 1)
        assert await sums(handles) == [6.0] * 3
        with pytest.raises(PeerLost):
            world.communicators[0].barrier()
        await asyncio.gather(*(one.close() for one in handles))
        assert all(world.runtimes[rank].is_closed for rank in survivors)

    simulate(story, ranks=4, one_sided=one_sided)


def test_losses_one_after_the_other_are_survived_one_after_the_other() -> None:
    async def story(world: World) -> None:
        handles = list(world.communicators)
        for lost in (3, 0, 1):
            world.fabric.kill(lost)
            handles = [handle for handle in handles if handle.members[handle.rank] != lost]
            works = [handle.all_reduce(np.ones(100_000)) for handle in handles]
            for work in works:
                if len(handles) > 1 or lost != 1:
                    assert isinstance(await outcome(work), PeerLost)
            handles = [one for one in await shrink(handles) if isinstance(one, Communicator)]
            assert len(set(await sums(handles))) == 1
        assert [handle.members for handle in handles] == [(2, 4), (2, 4)]

    simulate(story, ranks=5)


def test_of_five_ranks_split_in_three_and_two_only_the_three_go_on() -> None:
    async def story(world: World) -> None:
        cut(world, [0, 1], [2, 3, 4])
        await failed(world, [0, 1, 2, 3, 4])
        ends = await shrink(world.communicators)
        assert [isinstance(end, NoQuorum) for end in ends] == [True, True, False, False, False]
        assert ends[0].reached == (0, 1)  # type: ignore[attr-defined]
        assert ends[0].needed == 3  # type: ignore[attr-defined]
        handles = [end for end in ends if isinstance(end, Communicator)]
        assert await sums(handles) == [6.0] * 3
        with pytest.raises(PeerLost):
            world.communicators[0].barrier()

    simulate(story, ranks=5, close_timeout_s=0.5)


def test_of_two_ranks_that_lose_each_other_the_lower_goes_on_alone() -> None:
    async def story(world: World) -> None:
        cut(world, [0], [1])
        await failed(world, [0, 1])
        alone, refused = await shrink(world.communicators)
        assert isinstance(alone, Communicator)
        assert (alone.rank, alone.size) == (0, 1)
        assert isinstance(refused, NoQuorum)

    simulate(story, close_timeout_s=0.5)


def test_of_two_ranks_the_one_that_is_left_when_the_other_died_goes_on() -> None:
    async def story(world: World) -> None:
        world.fabric.kill(0)
        await failed(world, [1])
        (alone,) = await shrink([world.communicators[1]])
        assert isinstance(alone, Communicator)
        assert alone.members == (1,)

    simulate(story)


def test_a_member_that_does_not_call_it_is_named_when_the_time_is_up() -> None:
    async def story(world: World) -> None:
        world.fabric.kill(3)
        await failed(world, [0, 1, 2])
        ends = await asyncio.gather(*(outcome(world.communicators[rank].shrink(timeout=1.0)) for rank in (0, 2)))
        for end in ends:
            assert isinstance(end, CollectiveTimeout)
            assert end.not_entered == (1,)
        late = await outcome(world.communicators[1].shrink())
        assert isinstance(late, NoQuorum)

    simulate(story, ranks=4, close_timeout_s=0.5)


def test_it_tells_how_far_the_first_had_come() -> None:
    """A broadcast's root may have ended what others never saw."""

    async def story(world: World) -> None:
        root = world.communicators[0]
        await root.broadcast(np.ones(10), 0)
        await root.broadcast(np.ones(10), 0)
        world.fabric.kill(2)
        await failed(world, [1])
        assert isinstance(await outcome(root.all_reduce(np.ones(5))), PeerLost)
        handles = [end for end in await shrink(world.communicators[:2]) if isinstance(end, Communicator)]
        assert len(handles) == 2
        for one in handles:
            assert one.recovery is not None
            assert (one.recovery.completed_by_all, one.recovery.completed_by_any) == (0, 2)

    simulate(story, ranks=3)


def test_what_ended_well_on_one_member_counts_though_it_failed_on_another() -> None:
    """A small message of the root went out from a copy and was lost with the root's word of it."""

    async def story(world: World) -> None:
        root, other = world.communicators[0], world.communicators[1]
        await asyncio.gather(root.barrier(), other.barrier(), world.communicators[2].barrier())
        await root.broadcast(np.ones(10), 0)
        with pytest.raises(CollectiveTimeout):
            await other.barrier(timeout=0.1)
        with pytest.raises(R2cclError):
            await root.barrier()
        ends = await shrink(world.communicators)
        for one in ends:
            assert isinstance(one, Communicator)
            assert one.recovery is not None
            assert (one.recovery.completed_by_all, one.recovery.completed_by_any) == (1, 2)

    simulate(story, ranks=3)


def test_what_runs_when_it_is_called_ends_and_a_second_call_has_the_same_outcome() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        running = first.all_reduce(np.ones(100))
        one, again = first.shrink(), first.shrink()
        assert isinstance(await outcome(running), CommunicatorClosed)
        other = second.shrink()
        made, same, theirs = await one, await again, await other
        assert made is same
        assert made.members == theirs.members == (0, 1)
        assert await sums([made, theirs]) == [3.0, 3.0]

    simulate(story)


def test_a_group_shrinks_as_the_whole_does_and_the_job_goes_on() -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda comm: comm.new_group([0, 1, 2]))
        world.fabric.kill(2)
        works = [groups[rank].all_reduce(np.ones(100_000)) for rank in (0, 1)]
        for work in works:
            assert isinstance(await outcome(work), PeerLost)
        handles = [end for end in await shrink(groups[:2]) if isinstance(end, Communicator)]
        assert await sums(handles) == [3.0, 3.0]
        await asyncio.gather(*(one.close() for one in handles))
        assert not any(world.runtimes[rank].is_closed for rank in (0, 1, 3))

    simulate(story, ranks=4)


def test_memory_that_it_gives_back_is_not_written_any_more() -> None:
    async def story(world: World) -> None:
        x = [np.ones(5_000_000) for _ in range(2)]
        first, second = (comm.all_reduce(x[comm.rank]) for comm in world.communicators)
        await asyncio.sleep(0.005)
        shrinking = world.communicators[0].shrink()
        assert isinstance(await outcome(first), CommunicatorClosed)
        x[0][:] = 7.0
        await asyncio.sleep(1.0)
        assert (x[0] == 7.0).all()
        assert x[1].max() <= 2.0
        theirs = world.communicators[1].shrink()
        assert isinstance(await outcome(second), CommunicatorClosed)
        assert await sums([await shrinking, await theirs]) == [3.0, 3.0]

    simulate(story)


def test_an_error_names_all_ranks_that_are_lost_by_then() -> None:
    async def story(world: World) -> None:
        cut(world, [0, 1], [2, 3, 4])
        works = [comm.all_reduce(np.ones(100_000)) for comm in world.communicators]
        for work in works:
            assert isinstance(await outcome(work), PeerLost)
        await asyncio.sleep(1.0)
        for comm in world.communicators:
            with pytest.raises(PeerLost) as lost:
                comm.barrier()
            assert lost.value.ranks == ((2, 3, 4) if comm.rank < 2 else (0, 1))
            assert lost.value.cause == "unreachable"

    simulate(story, ranks=5, close_timeout_s=0.5)


def test_of_lost_ranks_one_of_which_is_only_unreachable_none_counts_as_proven_dead() -> None:
    async def story(world: World) -> None:
        world.fabric.kill(1)
        await failed(world, [0, 2])
        cut(world, [0], [2])
        assert isinstance(await outcome(world.communicators[0].shrink(timeout=30.0)), NoQuorum | Communicator)
        with pytest.raises(PeerLost) as lost:
            world.communicators[0].barrier()
        assert (lost.value.ranks, lost.value.cause) == ((1, 2), "unreachable")
        assert "rank 1: connection ended" in lost.value.verdict
        assert "refused; rank 2: no path" in lost.value.verdict

    simulate(story, ranks=3, close_timeout_s=0.5)


def test_a_communicator_made_after_several_losses_names_them_all() -> None:
    async def story(world: World) -> None:
        world.fabric.kill(1)
        world.fabric.kill(2)
        await asyncio.sleep(1.0)
        group = await world.communicators[0].new_group([0, 1, 2, 3])
        error = await outcome(group.barrier())
        assert isinstance(error, PeerLost)
        assert (error.ranks, error.cause) == ((1, 2), "dead")

    simulate(story, ranks=4, close_timeout_s=0.5)


@pytest.mark.parametrize("end", ["abort", "close"])
def test_the_end_of_the_communicator_ends_it(end: str) -> None:
    async def story(world: World) -> None:
        world.fabric.kill(2)
        await failed(world, [0, 1])
        waiting = world.communicators[0].shrink()
        await asyncio.sleep(0.3)
        assert not waiting.done()
        if end == "abort":
            world.communicators[0].abort()
        else:
            await world.communicators[0].close()
        assert isinstance(await outcome(waiting), CommunicatorClosed)

    simulate(story, ranks=3, close_timeout_s=1.0)


@pytest.mark.parametrize("before", [False, True])
def test_a_member_that_closed_the_group_is_not_waited_for(before: bool) -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda comm: comm.split(0))
        world.fabric.kill(3)
        await asyncio.sleep(1.0)
        if before:
            await groups[2].close()
            await asyncio.sleep(1.0)
        works = [group.shrink() for group in groups[:2]]
        await asyncio.sleep(0.3)
        await groups[2].close()
        handles = await asyncio.wait_for(asyncio.gather(*works), 5.0)
        assert [one.members for one in handles] == [(0, 1), (0, 1)]
        assert await sums(handles) == [3.0, 3.0]

    simulate(story, ranks=4)


def drop_votes(world: World, sources: list[int], target: int) -> None:
    """A member hears the others' views, and never their votes."""
    for source in sources:
        courier = world.runtimes[source].courier

        def tell(peer: int, kind: Kind, body: list[Any], tell: Callable[..., bool] = courier.tell) -> bool:
            return (peer, kind) == (target, Kind.BALLOT) and bool(read_shrunk(body).vote) or tell(peer, kind, body)

        courier.tell = tell  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["timeout", "close"])
def test_who_voted_and_then_gives_up_is_not_counted_on(how: str) -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda comm: comm.new_group([0, 1, 2, 3]))
        world.fabric.kill(3)
        await asyncio.sleep(1.0)
        drop_votes(world, [0, 1], 2)
        works = [group.shrink() for group in groups[:2]]
        late = groups[2].shrink(timeout=1.0 if how == "timeout" else None)
        handles = [await work for work in works]
        assert [one.members for one in handles] == [(0, 1, 2)] * 2
        barriers = [one.barrier() for one in handles]
        await asyncio.sleep(0.5)
        if how == "close":
            await groups[2].close()
        error = await outcome(late)
        assert isinstance(error, CollectiveTimeout if how == "timeout" else CommunicatorClosed)
        for barrier in barriers:
            lost = await asyncio.wait_for(outcome(barrier), 1.0)
            assert isinstance(lost, PeerLost)
            assert lost.ranks == (2,)
        again = [one for one in await shrink(handles) if isinstance(one, Communicator)]
        assert [one.members for one in again] == [(0, 1)] * 2
        assert await sums(again) == [3.0] * 2

    simulate(story, ranks=4, close_timeout_s=1.0)


def test_whoever_is_lost_is_not_named_as_having_called_it() -> None:
    async def story(world: World) -> None:
        world.fabric.kill(3)
        await failed(world, [0, 1, 2])
        works = [world.communicators[rank].shrink(timeout=0.5) for rank in (0, 2)]
        for work, other in zip(works, (2, 0), strict=True):
            late = await outcome(work)
            assert isinstance(late, CollectiveTimeout)
            assert (late.not_entered, late.entered) == ((1,), (other,))

    simulate(story, ranks=4, close_timeout_s=1.0)


def test_who_holds_the_successor_holds_what_it_was_made_from() -> None:
    """Forks look for the communicator that connected: it must not be forgotten when the program forgets it."""

    async def story(world: World) -> None:
        await together(world, lambda comm: comm.barrier())
        world.fabric.kill(1)
        await failed(world, [0, 2])
        for old, made in zip((0, 2), await shrink([world.communicators[rank] for rank in (0, 2)]), strict=True):
            assert isinstance(made, Communicator)
            assert made._parent is world.communicators[old]

    simulate(story, ranks=3)
