"""What a knock finds behind an endpoint whose process does nothing, and what is no word about the network."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from r2ccl.topology import Endpoint
from r2ccl.transport.interface import Answer
from r2ccl.transport.tcp_probe import TcpProbe, answer_of
from tests.transport.harness import Recorder
from tests.transport.laws_of_probes import WAIT_S, knock_at
from tests.transport.memory_lab import in_virtual_time, lab
from tests.transport.test_conformance import tcp_world


def test_a_tcp_listener_whose_process_never_looks_answers_a_knock() -> None:
    async def main() -> None:
        world = tcp_world()
        one, other = world.side(0), world.side(1)
        with socket.create_server(("127.0.0.1", 0)) as asleep:
            heard: list[Answer] = []
            knock_at(world, one, other, Endpoint("inet", *asleep.getsockname()), heard)
            await world.until(lambda: bool(heard))
        assert heard == [Answer.ANSWERED]
        assert one.device._open == set()  # type: ignore[attr-defined]
        world.close()

    asyncio.run(main())


def test_who_answers_no_packet_is_silent() -> None:
    """A listener whose queue is full drops what comes, as a dead NIC would."""

    async def main() -> None:
        world = tcp_world()
        one, other = world.side(0), world.side(1)
        with (
            socket.create_server(("127.0.0.1", 0), backlog=0) as full,
            socket.socket() as first,
            socket.socket() as more,
        ):
            for crowd in (first, more):
                crowd.setblocking(False)
                crowd.connect_ex(full.getsockname())
            heard: list[Answer] = []
            knock_at(world, one, other, Endpoint("inet", *full.getsockname()), heard, 0.05)
            await world.until(lambda: bool(heard))
        assert heard == [Answer.SILENT]
        world.close()

    asyncio.run(main())


def test_an_answer_that_came_while_we_were_away_is_no_silence() -> None:
    """As on a loop that runs its timers before it looks at its sockets: the timer's look finds the answer."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard: list[Answer] = []
        with socket.create_server(("127.0.0.1", 0)) as asleep, socket.socket() as sock:
            sock.setblocking(False)
            probe = TcpProbe(loop, heard.append, lambda _: None)
            probe.connect(sock, ("127.0.0.1", 0), asleep.getsockname(), WAIT_S)
            loop.remove_writer(sock.fileno())
            accepted, _ = asleep.accept()
            accepted.close()
            probe._look()
        assert heard == [Answer.ANSWERED]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (errno.ECONNREFUSED, Answer.REFUSED),
        (errno.EHOSTUNREACH, Answer.SILENT),
        (errno.ENETUNREACH, Answer.SILENT),
        (errno.ENODEV, Answer.SILENT),
        (errno.EMFILE, Answer.UNTRIED),
        (errno.ENOBUFS, Answer.UNTRIED),
    ],
)
def test_what_an_error_says(code: int, answer: Answer) -> None:
    assert answer_of(OSError(code, "")) is answer


def test_without_descriptors_nothing_is_said_about_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = tcp_world()
        one, other = world.side(0), world.side(1)

        def no_more() -> socket.socket:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(one.device, "_socket", no_more)
        heard: list[Answer] = []
        knock_at(world, one, other, other.endpoint, heard)
        assert heard == []
        await world.until(lambda: bool(heard))
        assert heard == [Answer.UNTRIED]
        world.close()

    asyncio.run(main())


@in_virtual_time
async def test_a_stopped_process_does_not_silence_its_nic() -> None:
    made = lab()
    one, other = made.side(0), made.side(1)
    made.fabric.freeze(1)
    heard: list[Answer] = []
    knock_at(made, one, other, other.endpoint, heard)
    await made.until(lambda: bool(heard))
    assert heard == [Answer.ANSWERED]


@in_virtual_time
async def test_a_dead_process_refuses_and_one_with_children_does_not() -> None:
    made = lab()
    one, other, third = made.side(0), made.side(1), made.side(2)
    made.fabric.fork(2)
    made.fabric.kill(1)
    made.fabric.kill(2)
    heard: dict[int, list[Answer]] = {1: [], 2: []}
    for side in (other, third):
        knock_at(made, one, side, side.endpoint, heard[side.rank])
    await made.until(lambda: all(heard.values()))
    assert heard == {1: [Answer.REFUSED], 2: [Answer.ANSWERED]}


@in_virtual_time
async def test_whoever_was_stopped_hears_the_answer_that_came_meanwhile() -> None:
    made = lab()
    one, other = made.side(0), made.side(1)
    heard: list[Answer] = []
    knock_at(made, one, other, other.endpoint, heard, 0.05)
    made.fabric.freeze(0)
    await asyncio.sleep(10)
    assert heard == []
    made.fabric.thaw(0)
    assert heard == [Answer.ANSWERED]


@in_virtual_time
async def test_a_dead_process_knocks_at_nobody() -> None:
    made = lab()
    one, other = made.side(0), made.side(1)
    heard: list[Answer] = []
    knock_at(made, one, other, other.endpoint, heard, 0.05)
    made.fabric.kill(0)
    knock_at(made, one, other, other.endpoint, heard, 0.05)
    await asyncio.sleep(1)
    assert heard == []
    assert isinstance(one.hears, Recorder)
