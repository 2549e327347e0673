"""``r2ccl topology-check`` over emulated hosts: what is broken is found and named, and the exit code says so."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from r2ccl.lab import Lab, faults
from tests.end_to_end.ranks import ROOT, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.namespaces]

CHECK = [sys.executable, "-m", "r2ccl.cli.topology_check"]
PATIENCE_S = 120.0
#: Rates are measured in one test; elsewhere they would take time and find nothing.
QUICK = ("--json", "--no-rate", "--timeout", "60")


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Three hosts, two rails, 500 Mbit/s."""
    with Lab(hosts=3, nics=2, rate_mbit_s=500) as opened:
        yield opened


class Checks:
    """One process on each host."""

    def __init__(
        self,
        lab: Lab,
        directory: Path,
        arguments: Sequence[str] = QUICK,
        hosts: Sequence[int] = (0, 1, 2),
        command: Sequence[str] = CHECK,
    ) -> None:
        self._logs = {host: directory / f"check{host}.log" for host in hosts}
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for host in hosts:
            with self._logs[host].open("w") as log:
                self.processes[host] = lab.popen(
                    host,
                    [*command, *arguments],
                    {"PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )

    def said(self, host: int) -> str:
        """To stderr."""
        return self._logs[host].read_text()

    def end(self) -> tuple[dict[int, int], str]:
        """Exit codes, and what rank 0 printed. The others print nothing."""
        printed: dict[int, str] = {}
        for host, process in self.processes.items():
            printed[host], _ = process.communicate(timeout=PATIENCE_S)
        print("".join(self.said(host) for host in self.processes))
        assert not any(text for host, text in printed.items() if host != 0)
        return {host: process.returncode for host, process in self.processes.items()}, printed[0]


def check(lab: Lab, directory: Path, arguments: Sequence[str] = QUICK, **options: Any) -> dict[str, Any]:
    """What rank 0 told, after all ended with the same code."""
    codes, printed = Checks(lab, directory, arguments, **options).end()
    told: dict[str, Any] = json.loads(printed)
    print(json.dumps(told["findings"], indent=2))
    assert set(codes.values()) == {told["exit_code"]}
    return told


def problems(told: dict[str, Any]) -> dict[str, list[str]]:
    """Texts by kind."""
    found: dict[str, list[str]] = {}
    for finding in told["findings"]:
        if finding["problem"]:
            found.setdefault(finding["kind"], []).append(finding["text"])
    return found


def survived(told: dict[str, Any]) -> dict[str, str]:
    return {each["loss"]: each["verdict"] for each in told["survival"]}


def on_switch(lab: Lab, host: int, nic: int, **what: Any) -> None:
    """Change the far end of a NIC's wire."""
    switch, port = lab._the_switch, lab._ports[host, nic]
    switch.call(switch.netlink.link, "set", index=port.switch_index, **what)


def set_address(lab: Lab, host: int, nic: int, address: str) -> None:
    lab.take_address(host, nic)
    faults.give_address(lab._ports[host, nic], address)


def test_a_healthy_network_is_fine_and_everything_is_told(lab: Lab, tmp_path: Path) -> None:
    told = check(lab, tmp_path, ("--json", "--timeout", "60"))
    assert told["exit_code"] == 0
    assert problems(told) == {}
    assert told["rails_symmetric"] == {"nic0": True, "nic1": True}
    reached = {
        (each["source"], each["source_nic"], each["target"], each["target_nic"]): each["outcome"]
        for each in told["reach"]
    }
    assert len(reached) == 6 * 4
    # Rails are networks of their own: NIC 0 reaches NIC 0, and nothing else.
    assert {key for key, outcome in reached.items() if outcome == "reached"} == {
        key for key in reached if key[1] == key[3]
    }
    assert all(each["connect_median_s"] > 0 for each in told["reach"] if each["outcome"] == "reached")
    assert {(each["interface_bytes"], each["path_bytes"]) for each in told["mtu"]} == {(1500, 1500)}
    assert len(told["rates"]) == 6
    # Never more than the shaped rate, with room for the bucket's burst.
    assert all(0 < each["bytes_s"] * 8e-6 < 700 for each in told["rates"])
    assert [clock["rank"] for clock in told["clocks"]] == [1, 2]
    # One machine has one clock.
    assert all(abs(clock["offset_s"]) <= clock["uncertainty_s"] + 0.001 for clock in told["clocks"])
    assert set(survived(told).values()) == {"yes"}
    nics = [nic for host in told["hosts"] for nic in host["nics"]]
    assert {(nic["driver"], nic["speed_mbit_s"], nic["mtu_bytes"], nic["up"]) for nic in nics} == {
        ("veth", 500, 1500, True)
    }
    assert {nic["prefix_length"] for nic in nics} == {24}


def test_a_link_that_is_down_is_named_and_so_is_what_is_no_longer_survived(lab: Lab, tmp_path: Path) -> None:
    lab.link_down(1, 1)
    wait_until(lambda: not lab.has_carrier(1, 1), "the carrier to go")
    told = check(lab, tmp_path)
    assert told["exit_code"] == 1
    found = problems(told)
    assert set(found) == {"nic-down", "not-survived"}
    assert found["nic-down"] == ["rank 1 nic1 (nic1) is down or has no carrier: cable, switch port, `ip link`"]
    assert told["rails_symmetric"] == {"nic0": True, "nic1": False}
    verdicts = survived(told)
    assert verdicts["rank 1 nic0 (nic0)"] == "no"
    assert verdicts["rank 1 nic1 (nic1)"] == "yes"
    assert verdicts["rank 0 nic0 (nic0)"] == "by relay"
    (because,) = [each["because"] for each in told["survival"] if each["loss"] == "rank 1 nic0 (nic0)"]
    assert because == "because rank 0 reaches rank 1, rank 1 reaches rank 2 only by it"


def test_a_nic_that_is_silent_though_up_reaches_nobody(lab: Lab, tmp_path: Path) -> None:
    lab.silent_drop(2, 1)
    told = check(lab, tmp_path)
    assert told["exit_code"] == 1
    assert problems(told)["nic-alone"] == ["rank 2 nic1 (nic1) reaches no NIC of its rail, and none reaches it"]


def test_a_smaller_mtu_in_between_is_found_with_both_values(lab: Lab, tmp_path: Path) -> None:
    on_switch(lab, 1, 1, mtu=1400)
    told = check(lab, tmp_path)
    assert told["exit_code"] == 1
    found = problems(told)
    assert set(found) == {"mtu-black-hole"}
    text = " ".join(found["mtu-black-hole"])
    assert "interface MTU 1500, path MTU 1400: larger packets vanish without a word" in text
    small = {(each["source"], each["target"]) for each in told["mtu"] if each["path_bytes"] < 1500}
    assert small == {(0, 1), (2, 1), (1, 0), (1, 2)}
    assert {each["source_nic"] for each in told["mtu"] if each["path_bytes"] < 1500} == {1}
    # Small packets pass, so everything but the probe of sizes finds the NIC in order.
    assert told["rails_symmetric"] == {"nic0": True, "nic1": True}


def test_a_router_that_says_that_packets_are_too_large_does_no_harm(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2, rate_mbit_s=500, router=True) as lab:
        (router,) = lab._routers
        for rail in range(2):
            router.call(router.netlink.link, "set", index=router.index_of(f"rail{rail}"), mtu=1300)
        told = check(lab, tmp_path, hosts=(0, 1))
    assert told["exit_code"] == 0
    assert {each["outcome"] for each in told["reach"]} == {"reached"}
    by_rails = {(each["source_nic"] == each["target_nic"], each["path_bytes"], each["told"]) for each in told["mtu"]}
    assert by_rails == {(True, 1500, False), (False, 1300, True)}
    (finding,) = told["findings"]
    assert (finding["kind"], finding["problem"]) == ("mtu-reduced", False)
    assert "interface MTU 1500, path MTU 1300" in finding["text"]


def test_an_address_that_two_hosts_have_is_found(lab: Lab, tmp_path: Path) -> None:
    set_address(lab, 2, 1, lab.address(1, 1))
    told = check(lab, tmp_path)
    assert told["exit_code"] == 1
    (text,) = problems(told)["duplicate-address"]
    assert text.startswith("rank 1 nic1 (nic1) and rank 2 nic1 (nic1) both have the address 10.200.1.2: ")


@pytest.mark.parametrize(("arp_ignore", "is_problem"), [(1, False), (0, True)])
def test_two_nics_in_one_subnet_are_a_problem_where_they_answer_for_each_other(
    arp_ignore: int, is_problem: bool, lab: Lab, tmp_path: Path
) -> None:
    for host in range(3):
        set_address(lab, host, 1, f"10.200.0.{101 + host}")
        faults.rewire(lab._the_switch, lab._ports[host, 1], lab._ports[host, 0].bridge_index)
        lab.call(host, Path("/proc/sys/net/ipv4/conf/all/arp_ignore").write_text, str(arp_ignore))
    told = check(lab, tmp_path)
    shared = [finding for finding in told["findings"] if finding["kind"] == "shared-subnet"]
    assert len(shared) == 3
    assert {finding["problem"] for finding in shared} == {is_problem}
    assert "nic0 (10.200.0.1) and nic1 (10.200.0.101) are in one subnet, 10.200.0.0/24" in shared[0]["text"]
    assert told["exit_code"] == int(is_problem)


def test_hosts_with_other_orders_of_nics_are_told_so(lab: Lab, tmp_path: Path) -> None:
    one, other = lab._ports[2, 0], lab._ports[2, 1]
    # As if R2CCL_NICS named them the other way round: each NIC of host 2 is on the other's rail.
    for port, bridge, address in ((one, other.bridge_index, "10.200.1.3"), (other, one.bridge_index, "10.200.0.3")):
        faults.rewire(lab._the_switch, port, bridge)
        set_address(lab, 2, 0 if port is one else 1, address)
    told = check(lab, tmp_path)
    found = problems(told)
    assert any("it reaches nic1 of others, so the order of NICs differs" in text for text in found["nic-alone"])
    assert told["exit_code"] == 1


def test_a_host_that_does_not_come_is_named_after_the_time_limit(lab: Lab, tmp_path: Path) -> None:
    checks = Checks(lab, tmp_path, ("--json", "--timeout", "5"), hosts=(0, 1))
    codes, printed = checks.end()
    assert codes == {0: 2, 1: 2}
    assert json.loads(printed) == {"exit_code": 2, "error": "rank 2 did not come within 5 s"}
    assert "rank 0 could not check: rank 2 did not come within 5 s" in checks.said(0)
    assert "rank 2 did not come" in checks.said(1)


def test_a_host_that_leaves_in_the_middle_is_named(lab: Lab, tmp_path: Path) -> None:
    checks = Checks(lab, tmp_path, ("--rate-seconds", "20"))
    wait_until(lambda: "measuring nic0" in checks.said(0), "the measurement", PATIENCE_S)
    checks.processes[2].send_signal(signal.SIGKILL)
    codes, printed = checks.end()
    assert (codes[0], codes[1]) == (2, 2)
    assert printed == ""
    assert "rank 0 could not check: rank 2, while measuring nic0: " in checks.said(0)


def test_a_rank_with_another_secret_is_refused(lab: Lab, tmp_path: Path) -> None:
    with (tmp_path / "stranger.log").open("w") as log:
        stranger = lab.popen(
            2,
            [*CHECK, *QUICK],
            {"PYTHONPATH": str(ROOT), "R2CCL_SECRET": "another"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    codes, printed = Checks(lab, tmp_path, hosts=(0, 1)).end()
    assert codes == {0: 2, 1: 2}
    assert "does not know the job's secret" in json.loads(printed)["error"]
    assert stranger.wait(PATIENCE_S) == 2
    assert "does not know the job's secret" in (tmp_path / "stranger.log").read_text()


def test_it_needs_no_root(lab: Lab, tmp_path: Path) -> None:
    setpriv = shutil.which("setpriv")
    assert setpriv is not None, "util-linux"
    # A home of root's is none that this user may look into. This checkout and its Python may lie where only root may
    # read: to read there is the one thing that it keeps.
    plain = [
        "env",
        "HOME=/",
        setpriv,
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=-all,+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    ]
    told = check(lab, tmp_path, command=[*plain, *CHECK])
    assert told["exit_code"] == 0
    assert {each["path_bytes"] for each in told["mtu"]} == {1500}


def test_ping_tells_which_nic_gets_no_answer(lab: Lab, tmp_path: Path) -> None:
    def ping(host: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "r2ccl.cli.main", "ping", host, "--count", "3", "--interval", "0.01", "--json"]
        process = lab.popen(0, command, {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
        printed, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, json.loads(printed)

    lab.silent_drop(1, 0)
    code, told = ping(lab.address(1, 0))
    assert code == 1
    assert [(nic["device"], nic["answered"], nic["loss"]) for nic in told["nics"]] == [
        ("nic0", 0, 1.0),
        ("nic1", 0, 1.0),
    ]
    code, told = ping(lab.address(2, 0))
    assert code == 1, "NIC 1 is on another network"
    first, second = told["nics"]
    assert (first["answered"], first["loss"]) == (3, 0.0)
    assert 0 < first["rtt_min_s"] <= first["rtt_median_s"] <= first["rtt_max_s"]
    assert second["answered"] == 0
    assert second["trouble"]


def test_nics_of_a_host_are_told_with_what_they_are(lab: Lab) -> None:
    command = [sys.executable, "-m", "r2ccl.cli.main", "nics", "--json"]
    process = lab.popen(0, command, {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    told = json.loads(printed)
    assert [(nic["nic"], nic["device"], nic["address"], nic["state"], nic["driver"]) for nic in told["nics"]] == [
        ("nic0", "nic0", "10.200.0.1", "up", "veth"),
        ("nic1", "nic1", "10.200.1.1", "up", "veth"),
    ]
    assert [(out["device"], out["reason"]) for out in told["left_out"]] == [("lo", "not named by R2CCL_NICS")]
