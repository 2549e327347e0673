"""``r2ccl lab`` as its user has it: labs that stay up between commands, and of which nothing is left in the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2ccl.lab import registry
from tests.end_to_end.ranks import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

ROOT = Path(__file__).parents[2]
R2CCL = [sys.executable, "-m", "r2ccl.cli.main"]
TIMEOUT_S = 100

#: All-reduces until a file is there, then 10 more; every element is looked at.
TRAIN = """
import asyncio, os, sys
import numpy as np
import r2ccl

async def main():
    async with r2ccl.connect() as comm:
        x, left = np.empty(1 << 18, np.float32), 10
        stop = np.zeros(1, np.float32)
        while left:
            x[:] = comm.rank + 1
            await comm.all_reduce(x)
            assert (x == comm.size * (comm.size + 1) / 2).all()
            stop[:] = os.path.exists(sys.argv[1])
            await comm.all_reduce(stop)
            left -= stop[0] == comm.size
            if comm.rank == 0 and left == 10 and not os.path.exists(sys.argv[2]):
                open(sys.argv[2], "w").close()
        failovers = comm.stats()["counters"]["failovers"]
        print("done", comm.size, "failovers", failovers)

asyncio.run(main())
"""
#: Leaves a child in a session of its own, which no signal to its group reaches.
FORK = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


class Labs:
    """Commands on labs of this test alone."""

    def __init__(self, home: Path) -> None:
        self.home = home
        #: Namespaces that we hold, see :meth:`namespaces`.
        self.held: list[int] = []
        self.environ = {
            **{name: value for name, value in os.environ.items() if name != registry.NAME_VARIABLE},
            registry.DIRECTORY_VARIABLE: str(home),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """A command that goes on meanwhile."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*R2CCL, "lab", *arguments], env=self.environ, text=True, **pipes)

    def try_(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, output, errors)"""
        command = self.start(*arguments)
        out, err = command.communicate(timeout=TIMEOUT_S)
        return command.returncode, out, err

    def __call__(self, *arguments: str) -> str:
        """What a command prints, which must succeed."""
        code, out, err = self.try_(*arguments)
        assert code == 0, out + err
        return out

    def namespaces(self, report: dict[str, Any]) -> set[str]:
        """The network namespaces of a lab, by the kernel's names. We hold them, or these might be given to others."""
        paths = [path for host in report["hosts"] for path in host["namespaces"] if path.endswith("/net")]
        self.held += [os.open(path, os.O_RDONLY) for path in [*paths, report["switch"]]]
        return {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in self.held[-len(paths) - 1 :]}

    def status(self) -> dict[str, Any]:
        """Name -> report, as ``lab status --json`` has it, but at once: a command takes a second."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(registry.DIRECTORY_VARIABLE, str(self.home))
            reports = {report.name: report.as_json() for report in registry.reports()}
        found: dict[str, Any] = json.loads(json.dumps(reports))
        return found


@pytest.fixture(scope="module")
def labs() -> Iterator[Labs]:
    """None is up at first, and none of the module's own may be left at the end."""
    home = Path(tempfile.mkdtemp(prefix="labs-"))
    found = Labs(home)
    yield found
    found("down", "--all")
    left = list(home.iterdir())
    shutil.rmtree(home)
    assert left == []


@pytest.fixture(scope="module")
def lab(labs: Labs) -> Iterator[Labs]:
    """One is up: three hosts, two NICs each."""
    labs("up", "--name", "main", "--hosts", "3", "--nics", "2", "--rate", "200mbit")
    labs.environ[registry.NAME_VARIABLE] = "main"
    yield labs
    del labs.environ[registry.NAME_VARIABLE]


@pytest.fixture(autouse=True)
def _let_go(labs: Labs) -> Iterator[None]:
    yield
    while labs.held:
        os.close(labs.held.pop())


def nic_of(labs: Labs, host: int, nic: int) -> dict[str, Any]:
    """A NIC of the lab ``main``, as it is now."""
    found: dict[str, Any] = labs.status()["main"]["hosts"][host]["nics"][nic]
    return found


def is_in_use(namespaces: set[str]) -> bool:
    """Whether any thread of this machine is in one of them."""
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/ns/net"):
        try:
            if os.readlink(path) in namespaces:
                return True
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    return False


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def words_after(command: subprocess.Popen[str], word: str) -> str:
    """The next word behind this one in what a command prints."""
    assert command.stdout is not None
    for line in command.stdout:
        if word in line.split():
            return line.split()[line.split().index(word) + 1]
    raise AssertionError(f"{word!r} was not printed")


def test_status_tells_hosts_nics_addresses_rates_and_links(lab: Labs):
    report = json.loads(lab("status", "--name", "main", "--json"))["labs"][0]
    shown = [
        (host["name"], nic["name"], nic["address"], nic["rate_mbit_s"], nic["carrier"], nic["state"], nic["faults"])
        for host in report["hosts"]
        for nic in host["nics"]
    ]
    assert shown == [
        (f"h{host}", f"nic{nic}", f"10.200.{nic}.{host + 1}", 200.0, True, "up", [])
        for host in range(3)
        for nic in range(2)
    ]
    assert len(lab.namespaces(report)) == 4


def test_a_program_on_a_host_has_its_name_its_nics_and_its_neighbours(lab: Labs):
    script = "hostname; ls /sys/class/net | sort | xargs; getent ahostsv4 h2 | awk '/STREAM/ {print $1}' | xargs; cat"
    command = lab.start("run", "--host", "h1", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    out, err = command.communicate("from our standard input\n", timeout=TIMEOUT_S)
    assert out.split("\n") == ["h1", "lo nic0 nic1", "10.200.0.3 10.200.1.3", "from our standard input", ""], err
    assert command.returncode == 0


def test_a_program_whose_name_no_terminal_should_see_is_shown_without_it(lab: Labs):
    command = lab.start(
        "run", "--host", "h0", "--", "sh", "-c", "echo runs 1; cat", "\udcff\x1b[31m", stdin=subprocess.PIPE
    )
    words_after(command, "runs")
    lab.environ["PYTHONIOENCODING"] = "utf-8:strict"
    try:
        assert "runs: on h0: sh -c echo runs 1; cat ??[31m\n" in lab("status", "--name", "main")
    finally:
        del lab.environ["PYTHONIOENCODING"]
        command.communicate("", timeout=TIMEOUT_S)


def test_the_exit_code_of_a_program_is_ours(lab: Labs):
    assert lab.try_("run", "--host", "h0", "--", "sh", "-c", "exit 5")[0] == 5
    assert lab.try_("run", "--host", "h0", "--", "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL
    code, _, err = lab.try_("run", "--host", "h0", "--", "no-such-program")
    assert code == 127
    assert "cannot run 'no-such-program'" in err


def test_programs_of_others_talk_by_name(lab: Labs):
    serve = (
        "import socket; s = socket.create_server(('', 7000)); print('ready', 1, flush=True); print(s.accept()[1][0])"
    )
    server = lab.start("run", "--host", "h0", "--", sys.executable, "-c", serve)
    assert words_after(server, "ready") == "1"
    dial = "import socket; socket.create_connection(('h0', 7000), 10); socket.create_connection"
    lab("run", "--host", "h1", "--", sys.executable, "-c", dial)
    out, _ = server.communicate(timeout=TIMEOUT_S)
    assert out.split() == ["10.200.0.2"]


def test_when_one_rank_fails_all_are_ended_and_its_code_is_ours(lab: Labs):
    code, out, err = lab.try_(
        "run", "--", "sh", "-c", 'test $RANK = 1 && exit 7; echo "$(hostname) $WORLD_SIZE"; sleep 600'
    )
    assert code == 7
    assert "r2ccl lab run: rank 1 ended with exit code 7; ending the others" in err
    assert set(out.splitlines()) <= {"[0] h0 3", "[2] h2 3"}


def test_a_job_survives_the_loss_of_a_nic_and_the_fault_ends_on_time(lab: Labs, tmp_path: Path):
    stop, running = tmp_path / "stop", tmp_path / "running"
    (tmp_path / "train.py").write_text(TRAIN)
    job = lab.start("run", "--ranks-per-host", "2", str(tmp_path / "train.py"), str(stop), str(running))
    wait_until(running.exists, "the job running", patience_s=60)
    lab("fault", "link-down", "h1", "nic0", "--for", "2s")
    wait_until(lambda: not nic_of(lab, 1, 0)["faults"], "the fault being over", patience_s=60)
    assert (nic_of(lab, 1, 0)["carrier"], nic_of(lab, 1, 0)["state"]) == (True, "up")
    stop.touch()
    out, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0, out + err
    said = [line.split() for line in out.splitlines()]
    assert sorted(line[0] for line in said) == [f"[{rank}]" for rank in range(6)]
    assert sum(int(line[4]) for line in said) > 0


def test_where_a_first_nic_is_down_ranks_meet_by_another_and_the_check_says_so(lab: Labs):
    lab("fault", "link-down", "h0", "nic0")
    said = lab("run", "--", sys.executable, str(ROOT / "examples" / "hello_all_reduce.py"))
    code, out, err = lab.try_("run", "--", sys.executable, "-m", "r2ccl.cli.topology_check", "--no-rate")
    assert (said.count("as it should be"), code, "! rank 0 nic0 (nic0) is down" in out) == (3, 1, True), err
    lab("fault", "heal")


def test_faults_are_told_to_programs_too(lab: Labs):
    said = json.loads(lab("fault", "silent-drop", "h0", "nic0", "--for", "20s", "--json"))
    assert said == {"lab": "main", "done": ["h0 nic0: silent-drop, for 20 s"]}
    (healed,) = json.loads(lab("fault", "heal", "--json"))["done"]
    assert healed.startswith("healed h0 nic0: silent-drop")
    assert json.loads(lab("fault", "heal", "--json"))["done"] == []
    assert lab("fault", "heal") == "there was nothing to heal\n"


def test_faults_stand_until_they_are_healed(lab: Labs):
    for fault in (("loss", "h0", "nic0", "5%"), ("rate", "h0", "nic0", "100mbit"), ("near-end-down", "h2", "nic1")):
        lab("fault", *fault)
    lab("fault", "silent-drop", "h2", "nic0")
    hosts = lab.status()["main"]["hosts"]
    assert hosts[0]["nics"][0]["faults"] == ["loss 5%", "rate 100mbit"]
    assert hosts[0]["nics"][0]["rate_mbit_s"] == 100
    assert (hosts[2]["nics"][1]["faults"], hosts[2]["nics"][1]["state"]) == (["near-end-down"], "down")
    assert (hosts[2]["nics"][0]["faults"], hosts[2]["nics"][0]["carrier"]) == (["silent-drop"], True)
    assert lab("fault", "heal", "h0").splitlines() == ["healed h0 nic0: loss 5%", "healed h0 nic0: rate 100mbit"]
    lab("fault", "heal")
    assert lab("fault", "heal") == "there was nothing to heal\n"
    nics = [nic for host in lab.status()["main"]["hosts"] for nic in host["nics"]]
    assert {(nic["carrier"], nic["state"], nic["rate_mbit_s"], *nic["faults"]) for nic in nics} == {(True, "up", 200.0)}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fault", "link-down", "h9", "nic0"), "there is no h9"),
        (("fault", "link-down", "h0", "nic7"), "nic7"),
        (("fault", "earthquake", "h0", "nic0"), "there is no fault 'earthquake'"),
        (("fault", "loss", "h0", "nic0"), "such as 5%"),
        (("fault", "link-down"), "say which NIC"),
        (("fault", "heal", "h0", "nic0", "5%"), "heal wants at most a host and a NIC"),
        (("run", "--host", "h3", "true"), "there is no h3"),
        (("up", "--name", "main"), "a lab 'main' is up"),
        (("down", "--name", "other"), "no lab 'other' is up; there are main"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lab: Labs, arguments: tuple[str, ...], complaint: str):
    code, out, err = lab.try_(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("r2ccl: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_two_labs_at_once_have_the_same_addresses_and_do_not_meet(labs: Labs):
    labs("up", "--name", "one", "--hosts", "2", "--rate", "100mbit", "--routed")
    labs("up", "--name", "two", "--hosts", "2", "--rate", "100mbit", "--leaf-spine")
    status = labs.status()
    assert {"one", "two"} <= set(status)
    assert (status["one"]["layout"], status["two"]["layout"]) == ("routed", "leaf-spine, 2 spines")
    assert not labs.namespaces(status["one"]) & labs.namespaces(status["two"])
    serve = "import socket; s = socket.create_server(('10.200.0.1', 7000)); print('ready', 1, flush=True); s.accept()"
    server = labs.start("run", "--name", "one", "--host", "h0", "--", sys.executable, "-c", serve)
    assert words_after(server, "ready") == "1"
    dial = "import socket; s = socket.socket(); s.settimeout(10); print(s.connect_ex(('h0', 7000)))"
    assert labs("run", "--name", "two", "--host", "h1", "--", sys.executable, "-c", dial) == "111\n"  # refused
    assert labs("run", "--name", "one", "--host", "h1", "--", sys.executable, "-c", dial) == "0\n"
    server.communicate(timeout=TIMEOUT_S)
    gone, stays = labs.namespaces(status["one"]), labs.namespaces(status["two"])
    labs("down", "--name", "one")
    assert not is_in_use(gone)
    assert is_in_use(stays)
    assert "one" not in labs.status()
    labs("down", "--name", "two")
    assert not is_in_use(stays)


@pytest.fixture
def small(labs: Labs) -> Labs:
    """Another lab is up, that the test ends."""
    labs("up", "--name", "small", "--hosts", "2", "--nics", "1", "--rate", "100mbit")
    return labs


def test_the_daemon_is_killed_and_no_namespace_program_or_file_is_left(small: Labs):
    report = small.status()["small"]
    namespaces = small.namespaces(report)
    assert is_in_use(namespaces)
    job = small.start("run", "--name", "small", "--", sys.executable, "-c", FORK)
    child = int(words_after(job, "child"))
    os.kill(report["pid"], signal.SIGKILL)
    _, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 126
    assert "where the ranks ran is gone" in err
    wait_until(lambda: not is_in_use(namespaces) and has_ended(child), "all of the lab being gone", patience_s=20)
    assert "small" not in small.status()
    assert not (small.home / "small").exists()


def test_a_command_is_killed_and_its_programs_go_with_it(small: Labs):
    namespaces = small.namespaces(small.status()["small"])
    for where in (["--host", "h1"], []):
        job = small.start("run", "--name", "small", *where, "--", sys.executable, "-c", FORK)
        child = int(words_after(job, "child"))
        assert small.status()["small"]["programs"] != []
        job.kill()
        job.communicate(timeout=TIMEOUT_S)
        wait_until(partial(has_ended, child), "what the program forked being gone", patience_s=20)
        wait_until(lambda: small.status()["small"]["programs"] == [], "the programs being forgotten", patience_s=30)
    assert json.loads(small("down", "--name", "small", "--json")) == {"down": ["small"]}
    assert not is_in_use(namespaces)


def test_a_lab_that_goes_down_takes_its_programs_along(small: Labs):
    namespaces = small.namespaces(small.status()["small"])
    one = small.start("run", "--name", "small", "--host", "h0", "--", sys.executable, "-c", FORK)
    child = int(words_after(one, "child"))
    small("down", "--name", "small")
    _, err = one.communicate(timeout=TIMEOUT_S)
    assert one.returncode == 126
    assert err == "r2ccl lab run: the lab is gone\n"
    wait_until(lambda: has_ended(child) and not is_in_use(namespaces), "all of the lab being gone", patience_s=20)
    assert not (small.home / "small").exists()


def test_nothing_comes_of_a_lab_whose_making_is_killed(labs: Labs):
    making = labs.start("up", "--name", "unborn", "--hosts", "2")
    wait_until((labs.home / "unborn").exists, "the lab being made", patience_s=60)
    making.kill()
    making.communicate(timeout=TIMEOUT_S)
    wait_until(
        lambda: "unborn" not in labs.status() and not (labs.home / "unborn").exists(), "its being gone", patience_s=60
    )


def test_the_daemon_ends_in_order_when_it_is_asked_to(small: Labs):
    report = small.status()["small"]
    namespaces = small.namespaces(report)
    os.kill(report["pid"], signal.SIGTERM)
    wait_until(lambda: not (small.home / "small").exists(), "the lab's directory being gone", patience_s=20)
    wait_until(lambda: not is_in_use(namespaces), "the lab being gone", patience_s=20)


def test_the_bench_reports_streams_and_all_reduces(lab: Labs):
    shown = json.loads(lab("bench", "-b", "256K", "-e", "256K", "--seconds", "0.5", "--iters", "3", "--json"))
    assert (shown["hosts"], shown["nics"]) == (3, 2)
    # Two NICs of 200 Mbit/s, less headers; a token bucket lets a little more through at first.
    assert all(0.05 < rate < 0.45 for rate in shown["streams_gbit_s"].values())
    (row,) = shown["rows"]
    assert (row["size"], row["wrong"], row["of_streams"] > 0) == (262_144, 0, True)
    assert shown["failovers"] == 0
