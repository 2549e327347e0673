"""Laws of knocking: it is the far kernel that answers, once, and nothing is left behind."""

from __future__ import annotations

from r2ccl.topology import Endpoint
from r2ccl.transport.interface import Answer, Probe
from tests.transport.harness import Side, World, chunk_header

#: Many times what an answer takes that comes at all.
WAIT_S = 5.0
#: Where a silence is expected: somebody waits for it.
SHORT_WAIT_S = 0.02


def knock(world: World, source: Side, target: Side, heard: list[Answer], wait_s: float = WAIT_S) -> Probe:
    return knock_at(world, source, target, target.endpoint, heard, wait_s)


def knock_at(
    world: World, source: Side, target: Side, endpoint: Endpoint, heard: list[Answer], wait_s: float = WAIT_S
) -> Probe:
    def note(answer: Answer) -> None:
        heard.append(answer)
        world.news.set()

    return source.device.reach(target.rank, target.nic, endpoint, wait_s, note)


async def a_kernel_answers_a_knock_once_and_no_receiver_hears_of_it(world: World) -> None:
    one, other = world.side(0), world.side(1)
    heard: list[Answer] = []
    knock(world, one, other, heard)
    assert heard == [], "never before the call has returned"
    await world.until(lambda: bool(heard))
    # What comes after shows that nothing of the knock is still on its way.
    here, _ = await world.connect(one, other)
    here.send(chunk_header(b"x"), b"x")
    await world.until(lambda: bool(other.hears.of("chunk")))
    assert heard == [Answer.ANSWERED]
    assert len(other.hears.of("established")) == len(one.hears.of("established")) == 1
    assert one.hears.of("lost") == other.hears.of("lost") == []


async def where_nobody_listens_a_knock_is_refused(world: World) -> None:
    one, other = world.side(0), world.side(1)
    left = other.endpoint
    other.device.close()
    heard: list[Answer] = []
    knock_at(world, one, other, left, heard)
    await world.until(lambda: bool(heard))
    assert heard == [Answer.REFUSED]


async def an_aborted_knock_is_never_answered(world: World) -> None:
    one, other = world.side(0), world.side(1)
    heard: list[Answer] = []
    kept: list[Answer] = []
    knock(world, one, other, heard).abort()
    probe = knock(world, one, other, kept)
    await world.until(lambda: bool(kept))
    probe.abort()
    probe.abort()
    here, _ = await world.connect(one, other)
    assert here.peer == 1
    assert (heard, kept) == ([], [Answer.ANSWERED])


async def many_knocks_at_once_are_answered_each(world: World) -> None:
    one, other, third = world.side(0), world.side(1), world.side(2)
    heard: list[Answer] = []
    for number in range(20):
        knock(world, one, (other, third)[number % 2], heard)
    await world.until(lambda: len(heard) == 20)
    assert set(heard) == {Answer.ANSWERED}


async def a_device_that_closes_hears_no_answer_any_more(world: World) -> None:
    one, other, third = world.side(0), world.side(1), world.side(2)
    heard: list[Answer] = []
    knock(world, one, other, heard)
    one.device.close()
    later: list[Answer] = []
    knock(world, third, other, later)
    await world.until(lambda: bool(later))
    assert (heard, later) == ([], [Answer.ANSWERED])


async def on_a_dead_path_a_knock_ends_as_silence(world: World) -> None:
    one, other = world.side(0), world.side(1)
    assert world.sever is not None
    mend = world.sever(one)
    heard: list[Answer] = []
    knock(world, one, other, heard, SHORT_WAIT_S)
    await world.until(lambda: bool(heard))
    assert heard == [Answer.SILENT]
    mend()
    knock(world, one, other, heard)
    await world.until(lambda: len(heard) == 2)
    assert heard == [Answer.SILENT, Answer.ANSWERED]


async def a_path_that_dies_under_a_knock_swallows_its_answer(world: World) -> None:
    one, other = world.side(0), world.side(1)
    assert world.sever is not None
    heard: list[Answer] = []
    knock(world, one, other, heard, SHORT_WAIT_S)
    world.sever(one)
    await world.until(lambda: bool(heard))
    assert heard == [Answer.SILENT]
