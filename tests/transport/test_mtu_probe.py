"""Signed probes of sizes: what is answered, what is not, and what is found on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.transport.mtu_probe import (
    HEADER_BYTES,
    MtuProber,
    MtuResponder,
    Passage,
    answer_to,
    answers,
    pack_probe,
    probe_key,
)
from r2ccl.transport.tcp_knock import bound_socket

KEY = probe_key(b"secret", "job")
NONCE = bytes(range(16))
LOOPBACK = "127.0.0.1"


def test_a_probe_has_its_size_and_its_answer_is_small() -> None:
    for packet_bytes in (576, 1500, 65535):
        probe = pack_probe(KEY, NONCE, packet_bytes)
        assert len(probe) == packet_bytes - HEADER_BYTES
        answer = answer_to(KEY, probe)
        assert answer is not None
        assert len(answer) < 64, "nobody gains by sending probes in another's name"
        assert answers(KEY, answer, NONCE, packet_bytes)


def test_an_answer_is_to_one_probe_only() -> None:
    answer = answer_to(KEY, pack_probe(KEY, NONCE, 1500))
    assert answer is not None
    assert not answers(KEY, answer, NONCE[::-1], 1500)
    assert not answers(KEY, answer, NONCE, 1400)
    assert not answers(probe_key(b"another", "job"), answer, NONCE, 1500)


@pytest.mark.parametrize("key", [probe_key(b"another", "job"), probe_key(b"secret", "another"), probe_key(b"", "job")])
def test_a_probe_of_another_secret_or_job_is_not_answered(key: bytes) -> None:
    assert answer_to(KEY, pack_probe(key, NONCE, 1500)) is None


def test_a_probe_that_arrives_in_another_size_is_not_answered() -> None:
    assert answer_to(KEY, pack_probe(KEY, NONCE, 1500)[:-1]) is None
    assert answer_to(KEY, pack_probe(KEY, NONCE, 1500) + b"\0") is None


def test_an_answer_is_no_probe_and_a_probe_no_answer() -> None:
    probe = pack_probe(KEY, NONCE, 1500)
    answer = answer_to(KEY, probe)
    assert answer is not None
    assert answer_to(KEY, answer) is None, "two answerers never answer each other"
    assert not answers(KEY, probe, NONCE, 1500)


@given(st.binary(max_size=2000), st.integers(0, 43), st.integers(1, 255))
def test_what_a_stranger_sends_is_not_answered(noise: bytes, where: int, flip: int) -> None:
    assert answer_to(KEY, noise) is None
    assert answer_to(KEY, b"r2cclmtu" + noise) is None
    probe = bytearray(pack_probe(KEY, NONCE, 600))
    probe[where] ^= flip
    assert answer_to(KEY, bytes(probe)) is None


@pytest.fixture
def answering() -> Iterator[socket.socket]:
    """A socket for an answerer, who closes it."""
    sock = bound_socket(socket.SOCK_DGRAM, "lo", LOOPBACK)
    yield sock
    sock.close()


async def test_loopback_passes_what_it_says_it_does(answering: socket.socket) -> None:
    responder = MtuResponder(answering, KEY, asyncio.get_running_loop())
    try:
        with MtuProber("lo", LOOPBACK, answering.getsockname(), 65536, KEY) as prober:
            assert await prober.passes(65535) == Passage(True)
            assert await prober.passes(576) == Passage(True)
    finally:
        responder.close()
    assert responder.refused == 0


async def test_strangers_are_counted_and_nothing_is_said_to_them(answering: socket.socket) -> None:
    responder = MtuResponder(answering, KEY, asyncio.get_running_loop())
    try:
        with MtuProber("lo", LOOPBACK, answering.getsockname(), 65536, probe_key(b"another", "job")) as stranger:
            assert await stranger.passes(576) == Passage(False)
    finally:
        responder.close()
    assert responder.refused == 3, "each of its tries"


async def test_where_nobody_listens_nothing_passes_and_nothing_is_claimed(answering: socket.socket) -> None:
    address = answering.getsockname()
    answering.close()
    with MtuProber("lo", LOOPBACK, address, 65536, KEY) as prober:
        assert await prober.passes(576) == Passage(False, told=False)
