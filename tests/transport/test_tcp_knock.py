"""Measured knocks, on loopback."""

from __future__ import annotations

import errno
import socket

import pytest

from r2ccl.clock import MonotonicClock
from r2ccl.transport.interface import Answer
from r2ccl.transport.tcp_knock import bound_socket, is_no_route, knock

LOOPBACK = "127.0.0.1"
CLOCK = MonotonicClock()
#: Generous, because the machine may be busy; only what is silent takes it.
WAIT_S = 20.0


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as gone:
        gone.bind((LOOPBACK, 0))
        return int(gone.getsockname()[1])


async def test_a_kernel_answers_for_a_listener_that_accepts_nobody() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        heard = await knock("lo", LOOPBACK, listener.getsockname(), WAIT_S, CLOCK)
    assert heard.answer is Answer.ANSWERED
    assert heard.answered
    assert 0 < heard.seconds < WAIT_S


async def test_a_closed_port_is_an_answer(closed_port: int) -> None:
    heard = await knock("lo", LOOPBACK, (LOOPBACK, closed_port), WAIT_S, CLOCK)
    assert heard.answer is Answer.REFUSED
    assert heard.answered
    assert heard.seconds > 0
    assert not heard.no_route


async def test_who_says_nothing_is_silent_after_the_wait() -> None:
    with socket.create_server((LOOPBACK, 0), backlog=0) as listener, socket.socket() as one, socket.socket() as other:
        # A queue that is full: the kernel drops what comes besides, as a network would.
        for sock in (one, other):
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        heard = await knock("lo", LOOPBACK, listener.getsockname(), 0.05, CLOCK)
    assert heard.answer is Answer.SILENT
    assert not heard.answered
    assert "0.05 s" in heard.detail


async def test_a_nic_that_is_not_there_says_nothing_about_the_network() -> None:
    heard = await knock("no-such-nic", "203.0.113.7", (LOOPBACK, 1), WAIT_S, CLOCK)
    assert heard.answer is Answer.UNTRIED
    assert "no-such-nic (203.0.113.7)" in heard.detail


async def test_a_knock_leaves_from_the_address_that_it_is_bound_to() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        await knock("lo", "127.0.0.9", listener.getsockname(), WAIT_S, CLOCK)
        guest, address = listener.accept()
        guest.close()
    assert address[0] == "127.0.0.9"


def test_no_route_is_told_from_silence() -> None:
    assert is_no_route(OSError(errno.EHOSTUNREACH, "no route"))
    assert is_no_route(OSError(errno.ENETUNREACH, "no network"))
    assert not is_no_route(OSError(errno.ECONNREFUSED, "refused"))


def test_a_bound_socket_that_cannot_be_made_is_closed() -> None:
    with pytest.raises(OSError, match="address"):
        bound_socket(socket.SOCK_STREAM, "", "203.0.113.7")
