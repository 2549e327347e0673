"""``r2ccl fault-inject``: what is understood, and what is said of what is not. Nothing here touches an interface."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from r2ccl.cli import fault_inject, fault_inject_targets
from r2ccl.cli.fault_inject_targets import lab_place
from r2ccl.cli.main import app
from r2ccl.config import environment
from r2ccl.errors import R2cclError, UsageError
from r2ccl.protocol.fault_kinds import Direction, Kind

ROOT = Path(__file__).parents[2]


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the command would do."""
    calls: list[Any] = []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(fault_inject_targets, "act", lambda *arguments: calls.append(arguments))
    return calls


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, ["fault-inject", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_kind_target_value_and_options_are_understood(acted: list[Any]) -> None:
    invoke("loss", "eth7", "5%", "--for", "2m", "--direction", "in", "--yes")
    (asked, target, options, *_) = acted[0]
    assert (asked.kind, asked.value, asked.direction, target) == (Kind.LOSS, 0.05, Direction.IN, "eth7")
    assert (options.for_s, options.yes, options.stay, options.force, options.dry_run) == (
        120,
        True,
        False,
        False,
        False,
    )


def test_kind_and_target_may_come_in_either_order(acted: list[Any]) -> None:
    invoke("job:train/1/nic0", "silent-drop", "--for", "1s")
    invoke("silent-drop", "job:train/1/nic0", "--for", "1s")
    assert acted[0][:3] == acted[1][:3]


def test_a_flap_has_a_pattern_and_turns(acted: list[Any]) -> None:
    invoke("flap", "eth7", "--pattern", "0.1s down, 0.4s up", "--times", "20", "--with", "silent-drop")
    asked = acted[0][0]
    assert (asked.times, asked.flapping, asked.seconds) == (20, Kind.SILENT_DROP, pytest.approx(10))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["silent-drop"], "needs KIND and TARGET"),
        (["melt", "eth7"], "no kind of fault; there are link-down"),
        (["loss", "eth7"], "needs a value, such as 5%"),
        (["loss", "eth7", "much"], "write 5%"),
        (["silent-drop", "eth7", "5%"], "takes no value"),
        (["silent-drop", "eth7", "--for", "soon"], "write 10s"),
        (["flap", "eth7"], "pattern such as"),
        (["flap", "eth7", "--pattern", "1s down", "--stay"], "cannot stay"),
        (["kill", "pid:7", "--for", "1s"], "leave out --for"),
        (["link-down", "eth7", "--direction", "in"], "knows no direction"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(words: list[str], why: str, acted: list[Any]) -> None:
    with pytest.raises(UsageError, match=why):
        invoke(*words)
    assert acted == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["silent-drop", "pid:1"], "not to a process"),
        (["stop", "eth7"], "pid:NUMBER"),
        (["stop", "pid:x"], "write pid:4711"),
        (["silent-drop", "no-such-nic", "--yes"], "no interface 'no-such-nic'"),
        (["silent-drop", "lab:demo"], "lab:NAME/HOST/NIC"),
        (["silent-drop", "lab:demo/h0/nic0"], "demo"),
        (["silent-drop", "job:nobody-has-this-name"], "R2CCL_FAULT_INJECTION=1"),
        (["silent-drop", "job:x", "--direction", "in"], "no direction"),
        (["undo", "cafe"], "no fault 'cafe'"),
    ],
)
def test_a_target_that_does_not_fit_or_is_not_there_is_named(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(R2cclError, match=why):
        invoke(*words)


@pytest.mark.parametrize("text", ["demo", "demo/h0", "/h0/nic0", "demo//nic0", "demo/h0/"])
def test_a_labs_nic_needs_three_names(text: str) -> None:
    with pytest.raises(UsageError, match="lab:demo/h0/nic1"):
        lab_place(text, Kind.LOSS)


def test_the_list_has_every_kind_and_what_is_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    told = json.loads(invoke("--list", "--json"))
    assert [row["kind"] for row in told["kinds"]] == list(Kind)
    assert all(row["layer"] and row["reach"] and row["undo"] for row in told["kinds"])
    assert told["in_force"] == []
    text = invoke("--list")
    assert "in force, or left behind: nothing" in text
    assert all(f"{kind}" in text for kind in Kind)


def test_undo_all_with_nothing_to_undo_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert invoke("undo", "all") == "nothing is in force\n"


def test_the_secret_is_no_argument() -> None:
    result = CliRunner().invoke(app, ["fault-inject", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "--secret" not in result.output


def test_there_is_a_console_script_of_the_same_name() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["r2ccl_fault_inject"] == "r2ccl.cli.fault_inject:main"
    code = (
        "import sys; sys.argv = ['r2ccl_fault_inject', 'melt', 'eth7']; from r2ccl.cli.fault_inject import main; main()"
    )
    environ = {**environment(), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert (ran.returncode, ran.stderr[:17]) == (2, "r2ccl: 'melt' is ")
    assert fault_inject.main.__doc__
