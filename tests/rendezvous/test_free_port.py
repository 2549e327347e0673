"""Where ranks may meet."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from r2ccl.rendezvous import free_port as module
from r2ccl.rendezvous.free_port import free_port


def test_it_can_be_had_and_nobody_is_given_it_by_chance() -> None:
    begins = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert 16384 <= port < begins
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_port(), free_port()
    numbers = iter([taken - 16384, free - 16384])
    monkeypatch.setattr("secrets.randbelow", lambda _: next(numbers))
    with socket.create_server(("127.0.0.1", taken)):
        assert free_port() == free


@pytest.mark.parametrize(
    ("says", "least"), [("1024 65535", 1024), ("16385 60000", 1024), ("nonsense", 16384), ("", 16384)]
)
def test_where_the_ephemeral_range_leaves_none_it_is_one_of_these(
    says: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "range"
    said.write_text(says)
    monkeypatch.setattr(module, "_EPHEMERAL", said)
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] >= least


def test_where_the_system_says_nothing_the_usual_range_is_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EPHEMERAL", tmp_path / "none")
    assert 16384 <= free_port() < 32768
