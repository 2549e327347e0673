"""``r2ccl lab`` without any lab: what is refused, what ranks are told, what is printed."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from r2ccl.cli import lab_bench, lab_run, lab_up
from r2ccl.cli.bench_options import Asked, check
from r2ccl.cli.bench_report import Row, Spread, Timing, Traffic
from r2ccl.cli.lab import described
from r2ccl.cli.main import app
from r2ccl.errors import UsageError
from r2ccl.lab import registry
from r2ccl.lab.control import Entrance, HostReport, LabReport, NicReport
from r2ccl.lab.leftovers import MARK_VARIABLE


def nic_report(host: int, nic: int, faults: tuple[str, ...] = ()) -> NicReport:
    return NicReport(f"nic{nic}", f"10.200.{nic}.{host + 1}", 2000.0, not faults, "down" if faults else "up", faults)


def report() -> LabReport:
    """Three hosts, two NICs each, one of them down."""
    hosts = []
    for host in range(3):
        namespaces = (f"/proc/9/task/{host}/ns/net", f"/proc/9/task/{host}/ns/mnt")
        hosts.append(HostReport(f"h{host}", namespaces, (nic_report(host, 0), nic_report(host, 1))))
    hosts[1] = dataclasses.replace(hosts[1], nics=(nic_report(1, 0, ("link-down",)), nic_report(1, 1)))
    return LabReport("lab", 9, "rails", 2000.0, tuple(hosts), "/proc/9/task/8/ns/net", ("on h0: sleep 1",))


ENTRANCE = Entrance(report(), "9-1-abc", 4711)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"hosts": 3, "nics": None}, (2, 0)),
        ({"hosts": 1, "nics": 4, "routed": True}, (4, 0)),
        ({"hosts": 3, "nics": None, "leaf_spine": True}, (1, 2)),
        ({"hosts": 3, "nics": 1, "leaf_spine": True, "spines": 4}, (1, 4)),
    ],
)
def test_a_lab_has_two_nics_a_host_or_one_behind_a_leaf(asked: dict[str, Any], expected: tuple[int, int]):
    assert lab_up.layout(**{"routed": False, "leaf_spine": False, "spines": 2, **asked}) == expected


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"hosts": 0}, "at least one"),
        ({"nics": 0}, "at least one"),
        ({"hosts": 200, "nics": 6}, "up to 1024"),
        ({"routed": True, "leaf_spine": True}, "take one of them"),
        ({"nics": 2, "leaf_spine": True}, "leave --nics out"),
        ({"leaf_spine": True, "spines": 0}, "1 to 250 spines"),
        ({"hosts": 61, "leaf_spine": True}, "up to 60 hosts"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(asked: dict[str, Any], complaint: str):
    with pytest.raises(UsageError, match=complaint):
        lab_up.layout(**{"hosts": 3, "nics": None, "routed": False, "leaf_spine": False, "spines": 2, **asked})


def test_ranks_go_host_by_host_and_know_their_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "home", lambda: "labs")
    job = lab_run.new_lab_job(["train.py", "--epochs", "3"], 2, ENTRANCE, "lab")
    assert job.ranks == 6
    inherited = {"HOME": "/root", "RANK": "9", "R2CCL_NICS": "eth0", "R2CCL_SECRET_FILE": "old"}
    environ = job.environment(inherited, 3)
    assert environ == {
        "HOME": "/root", "RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "h0", "MASTER_PORT": "4711", "R2CCL_JOB": job.name, "R2CCL_SECRET": job.secret,
        "R2CCL_NICS": "nic0,nic1", "R2CCL_NIC_SPEED": "2000", "PYTHONUNBUFFERED": "1", MARK_VARIABLE: "9-1-abc",
        registry.NAME_VARIABLE: "lab", registry.DIRECTORY_VARIABLE: "labs",
    }  # fmt: skip
    hosts_entered = [job.program(rank)[5].split("/")[4] for rank in range(6)]
    assert hosts_entered == ["0", "0", "1", "1", "2", "2"]
    program = job.program(0)
    assert program[4] == str(os.getpid())
    assert program[program.index("--") + 2 :] == ("train.py", "--epochs", "3")


def test_each_job_has_a_secret_of_its_own_that_is_not_shown():
    one, other = (lab_run.new_lab_job(["true"], 1, ENTRANCE, "lab") for _ in range(2))
    assert one.secret != other.secret
    assert len(one.secret) == 64
    assert one.secret not in repr(one)
    assert one.secret not in " ".join(one.program(0))


def test_a_job_needs_a_program_and_not_too_many_ranks():
    with pytest.raises(UsageError, match="no program to run"):
        lab_run.new_lab_job([], 1, ENTRANCE, "lab")
    with pytest.raises(UsageError, match="1 to 4096"):
        lab_run.new_lab_job(["true"], 2000, ENTRANCE, "lab")


def test_a_lab_is_shown_as_a_table():
    assert described(report()) == [
        "lab: 3 hosts with 2 NICs, rails, held by process 9",
        "host  NIC   address     rate   link  faults",
        "h0    nic0  10.200.0.1  2gbit  up",
        "h0    nic1  10.200.1.1  2gbit  up",
        "h1    nic0  10.200.0.2  2gbit  down  link-down",
        "h1    nic1  10.200.1.2  2gbit  up",
        "h2    nic0  10.200.0.3  2gbit  up",
        "h2    nic1  10.200.1.3  2gbit  up",
        "runs: on h0: sleep 1",
    ]


def test_the_bench_compares_with_the_mean_of_the_streams_before_and_after():
    options = check(Asked("all_reduce", 3, "3M", "3M", nics_per_rank=2))
    time_s = Spread.of([0.02])
    row = Row(3_000_000, 750_000, 10, {form: Timing(time_s, 0) for form in options.collective.forms})
    measured = lab_bench.Measured([row], Traffic({"nic0": 300, "nic1": 100}, 7, 1), (3.0, 1.0))
    # 3 MB in 20 ms, and in a ring of three each host sends 4/3 of it: 200 MB/s, 1.6 Gbit/s.
    assert lab_bench.lines(options, measured)[-2:] == [
        "     3000000     20000.0     1.600      0  80.0%",
        "# sent by nic0 75.0%, nic1 25.0%; resent 7 bytes, 1 failovers",
    ]
    shown = lab_bench.as_json(options, measured)
    assert shown["rows"][0]["of_streams"] == pytest.approx(0.8)
    assert shown["streams_gbit_s"] == {"before": 3.0, "after": 1.0}
    assert (shown["hosts"], shown["nics"], shown["resent_bytes"], shown["failovers"]) == (3, 2, 7, 1)


def test_the_bench_needs_every_nic_for_its_streams():
    whole = dataclasses.replace(report(), hosts=(report().hosts[0], report().hosts[2]))
    lab_bench.refuse_dead_nics(whole, "lab")
    with pytest.raises(UsageError, match="h1 nic0 is down.*r2ccl lab fault --name lab heal"):
        lab_bench.refuse_dead_nics(report(), "lab")


@pytest.mark.parametrize("command", ["up", "run", "ssh", "status", "down", "fault", "bench"])
def test_every_command_has_help(command: str):
    shown = CliRunner().invoke(app, ["lab", command, "--help"])
    assert shown.exit_code == 0
    assert "Usage:" in shown.output
