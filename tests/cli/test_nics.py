"""``r2ccl nics``: which NICs would be used, why others would not, and what is known of each."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from r2ccl.cli.main import app
from r2ccl.cli.nics import gather_nics, shown_nics
from r2ccl.transport import nics as choosing
from r2ccl.transport.nic_facts import NicFacts
from r2ccl.transport.nics import Interface

FACTS = {
    "eth0": NicFacts("eth0", True, True, 25_000, 9000, "02:00:00:00:00:01", (("10.0.0.1", 24),),
                     "mlx5_core", "0000:3b:00.0", 1),
    "eth1": NicFacts("eth1", True, True, 0, 1500, "02:00:00:00:00:02", (("10.0.1.1", 24),), "virtio_net"),
    "eth2": NicFacts("eth2", True, False, 0, 1500),
    "docker0": NicFacts("docker0", True, True, 0, 1500, driver="bridge"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two NICs, one without an address, and a bridge."""
    found = [
        Interface("eth0", ("10.0.0.1",), speed_mbit_s=25_000, mtu_bytes=9000),
        Interface("eth1", ("10.0.1.1",)),
        Interface("eth2", ()),
        Interface("docker0", ("172.17.0.1",), kind="bridge"),
    ]
    monkeypatch.setattr(choosing, "discover", lambda: found)


def test_those_that_are_used_and_those_that_are_not_are_told() -> None:
    told = gather_nics({}, FACTS)
    assert told["error"] is None
    assert told["nics"][0] == {
        "nic": "nic0", "device": "eth0", "address": "10.0.0.1", "spare": False, "state": "up", "speed_mbit_s": 25_000,
        "mtu_bytes": 9000, "mac": "02:00:00:00:00:01", "networks": ["10.0.0.1/24"], "driver": "mlx5_core",
        "bus_address": "0000:3b:00.0", "numa_node": 1, "switched_on": True, "has_carrier": True,
        "answers_for_itself": True,
    }  # fmt: skip
    assert [nic["device"] for nic in told["nics"]] == ["eth0", "eth1"]
    assert [(out["device"], out["state"], out["reason"]) for out in told["left_out"]] == [
        ("eth2", "no carrier", "no IPv4 address"),
        ("docker0", "up", "a bridge"),
    ]


def test_settings_are_heeded() -> None:
    told = gather_nics({"R2CCL_NICS": "eth1,eth0", "R2CCL_SPARE_NICS": "eth0", "R2CCL_NIC_SPEED": "400"}, FACTS)
    assert [(nic["nic"], nic["device"], nic["spare"], nic["speed_mbit_s"]) for nic in told["nics"]] == [
        ("nic0", "eth1", False, 400),
        ("nic1", "eth0", True, 400),
    ]


def test_lines_tell_a_person() -> None:
    lines = shown_nics(gather_nics({}, FACTS))
    assert lines[0].split("  ")[0] == "NIC"
    assert lines[1].split() == [
        "nic0", "eth0", "10.0.0.1", "up", "25000", "Mbit/s", "9000", "mlx5_core", "0000:3b:00.0", "1", "carries",
    ]  # fmt: skip
    assert lines[2].split() == ["nic1", "eth1", "10.0.1.1", "up", "unknown", "1500", "virtio_net", "-", "-", "carries"]
    assert lines[4] == "left out:"
    assert lines[-1].endswith("a bridge")


def test_where_no_rank_could_start_that_is_said_beside_what_there_is() -> None:
    told = gather_nics({"R2CCL_NICS": "eth7"}, FACTS)
    assert "there is no NIC 'eth7'" in told["error"]
    assert [out["device"] for out in told["left_out"]] == ["eth0", "eth1", "eth2", "docker0"]
    assert shown_nics(told)[0].startswith("no rank could start here: R2CCL_NICS: there is no NIC 'eth7'")


@pytest.mark.parametrize(("nics", "code"), [("eth0", 0), ("eth7", 2)])
def test_the_command_prints_json_and_its_exit_code_says_whether_a_rank_could_start(
    nics: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2CCL_NICS", nics)
    done = CliRunner().invoke(app, ["nics", "--json"])
    assert done.exit_code == code, done.output
    assert bool(json.loads(done.stdout)["error"]) is bool(code)


def test_its_help_has_examples() -> None:
    done = CliRunner().invoke(app, ["nics", "--help"])
    assert done.exit_code == 0
    assert "r2ccl nics --json" in done.stdout
