"""``r2ccl ping``: figures, lines, JSON and exit code."""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import CliRunner

from r2ccl.cli.main import app
from r2ccl.cli.ping import Pings, exit_code, ping_from_all, resolve, shown_pings, summed_up
from r2ccl.clock import MonotonicClock
from r2ccl.errors import UsageError
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer
from r2ccl.transport.tcp_knock import Knock

NIC = Nic(1, "eth1", Endpoint("inet", "10.0.1.1", 0))
SILENT = Knock(Answer.SILENT, 0.9, "no answer in 0.9 s")


def test_times_are_of_those_that_were_answered_by_a_reset_too() -> None:
    knocks = [Knock(Answer.ANSWERED, 0.003), Knock(Answer.REFUSED, 0.001), SILENT, Knock(Answer.REFUSED, 0.002)]
    assert summed_up(NIC, knocks) == Pings(
        "nic1", "eth1", "10.0.1.1", 4, 3, 0.25, 0.001, 0.002, 0.003, ("no answer in 0.9 s",)
    )


def test_where_nothing_was_answered_there_are_no_times() -> None:
    pings = summed_up(NIC, [SILENT, Knock(Answer.SILENT, 0.0, "No route to host", no_route=True), SILENT])
    assert (pings.loss, pings.rtt_min_s, pings.rtt_median_s, pings.rtt_max_s) == (1.0, 0.0, 0.0, 0.0)
    assert pings.trouble == ("no answer in 0.9 s (2 times)", "No route to host")


def test_one_missing_answer_is_enough_for_the_exit_code() -> None:
    whole, lossy = summed_up(NIC, [Knock(Answer.REFUSED, 0.001)]), summed_up(NIC, [SILENT])
    assert exit_code([whole, whole]) == 0
    assert exit_code([whole, lossy]) == 1
    assert exit_code([summed_up(NIC, [SILENT, Knock(Answer.REFUSED, 0.001)])]) == 1


def test_lines_tell_a_person() -> None:
    good = summed_up(Nic(0, "eth0", NIC.endpoint), [Knock(Answer.ANSWERED, 0.00025)] * 2)
    heads, first, second = shown_pings([good, summed_up(NIC, [SILENT])])
    assert heads.split() == ["NIC", "device", "address", "answered", "loss", "min", "median", "max", "trouble"]
    assert first.split() == ["nic0", "eth0", "10.0.1.1", "2/2", "0%", *["0.250", "ms"] * 3]
    assert second.split()[:8] == ["nic1", "eth1", "10.0.1.1", "0/1", "100%", "-", "-", "-"]
    assert second.endswith("no answer in 0.9 s")
    assert shown_pings([good], heads=False) == shown_pings([good])[1:]


def test_a_name_that_does_not_resolve_says_so() -> None:
    with pytest.raises(UsageError, match="'no-such-host.invalid' is no host"):
        resolve("no-such-host.invalid")
    assert resolve("localhost") == "127.0.0.1"


async def test_each_nic_pings_in_turn_and_is_told_of_at_once() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nics = [Nic(index, "lo", Endpoint("inet", f"127.0.0.{index + 1}", 0)) for index in range(2)]
        found = await ping_from_all(
            nics, listener.getsockname(), 3, 0.0, MonotonicClock(), lambda pings: told.append(pings.address)
        )
        guests = [listener.accept() for _ in range(6)]
    for sock, _ in guests:
        sock.close()
    assert told == ["127.0.0.1", "127.0.0.2"]
    assert [address[0] for _, address in guests] == ["127.0.0.1"] * 3 + ["127.0.0.2"] * 3
    assert [(pings.sent, pings.answered) for pings in found] == [(3, 3), (3, 3)]


def test_the_command_ends_with_0_where_all_was_answered() -> None:
    done = CliRunner().invoke(app, ["ping", "127.0.0.1", "--count", "2", "--interval", "0", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["host"], told["address"], told["port"]) == ("127.0.0.1", "127.0.0.1", 9)
    assert [(nic["device"], nic["answered"], nic["loss"]) for nic in told["nics"]] == [("lo", 2, 0.0)]


def test_the_command_prints_lines() -> None:
    done = CliRunner().invoke(app, ["ping", "localhost", "-c", "1"])
    assert done.exit_code == 0, done.output
    first, heads, line = done.stdout.splitlines()
    assert first == "localhost (127.0.0.1), port 9: 1 connects from each NIC"
    assert heads.startswith("NIC")
    assert line.split()[:2] == ["nic0", "lo"]


def test_the_command_ends_with_1_where_answers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    # An address of no interface: the socket cannot even be bound, and that is told in place of an answer.
    monkeypatch.setattr("r2ccl.cli.ping.find_nics", lambda *_, **__: type("Selection", (), {"nics": (NIC,)}))
    done = CliRunner().invoke(app, ["ping", "127.0.0.1", "-c", "2", "-i", "0"])
    assert done.exit_code == 1, done.output
    assert "eth1 (10.0.1.1)" in done.stdout


def test_its_help_has_examples() -> None:
    done = CliRunner().invoke(app, ["ping", "--help"])
    assert done.exit_code == 0
    assert "r2ccl ping node1" in done.stdout
