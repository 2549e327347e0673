"""Wrong arguments of every call: refused at once, with a sentence that helps, and nothing numbered, sent or broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import r2ccl
from r2ccl.communicator import Communicator
from r2ccl.errors import UsageError
from r2ccl.objects import OBJECT_BYTES_MAX
from r2ccl.sim.world import World
from tests.simulated import called, simulate, together

Array = npt.NDArray[Any]
Call = Callable[[Communicator], Any]


def floats(count: int) -> Array:
    return np.ones(count, np.float32)


def read_only(count: int) -> Array:
    array = floats(count)
    array.flags.writeable = False
    return array


def columns(count: int) -> Array:
    return np.ones((count, 2), np.float32)[:, 0]


def the_same_array_for_all(c: Communicator) -> Any:
    x = floats(3)
    return c.reduce_scatter(x, [x] * c.size)


def overlapping_gather(c: Communicator) -> Any:
    out = floats(9)
    return c.all_gather_into(out, out[1:4])


def overlapping_scatter(c: Communicator) -> Any:
    x = floats(9)
    return c.reduce_scatter(x[1:4], x)


def overlapping_blocks(c: Communicator) -> Any:
    x = floats(9)
    return c.all_to_all(x[:6], x[3:])


def the_same_room_twice(c: Communicator) -> Any:
    room = floats(9)
    return c.all_gather_into([room[:3], room[2:5], room[6:]], floats(3))


def wrong_in_a_batch(add: Callable[[r2ccl.Batch], object]) -> Call:
    def call(c: Communicator) -> None:
        with c.batch() as batch:
            batch.all_reduce(floats(3))
            add(batch)

    return call


#: Three ranks call. What is wrong -> (the call, what the error says).
WRONG: dict[str, tuple[Call, str]] = {
    # reduce
    "reduce: no rank": (lambda c: c.reduce(floats(3), 3), "reduce: root=3 is no rank; ranks go from 0 to 2"),
    "reduce: half a rank": (lambda c: c.reduce(floats(3), 1.0), "reduce: root=1.0 is no rank"),  # type: ignore[arg-type]
    "reduce: a bool for a rank": (lambda c: c.reduce(floats(3), True), "reduce: root=True is no rank"),
    "reduce: no op": (lambda c: c.reduce(floats(3), 0, "sum"), "reduce: op='sum' is none of SUM, PRODUCT"),  # type: ignore[arg-type]
    "reduce: average of integers": (
        lambda c: c.reduce(np.ones(3, np.int32), 0, r2ccl.AVERAGE),
        "average is not defined for int32",
    ),
    "reduce: bits of floats": (lambda c: c.reduce(floats(3), 0, r2ccl.BITWISE_OR), "bitwise_or is not defined for"),
    "reduce: read-only at the root": (lambda c: c.reduce(read_only(3), c.rank), "reduce: the memory .* is read-only"),
    "reduce: columns": (lambda c: c.reduce(columns(3), 0), "reduce: .* not C-contiguous; pass np.ascontiguousarray"),
    # all_gather
    "all_gather: columns": (lambda c: c.all_gather(columns(3)), "all_gather: .* not C-contiguous"),
    "all_gather: strings": (lambda c: c.all_gather(np.array(["a"])), "all_gather: dtype <U1 is not supported"),
    "all_gather_into: too short": (
        lambda c: c.all_gather_into(floats(6), floats(3)),
        "all_gather_into: x has 3 elements, and out has room for 2 of this rank",
    ),
    "all_gather_into: unlike dtypes": (
        lambda c: c.all_gather_into(np.ones(9), floats(3)),
        "all_gather_into: the arrays are of float64 and float32",
    ),
    "all_gather_into: too few arrays": (
        lambda c: c.all_gather_into([floats(3)] * 2, floats(3)),
        "all_gather_into: a list of 2 arrays for 3 ranks",
    ),
    "all_gather_into: too many arrays": (
        lambda c: c.all_gather_into([floats(3)] * 4, floats(3)),
        "all_gather_into: a list of 4 arrays for 3 ranks",
    ),
    "all_gather_into: another length": (
        lambda c: c.all_gather_into([floats(4), floats(4), floats(4)], floats(3)),
        "all_gather_into: x has 3 elements, and out has room for 4 of this rank",
    ),
    "all_gather_into: read-only": (lambda c: c.all_gather_into(read_only(9), floats(3)), "is read-only"),
    "all_gather_into: one of them read-only": (
        lambda c: c.all_gather_into([floats(3), floats(3), read_only(3)], floats(3)),
        "all_gather_into: the memory .* is read-only",
    ),
    "all_gather_into: columns": (lambda c: c.all_gather_into(columns(9), floats(3)), "not C-contiguous"),
    "all_gather_into: overlap": (overlapping_gather, "all_gather_into: .* share memory, and not just this rank's own"),
    "all_gather_into: a room twice": (the_same_room_twice, "all_gather_into: arrays of out share memory"),
    "all_gather_into: no list of arrays": (
        lambda c: c.all_gather_into([1.0, 2.0, 3.0], floats(1)),
        "all_gather_into: float is neither a numpy array nor",
    ),
    # reduce_scatter
    "reduce_scatter: too long": (
        lambda c: c.reduce_scatter(floats(4), floats(9)),
        "reduce_scatter: out has 4 elements, and this rank's part of x 3",
    ),
    "reduce_scatter: unlike dtypes": (
        lambda c: c.reduce_scatter(floats(3), np.ones(9)),
        "reduce_scatter: the arrays are of float64 and float32",
    ),
    "reduce_scatter: too few arrays": (
        lambda c: c.reduce_scatter(floats(3), [floats(3)]),
        "reduce_scatter: a list of 1 arrays for 3 ranks",
    ),
    "reduce_scatter: read-only": (lambda c: c.reduce_scatter(read_only(3), floats(9)), "reduce_scatter: .* read-only"),
    "reduce_scatter: one array for all": (
        the_same_array_for_all,
        "reduce_scatter: out shares memory with another rank's part of x",
    ),
    "reduce_scatter: overlap": (overlapping_scatter, "reduce_scatter: .* share memory, and not just this rank's own"),
    "reduce_scatter: no op": (lambda c: c.reduce_scatter(floats(3), floats(9), None), "op=None is none of SUM"),  # type: ignore[arg-type]
    # gather
    "gather: no rank": (lambda c: c.gather(floats(3), -1), "gather: root=-1 is no rank"),
    "gather: columns": (lambda c: c.gather(columns(3), 0), "gather: .* not C-contiguous"),
    "gather: out too short": (
        lambda c: c.gather(floats(3), c.rank, floats(8)),
        r"gather: x has 3 elements, and the parts of out have \[3, 3, 2\]",
    ),
    "gather: out elsewhere": (
        lambda c: c.gather(floats(3), (c.rank + 1) % c.size, floats(9)),
        "gather: out is the root's; pass None elsewhere",
    ),
    # scatter
    "scatter: no rank": (lambda c: c.scatter(floats(3), None, 3), "scatter: root=3 is no rank"),
    "scatter: nothing at the root": (lambda c: c.scatter(floats(3), None, c.rank), "scatter: .* pass np.asarray"),
    "scatter: something elsewhere": (
        lambda c: c.scatter(floats(3), [floats(3)] * 3, (c.rank + 1) % 3),
        "scatter: xs is the root's; pass None elsewhere",
    ),
    "scatter: too few arrays": (
        lambda c: c.scatter(floats(3), [floats(3)] * 2, c.rank),
        "scatter: a list of 2 arrays for 3 ranks",
    ),
    "scatter: unlike lengths": (
        lambda c: c.scatter(floats(3), [floats(3), floats(4), floats(2)], c.rank),
        r"scatter: out has 3 elements, and the parts of xs have \[3, 4, 2\]",
    ),
    "scatter: too short": (lambda c: c.scatter(floats(3), floats(8), c.rank), r"the parts of xs have \[3, 3, 2\]"),
    "scatter: unlike dtypes": (
        lambda c: c.scatter(floats(3), [np.ones(3)] * 3, c.rank),
        "scatter: the arrays are of float64 and float32",
    ),
    "scatter: read-only": (lambda c: c.scatter(read_only(3), None, 0 if c.rank else 1), "scatter: .* read-only"),
    # all_to_all
    "all_to_all: in place": (overlapping_blocks, "all_to_all: out and x share memory"),
    "all_to_all: unlike dtypes": (lambda c: c.all_to_all(floats(3), np.ones(3)), "all_to_all: the arrays are of"),
    "all_to_all: not to be divided": (
        lambda c: c.all_to_all(floats(4), floats(4)),
        "all_to_all: x has 4 elements, which 3 ranks do not divide: pass counts",
    ),
    "all_to_all: unlike lengths": (
        lambda c: c.all_to_all(floats(3), floats(6)),
        "all_to_all: x has 6 elements and out 3; or pass counts",
    ),
    "all_to_all: half the counts": (
        lambda c: c.all_to_all(floats(3), floats(3), counts=[1, 1, 1]),
        "all_to_all: pass both counts and out_counts, or neither",
    ),
    "all_to_all: too few counts": (
        lambda c: c.all_to_all(floats(3), floats(3), [1, 1, 1], [2, 1]),
        r"all_to_all: counts=\[2, 1\] must be 3 numbers, none negative",
    ),
    "all_to_all: no counts": (lambda c: c.all_to_all(floats(0), floats(0), [], []), "must be 3 numbers"),
    "all_to_all: a negative count": (
        lambda c: c.all_to_all(floats(3), floats(3), [1, 1, 1], [4, -2, 1]),
        "must be 3 numbers, none negative",
    ),
    "all_to_all: counts of something else": (
        lambda c: c.all_to_all(floats(3), floats(3), [1, 1, 2], [1, 1, 1]),
        "all_to_all: out_counts sum up to 4, and out has 3 elements",
    ),
    "all_to_all: half a count": (
        lambda c: c.all_to_all(floats(3), floats(3), [1, 1, 1], [1.5, 1.5, 0]),  # type: ignore[list-item]
        r"all_to_all: counts=\[1.5, 1.5, 0\] is no list of whole numbers",
    ),
    "all_to_all: digits": (
        lambda c: c.all_to_all(floats(3), floats(3), "111", "111"),  # type: ignore[arg-type]
        "'111' is no list of whole numbers",
    ),
    "all_to_all: one count": (
        lambda c: c.all_to_all(floats(3), floats(3), 1, 1),  # type: ignore[arg-type]
        "counts=1 is no list of whole numbers",
    ),
    # broadcast_object
    "object: no rank": (lambda c: c.broadcast_object(1, 3), "broadcast_object: root=3 is no rank"),
    "object: a class": (lambda c: c.broadcast_object(object(), c.rank), "it carries None, bools, numbers, str, bytes"),
    "object: a set": (lambda c: c.broadcast_object([{1}], c.rank), "broadcast_object: .* it carries"),
    "object: an array": (lambda c: c.broadcast_object(np.ones(3), c.rank), "broadcast_object: .* it carries"),
    "object: too large a number": (lambda c: c.broadcast_object(1 << 64, c.rank), "broadcast_object: .* it carries"),
    "object: a key that is none elsewhere": (
        lambda c: c.broadcast_object({(1, 2): 3}, c.rank),
        "broadcast_object: .* it carries",
    ),
    "object: too large": (
        lambda c: c.broadcast_object(bytes(OBJECT_BYTES_MAX), c.rank),
        f"broadcast_object: {OBJECT_BYTES_MAX + 5} bytes are over the limit of {OBJECT_BYTES_MAX}; broadcast an array",
    ),
    # messages
    "send: to itself": (lambda c: c.send(floats(3), c.rank), "send: [012] is no other rank; ranks go from 0 to 2"),
    "send: no rank": (lambda c: c.send(floats(3), 3), "send: 3 is no other rank"),
    "send: to anybody": (lambda c: c.send(floats(3), r2ccl.ANY), "send: -1 is no other rank"),
    "send: a negative tag": (lambda c: c.send(floats(3), (c.rank + 1) % 3, -1), "send: tag=-1 must be from 0 to 2147"),
    "send: too large a tag": (lambda c: c.send(floats(3), (c.rank + 1) % 3, 1 << 31), "tag=2147483648 must be"),
    "send: half a tag": (lambda c: c.send(floats(3), (c.rank + 1) % 3, 0.5), "send: tag=0.5 must be"),  # type: ignore[arg-type]
    "send: columns": (lambda c: c.send(columns(3), (c.rank + 1) % 3), "send: .* not C-contiguous"),
    "recv: from itself": (lambda c: c.recv(floats(3), c.rank), "recv: [012] is no other rank"),
    "recv: no rank": (lambda c: c.recv(floats(3), 7), "recv: 7 is no other rank"),
    "recv: a tag that is none": (lambda c: c.recv(floats(3), r2ccl.ANY, -5), "recv: tag=-5 must be"),
    "recv: read-only": (lambda c: c.recv(read_only(3)), "recv: .* read-only"),
    "recv: columns": (lambda c: c.recv(columns(3)), "recv: .* not C-contiguous"),
    # groups
    "split: a negative color": (lambda c: c.split(-1), "split: color=-1 must be an int, 0 or more, or None"),
    "split: half a color": (lambda c: c.split(0.5), "split: color=0.5 must be an int"),  # type: ignore[arg-type]
    "split: a word for a key": (lambda c: c.split(0, "a"), "split: key='a' must be an int"),  # type: ignore[arg-type]
    "split: too large a key": (lambda c: c.split(0, 1 << 63), "split: key=9223372036854775808 must be an int"),
    "new_group: nobody": (lambda c: c.new_group([]), r"new_group: ranks=\[\] must be some of 0 to 2"),
    "new_group: no rank": (lambda c: c.new_group([0, 3]), r"new_group: ranks=\[0, 3\] must be some of 0 to 2"),
    "new_group: twice": (lambda c: c.new_group([1, 0, 1]), r"new_group: ranks=\[1, 0, 1\] names a rank twice"),
    "new_group: one number": (lambda c: c.new_group(1), "new_group: ranks=1 must be some of 0 to 2"),  # type: ignore[arg-type]
    # batches
    "batch: a wrong array": (wrong_in_a_batch(lambda b: b.all_reduce(columns(3))), "all_reduce: .* not C-contiguous"),
    "batch: a wrong root": (wrong_in_a_batch(lambda b: b.broadcast(floats(3), 3)), "broadcast: root=3 is no rank"),
    "batch: no time": (wrong_in_a_batch(lambda b: b.all_reduce(floats(3), timeout=0)), "all_reduce: timeout=0 must be"),
    "batch: an op that is not defined": (
        wrong_in_a_batch(lambda b: b.all_reduce(np.ones(3, np.int32), r2ccl.AVERAGE)),
        "average is not defined for int32",
    ),
}

#: Every call that takes a limit.
LIMITED: dict[str, Callable[[Communicator, Any], Any]] = {
    "all_reduce": lambda c, t: c.all_reduce(floats(3), timeout=t),
    "broadcast": lambda c, t: c.broadcast(floats(3), 0, timeout=t),
    "reduce": lambda c, t: c.reduce(floats(3), 0, timeout=t),
    "all_gather": lambda c, t: c.all_gather(floats(3), timeout=t),
    "all_gather_into": lambda c, t: c.all_gather_into(floats(9), floats(3), timeout=t),
    "reduce_scatter": lambda c, t: c.reduce_scatter(floats(3), floats(9), timeout=t),
    "gather": lambda c, t: c.gather(floats(3), 0, timeout=t),
    "scatter": lambda c, t: c.scatter(floats(3), None if c.rank else floats(9), 0, timeout=t),
    "all_to_all": lambda c, t: c.all_to_all(floats(3), floats(3), timeout=t),
    "barrier": lambda c, t: c.barrier(timeout=t),
    "broadcast_object": lambda c, t: c.broadcast_object(1, 0, timeout=t),
    "send": lambda c, t: c.send(floats(3), (c.rank + 1) % 3, timeout=t),
    "recv": lambda c, t: c.recv(floats(3), timeout=t),
    "split": lambda c, t: c.split(0, timeout=t),
}
NO_LIMITS = [0, -1.5, float("nan"), float("inf"), True, "1", np.float32(0)]


async def stays_usable(world: World) -> None:
    """Nothing was numbered or sent; a collective and a message still work."""
    for communicator in world.communicators:
        assert called(communicator) == 0
        assert communicator.counters.snapshot()["total"]["sent_chunks"] == 0
    xs = [floats(10) for _ in world.communicators]
    await together(world, lambda c: c.all_reduce(xs[c.rank]))
    assert all((x == len(xs)).all() for x in xs)
    first, second, *_ = world.communicators
    room = np.zeros(2, np.float32)
    sending = first.send(floats(2), 1)
    await second.recv(room)
    await sending
    assert (room == 1).all()


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_call_is_refused_before_anything_is_numbered_or_sent(what: str) -> None:
    call, message = WRONG[what]

    async def story(world: World) -> None:
        for communicator in world.communicators:
            with pytest.raises(UsageError, match=message) as refused:
                call(communicator)
            assert refused.value.definite
        await stays_usable(world)

    simulate(story, ranks=3)


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_that_is_none_is_refused_by_every_call(name: str) -> None:
    async def story(world: World) -> None:
        for communicator in world.communicators:
            for limit in NO_LIMITS:
                with pytest.raises(UsageError, match=f"{name}: timeout=.* must be a positive number of seconds"):
                    LIMITED[name](communicator, limit)
        await stays_usable(world)

    simulate(story, ranks=3)


def test_a_rank_alone_has_nobody_to_talk_to() -> None:
    async def story(world: World) -> None:
        (alone,) = world.communicators
        with pytest.raises(UsageError, match="recv: there is no other rank"):
            alone.recv(floats(3))
        with pytest.raises(UsageError, match="send: 0 is no other rank"):
            alone.send(floats(3), 0)
        assert (await alone.all_reduce(floats(3)) == 1).all()

    simulate(story, ranks=1)


# Aliases that mean something.


def test_what_lies_in_its_place_already_is_not_copied_and_right() -> None:
    async def story(world: World) -> None:
        outs = [np.zeros(10, np.int64) for _ in range(3)]
        ends = [0, 4, 7, 10]
        for rank, out in enumerate(outs):
            out[ends[rank] : ends[rank + 1]] = rank + 1
        await together(world, lambda c: c.all_gather_into(outs[c.rank], outs[c.rank][ends[c.rank] : ends[c.rank + 1]]))
        assert all(out.tolist() == [1] * 4 + [2] * 3 + [3] * 3 for out in outs)
        await together(world, lambda c: c.reduce_scatter(outs[c.rank][ends[c.rank] : ends[c.rank + 1]], outs[c.rank]))
        assert outs[0].tolist() == [3] * 4 + [2] * 3 + [3] * 3
        assert outs[1].tolist() == [1] * 4 + [6] * 3 + [3] * 3

    simulate(story, ranks=3)


def test_the_root_may_scatter_and_every_rank_gather_in_place_by_lists() -> None:
    async def story(world: World) -> None:
        xs = [np.full(5, rank, np.int32) for rank in range(3)]
        rooms = [xs[0], np.zeros(5, np.int32), np.zeros(5, np.int32)]
        await together(world, lambda c: c.scatter(rooms[c.rank], xs if c.rank == 0 else None, 0))
        assert [room.tolist() for room in rooms] == [[rank] * 5 for rank in range(3)]
        lists = [[np.full(rank, c, np.int32) for rank in range(3)] for c in range(3)]
        await together(world, lambda c: c.all_gather_into(lists[c.rank], lists[c.rank][c.rank]))
        assert all([list(part) for part in one] == [[], [1], [2, 2]] for one in lists)

    simulate(story, ranks=3)


def test_the_same_array_may_be_read_many_times() -> None:
    async def story(world: World) -> None:
        rooms = [np.zeros(4, np.float32) for _ in range(3)]
        same = read_only(4)
        await together(world, lambda c: c.scatter(rooms[c.rank], [same] * 3 if c.rank == 1 else None, 1))
        assert all((room == 1).all() for room in rooms)
        await together(world, lambda c: c.reduce_scatter(rooms[c.rank], [same] * 3))
        assert all((room == 3).all() for room in rooms)
        works = [c.send(same, (c.rank + k) % 3) for c in world.communicators for k in (1, 2)]
        for communicator in world.communicators:
            for _ in range(2):
                await communicator.recv(rooms[communicator.rank])
        for work in works:
            await work
        assert (same == 1).all()

    simulate(story, ranks=3)


def test_empty_arrays_never_overlap() -> None:
    async def story(world: World) -> None:
        memories = [np.ones(6, np.float32) for _ in range(3)]
        await together(world, lambda c: c.all_to_all(memories[c.rank][:0], memories[c.rank][:0]))
        await together(world, lambda c: c.all_gather_into(memories[c.rank][3:3], memories[c.rank][2:2]))
        assert all((memory == 1).all() for memory in memories)

    simulate(story, ranks=3)


def test_counts_may_be_numpys_whole_numbers() -> None:
    async def story(world: World) -> None:
        ones = np.ones(3, np.int64)
        rooms = [np.zeros(3, np.float32) for _ in range(3)]
        await together(world, lambda c: c.all_to_all(rooms[c.rank], floats(3), ones, ones))  # type: ignore[arg-type]
        assert all((room == 1).all() for room in rooms)

    simulate(story, ranks=3)
