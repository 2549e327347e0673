"""What the kernel is told of every socket of ours, and that one that knows less is no error."""

from __future__ import annotations

import errno
import socket
import sys
from typing import cast

import pytest

from r2ccl.transport.tcp_handshake import DELAYED_ACK_US, RESEND_AFTER_US, tune

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the options are Linux's")

#: From Linux's tcp.h.
TCP_RTO_MIN_US, TCP_DELACK_MAX_US = 45, 46


class Kernel:
    """A socket whose kernel refuses some options with this error."""

    def __init__(self, refuses: set[int], error: int) -> None:
        self.refuses = refuses
        self.error = error
        self.told: dict[int, int] = {}

    def setsockopt(self, _level: int, option: int, value: int) -> None:
        if option in self.refuses:
            raise OSError(self.error, "no such option")
        self.told[option] = value


def told(refuses: set[int], error: int = errno.ENOPROTOOPT) -> dict[int, int]:
    kernel = Kernel(refuses, error)
    tune(cast(socket.socket, kernel))
    return kernel.told


ALL = {socket.TCP_NODELAY: 1, TCP_DELACK_MAX_US: DELAYED_ACK_US, TCP_RTO_MIN_US: RESEND_AFTER_US}


def test_the_kernel_is_told_to_answer_and_to_send_again_soon() -> None:
    assert told(set()) == ALL


def test_what_is_sent_again_is_not_what_a_peer_of_ours_keeps_its_answer_to_back_for() -> None:
    assert RESEND_AFTER_US > 3 * DELAYED_ACK_US


@pytest.mark.parametrize("error", [errno.ENOPROTOOPT, errno.EINVAL])
@pytest.mark.parametrize("unknown", [TCP_RTO_MIN_US, TCP_DELACK_MAX_US])
def test_a_kernel_that_does_not_know_an_option_is_told_the_others(unknown: int, error: int) -> None:
    assert told({unknown}, error) == {option: value for option, value in ALL.items() if option != unknown}


@pytest.mark.parametrize("option", [TCP_RTO_MIN_US, TCP_DELACK_MAX_US])
def test_any_other_refusal_is_an_error(option: int) -> None:
    with pytest.raises(OSError, match="no such option"):
        told({option}, errno.EBADF)


def test_this_kernel_knows_the_options_by_these_numbers_or_not_at_all() -> None:
    with socket.socket() as sock:
        tune(sock)
        for option, wanted in ((TCP_RTO_MIN_US, RESEND_AFTER_US), (TCP_DELACK_MAX_US, DELAYED_ACK_US)):
            said = said_by(sock, option)
            # Rounded up to ticks of its clock, of 10 ms at most.
            assert said is None or wanted <= said < wanted + 10_000


def said_by(sock: socket.socket, option: int) -> int | None:
    """What the kernel has for an option; None: it does not know it."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, option)
    except OSError:
        return None
