"""``r2ccl info``: every setting with value, origin and meaning, the NICs, and what bounds the memory."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from r2ccl._version import __version__
from r2ccl.cli.info import gather, memory_bound, show
from r2ccl.cli.main import app
from r2ccl.config import Settings
from r2ccl.reduction import kernel_name
from r2ccl.transport.node_identity import node_id

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def printed(gathered: dict[str, Any], terminal: bool) -> str:
    stream = io.StringIO()
    show(gathered, Console(file=stream, force_terminal=terminal, width=200, color_system=None))
    return stream.getvalue()


def test_every_setting_is_told_with_value_unit_origin_and_meaning() -> None:
    told = gather({"R2CCL_CHUNK_BYTES": "65536", "R2CCL_NICS": "lo"})["settings"]
    assert list(told) == list(FIELDS)
    assert told["chunk_bytes"] == {
        "value": 65536,
        "unit": "bytes",
        "origin": "environment R2CCL_CHUNK_BYTES",
        "variable": "R2CCL_CHUNK_BYTES",
        "meaning": FIELDS["chunk_bytes"].metadata["why"],
    }
    assert (told["timeout_s"]["value"], told["timeout_s"]["origin"]) == (0.0, "default")


def test_it_says_what_it_runs_on() -> None:
    told = gather({})
    assert (told["r2ccl"], told["numpy"], told["reduction_kernel"]) == (__version__, np.__version__, kernel_name())
    assert told["node"] == node_id()
    assert told["python"].startswith("3.")
    assert told["uvloop"]
    assert gather({"R2CCL_NODE_ID": "rack-7"})["node"] == "rack-7"


@pytest.mark.parametrize(("environ", "shown"), [({}, "not set"), ({"R2CCL_SECRET": "swordfish"}, "set")])
def test_the_secret_is_never_told(environ: dict[str, str], shown: str) -> None:
    told = gather(environ)
    assert told["settings"]["secret"]["value"] == shown
    for text in (json.dumps(told), printed(told, True), printed(told, False)):
        assert "swordfish" not in text


def test_a_file_of_settings_is_named_and_so_is_what_is_no_setting(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("running_max = 3")
    told = gather({"R2CCL_CONFIG": str(file), "R2CCL_QUIETS": "1"})
    assert told["settings_file"] == str(file)
    assert (told["settings"]["running_max"]["value"], told["settings"]["running_max"]["origin"]) == (3, f"file {file}")
    assert told["warnings"] == ["R2CCL_QUIETS is not a setting; did you mean 'R2CCL_QUIET'?"]
    assert "warning: R2CCL_QUIETS is not a setting" in printed(told, False)


def test_the_nics_are_told_and_why_others_are_left_out() -> None:
    told = gather({"R2CCL_NICS": "lo", "R2CCL_NIC_SPEED": "25000", "RANK": "0", "WORLD_SIZE": "1"})
    assert [(nic["nic"], nic["device"], nic["speed_mbit_s"]) for nic in told["nics"]] == [("nic0", "lo", 25000)]
    assert told["nic_error"] is None
    assert all(out["reason"] == "not named by R2CCL_NICS" for out in told["left_out"])
    text = printed(told, False)
    assert "nic0  lo      127.0.0.1  25000 Mbit/s" in text
    for out in told["left_out"]:
        assert f"{out['device']}" in text


def test_lanes_over_one_nic_are_told_as_such_with_their_part_of_the_speed() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    told = gather({"R2CCL_NICS": "lo", "R2CCL_NIC_SPEED": "1000", "R2CCL_LANES_PER_NIC": "2", **alone})
    assert [(nic["nic"], nic["device"], nic["speed_mbit_s"]) for nic in told["nics"]] == [
        ("nic0", "lo", 500),
        ("nic1", "lo", 500),
    ]
    text = printed(told, False)
    assert "nic0  lo, lane 1 of 2  127.0.0.1  500 Mbit/s" in text
    assert "nic1  lo, lane 2 of 2  127.0.0.1  500 Mbit/s" in text


def test_nics_that_would_not_do_are_an_error_among_the_rest() -> None:
    told = gather({"R2CCL_NICS": "no-such-nic"})
    assert "there is no NIC 'no-such-nic'. There are: " in told["nic_error"]
    assert told["nics"] == []
    assert "NICs: R2CCL_NICS: there is no NIC 'no-such-nic'" in printed(told, False)


def test_the_bound_on_memory_is_told_with_its_formula_and_numbers() -> None:
    bound = memory_bound(1 << 20, 8)
    assert bound["bytes"] == 7 << 20
    assert bound["formula"] == (
        "peers x credit: for 8 ranks 7 x 1048576 = 7340032 bytes per rank; 4 x as much of peers on its machine"
    )
    assert bound["one_machine_bytes"] == 28 << 20
    assert gather({})["memory_bound"]["ranks"] == 8
    job = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert gather({**job, "R2CCL_CREDIT_BYTES": "1000"})["memory_bound"]["bytes"] == 2000


def test_a_pipe_gets_plain_lines_and_a_terminal_tables() -> None:
    told = gather({"R2CCL_JOB": "[bold]x[/bold]"})
    plain, tables = printed(told, False), printed(told, True)
    assert not set("─│┃") & set(plain)
    assert "┃" in tables
    for text in (plain, tables):
        assert "[bold]x[/bold]" in text, "what a person wrote is no markup"
        assert f"memory bound: {told['memory_bound']['formula']}" in text
        for name, field in FIELDS.items():
            assert name in text
            assert field.metadata["why"][:30] in text
    (line,) = [line for line in plain.splitlines() if line.startswith("credit_bytes")]
    assert line.split()[1:4] == ["1048576", "bytes", "default"]


def test_the_command_prints_json_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_QUIET", "0.5")
    done = CliRunner().invoke(app, ["info", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["settings"]["quiet_s"]["value"], told["settings"]["quiet_s"]["origin"]) == (
        0.5,
        "environment R2CCL_QUIET",
    )


def test_the_command_ends_with_2_where_no_rank_could_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_NICS", "no-such-nic")
    done = CliRunner().invoke(app, ["info"])
    assert done.exit_code == 2
    assert "no-such-nic" in done.stdout


def test_its_help_has_examples() -> None:
    done = CliRunner().invoke(app, ["info", "--help"])
    assert done.exit_code == 0
    assert "r2ccl info --json" in done.stdout


@pytest.mark.parametrize(
    ("environ", "readable", "way", "said"),
    [
        ({}, True, "lent", "lent: one rank reads the other's memory"),
        ({}, False, "ring", "ptrace_scope"),
        ({"R2CCL_SHARED_MEMORY": "off"}, True, "tcp", "by TCP"),
    ],
)
def test_it_says_how_large_chunks_go_between_ranks_of_this_machine(
    environ: dict[str, str], readable: bool, way: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("r2ccl.cli.info.others_may_read", lambda: readable)
    monkeypatch.setattr("r2ccl.cli.info.rings_work_here", lambda: True)
    told = gather(environ)
    assert told["large_chunks"] == way
    assert said in printed(told, False)
