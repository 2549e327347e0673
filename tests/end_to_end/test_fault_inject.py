"""``r2ccl fault-inject`` as a process: kernel faults in a namespace, killed commands and watchdogs, running jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyroute2 import IPRoute

from r2ccl.cli.fault_inject_targets import Options, on_interface
from r2ccl.lab import fault_undo
from r2ccl.lab.namespaces import Namespace
from r2ccl.lab.where import Where
from r2ccl.protocol.fault_kinds import Kind, Request
from tests.end_to_end.ranks import PATIENCE_S, ROOT, Ranks, RunningStream, loopback, wait_until

pytestmark = pytest.mark.end_to_end

NIC = "eth7"
FAULTS = (
    ("link-down",),
    ("silent-drop",),
    ("silent-drop", "--direction", "in"),
    ("loss", "5%"),
    ("rate", "10mbit"),
    ("corrupt", "0.1%"),
)


class Wire:
    """A namespace with a NIC that has all that a fault might take away, and the commands that break it."""

    def __init__(self, runtime: Path) -> None:
        self.namespace = Namespace("wire")
        self.runtime = runtime
        call, netlink = self.namespace.call, self.namespace.netlink
        call(netlink.link, "set", index=1, state="up")
        call(netlink.link, "add", ifname=NIC, kind="veth", peer={"ifname": "far"})
        index = self.namespace.index_of(NIC)
        # Addresses of the kernel's own making come and go when they like.
        for name in (NIC, "far"):
            self.namespace.call(Path(f"/proc/sys/net/ipv6/conf/{name}/addr_gen_mode").write_text, "1")
        call(netlink.link, "set", index=self.namespace.index_of("far"), state="up")
        call(netlink.link, "set", index=index, state="up")
        call(netlink.addr, "add", index=index, address="10.9.0.1", prefixlen=24)
        call(netlink.addr, "add", index=index, address="fd01::1", prefixlen=64, flags=2)  # no waiting for twins
        call(netlink.route, "add", dst="10.77.0.0/16", gateway="10.9.0.2")
        call(netlink.route, "add", dst="10.78.0.0/16", gateway="10.9.0.3", table=77)
        call(netlink.route, "add", dst="fd02::/64", gateway="fd01::2")
        call(netlink.neigh, "add", dst="10.9.0.9", lladdr="02:00:00:00:00:09", ifindex=index, state=128)
        call(netlink.tc, "replace", "tbf", index, handle=0x10000, rate=25_000_000, burst=50_000, limit=500_000)

    def state(self) -> dict[str, Any]:
        """All that the kernel has of it, in any order."""

        def gather() -> dict[str, Any]:
            with IPRoute() as netlink:
                index = netlink.link_lookup(ifname=NIC)[0]
                (link,) = netlink.get_links(index)
                return {
                    "up": link["flags"] & 1,
                    "addresses": _texts(netlink.get_addr(index=index), "IFA_CACHEINFO"),
                    "routes": _texts(netlink.get_routes(family=2), "RTA_CACHEINFO"),
                    "routes of IPv6": _texts(netlink.get_routes(family=10), "RTA_CACHEINFO"),
                    "neighbours": _texts(netlink.get_neighbours(ifindex=index, state=128), "NDA_CACHEINFO"),
                    "qdiscs": _texts(netlink.get_qdiscs(index), "TCA_STATS", "TCA_STATS2"),
                    "tables": subprocess.run(["nft", "list", "tables"], capture_output=True, check=True).stdout,
                }

        return self.namespace.call(gather)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The command, in the namespace."""
        argv = [sys.executable, "-m", "r2ccl.cli.main", "fault-inject", *words]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(self.runtime)}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

        def inside() -> subprocess.Popen[str]:
            return subprocess.Popen(argv, env=environ, **{**pipes, **options})

        return self.namespace.call(inside)

    def run(self, *words: str) -> tuple[int, str, str]:
        """To its end: exit code, output, errors."""
        process = self.start(*words)
        out, errors = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, errors

    def begin(self, *words: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Until the fault is in force; with the state that the NIC had before."""
        before = self.state()
        process = self.start(*words, "--yes")
        assert process.stdout is not None
        for line in process.stdout:
            if line in ("done\n", "down\n"):
                return process, before
        raise AssertionError(process.stderr.read() if process.stderr else "")


def _texts(messages: Any, *without: str) -> list[str]:
    """Messages of netlink as sorted text, without what counts on."""
    shown = []
    for message in messages:
        attributes = sorted(repr(attribute) for attribute in message["attrs"] if attribute[0] not in without)
        shown.append(repr((message.get("family"), message.get("handle"), message.get("parent"), attributes)))
    return sorted(shown)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tmp_path)
    states = [made.state()]

    def is_steady() -> bool:
        """The kernel adds routes of its own for a while."""
        states.append(made.state())
        return len(states) > 10 and all(state == states[-1] for state in states[-10:])

    wait_until(is_steady, "the kernel to be done")
    yield made
    made.namespace.close()


def watchdog_of(process: subprocess.Popen[str]) -> psutil.Process:
    (child,) = [c for c in psutil.Process(process.pid).children() if fault_undo.__file__ in c.cmdline()]
    return child


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    return out, errors


@pytest.mark.namespaces
@pytest.mark.parametrize("fault", FAULTS, ids=" ".join)
def test_a_fault_changes_the_nic_and_its_end_leaves_it_as_it_was(fault: tuple[str, ...], wire: Wire) -> None:
    kind, *rest = fault
    process, before = wire.begin(kind, NIC, *rest)
    assert wire.state() != before
    process.send_signal(signal.SIGINT)
    out, errors = finish(process)
    assert (process.returncode, errors) == (0, "")
    assert out.endswith("undone\n")
    assert wire.state() == before
    assert list((wire.runtime / "r2ccl/faults").iterdir()) == []


@pytest.mark.namespaces
def test_a_fault_ends_at_its_time(wire: Wire) -> None:
    before = wire.state()
    assert wire.run("silent-drop", NIC, "--for", "100ms", "--yes")[0] == 0
    assert wire.state() == before


@pytest.mark.namespaces
def test_a_flap_goes_down_and_up_as_often_as_it_says(wire: Wire) -> None:
    before = wire.state()
    code, out, _ = wire.run("flap", NIC, "--pattern", "50ms down, 50ms up", "--times", "3", "--yes")
    assert code == 0
    assert out.splitlines()[-7:] == ["down", "up"] * 3 + ["undone"]
    assert wire.state() == before


@pytest.mark.namespaces
@pytest.mark.parametrize("fault", [("link-down",), ("rate", "10mbit"), ("loss", "5%")], ids=" ".join)
def test_a_command_that_is_killed_is_undone_by_its_watchdog(fault: tuple[str, ...], wire: Wire) -> None:
    kind, *rest = fault
    process, before = wire.begin(kind, NIC, *rest)
    process.kill()
    wait_until(lambda: wire.state() == before, "the watchdog's undoing")
    _, errors = finish(process)
    assert f"on {NIC}: the command is gone: undone" in errors
    assert list((wire.runtime / "r2ccl/faults").iterdir()) == []


@pytest.mark.namespaces
def test_a_command_that_hangs_is_undone_by_its_watchdog_at_its_time(wire: Wire) -> None:
    process, before = wire.begin("silent-drop", NIC, "--for", "1s")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: wire.state() == before, "the watchdog's undoing")
    process.send_signal(signal.SIGCONT)
    finish(process)
    assert wire.state() == before


@pytest.mark.namespaces
def test_a_command_whose_watchdog_is_killed_undoes_at_once_and_says_why(wire: Wire) -> None:
    process, before = wire.begin("link-down", NIC)
    watchdog_of(process).kill()
    _, errors = finish(process)
    assert process.returncode == 2
    assert "the watchdog is gone" in errors
    assert wire.state() == before


@pytest.mark.namespaces
def test_when_both_are_killed_the_record_is_left_and_undo_undoes(wire: Wire) -> None:
    process, before = wire.begin("link-down", NIC)
    watchdog = watchdog_of(process)
    process.send_signal(signal.SIGSTOP)
    watchdog.kill()
    process.kill()
    finish(process)
    assert wire.state() != before
    code, out, _ = wire.run("undo", "all")
    assert (code, "link-down" in out) == (0, True)
    assert wire.state() == before


@pytest.mark.namespaces
def test_a_fault_that_stays_outlives_the_command_until_it_is_undone(wire: Wire) -> None:
    before = wire.state()
    code, out, _ = wire.run("loss", NIC, "5%", "--stay", "--yes")
    assert code == 0
    assert wire.state() != before
    words = out.splitlines()[-1].split("r2ccl fault-inject ")[1].split()
    assert words[0] == "undo"
    assert wire.run(*words)[0] == 0
    assert wire.state() == before


@pytest.mark.namespaces
def test_a_fault_that_stays_for_a_time_goes_with_it(wire: Wire) -> None:
    before = wire.state()
    assert wire.run("silent-drop", NIC, "--stay", "--for", "2s", "--yes")[0] == 0
    assert wire.state() != before
    wait_until(lambda: wire.state() == before, "the end of the fault")


@pytest.mark.namespaces
def test_a_delay_is_done_by_netem_or_the_way_out_is_named(wire: Wire) -> None:
    before = wire.state()
    code, out, errors = wire.run("delay", NIC, "5ms", "--for", "100ms", "--yes")
    has_netem = "no netem" not in errors
    assert (code, "done" in out.splitlines()) == ((0, True) if has_netem else (2, False))
    assert has_netem or "delay job:NAME/RANK/NIC 5ms" in errors
    assert wire.state() == before


@pytest.mark.namespaces
def test_a_fault_in_another_namespace_is_done_and_undone_there(wire: Wire) -> None:
    where = Where(f"/proc/{os.getpid()}/fd/{wire.namespace.descriptor}", NIC)
    before, seen = wire.state(), []

    def say(what: str, about: dict[str, Any]) -> None:
        seen.append((what, wire.state() == before))

    for kind in (Kind.LINK_DOWN, Kind.SILENT_DROP):
        seen.clear()
        on_interface(Request(kind), where, "lab:x/h0/nic0", Options(for_s=0.1), wire.runtime, {}, say)
        assert seen == [("plan", True), ("done", False), ("undone", True)]


@pytest.mark.namespaces
def test_a_dry_run_changes_nothing_and_shows_the_commands(wire: Wire) -> None:
    before = wire.state()
    code, out, _ = wire.run("link-down", NIC, "--dry-run")
    assert code == 0
    assert f"ip link set {NIC} down" in out
    assert f"ip link set {NIC} up" in out
    assert wire.state() == before


@pytest.mark.namespaces
def test_what_a_person_came_by_is_refused(wire: Wire) -> None:
    code, _, errors = wire.run("silent-drop", "lo", "--yes")
    assert (code, "--force" in errors) == (2, True)
    wire.namespace.call(wire.namespace.netlink.route, "add", dst="default", gateway="10.9.0.2")
    before = wire.state()
    code, _, errors = wire.run("link-down", NIC, "--yes")
    assert (code, "default route" in errors, "--force" in errors) == (2, True, True)
    assert wire.run("link-down", NIC, "--yes", "--force", "--for", "100ms")[0] == 0
    assert wire.state() == before


@pytest.mark.namespaces
def test_nobody_who_could_confirm_means_no(wire: Wire) -> None:
    code, _, errors = wire.run("silent-drop", NIC)
    assert (code, "--yes" in errors) == (2, True)


def test_a_stopped_process_goes_on_after_its_time_and_when_the_command_is_killed(wire: Wire) -> None:
    child = subprocess.Popen(["sleep", "600"])
    sleeper = psutil.Process(child.pid)
    try:
        assert wire.run("stop", f"pid:{sleeper.pid}", "--for", "200ms")[0] == 0
        assert sleeper.status() != psutil.STATUS_STOPPED
        process = wire.start("stop", f"pid:{sleeper.pid}")
        wait_until(lambda: sleeper.status() == psutil.STATUS_STOPPED, "the process to be stopped")
        process.kill()
        wait_until(lambda: sleeper.status() != psutil.STATUS_STOPPED, "the process to go on")
        finish(process)
        code, *_ = wire.run("kill", f"pid:{sleeper.pid}", "--yes")
        assert (code, child.wait(PATIENCE_S)) == (0, -signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


# Within a running job.


def broken(ranks: Ranks, tmp_path: Path, *words: str, secret: str | None = None) -> tuple[int, str, str]:
    """Run fault-inject against the ranks."""
    environ = psutil.Process(ranks[0].process.pid).environ()
    shared = {name: environ[name] for name in ("R2CCL_JOB", "R2CCL_SECRET")}
    if secret is not None:
        shared["R2CCL_SECRET"] = secret
    argv = [sys.executable, "-m", "r2ccl.cli.main", "fault-inject"]
    argv += [word.replace("job:", f"job:{shared['R2CCL_JOB']}") for word in words]
    env = {**os.environ, **shared, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def breakable(tmp_path: Path, nics: int = 2) -> Any:
    env = {"R2CCL_FAULT_INJECTION": "1", "XDG_RUNTIME_DIR": str(tmp_path)}
    return loopback(2, tmp_path, nics=nics, env=env)


def test_a_running_job_whose_nic_is_cut_goes_on_with_the_right_bits(tmp_path: Path) -> None:
    with breakable(tmp_path) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, 200_000)
        stream.go_on(3)
        assert broken(ranks, tmp_path, "job:/1/nic0", "silent-drop", "--for", "1s")[0] == 0
        assert ranks.failovers() >= 1
        stream.go_on(3)
        code, out, errors = broken(ranks, tmp_path, "link-down", "job:/0/1", "--for", "300ms", "--json")
        assert (code, errors) == (0, "")
        assert '{"event": "undone"}' in out
        stream.go_on(3)
        assert stream.stop() > 9
        ranks.end_well()
    assert not list((tmp_path / "r2ccl").glob("*.sock"))


@pytest.mark.parametrize(
    "fault", [("loss", "2%"), ("rate", "200mbit"), ("delay", "2ms"), ("corrupt", "5%")], ids=" ".join
)
def test_a_job_with_a_bad_nic_has_the_right_bits(fault: tuple[str, str], tmp_path: Path) -> None:
    env = {"R2CCL_FAULT_INJECTION": "1", "XDG_RUNTIME_DIR": str(tmp_path), "R2CCL_CHECKSUM": "on"}
    with loopback(2, tmp_path, nics=2, env=env) as ranks:
        ranks.connect()
        stream = RunningStream(ranks, 200_000)
        kind, value = fault
        assert broken(ranks, tmp_path, kind, "job:", value, "--for", "1s")[0] == 0
        stream.go_on(3)
        assert stream.stop() > 3
        ranks.end_well()


def test_a_fault_that_stays_in_a_job_is_undone_by_its_own_command(tmp_path: Path) -> None:
    with breakable(tmp_path) as ranks:
        ranks.connect()
        code, out, _ = broken(ranks, tmp_path, "silent-drop", "job:/0/nic1", "--stay")
        assert (code, "fault-inject undo job:" in out) == (0, True)
        # Meanwhile another one comes and goes.
        assert broken(ranks, tmp_path, "stop", "job:/1", "--for", "200ms")[0] == 0
        assert broken(ranks, tmp_path, "link-down", "job:/0/nic1", "--for", "100ms")[0] == 0
        assert broken(ranks, tmp_path, "undo", "job:/0")[1] == "undone: 1 in 1 ranks\n"
        assert ranks.ask("collectives") == [0, 0]
        ranks.end_well()


def test_a_command_without_the_secret_is_refused_and_the_job_says_so_in_one_line(tmp_path: Path) -> None:
    with breakable(tmp_path, nics=1) as ranks:
        ranks.connect()
        code, _, errors = broken(ranks, tmp_path, "silent-drop", "job:/0", "--for", "1s", secret="not the one")
        assert (code, "secret" in errors) == (2, True)
        assert ranks.ask("collectives") == [0, 0]
        assert ranks[0].said().count("the control port refused somebody") == 1
        ranks.end_well()


def test_a_job_that_did_not_ask_for_it_has_no_control_port(tmp_path: Path) -> None:
    with loopback(2, tmp_path, env={"XDG_RUNTIME_DIR": str(tmp_path)}) as ranks:
        ranks.connect()
        code, _, errors = broken(ranks, tmp_path, "silent-drop", "job:/0", "--for", "1s")
        assert (code, "R2CCL_FAULT_INJECTION=1" in errors) == (2, True)
        assert not (tmp_path / "r2ccl").exists()
        ranks.end_well()
