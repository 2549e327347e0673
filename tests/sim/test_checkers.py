"""Every checker is shown to complain, and to be content where nothing is wrong."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from r2ccl.actors.coordinator import Coordinator
from r2ccl.clock import Clock
from r2ccl.reduction import Op
from r2ccl.sim import checkers
from r2ccl.sim.calls import Call, Kind, Message
from r2ccl.sim.checkers import Answers, Complaints, Composure, Deliveries, Memory, kept, open_ends
from r2ccl.sim.history import STORY_LINES, History, ToldLog
from r2ccl.sim.loop import run
from r2ccl.sim.rank_loop import RankLoop
from r2ccl.sim.truth import fold
from r2ccl.sim.world import Shape, World
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Purpose
from r2ccl.transport.memory import Fabric
from r2ccl.transport.memory_process import Process


class Now(Clock):
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


def fresh_complaints() -> Complaints:
    return Complaints(History(Now()))


# The history.


def test_equal_histories_have_equal_digests_and_time_rank_and_text_all_count() -> None:
    def digest(time_s: float, rank: int, line: str) -> str:
        clock = Now()
        history = History(clock)
        history.tell(0, "begins")
        clock.time_s = time_s
        history.note(rank, line)
        return history.digest

    same = digest(1.0, 2, "chunk")
    assert same == digest(1.0, 2, "chunk")
    assert len({same, digest(1.0 + 1e-12, 2, "chunk"), digest(1.0, 3, "chunk"), digest(1.0, 2, "chunks")}) == 4


def test_a_history_keeps_the_latest_lines_of_each_rank_and_no_more() -> None:
    history = History(Now())
    for number in range(10 * STORY_LINES):
        history.tell(number % 2, f"event {number}.")
        history.note(number % 2, f"chunk {number}.")
    story = history.story()
    assert story.count("event") == 2 * STORY_LINES + 2  # and two headings
    assert f"event {10 * STORY_LINES - 1}." in story
    assert "event 0." not in story
    assert "chunk" not in story


def test_what_a_ranks_log_records_is_told_to_the_history() -> None:
    lines: list[str] = []
    history = History(Now(), lines.append)
    ToldLog(Now(), 3, history).record("link", link="nic0->rank1.nic0", state="UP")
    assert lines == ["   0.000000  rank 3  link=nic0->rank1.nic0 state=UP"]


# A rank's loop.


def test_a_frozen_rank_does_nothing_until_it_is_thawed_and_then_in_order() -> None:
    async def main() -> list[str]:
        process, done = Process(), list[str]()
        loop = RankLoop(asyncio.get_running_loop(), process)
        loop.call_later(0.2, done.append, "timer")
        process.frozen = True
        loop.call_soon(done.append, "soon")
        cancelled = loop.call_later(0.1, done.append, "cancelled while frozen")
        await asyncio.sleep(1)
        assert done == []
        cancelled.cancel()
        process.thaw()
        return done

    assert run(main()) == ["soon", "timer"]


def test_a_dead_rank_does_nothing_ever() -> None:
    async def main() -> list[str]:
        process, done = Process(), list[str]()
        RankLoop(asyncio.get_running_loop(), process).call_later(0.1, done.append, "timer")
        process.alive = False
        await asyncio.sleep(1)
        return done

    assert run(main()) == []


# Answers.


def answers_of(*calls: Call) -> tuple[Answers, Complaints]:
    complaints = fresh_complaints()
    return Answers(1, (3,), (calls,), complaints), complaints


def given(answers: Answers, call: Call, rank: int) -> Any:
    return answers.given(0, 0, rank, call, 0)


def test_the_right_answer_is_accepted_on_every_rank() -> None:
    call = Call(Kind.ALL_REDUCE, "int32", Op.SUM, 7)
    answers, complaints = answers_of(call)
    right = sum(given(answers, call, rank) for rank in range(3))
    for rank in range(3):
        answers.ended(0, 0, rank, call, 0, np.asarray(right, np.int32))
    assert complaints.texts == []


def test_one_wrong_element_is_named_with_its_rank() -> None:
    call = Call(Kind.ALL_REDUCE, "int32", Op.SUM, 7)
    answers, complaints = answers_of(call)
    result = np.asarray(sum(given(answers, call, rank) for rank in range(3)), np.int32)
    result[5] += 1
    answers.ended(0, 0, 2, call, 0, result)
    assert len(complaints.texts) == 1
    assert "rank 2" in complaints.texts[0]
    assert f"1 of 7 elements are wrong; the first, 5, is {result[5]}, not {result[5] - 1}" in complaints.texts[0]


def test_a_broadcast_that_gives_another_ranks_bytes_is_noticed() -> None:
    call = Call(Kind.BROADCAST, "uint8", None, 9, root=1)
    answers, complaints = answers_of(call)
    answers.ended(0, 0, 0, call, 0, given(answers, call, 1))
    assert complaints.texts == []
    answers.ended(0, 0, 2, call, 0, given(answers, call, 2))
    assert len(complaints.texts) == 1


def test_a_result_where_none_is_due_is_noticed_and_one_that_is_missing() -> None:
    call = Call(Kind.GATHER, "uint8", None, 9, root=1)
    answers, complaints = answers_of(call)
    answers.ended(0, 0, 0, call, 0, None)
    assert complaints.texts == []
    answers.ended(0, 0, 1, call, 0, None)
    answers.ended(0, 0, 0, call, 0, given(answers, call, 0))
    assert len(complaints.texts) == 2


def test_ranks_that_differ_in_one_bit_of_an_inexact_sum_are_noticed() -> None:
    call = Call(Kind.ALL_REDUCE, "float32", Op.SUM, 5, exact=False)
    answers, complaints = answers_of(call)
    result = fold(Op.SUM, [given(answers, call, rank) for rank in range(3)])
    answers.ended(0, 0, 0, call, 0, result)
    answers.ended(0, 0, 1, call, 0, result.copy())
    assert complaints.texts == []
    result.view(np.int32)[3] ^= 1
    answers.ended(0, 0, 2, call, 0, result)
    assert len(complaints.texts) == 1


def message(source: int, target: int, from_any: bool = False) -> Message:
    return Message(source, target, 5, "uint8", 30, from_any)


def test_messages_of_one_source_must_be_received_in_their_order() -> None:
    call = Call(Kind.MESSAGES, messages=(message(1, 0, True), message(2, 0, True), message(1, 0, True)))
    answers, complaints = answers_of(call)
    first, other, second = (answers.given(0, 0, m.source, call, index) for index, m in enumerate(call.messages))
    answers.received(0, 0, 0, call.messages[0], 1, first)
    answers.received(0, 0, 0, call.messages[1], 2, other)
    assert complaints.texts == []
    answers.received(0, 0, 0, call.messages[2], 1, first)
    assert len(complaints.texts) == 1
    answers.received(0, 0, 0, call.messages[2], 1, second)
    assert "beyond all that was sent" in complaints.texts[1]


def test_a_receive_that_does_not_know_its_source_is_noticed() -> None:
    call = Call(Kind.MESSAGES, messages=(message(1, 0),))
    answers, complaints = answers_of(call)
    answers.received(0, 0, 0, call.messages[0], None, answers.given(0, 0, 1, call, 0))
    answers.received(0, 0, 0, call.messages[0], 2, answers.given(0, 0, 1, call, 0))
    assert len(complaints.texts) == 2


def test_complaints_end_at_some_number() -> None:
    complaints = fresh_complaints()
    for number in range(1000):
        complaints.add(str(number))
    assert len(complaints.texts) == checkers.COMPLAINTS_MAX


# Deliveries and memory.


class StubCoordinator:
    """As much of a coordinator as its deliveries touch."""

    def __init__(self) -> None:
        self.shared = SimpleNamespace(
            rank=0, peers=[1, 2], credit_bytes={1: 100, 2: 100}.__getitem__, counters=SimpleNamespace(parked_bytes=0)
        )
        self.communicator = 77
        self.inbox = SimpleNamespace(coordinator=self)
        self.ended: list[Any] = []
        self.failing = SimpleNamespace(ended=self.ended.append)
        self.arrived: list[tuple[int, int]] = []

    def piece_arrived(self, operation: Any, receive: int, chunk: int, scratch: Any) -> None:
        self.arrived.append((receive, chunk))

    whole_arrived = piece_arrived

    def flush_acks(self) -> None:
        pass


OPERATION: Any = SimpleNamespace(
    number=4, planned=SimpleNamespace(epoch=2, waits=SimpleNamespace(receive_chunks=(2, 1)))
)


def watched() -> tuple[Deliveries, StubCoordinator, Complaints]:
    complaints, stub = fresh_complaints(), StubCoordinator()
    return Deliveries(cast(Coordinator, stub), History(Now()), complaints), stub, complaints


def test_every_chunk_once_is_content_and_passed_on() -> None:
    deliveries, stub, complaints = watched()
    assert stub.inbox.coordinator is deliveries
    for receive, chunk in ((0, 0), (1, 0), (0, 1)):
        deliveries.piece_arrived(OPERATION, receive, chunk, None)
    stub.failing.ended(OPERATION)
    assert stub.ended == [OPERATION]
    assert complaints.texts == []
    assert stub.arrived == [(0, 0), (1, 0), (0, 1)]


def test_a_chunk_that_comes_twice_is_noticed_whichever_way_it_comes() -> None:
    deliveries, _, complaints = watched()
    deliveries.piece_arrived(OPERATION, 0, 1, None)
    deliveries.whole_arrived(OPERATION, 0, 1, memoryview(b""))
    assert complaints.texts == ["rank 0 operation 4 receive 0: chunk 1 came twice"]


def test_an_operation_that_ends_with_a_chunk_missing_is_noticed() -> None:
    deliveries, stub, complaints = watched()
    deliveries.piece_arrived(OPERATION, 0, 1, None)
    stub.failing.ended(OPERATION)
    assert complaints.texts == ["rank 0 operation 4 ended with 1 of 3 chunks"]


def test_more_parked_than_peers_times_credit_is_noticed() -> None:
    complaints, stub = fresh_complaints(), StubCoordinator()
    memory = Memory(cast(Coordinator, stub), complaints)
    stub.shared.counters.parked_bytes = 200
    memory.look()
    assert complaints.texts == []
    stub.shared.counters.parked_bytes = 201
    memory.look()
    assert complaints.texts == ["rank 0 has 201 bytes parked, of at most 200"]


def test_a_world_at_rest_keeps_nothing_and_one_that_waits_says_what_it_keeps() -> None:
    async def main() -> tuple[list[str], list[str]]:
        world = World(Shape(ranks=2, nics=1))
        await world.start()
        at_rest = [text for runtime in world.runtimes for text in kept(runtime)]
        work = world.communicators[0].all_reduce(np.ones(3, np.int32))
        await asyncio.sleep(0.01)
        waiting = [text for runtime in world.runtimes for text in kept(runtime)]
        await world.communicators[1].all_reduce(np.ones(3, np.int32))
        await work
        await world.close()
        return at_rest, waiting

    at_rest, waiting = run(main())
    assert at_rest == []
    assert "rank 0 keeps 1 operations running" in waiting
    assert "rank 1 keeps 12 parked bytes" in waiting


# The end.


def test_open_connections_tasks_and_timers_are_named() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        fabric = Fabric(loop)
        device = fabric.device(Nic(0, "nic0", Endpoint("memory", "rank0", 0)), 0)
        device.listen(cast(Any, SimpleNamespace(lost=lambda *_: None)))
        assert open_ends(loop, [device]) == []
        connection = device.dial(1, 0, Endpoint("memory", "nobody", 1), Purpose.CONTROL)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(5), name="a forgotten task")
            await asyncio.sleep(0)
            found = open_ends(loop, [device])
        connection.abort()
        device.close()
        return found

    found = run(main())
    assert any("memory 0.0->1.0 control" in text for text in found)
    assert "task a forgotten task is alive" in found
    assert any(text.startswith("a timer is set") for text in found)


def test_what_is_logged_as_an_error_is_a_complaint_with_its_traceback() -> None:
    complaints = fresh_complaints()
    logger = logging.getLogger("r2ccl")
    with Composure(complaints):
        logger.warning("only a warning")
        try:
            raise ValueError("broken")
        except ValueError as failure:
            logger.error("actor=%s failed", "health", exc_info=failure)
    logger.error("too late")
    assert len(complaints.texts) == 1
    assert complaints.texts[0].startswith("actor=health failed\nTraceback")
    assert "ValueError: broken" in complaints.texts[0]
