"""The control port of a rank, over its socket: who gets in, what is broken, and when it is whole again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from r2ccl import fault_control
from r2ccl._version import __version__
from r2ccl.config import Settings
from r2ccl.errors import AuthenticationError, ConfigurationError, UsageError
from r2ccl.fault_control import Breakable, directories, make_private, socket_name
from r2ccl.lab.job_faults import JobTarget, RankLink, find
from r2ccl.protocol.fault_control import write_fault
from r2ccl.protocol.fault_kinds import Kind, Request, request
from r2ccl.protocol.handshake import Identity
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Connection
from r2ccl.transport.tcp import Admission, TcpDevice

JOB = "a job with a name of its own/and more"
SECRET = b"known to all of them"
WHOLE, BROKEN = (False, False), (True, True)


class Rank:
    """A rank's devices with their control port, and a client."""

    def __init__(self, directory: Path) -> None:
        self.environ = {"XDG_RUNTIME_DIR": str(directory)}
        self.identity = Identity(JOB, SECRET, 3, 9, __version__)
        loop = asyncio.get_running_loop()
        self.carriers: list[tuple[int, bool, str]] = []
        nics = [Nic(i, f"eth{i}", Endpoint("inet", "127.0.0.1", 0)) for i in range(2)]
        devices = [TcpDevice(nic, Admission(self.identity, {}), loop) for nic in nics]
        self.breakable = Breakable(self.identity, devices, loop, Settings())
        self.control = self.breakable.control

    def open(self) -> None:
        self.breakable.open(self.environ, lambda *carrier: self.carriers.append(carrier))

    def link(self, secret: bytes = SECRET) -> RankLink:
        (link,) = find(JobTarget(JOB, 3, None), secret, self.environ)
        return link

    @property
    def cut(self) -> tuple[bool, ...]:
        nobody = cast(Connection, None)
        return tuple(device.blocks(nobody) for device in self.breakable.devices)

    @property
    def ruled(self) -> tuple[bool, ...]:
        return tuple(device.has_rules for device in self.breakable.devices)


@pytest.fixture
async def rank(tmp_path: Path) -> AsyncIterator[Rank]:
    made = Rank(tmp_path)
    made.open()
    yield made
    made.control.close()
    for device in made.breakable.devices:
        device.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


def ask(asked: Request, **more: Any) -> dict[str, Any]:
    return {"do": "inject", "fault": write_fault(asked), **more}


CUT = request(Kind.SILENT_DROP)


async def test_a_rank_says_who_it_is(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    answer = await asyncio.to_thread(link.ask, {"do": "status"})
    assert (answer["rank"], [nic["nic"] for nic in answer["nics"]], answer["faults"]) == (3, ["nic0", "nic1"], [])
    assert link.pid == os.getpid()
    link.close()


async def test_a_fault_is_in_force_until_undo(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    await asyncio.to_thread(link.ask, ask(CUT, nic=1))
    assert rank.cut == (False, True)
    assert (await asyncio.to_thread(link.ask, {"do": "undo"}))["undone"] == 1
    assert rank.cut == WHOLE
    link.close()


async def test_a_fault_ends_with_the_connection_that_asked_for_it(rank: Rank) -> None:
    first, second = await asyncio.to_thread(rank.link), await asyncio.to_thread(rank.link)
    await asyncio.to_thread(first.ask, ask(CUT, nic=0))
    await asyncio.to_thread(second.ask, ask(CUT, nic=1))
    first.close()
    await until(lambda: rank.cut == (False, True))
    second.close()
    await until(lambda: rank.cut == WHOLE)


async def test_a_fault_ends_at_its_time(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    await asyncio.to_thread(link.ask, ask(CUT, for_s=0.01))
    await until(lambda: rank.cut == WHOLE)
    link.close()


async def test_a_fault_that_stays_outlives_its_connection_until_somebody_undoes_it(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    await asyncio.to_thread(link.ask, ask(CUT, stay=True))
    other = await asyncio.to_thread(rank.link)
    link.close()
    assert (await asyncio.to_thread(other.ask, {"do": "status"}))["faults"] == ["silent-drop on nic0, nic1 of rank 3"]
    await asyncio.to_thread(other.ask, ask(CUT, nic=0))
    # The end of one's own fault is not the end of what stays.
    assert (await asyncio.to_thread(other.ask, {"do": "undo"}))["undone"] == 1
    assert rank.cut == BROKEN
    assert (await asyncio.to_thread(other.ask, {"do": "undo", "stay": True}))["undone"] == 1
    assert rank.cut == WHOLE
    other.close()


async def test_faults_end_with_the_rank(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    await asyncio.to_thread(link.ask, ask(CUT, stay=True))
    path = rank.control.path
    rank.control.close()
    assert rank.cut == WHOLE
    assert path is not None
    assert not path.exists()
    link.close()


async def test_a_cut_cable_is_told_as_the_kernel_would_and_a_flap_goes_by_turns(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    flap = request(Kind.FLAP, flap_pattern="1ms down, 1ms up", times=2)
    await asyncio.to_thread(link.ask, ask(flap, nic=0))
    await until(lambda: rank.control.in_force == [])
    assert rank.carriers == [(0, False, "fault-inject"), (0, True, "fault-inject")] * 2
    assert rank.cut == WHOLE
    link.close()


@pytest.mark.parametrize("kind", [Kind.LOSS, Kind.RATE, Kind.DELAY, Kind.CORRUPT])
async def test_a_rule_is_put_in_and_taken_out(kind: Kind, rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    value = {Kind.RATE: "1mbit", Kind.DELAY: "1ms"}.get(kind, "1%")
    await asyncio.to_thread(link.ask, ask(request(kind, value), nic=0))
    assert rank.ruled == (True, False)
    await asyncio.to_thread(link.ask, {"do": "undo"})
    assert rank.ruled == WHOLE
    link.close()


async def test_a_nic_that_is_not_there_is_named_with_those_that_are(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    with pytest.raises(UsageError, match=r"rank 3 has no nic7; it has nic0, nic1"):
        await asyncio.to_thread(link.ask, ask(CUT, nic=7))
    link.close()


async def test_faults_are_bounded_in_number(rank: Rank) -> None:
    link = await asyncio.to_thread(rank.link)
    for _ in range(fault_control.FAULTS_MAX):
        await asyncio.to_thread(link.ask, ask(CUT, nic=0))
    with pytest.raises(UsageError, match="in force already"):
        await asyncio.to_thread(link.ask, ask(CUT, nic=0))
    # The whole of what is in force still fits into an answer.
    assert len((await asyncio.to_thread(link.ask, {"do": "status"}))["faults"]) == fault_control.SHOWN_MAX
    link.close()


async def test_who_does_not_know_the_secret_is_refused_in_one_line(
    rank: Rank, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(AuthenticationError, match="R2CCL_SECRET"):
        await asyncio.to_thread(rank.link, b"another")
    await until(lambda: rank.control.refused == 1)
    assert [record.message for record in caplog.records if "refused" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert rank.cut == WHOLE


async def strangers(rank: Rank, count: int) -> list[socket.socket]:
    """Connections on which nothing is said."""
    made = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    assert rank.control.path is not None
    with fault_control.reachable(rank.control.path) as address:
        for sock in made:
            await asyncio.to_thread(sock.connect, address)
    return made


async def test_strangers_are_bounded_in_number(rank: Rank) -> None:
    silent = await strangers(rank, fault_control.CONNECTIONS_MAX)
    (beyond,) = await strangers(rank, 1)
    assert await asyncio.to_thread(beyond.recv, 1) == b""
    assert rank.control.refused == 1
    for sock in (*silent, beyond):
        sock.close()


async def test_strangers_that_say_nothing_are_bounded_in_time(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_control, "HANDSHAKE_S", 0.01)
    silent = await strangers(rank, fault_control.CONNECTIONS_MAX)
    await until(lambda: rank.control.refused == len(silent))
    monkeypatch.undo()
    # All of them are closed, and somebody who proves himself is let in.
    for sock in silent:
        assert await asyncio.to_thread(sock.recv, 1) == b""
        sock.close()
    (await asyncio.to_thread(rank.link)).close()


async def test_the_socket_and_its_directory_are_the_users_alone(rank: Rank) -> None:
    assert rank.control.path is not None
    assert stat.S_IMODE(rank.control.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(rank.control.path.parent.stat().st_mode) == 0o700


async def test_the_socket_of_a_process_that_is_gone_is_passed_over(rank: Rank) -> None:
    assert rank.control.path is not None
    stale = socket.socket(socket.AF_UNIX)
    with fault_control.reachable(rank.control.path.parent / socket_name(JOB, 3, 1)) as address:
        stale.bind(address)
        (await asyncio.to_thread(rank.link)).close()
    stale.close()
    rank.control.close()
    # Nor is it a reason to say anything but that nobody is there.
    with pytest.raises(UsageError, match="no control port"):
        await asyncio.to_thread(rank.link)


async def test_what_a_killed_rank_left_is_removed_by_the_next_one_and_by_whoever_looks_for_ranks(
    tmp_path: Path,
) -> None:
    rank = Rank(tmp_path)
    make_private(tmp_path / "r2ccl")
    dead, other = (tmp_path / "r2ccl" / socket_name(JOB, 7, pid) for pid in (4_000_000, os.getpid()))
    for left_by in ("open", "find"):
        for path in (dead, other):
            with socket.socket(socket.AF_UNIX) as stale, fault_control.reachable(path) as address:
                path.unlink(missing_ok=True)
                stale.bind(address)
        if left_by == "open":
            rank.open()
        else:
            (await asyncio.to_thread(rank.link)).close()
        assert not dead.exists(), left_by
        assert other.exists(), left_by  # its process may be about to listen
    rank.control.close()
    for device in rank.breakable.devices:
        device.close()


async def test_a_socket_that_somebody_listens_on_stays_whatever_its_number_says(rank: Rank) -> None:
    assert rank.control.path is not None
    path = rank.control.path.parent / socket_name(JOB, 7, 4_000_000)
    with socket.socket(socket.AF_UNIX) as living, fault_control.reachable(path) as address:
        living.bind(address)
        living.listen(1)
        fault_control.remove_dead(path.parent)
        assert path.exists()


async def test_two_jobs_of_one_name_are_not_mistaken_for_one(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Rank(Path(rank.environ["XDG_RUNTIME_DIR"]))
    monkeypatch.setattr(os, "getpid", lambda: 4_000_000)
    twin.open()
    with pytest.raises(UsageError, match="R2CCL_JOB"):
        await asyncio.to_thread(rank.link)
    twin.control.close()
    for device in twin.breakable.devices:
        device.close()


async def test_a_path_that_is_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    rank = Rank(deep)
    rank.open()
    (await asyncio.to_thread(rank.link)).close()
    rank.control.close()
    for device in rank.breakable.devices:
        device.close()


async def test_a_job_that_nobody_has_is_told_from_those_that_are_there(rank: Rank) -> None:
    with pytest.raises(UsageError, match=r"R2CCL_FAULT_INJECTION=1.*a_job_with_a_name_of_its"):
        await asyncio.to_thread(find, JobTarget("other", None, None), SECRET, rank.environ)


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        make_private(tmp_path)
    real = tmp_path / "real"
    make_private(real)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        make_private(link)


def test_sockets_are_in_the_runtime_directory_or_in_tmp(tmp_path: Path) -> None:
    own = Path(f"/tmp/r2ccl-{os.geteuid()}")
    assert directories({}) == [own]
    assert directories({"XDG_RUNTIME_DIR": str(tmp_path)}) == [tmp_path / "r2ccl", own]
    assert directories({"XDG_RUNTIME_DIR": str(tmp_path / "gone")}) == [own]


def test_names_of_sockets_differ_where_names_of_jobs_do() -> None:
    assert socket_name("a" * 100, 0, 1) != socket_name("a" * 101, 0, 1)
    assert "/" not in socket_name("../../etc", 0, 1)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("job:train", JobTarget("train", None, None)),
        ("job:train/2", JobTarget("train", 2, None)),
        ("job:a/b/2/nic1", JobTarget("a/b", 2, 1)),
        ("job:train/2/1", JobTarget("train", 2, 1)),
    ],
)
def test_a_target_names_job_rank_and_nic(text: str, target: JobTarget) -> None:
    assert JobTarget.parse(text) == target


def test_a_target_without_a_job_is_refused() -> None:
    with pytest.raises(UsageError, match="job:NAME"):
        JobTarget.parse("job:")
