"""The kernel's own account of a TCP connection, and that it answers at once when told to."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import cast

import pytest

from r2ccl.transport.interface import Connection, Purpose, Receiver
from r2ccl.transport.tcp_connection import TcpConnection
from r2ccl.transport.tcp_info import answer_at_once, sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this account")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        for sock in (one, other):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield one, other


def exchange(source: socket.socket, target: socket.socket, data: bytes) -> None:
    source.sendall(data)
    left = len(data)
    while left:
        left -= len(target.recv(left))


def answers(sock: socket.socket) -> bool:
    """Does our kernel answer at once, as far as it knows now?"""
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def test_a_conversation_makes_our_kernel_keep_answers_back_until_it_is_told_not_to(pair: Pair) -> None:
    one, other = pair
    # Speaking within 40 ms of hearing is a conversation; a busy machine may need several attempts.
    for _attempt in range(100):
        exchange(one, other, b"how are you?")
        exchange(other, one, b"thank you")
        if not answers(other):
            break
    assert not answers(other)
    answer_at_once(other)
    assert answers(other)


class Account:
    """A socket whose kernel says: so many questions whether the window is open, and so long ago the last answer."""

    def __init__(self, probes: int, silence_ms: int, lost: int = 0) -> None:
        self.probes, self.silence_ms, self.lost = probes, silence_ms, lost

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        said = bytearray(size)
        said[3] = self.probes
        for place in (52, 56):  # last_data_recv, last_ack_recv
            said[place : place + 4] = self.silence_ms.to_bytes(4, sys.byteorder)
        said[32:36] = self.lost.to_bytes(4, sys.byteorder)
        return bytes(said)


@pytest.mark.parametrize(
    ("probes", "silence_ms", "accuses"),
    [
        (0, 60_000, False),
        (1, 401, False),  # the second question, 0.4 s after the first, is ignored by a kernel that is well
        (1, 1190, False),  # and the third comes 0.8 s after it
        (2, 1210, True),
        (1, 1600, True),  # later questions are answered one by one
        (1, 30_000, True),
    ],
)
def test_a_question_that_the_far_kernel_may_ignore_accuses_nobody(probes: int, silence_ms: int, accuses: bool) -> None:
    told = sample(cast(socket.socket, Account(probes, silence_ms)), 0)
    assert (told.silence_s, told.probing) == (silence_ms / 1000, accuses)


def test_segments_that_the_kernel_takes_for_lost_are_told() -> None:
    assert sample(cast(socket.socket, Account(0, 5, lost=3)), 0).missing_segments == 3
    assert sample(cast(socket.socket, Account(0, 5)), 0).missing_segments == 0


class Nobody:
    """A receiver that is told nothing of interest."""

    def established(self, connection: Connection) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("purpose", [Purpose.CONTROL, Purpose.BULK])
def test_the_kernel_is_told_so_for_beats_and_not_for_bulk(pair: Pair, purpose: Purpose) -> None:
    one, other = pair

    async def main() -> None:
        connection = TcpConnection(asyncio.get_running_loop(), cast(Receiver, Nobody()), 0, purpose)
        connection.open(other, b"", lambda _: None)
        for _attempt in range(100):
            exchange(one, other, b"how are you?")
            exchange(other, one, b"thank you")
            if not answers(other):
                break
        assert not answers(other)
        connection.sample()
        assert answers(other) is (purpose is Purpose.CONTROL)
        connection.abort()

    asyncio.run(main())


def test_a_connection_that_has_ended_may_be_told_too(pair: Pair) -> None:
    pair[0].close()
    answer_at_once(pair[0])


def test_the_account_counts_segments_and_bytes_and_says_how_much_the_newest_answer_weighs(pair: Pair) -> None:
    one, other = pair
    before = sample(one, 0)
    for _ in range(20):
        exchange(one, other, b"a segment")
        exchange(other, one, b"with its answer")  # which carries the acknowledgement along
    after = sample(one, 0)
    assert after.sent_segments - before.sent_segments - (after.resent_segments - before.resent_segments) == 20
    assert after.answered_segments - before.answered_segments == 20
    assert after.acked_bytes - before.acked_bytes == 20 * len(b"a segment")
    assert after.rtt_weight == 1 / 8
    assert 0 < after.rtt_s < 10
