"""``r2ccl soak``: what ranks say is compared, the report tells the truth, and the exit status follows it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from r2ccl.cli import soak, soak_lab, soak_plot, soak_report
from r2ccl.cli.bench_machine import machine
from r2ccl.cli.main import app
from r2ccl.errors import UsageError
from r2ccl.sim.gauges import Reading, Track
from r2ccl.sim.soaked import Soaked

RANKS = 3
LAB = (3, 2, 500.0)


def said(rounds: list[tuple[int, str]], *complaints: str, reading: Reading | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"complaints": list(complaints), "rounds": rounds, "failovers": 4}
    return told if reading is None else told | {"reading": reading.as_json()}


def track(leak: float = 0.0, seconds: int = 600) -> Track:
    found = Track("rank 0")
    for second in range(seconds):
        found.add(Reading(float(second), 9e7, 26.0 + leak * second, 3.0, 9.0, 5e4, Counter({"A.b": 4})))
    return found


def good() -> Soaked:
    return Soaked(600.0, 610.0, 50, 5000, Counter({"link-down": 7, "two-nics": 2}), 12, 1 << 20, [], "", [track()])


def leaking() -> Soaked:
    return Soaked(600.0, 610.0, 50, 5000, Counter({"deaf": 7}), 12, 1 << 20, [], "", [track(0.5)])


def wrong() -> Soaked:
    return Soaked(600.0, 610.0, 50, 5000, Counter({"deaf": 7}), 12, 0, ["rank 1 has 3 wrong"], "deaf rank1", [track()])


# What ranks say.


def test_rounds_that_end_alike_on_all_ranks_are_counted_in_whatever_order_they_are_told():
    soaked = Soaked()
    listener = soak_lab.Listener(soaked, RANKS, 100.0)
    listener.take(0, said([(0, "a"), (1, "b")]))
    listener.take(2, said([(0, "a")]))
    listener.take(1, said([(0, "a"), (1, "b")], reading=Reading(103.5, 1.0, 2.0, 3.0, 4.0, 5.0, Counter({"A.b": 6}))))
    assert soaked.rounds == 1
    listener.take(2, said([(1, "b")]))
    assert soaked.rounds == 2
    assert soaked.complaints == []
    assert listener.failovers() == 12
    assert list(soaked.tracks[1].measures["memory"].times_s) == [3.5]
    assert list(soaked.tracks[1].entries["A.b"].values) == [6.0]


def test_ranks_with_other_bits_than_the_others_are_found():
    soaked = Soaked()
    listener = soak_lab.Listener(soaked, RANKS, 0.0)
    for rank in range(RANKS):
        listener.take(rank, said([(0, "a" if rank else "c")]))
    (text,) = soaked.complaints
    assert "round 0" in text
    assert not soaked.is_good


def test_what_a_rank_found_wrong_is_kept_up_to_a_limit():
    soaked = Soaked()
    listener = soak_lab.Listener(soaked, RANKS, 0.0)
    for number in range(2 * soak_lab.COMPLAINTS_MAX):
        listener.take(0, said([], f"number {number}"))
    assert soaked.complaints[0] == "number 0"
    assert len(soaked.complaints) == soak_lab.COMPLAINTS_MAX


def test_ranks_that_stand_still_are_found():
    soaked = Soaked()
    listener = soak_lab.Listener(soaked, RANKS, 100.0)
    listener.count(5, 130.0)
    listener.count(5, 130.0 + soak_lab.STANDSTILL_S)
    assert soaked.complaints == []
    assert soaked.operations == 5
    listener.count(6, 131.0 + soak_lab.STANDSTILL_S)
    listener.count(6, 131.5 + 2 * soak_lab.STANDSTILL_S)
    (text,) = soaked.complaints
    assert "no operation" in text


# The report.


def page(**parts: Soaked) -> str:
    return soak_report.page(soak.titled(parts), machine(), "r2ccl soak", "images/soak.svg")


def test_the_report_of_a_good_soak_says_what_was_done_and_that_all_is_flat():
    text = page(lab=good(), virtual=good())
    assert text.count("nothing was wrong or lost; all that is judged is flat") == 2
    assert "## In the lab" in text
    assert "## In virtual time" in text
    assert "| link down at the far end: the carrier goes | 7 |" in text
    assert "| rank 0 | memory | 85.8 MiB | 85.8 MiB | 85.8 MiB | 0.0 MiB | 2.9 MiB | yes |" in text
    assert "(images/soak.svg)" in text
    assert "**no**" not in text


def test_the_report_names_what_grows_and_what_was_wrong_and_what_came_before():
    text = page(lab=leaking())
    assert "| rank 0 | descriptors | 41 |" in text
    assert "**no**" in text
    assert "descriptors grew by 150" in text
    text = page(lab=wrong())
    assert "    rank 1 has 3 wrong" in text
    assert "    deaf rank1" in text


def test_a_soak_that_is_too_short_is_said_to_be():
    assert "too short" in page(lab=Soaked(5.0, tracks=[track(seconds=3)]))


def test_the_picture_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "soak.svg"
    soak_plot.plot(file, soak.titled({"lab": good(), "virtual": good()}))
    assert file.read_text().count("memory, MiB") >= 1


# The command.


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def invoke(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, part: Soaked, *arguments: str) -> Any:
    monkeypatch.setattr(soak, "perform", lambda *_: {"virtual": part})
    return runner.invoke(app, ["soak", "--seconds", "0", "--virtual-seconds", "400", "--seed", "7", *arguments])


def test_a_good_soak_ends_with_0_and_prints_the_report(runner: CliRunner, monkeypatch: pytest.MonkeyPatch):
    result = invoke(runner, monkeypatch, good())
    assert result.exit_code == 0
    assert result.stdout.startswith("# Soak")
    assert "repeat:" not in result.stderr


@pytest.mark.parametrize("part", [leaking(), wrong()], ids=["leaking", "wrong"])
def test_a_bad_one_ends_with_1_and_says_how_to_repeat_it(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, part: Soaked
):
    result = invoke(runner, monkeypatch, part)
    assert result.exit_code == 1
    again = soak.repeat(7, 0.0, 400.0, LAB)
    assert f"repeat: {again}" in result.stderr
    assert "--seed 7" in again
    assert "--virtual-seconds 400" in again


def test_json_has_the_figures_and_no_report(runner: CliRunner, monkeypatch: pytest.MonkeyPatch):
    told = json.loads(invoke(runner, monkeypatch, leaking(), "--json").stdout)
    assert told["good"] is False
    assert told["seed"] == 7
    assert told["virtual"]["faults"] == {"deaf": 7}
    assert told["virtual"]["processes"]["rank 0"]["descriptors"]["flat"] is False
    assert told["virtual"]["processes"]["rank 0"]["memory"]["flat"] is True
    assert told["virtual"]["growing"]


def test_the_report_goes_where_it_is_wanted(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    result = invoke(runner, monkeypatch, good(), "--write", str(tmp_path / "soak.md"))
    assert result.stdout == ""
    assert (tmp_path / "soak.md").read_text().startswith("# Soak")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seconds", "0", "--virtual-seconds", "0"], "nothing to do"),
        (["--seconds", "0", "--nics", "1"], "would leave no path"),
        (["--seconds", "0", "--write", "/nowhere/at/all/soak.md"], "no directory"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_way_out(runner: CliRunner, arguments: list[str], says: str):
    result = runner.invoke(app, ["soak", *arguments])
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)


def test_where_no_lab_can_be_made_the_virtual_part_is_offered(runner: CliRunner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(soak, "why_not_namespaces", lambda: "not allowed")
    result = runner.invoke(app, ["soak"])
    assert "--seconds 0" in str(result.exception)


def test_where_nothing_can_lose_packets_it_is_said_before_and_not_in_the_middle(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(soak, "why_not_namespaces", lambda: "")
    monkeypatch.setattr("shutil.which", lambda _: None)
    result = runner.invoke(app, ["soak"])
    assert "apt-get install nftables" in str(result.exception)


def test_the_help_has_examples(runner: CliRunner):
    result = runner.invoke(app, ["soak", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "r2ccl soak --seconds 60 --virtual-seconds 600 --seed 7" in result.stdout
