"""``r2ccl fault-inject`` on the NICs of a lab that stays up: both parts as their user has them, together."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.ranks import PATIENCE_S, wait_until
from tests.end_to_end.test_lab_commands import Labs, is_in_use

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

NIC = "lab:bed/h0/nic0"
SHOW = "ip -o link show nic0 | grep -o 'state [A-Z]*'; tc qdisc show dev nic0; nft list tables"


class Bed(Labs):
    """One lab, and commands that break it."""

    def __init__(self, home: Path, runtime: Path) -> None:
        super().__init__(home)
        self.environ["XDG_RUNTIME_DIR"] = str(runtime)
        self.records = runtime / "r2ccl" / "faults"

    def break_(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "r2ccl.cli.main", "fault-inject", *words]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, env=self.environ, text=True, **pipes)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Until it is in force."""
        command = self.break_(*words)
        assert command.stdout is not None
        for line in command.stdout:
            if line in ("done\n", "down\n"):
                return command
        raise AssertionError(finish(command))

    def ran(self, *words: str) -> tuple[int, str, str]:
        return finish(self.break_(*words))

    @property
    def nic(self) -> str:
        """The NIC, as its host has it."""
        return self("run", "--name", "bed", "--host", "h0", "--", "sh", "-c", SHOW)

    @property
    def left(self) -> list[Path]:
        return list(self.records.iterdir()) if self.records.exists() else []


def finish(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = command.communicate(timeout=PATIENCE_S)
    return command.returncode, out, errors


def is_watchdog_of(bed: Bed, process: psutil.Process) -> bool:
    try:
        mine = process.environ().get("XDG_RUNTIME_DIR") == bed.environ["XDG_RUNTIME_DIR"]
        return mine and any(word.endswith("fault_undo.py") for word in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    home = tmp_path / "labs"
    home.mkdir(mode=0o700)
    found = Bed(home, tmp_path)
    found("up", "--name", "bed", "--hosts", "2", "--nics", "1", "--rate", "200mbit")
    yield found
    found("down", "--all")
    assert list(home.iterdir()) == []


def test_every_fault_is_in_force_on_the_host_and_its_end_leaves_the_nic_as_it_was(bed: Bed) -> None:
    before = bed.nic
    for fault in (("link-down",), ("silent-drop",), ("loss", "5%"), ("rate", "10mbit"), ("corrupt", "1%")):
        command = bed.begin(fault[0], NIC, *fault[1:])
        assert bed.nic != before, fault
        command.send_signal(signal.SIGINT)
        assert finish(command)[0] == 0
        assert bed.nic == before, fault
    assert bed.left == []


def test_a_command_that_is_killed_is_undone_and_the_watchdog_says_so_in_one_line(bed: Bed) -> None:
    before = bed.nic
    command = bed.begin("silent-drop", NIC)
    command.kill()
    _, _, errors = finish(command)  # ends with the watchdog, which has our stderr
    assert errors == f"r2ccl: silent-drop on {NIC}: the command is gone: undone\n"
    assert bed.nic == before
    assert bed.left == []


@pytest.mark.parametrize("fault", [("link-down",), ("silent-drop",), ("rate", "10mbit")])
def test_a_lab_that_goes_down_ends_the_faults_on_its_nics(fault: tuple[str, ...], bed: Bed) -> None:
    namespaces = bed.namespaces(bed.status()["bed"])
    command = bed.begin(fault[0], NIC, *fault[1:])
    bed("down", "--name", "bed")
    code, out, errors = finish(command)
    assert (code, errors) == (2, f"r2ccl: {' '.join(fault)} on {NIC}: its lab went down, and the fault with it\n")
    assert out.endswith("undone\n")
    wait_until(lambda: not is_in_use(namespaces), "the namespaces being gone", patience_s=20)
    assert bed.left == []


def test_a_lab_that_goes_down_ends_the_watchdog_of_a_fault_that_stays(bed: Bed) -> None:
    namespaces = bed.namespaces(bed.status()["bed"])
    assert bed.ran("silent-drop", NIC, "--stay", "--for", "1h")[0] == 0
    bed("down", "--name", "bed")
    wait_until(lambda: not is_in_use(namespaces), "the namespaces being gone", patience_s=20)
    assert bed.left == []


def test_a_fault_that_stayed_in_a_lab_that_is_gone_is_not_listed(bed: Bed) -> None:
    assert bed.ran("silent-drop", NIC, "--stay")[0] == 0
    assert len(bed.left) == 1
    bed("down", "--name", "bed")
    code, out, _ = bed.ran("--list")
    assert code == 0
    assert out.endswith("left behind: nothing\n")
    assert bed.left == []


def test_a_fault_that_stays_for_a_time_and_is_undone_by_hand_keeps_no_watchdog(bed: Bed) -> None:
    assert bed.ran("silent-drop", NIC, "--stay", "--for", "1h")[0] == 0
    (watchdog,) = (process for process in psutil.process_iter() if is_watchdog_of(bed, process))
    assert watchdog.is_running()
    assert bed.ran("undo", "all")[0] == 0
    wait_until(lambda: not watchdog.is_running(), "the watchdog being gone", patience_s=20)


def test_a_fault_of_the_labs_own_that_would_be_put_back_is_named_with_the_way_out(bed: Bed) -> None:
    for own, asked in ((("near-end-down",), ("loss", "5%")), (("rate", "10mbit"), ("rate", "20mbit"))):
        bed("fault", "--name", "bed", own[0], "h0", "nic0", *own[1:])
        code, _, errors = bed.ran(asked[0], NIC, *asked[1:], "--for", "1s")
        assert code == 2
        assert errors == (
            f"r2ccl: {NIC} has a fault of the lab's own that is in the way ({' '.join(own)}): "
            "r2ccl lab fault --name bed heal h0 nic0\n"
        )
        bed("fault", "--name", "bed", "heal", "h0", "nic0")
    assert bed.ran("loss", NIC, "5%", "--for", "100ms")[0] == 0


def test_a_fault_made_on_a_host_is_undone_there_or_forgotten_by_hand(bed: Bed) -> None:
    inject = (sys.executable, "-m", "r2ccl.cli.main", "fault-inject")
    on_host = ("run", "--name", "bed", "--host", "h0", "--", *inject)
    bed(*on_host, "silent-drop", "nic0", "--stay", "--yes")
    (record,) = bed.left
    code, _, errors = bed.ran("undo", "all")
    assert code == 2
    assert errors.endswith(f"run this there; or, if there is none any more: rm {record}\n")
    bed(*on_host, "undo", "all")
    assert bed.left == []
