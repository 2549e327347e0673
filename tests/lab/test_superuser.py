"""An ordinary user makes a lab after becoming root of a user namespace, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.lab import superuser

pytestmark = pytest.mark.namespaces

#: Everything is loaded first: an ordinary user may not be allowed to read where it lies.
AS_NOBODY = """
import ctypes, os, sys
from r2ccl.lab import Lab, become_root, can_create_namespaces
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which a change of user takes away
if child := os.fork():  # whose child has but one thread, whatever the imports have started
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.execvp = lambda program, command: None
assert not can_create_namespaces()[0]
while len(os.listdir("/proc/self/task")) > 1:  # a joined thread is still there for the kernel, for a moment
    os.sched_yield()
become_root.main(["nothing"])
print(os.getuid(), os.getgid(), open("/proc/self/setgroups").read().strip())
with Lab(hosts=2, nics=1) as lab:
    print(lab.has_carrier(1, 0))
"""


def test_an_ordinary_user_becomes_root_of_a_user_namespace_and_may_make_a_lab():
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", AS_NOBODY]
    shown = subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == ["0 0 deny", "True"]


def test_the_program_runs_through_the_user_namespace_with_its_own_arguments():
    shown = subprocess.run(
        superuser.through_user_namespace(["cat", "/proc/self/uid_map"]), capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["0", str(os.geteuid()), "1"]


def test_root_has_no_need_of_it():
    assert os.geteuid() != 0 or not superuser.may_become_superuser()
