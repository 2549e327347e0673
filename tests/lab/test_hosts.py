"""Programs on hosts, several labs at once, and what is left when a lab ends: nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from r2ccl.lab import Lab, LabUnavailable, can_create_namespaces, sweep
from tests.lab import wires

pytestmark = pytest.mark.namespaces

PATIENCE_MS = 5000


def network_namespaces() -> set[str]:
    """The network namespaces that some process is in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile, or is not ours
                continue
    return found


def has_ended(descriptor: int) -> bool:
    """Whether the process of this pidfd ends within our patience."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(PATIENCE_MS))


def test_root_may_create_namespaces():
    assert can_create_namespaces() == (True, "")


def test_a_program_runs_on_its_host_and_sees_only_its_nics(lab: Lab):
    child = lab.popen(1, ["ls", "/sys/class/net"], stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate()
    assert out.split() == ["lo", "nic0", "nic1"]
    assert child.returncode == 0


def test_a_program_knows_its_rank_and_its_nics(lab: Lab):
    child = lab.popen(1, ["env"], env={"EXTRA": "1", "RANK": "7"}, stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate()
    shown = set(out.splitlines())
    assert {"WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=10.200.0.1", "R2CCL_NICS=nic0,nic1"} <= shown
    assert {"EXTRA=1", "RANK=7"} <= shown  # the caller's wish comes last


def test_spare_nics_are_the_last_ones(lab: Lab):
    assert lab.environment(0)["R2CCL_SPARE_NICS"] == ""
    assert lab.environment(0, spare_nics=1)["R2CCL_SPARE_NICS"] == "nic1"


def test_all_ranks_share_a_secret_that_no_other_lab_knows(lab: Lab):
    assert lab.environment(0)["R2CCL_SECRET"] == lab.environment(1)["R2CCL_SECRET"]
    assert lab.environment(0)["R2CCL_SECRET"] != Lab().environment(0)["R2CCL_SECRET"]


def test_a_program_that_does_not_exist_fails_and_says_so(lab: Lab):
    child = lab.popen(0, ["no-such-program"], stderr=subprocess.PIPE, text=True)
    _, complaint = child.communicate()
    assert child.returncode != 0
    assert "no-such-program" in complaint or "No such file" in complaint


def test_two_labs_at_once_keep_to_themselves():
    with Lab(hosts=2, nics=1) as one, Lab(hosts=2, nics=1) as other:
        assert wires.carries(one, 0, 1, 0)
        assert wires.carries(other, 0, 1, 0)
        one.link_down(0, 0)
        assert not one.has_carrier(0, 0)
        assert other.has_carrier(0, 0)
        assert wires.carries(other, 0, 1, 0)


def test_the_machine_sees_nothing_of_a_lab(lab: Lab):
    names = set(psutil.net_if_addrs())
    assert not names & {"nic0", "nic1", "rail0", "rail1", "h0n0"}
    assert lab.has_carrier(0, 0)


#: Tells its own process id and namespace, as does the process that it forks, each in one piece.
FORKS = """
import os, time
os.fork()
os.write(1, f"{os.getpid()} {os.readlink('/proc/self/ns/net')}\\n".encode())
time.sleep(60)
"""


def fail_with_a_program_running(told: list[list[str]], descriptors: list[int]) -> None:
    """Fills in what the program and its child say, and holds of them."""
    with Lab(hosts=1, nics=1) as lab:
        child = lab.popen(0, [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child.stdout as lines:
            told += [lines.readline().split() for _ in range(2)]
            descriptors += [os.pidfd_open(int(pid)) for pid, _ in told]
            raise RuntimeError("on purpose")


def test_leaving_a_lab_by_an_exception_ends_its_programs_and_their_children():
    told: list[list[str]] = []
    descriptors: list[int] = []
    with pytest.raises(RuntimeError, match="on purpose"):
        fail_with_a_program_running(told, descriptors)
    assert len(descriptors) == 2
    for descriptor in descriptors:
        assert has_ended(descriptor)
        os.close(descriptor)
    assert told[0][1] not in network_namespaces()


LAB_WITH_A_PROGRAM = """
import sys
from r2ccl.lab import Lab
with Lab(hosts=2, nics=2) as lab:
    lab.popen(0, [sys.executable, "-c", sys.argv[1]]).wait()
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_lab_leaves_nothing_once_the_next_has_begun(by: signal.Signals):
    argv = [sys.executable, "-c", LAB_WITH_A_PROGRAM, FORKS]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) as owner:
        assert owner.stdout is not None
        told = [owner.stdout.readline().split() for _ in range(2)]
        program, its_child = sorted(int(pid) for pid, _ in told)
        descriptors = [os.pidfd_open(program), os.pidfd_open(its_child)]
        owner.send_signal(by)
    assert has_ended(descriptors[0])
    assert its_child in sweep()
    assert has_ended(descriptors[1])
    for descriptor in descriptors:
        os.close(descriptor)
    assert told[0][1] not in network_namespaces()


def test_sweeping_spares_the_programs_of_a_lab_that_lives(lab: Lab):
    child = lab.popen(0, ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.pid not in sweep()
    child.stdin.write(b"still here\n")
    child.stdin.close()
    assert child.stdout.read() == b"still here\n"
    child.stdout.close()


def test_a_lab_gives_its_descriptors_and_threads_back():
    process = psutil.Process()
    with Lab(hosts=1, nics=1):
        pass
    before = process.num_fds(), threading.active_count()
    for _ in range(3):
        with Lab(hosts=2, nics=1) as lab:
            lab.popen(0, ["true"]).wait()
    assert (process.num_fds(), threading.active_count()) == before


def test_a_closed_lab_may_be_closed_again(lab: Lab):
    lab.close()
    lab.close()


def test_without_the_right_to_make_namespaces_the_reason_is_told():
    script = """
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from r2ccl.lab import can_create_namespaces
print(can_create_namespaces())
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", "import r2ccl.lab\n" + script]
    shown = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True)
    assert shown.stdout.startswith("(False, 'cannot make emulated hosts:")
    assert "not permitted" in shown.stdout


def test_the_refusal_is_an_error_of_this_library():
    assert LabUnavailable("why").definite
