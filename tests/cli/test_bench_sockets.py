"""The loops that only move bytes: as many as an all-reduce must, over one wire or several, once or without a stop."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from r2ccl.cli.bench_collectives import IN
from r2ccl.cli.bench_sockets import LOOPBACK, Mode, SocketOptions, Wires, bus_bytes, listening, meet, play, shares
from r2ccl.cli.bench_turns import Turn


def options_of(ranks: int, mode: Mode, wires: int = 1) -> list[SocketOptions]:
    return [SocketOptions("", rank, ranks, mode, ((LOOPBACK,) * wires,) * ranks) for rank in range(ranks)]


def a_turn(count: int, iterations: int = 3, collective: str = "all_reduce") -> Turn:
    return Turn(collective, IN, count, "float32", "sum", 0, 2, iterations, 0, 0)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return dialled, accepted


@contextmanager
def ring(ranks: int, wires: int) -> Iterator[list[Wires]]:
    pairs = [[connected() for _ in range(wires)] for _ in range(ranks)]
    everyone = [
        Wires([pair[0] for pair in pairs[rank]], [pair[1] for pair in pairs[rank - 1]]) for rank in range(ranks)
    ]
    try:
        yield everyone
    finally:
        for one in everyone:
            one.close()


def on_all(ranks: int, call: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        results[rank] = call(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("ranks", "expected"), [(2, 4000), (4, 6000)])
def test_a_rank_moves_what_an_all_reduce_must_move(ranks: int, expected: int):
    assert bus_bytes(a_turn(1000), ranks) == expected


def test_shares_are_even_and_nothing_is_lost():
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]


@pytest.mark.parametrize("wires", [1, 2])
@pytest.mark.parametrize("total", [1, 2, 65_537, 3_000_001])
def test_what_is_sent_arrives_over_all_wires_in_order(total: int, wires: int):
    source = bytes(index * 7 % 251 for index in range(total))
    sinks = [bytearray(total) for _ in range(2)]
    with ring(2, wires) as ranks:
        on_all(2, lambda rank: ranks[rank].exchange(total, memoryview(source), memoryview(sinks[rank])))
    if wires == 1:
        assert sinks == [bytearray(source)] * 2
    else:
        # Each wire carries the memory's end that is as long as its share.
        least = total // wires
        assert all(sink[total - least :] == source[total - least :] for sink in sinks)


def test_memory_that_is_shorter_than_what_is_sent_is_gone_through_again():
    source, sinks = bytes(range(100)), [bytearray(100) for _ in range(2)]
    with ring(2, 1) as ranks:
        on_all(2, lambda rank: ranks[rank].exchange(1050, memoryview(source), memoryview(sinks[rank])))
    assert sinks == [bytearray(source)] * 2


@pytest.mark.parametrize("mode", ["exchange", "streams", "memcpy"])
def test_a_turn_is_timed_in_every_mode(mode: Mode):
    options = options_of(3, mode, 2 if mode == "streams" else 1)
    with ring(3, options[0].wires) as ranks:
        answers = on_all(3, lambda rank: play(options[rank], ranks[rank], a_turn(50_000, 4)))
    for answer in answers:
        assert len(answer.times_s) == len(answer.starts_s) == 4
        assert min(answer.times_s) > 0
        assert (answer.wrong, answer.error) == (0, "")


def test_streams_have_a_wire_for_each_nic_and_the_others_one():
    assert [options_of(2, mode, 2)[0].wires for mode in ("streams", "mptcp", "exchange")] == [2, 1, 1]


def test_other_collectives_are_refused():
    options = options_of(2, "exchange")[0]
    answer = play(options, Wires([], []), a_turn(1, collective="broadcast"))
    assert "not of broadcast" in answer.error


def test_options_survive_the_command_line():
    options = SocketOptions("/control", 1, 2, "streams", (("10.0.0.1", "10.0.1.1"), ("10.0.0.2", "10.0.1.2")))
    assert SocketOptions.parse(options.as_argument()) == options


def test_ranks_find_one_another_and_let_in_nobody_without_the_token():
    options, token = options_of(2, "exchange"), b"0123456789abcdef"
    with listening(options[0]) as first, listening(options[1]) as second:
        stranger = socket.create_connection(first.getsockname())
        stranger.sendall(b"x" * 16)
        doors = (first, second)
        wires = on_all(2, lambda rank: meet(options[rank], doors[rank], doors[1 - rank].getsockname()[1], token))
        sinks = [bytearray(3), bytearray(3)]
        on_all(2, lambda rank: wires[rank].exchange(3, memoryview(b"abc"), memoryview(sinks[rank])))
        stranger.settimeout(30)
        assert stranger.recv(1) == b""
        stranger.close()
        for one in wires:
            one.close()
    assert sinks == [bytearray(b"abc")] * 2


def test_a_ticker_has_its_turns_while_a_thread_moves_the_bytes() -> None:
    turn = dataclasses.replace(a_turn(1 << 18, iterations=100), tick_s=0.001)
    with ring(2, 1) as wires:
        answers = on_all(2, lambda rank: play(options_of(2, "exchange")[rank], wires[rank], turn))
    for answer in answers:
        assert len(answer.times_s) == 100
        assert answer.gaps_s
        assert min(answer.gaps_s) >= 0.001
