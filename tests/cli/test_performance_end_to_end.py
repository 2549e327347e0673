"""``r2ccl performance`` with real ranks and tiny sizes: every part ends, right, with a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from r2ccl.cli import performance
from r2ccl.cli import performance_parts as parts
from r2ccl.cli.main import app
from r2ccl.cli.performance_parts import KIB, Scale

pytestmark = pytest.mark.end_to_end

TINY = Scale(
    sizes=(4, 64 * KIB), rounds=2, seconds=0.01, server_bytes=32 << 20, server_iterations=3, server_rounds=2,
    small_operations=256, lab_sizes=(64 * KIB,), lab_seconds=0.01, price_sizes=(64 * KIB,), price_rounds=2,
    price_seconds=0.01,
)  # fmt: skip


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(performance, "QUICK", TINY)
    return CliRunner()


def told(runner: CliRunner, key: str, *arguments: str) -> Any:
    ended = runner.invoke(app, ["performance", key, "--quick", "--json", *arguments], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)
    assert list(result["parts"]) == [key]
    assert result["wrong"] == 0
    return result


def sides(result: Any, key: str) -> set[str]:
    return {one["side"] for one in result["parts"][key]["measured"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("key", "floor"), [(parts.TCP_2, parts.EXCHANGE), (parts.TCP_4, parts.EXCHANGE), (parts.MEMORY_2, parts.MEMCPY)]
)
def test_ranks_of_all_kinds_take_turns(tiny: CliRunner, key: str, floor: str):
    # Here is no torch, which is said; Open MPI is among the tools for tests.
    result = told(tiny, key, "--torch-python", "/nowhere/python")
    ours = {parts.OURS, parts.THREAD} if key != parts.MEMORY_2 else {parts.SHARED, parts.SHARED_THREAD}
    assert sides(result, key) == ours | {parts.OPENMPI, floor}
    assert result["left_out"] == {f"gloo in {key}": "there is no interpreter /nowhere/python"}
    for one in result["parts"][key]["measured"]:
        assert len(one["times_s"]) == len(one["cpu_s"]) == 2
        assert all(time_s > 0 for time_s in one["times_s"])
        assert (one["wrong"] is None) == (one["side"] == floor)
    assert all(goal["found"] for goal in result["goals"])


@pytest.mark.timeout(300)
def test_a_ticker_runs_beside_large_operations_in_all_ways_and_beside_plain_sockets(tiny: CliRunner):
    measured = told(tiny, parts.SERVER)["parts"][parts.SERVER]["measured"]
    ours = [parts.OURS, parts.THREAD, parts.SHARED, parts.SHARED_THREAD]
    assert [one["side"] for one in measured] == [*ours, parts.EXCHANGE]
    assert all(gap_s >= parts.TICK_S * 0.5 for one in measured for gap_s in one["gaps_s"])
    assert sum(len(one["gaps_s"]) for one in measured) > 0


@pytest.mark.timeout(300)
def test_small_operations_go_in_windows_and_all_are_checked(tiny: CliRunner):
    result = told(tiny, parts.SMALL, "--torch-python", "/nowhere/python")
    assert sides(result, parts.SMALL) == {parts.OURS, parts.THREAD, parts.SHARED, parts.OPENMPI}
    assert {one["wrong"] for one in result["parts"][parts.SMALL]["measured"]} == {0}


@pytest.mark.timeout(300)
@pytest.mark.namespaces
def test_between_emulated_hosts_everybody_finds_everybody(tiny: CliRunner, tmp_path: Path):
    page, keep = tmp_path / "page.md", tmp_path / "keep.json"
    where = ["--write", str(page), "--plots", str(tmp_path), "--keep", str(keep)]
    ended = tiny.invoke(app, ["performance", "lab,price", "--quick", *where, "--torch-python", "/nowhere/python"])
    assert ended.exit_code == 0, ended.output
    kept = json.loads(keep.read_text())
    assert {parts.OURS, parts.STREAMS, parts.OPENMPI} <= sides(kept, parts.LAB)
    assert sides(kept, parts.PRICE) == {parts.OURS, parts.UNCHECKED, parts.DOUBLED}
    text = page.read_text()
    assert re.search(r"^\| 64 KiB \|", text, re.MULTILINE)
    assert "(performance-lab.svg)" in text
    assert (tmp_path / "performance-lab.svg").exists()
    # Nothing is left to do, so nothing is started.
    before = page.read_text()
    assert tiny.invoke(app, ["performance", "lab,price", "--quick", *where]).exit_code == 0
    assert page.read_text().partition("##")[2] == before.partition("##")[2]


@pytest.mark.timeout(300)
@pytest.mark.torchrun
def test_gloo_takes_turns_in_windows_too(tiny: CliRunner, torchrun: str):
    python = str(Path(torchrun).with_name("python"))
    result = told(tiny, parts.SMALL, "--torch-python", python)
    assert parts.GLOO in sides(result, parts.SMALL)
    assert {one["wrong"] for one in result["parts"][parts.SMALL]["measured"]} == {0}
