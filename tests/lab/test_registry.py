"""Whose name a lab has, what dead ones leave, and who may come near: on directories and sockets, without any lab."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from r2ccl.errors import UsageError
from r2ccl.lab import control, registry
from r2ccl.lab.control import Down, LabReport, Status
from r2ccl.lab.where import Where
from r2ccl.transport.sockets import peer_of
from tests.lab.test_control import REPORT


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Labs' directories of this test alone, with a path short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="labs-"))
    monkeypatch.setenv(registry.DIRECTORY_VARIABLE, str(directory))
    monkeypatch.delenv(registry.NAME_VARIABLE, raising=False)
    yield directory
    shutil.rmtree(directory)


def claim_up(name: str) -> int:
    """As if its daemon was up; its lock."""
    lock = registry.claim(name)
    (registry.home() / name / registry.SOCKET).touch()
    return lock


def answer_once(home: Path, name: str, line: bytes) -> tuple[threading.Thread, list[bytes]]:
    """Stand in for a daemon; what it is asked is in the list."""
    heard: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(home / name / registry.SOCKET))
    listener.listen()

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                heard.append(lines.readline())
                connection.sendall(line)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, heard


def test_a_name_belongs_to_one_lab_until_it_is_released(home: Path):
    lock = claim_up("one")
    assert (home / "one").stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match="a lab 'one' is up"):
        registry.claim("one")
    other = claim_up("two")
    assert registry.names() == ["one", "two"]
    registry.release("one", lock)
    assert registry.names() == ["two"]
    os.close(registry.claim("one"))
    os.close(other)


def test_a_lock_is_on_the_directory_that_has_the_name(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Another command may take it for a dead lab's, and yet another make it anew, before it is locked."""
    swapped: list[int] = []

    def lock_late(descriptor: int, operation: int) -> None:
        if not swapped:
            swapped.append(descriptor)
            (home / "one").rename(home / "One")
            (home / "one").mkdir()
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(
        registry, "fcntl", SimpleNamespace(flock=lock_late, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
    )
    lock = registry.claim("one")
    assert swapped
    assert os.path.samestat(os.fstat(lock), (home / "one").stat())
    os.close(lock)


def test_a_lab_that_is_being_made_is_not_up_and_has_its_name(home: Path):
    lock = registry.claim("unborn")
    assert registry.names() == []
    assert (home / "unborn").exists()
    with pytest.raises(UsageError, match="a lab 'unborn' is up"):
        registry.claim("unborn")
    os.close(lock)


def test_a_lab_that_goes_down_meanwhile_is_no_error_where_all_are_meant(home: Path, monkeypatch: pytest.MonkeyPatch):
    lock = claim_up("going")
    with pytest.raises(UsageError, match="does not answer"):  # nobody listens there, and it has not gone
        registry.reports()

    def goes(name: str) -> LabReport:
        os.close(lock)
        raise UsageError("it went")

    monkeypatch.setattr(registry, "report", goes)
    assert registry.reports() == []
    assert registry.take_all_down() == []


def test_what_a_dead_lab_left_is_removed_by_whoever_comes_by(home: Path):
    lock = registry.claim("dead")
    (home / "dead" / registry.LOG).write_text("its last words")
    os.close(lock)  # as the kernel does when a process dies
    assert registry.names() == []
    assert list(home.iterdir()) == []


def test_a_dead_labs_name_can_be_claimed_at_once(home: Path):
    os.close(registry.claim("phoenix"))
    (home / "phoenix" / "old").touch()
    lock = registry.claim("phoenix")
    assert list((home / "phoenix").iterdir()) == []
    os.close(lock)


def test_files_that_are_no_labs_are_left_alone(home: Path):
    (home / "notes.txt").touch()
    (home / "README").mkdir()
    assert registry.names() == []
    assert {entry.name for entry in home.iterdir()} == {"notes.txt", "README"}


@pytest.mark.parametrize("name", ["", "Lab", "../lab", "a/b", "-a", "a b", "x" * 31, ".", "lab\n"])
def test_a_name_that_is_no_name_is_refused(name: str, home: Path):
    with pytest.raises(UsageError, match="no name for a lab"):
        registry.claim(name)
    assert list(home.iterdir()) == []


def test_a_directory_that_others_may_enter_is_refused(home: Path):
    home.chmod(0o755)
    with pytest.raises(UsageError, match="only you may enter"):
        registry.names()
    home.chmod(0o700)


def test_a_link_in_place_of_the_directory_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch):
    link = home / "link"
    link.symlink_to(home)
    monkeypatch.setenv(registry.DIRECTORY_VARIABLE, str(link))
    with pytest.raises(UsageError, match="only you may enter"):
        registry.home()


def test_the_lab_that_is_meant_is_named_or_ours_or_the_only_one(home: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="none is up: r2ccl lab up"):
        registry.chosen(None)
    locks = [claim_up("one")]
    assert registry.chosen(None) == "one"
    locks.append(claim_up("two"))
    with pytest.raises(UsageError, match="say which with --name: one, two"):
        registry.chosen(None)
    assert registry.chosen("two") == "two"
    monkeypatch.setenv(registry.NAME_VARIABLE, "one")
    assert registry.chosen(None) == "one"
    assert registry.chosen("two") == "two"
    with pytest.raises(UsageError, match="no lab 'three' is up; there are one, two"):
        registry.chosen("three")
    for lock in locks:
        os.close(lock)


def test_a_question_gets_its_answer(home: Path):
    lock = registry.claim("lab")
    thread, heard = answer_once(home, "lab", control.answer_line(REPORT.as_json()))
    assert registry.report("lab") == REPORT
    thread.join()
    assert heard == [control.request_line(Status())]
    os.close(lock)


def test_a_nic_is_found_in_its_hosts_namespace_with_the_faults_that_stand_on_it(home: Path):
    lock = registry.claim("lab")
    thread, _ = answer_once(home, "lab", control.answer_line(REPORT.as_json()))
    (host, *_) = REPORT.hosts
    assert registry.where("lab", "h0", "nic0") == (Where(host.network, "nic0"), host.nics[0].faults)
    thread.join()
    os.close(lock)


@pytest.mark.parametrize(("host", "nic", "complaint"), [("h1", "nic0", "no h1"), ("h0", "nic1", "no nic1")])
def test_a_nic_that_is_not_there_is_named(host: str, nic: str, complaint: str, home: Path):
    lock = registry.claim("lab")
    thread, _ = answer_once(home, "lab", control.answer_line(REPORT.as_json()))
    with pytest.raises(UsageError, match=complaint):
        registry.where("lab", host, nic)
    thread.join()
    os.close(lock)


@pytest.mark.parametrize("answer", [b"", b'{"done": {', b"x" * (control.ANSWER_BYTES_MAX + 1)], ids=len)
def test_an_answer_that_does_not_come_or_never_ends_is_an_error(answer: bytes, home: Path):
    lock = registry.claim("lab")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(home / "lab" / registry.SOCKET))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(control.REQUEST_BYTES_MAX)
            # Whoever asked may be gone before it has all of this.
            sent = 0
            while sent < len(answer):
                try:
                    sent += connection.send(answer[sent:])
                except (BrokenPipeError, ConnectionResetError):
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(UsageError, match="is gone"):
        registry.ask("lab", Down())
    thread.join()
    listener.close()
    os.close(lock)


def test_a_lab_without_a_daemon_does_not_answer(home: Path):
    lock = registry.claim("lab")
    with pytest.raises(UsageError, match="does not answer"):
        registry.report("lab")
    os.close(lock)


def test_the_kernel_says_who_is_at_the_other_end():
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_of(one) == (os.getpid(), os.geteuid())


def test_hosts_and_nics_go_by_name_or_number():
    assert (registry.host_number("h12"), registry.host_number("3")) == (12, 3)
    assert (registry.nic_number("nic1"), registry.nic_number("0")) == (1, 0)
    for wrong in ("", "h", "nic1", "h-1", "h1.5", "h²", "h12345"):
        with pytest.raises(UsageError, match="is no host"):
            registry.host_number(wrong)


def test_a_report_is_the_same_after_its_journey():
    assert LabReport.parse(REPORT.as_json()) == REPORT
