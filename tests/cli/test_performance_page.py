"""The page and its pictures: every part is there, what is missing is said, and nothing of this machine's places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from r2ccl.cli import performance, performance_lab, performance_page, performance_plot
from r2ccl.cli import performance_parts as parts
from r2ccl.cli.main import app
from r2ccl.cli.performance_figures import Results
from r2ccl.errors import UsageError
from tests.cli.performances import everything, measured, part

MISSING = Results(facts=everything().facts)


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_the_page_has_every_part_with_a_table_and_the_machine():
    page = performance_page.page(everything(), "r2ccl performance --quick", {parts.TCP_2: "images/a.svg"})
    assert "    r2ccl performance --quick\n" in page
    assert "A processor, 2 cores" in page
    assert "torch 2.13.0" in page
    assert "other processes used 0.10 cores" in " ".join(page.split())
    for key, title in performance_page._TITLES.items():
        section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        assert "| --- |" in section, key
    assert page.count("![") == 1


def test_tables_are_rectangular():
    for line_group in performance_page.page(everything(), "", {}).split("\n\n"):
        widths = {line.count(" | ") for line in line_group.splitlines() if line.startswith("| ")}
        assert len(widths) <= 1, line_group


def test_a_side_that_is_missing_at_a_size_is_a_dash_and_one_that_is_left_out_is_said_to_be():
    results = Results(
        {parts.TCP_2: part(parts.TCP_2, measured(parts.OURS, 4, [1]), measured(parts.GLOO, 64, [2]))},
        {"openmpi in tcp-2": "no mpirun"}, everything().facts,
    )  # fmt: skip
    page = performance_page.page(results, "", {})
    assert "| 4 B | 1.0 | – | – |" in page
    assert "Left out: openmpi in tcp-2: no mpirun." in page


def test_wrong_elements_are_not_hidden():
    results = Results({parts.TCP_2: part(parts.TCP_2, measured(parts.OURS, 4, [1], wrong=3))}, {}, everything().facts)
    assert "**3 elements were wrong.**" in performance_page.page(results, "", {})
    assert performance_page.as_json(results)["wrong"] == 3


def test_a_page_without_any_part_can_be_written():
    assert performance_page.page(MISSING, "", {}).startswith("# Performance: figures\n")


def test_every_side_has_a_name_and_every_drawn_one_a_colour():
    for key, one in everything().parts.items():
        for side in one.sides:
            assert side in performance_page.NAMES
            assert key not in performance_plot.DRAWN or side in performance_plot.COLOURS


@pytest.mark.parametrize("key", performance_plot.DRAWN)
def test_pictures_are_drawn(tmp_path: Path, key: str):
    file = tmp_path / performance_plot.file_name(key)
    performance_plot.plot(file, everything().parts[key], performance_page.NAMES)
    text = file.read_text()
    assert text.rstrip().endswith("</svg>")
    assert "stroke-dasharray" in text


def test_a_picture_shows_bandwidth_from_the_slowest_round_to_the_fastest():
    one = measured(parts.OURS, 4_000_000, [1000, 2000, 4000])
    assert performance_plot._bandwidths(part(parts.TCP_2, one), one) == pytest.approx((2.0, 1.0, 4.0))
    assert performance_plot._times_us(one) == pytest.approx((2000, 1000, 4000))


# The command.


def played(results: Results, asked: list[tuple[str, ...]]) -> object:
    """Stands for the part that takes half an hour."""

    def play(self: performance.Run, keys: tuple[str, ...]) -> None:
        asked.append(keys)
        self._results.parts.update(results.parts)
        self._results.left_out.update(results.left_out)

    return play


def test_the_command_plays_what_is_named_and_writes_page_and_pictures(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(performance.Run, "play", played(everything(), asked))
    images = tmp_path / "images"
    images.mkdir()
    arguments = ["performance", "lab,tcp-2", "small", "--write", str(tmp_path / "page.md"), "--plots", str(images)]
    ended = runner.invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    assert asked == [("tcp-2", "small", "lab")]
    assert "![Time and bus bandwidth over size](images/performance-tcp-2.svg)" in (tmp_path / "page.md").read_text()
    assert sorted(file.name for file in images.iterdir()) == sorted(
        map(performance_plot.file_name, performance_plot.DRAWN)
    )


def test_json_has_all_figures_and_the_goals(runner: CliRunner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(performance.Run, "play", played(everything(), []))
    ended = runner.invoke(app, ["performance", "--quick", "--json"])
    assert ended.exit_code == 0
    assert '"goals": [{"where": "loopback TCP, 2 ranks"' in ended.stdout


def test_a_wrong_element_ends_with_1(runner: CliRunner, monkeypatch: pytest.MonkeyPatch):
    wrong = Results({parts.TCP_2: part(parts.TCP_2, measured(parts.OURS, 4, [1], wrong=1))})
    monkeypatch.setattr(performance.Run, "play", played(wrong, []))
    ended = runner.invoke(app, ["performance", "tcp-2"])
    assert ended.exit_code == 1
    assert "1 wrong elements" in ended.output


def test_what_is_kept_goes_on_only_at_its_own_scale(tmp_path: Path):
    keep = tmp_path / "keep.json"
    keep.write_text(json.dumps(everything().as_json()))
    assert performance._results(keep, quick=True) == everything()
    with pytest.raises(UsageError, match="is of a quick run"):
        performance._results(keep, quick=False)


def test_parts_that_are_kept_are_not_played_again(monkeypatch: pytest.MonkeyPatch):
    begun: list[str] = []
    monkeypatch.setattr(performance.Run, "_part", lambda self, key, meter, done_s: begun.append(key))
    results = Results({parts.TCP_2: everything().parts[parts.TCP_2]})
    console = Console(quiet=True)
    run = performance.Run(parts.QUICK, parts.Pythons("a", "b"), results, console, None)
    run.play((parts.TCP_2, parts.SMALL))
    assert begun == [parts.SMALL]
    assert run.total_s((parts.TCP_2,)) == 0 < run.total_s((parts.SMALL,))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tcp-3"], "there is no part tcp-3; there are tcp-2"),
        (["--write", "/nowhere/page.md"], "there is no directory /nowhere"),
        (["--plots", "/nowhere"], "there is no directory /nowhere for pictures"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_starts(runner: CliRunner, arguments: list[str], says: str):
    ended = runner.invoke(app, ["performance", *arguments])
    assert isinstance(ended.exception, UsageError)
    assert says in str(ended.exception)


def test_where_no_lab_can_be_made_its_parts_are_left_out_and_the_rest_is_played(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(performance_lab, "why_not", lambda: "not allowed")
    results = Results()
    run = performance.Run(parts.QUICK, parts.Pythons("a", "b"), results, Console(quiet=True), None)
    run.play((parts.LAB, parts.PRICE))
    assert results.left_out == {"lab": "not allowed", "price": "not allowed"}
    assert results.parts == {}


def test_the_page_does_not_say_where_things_lie_here():
    typed = ["performance", "lab", "--torch-python", "/home/me/torch", "--keep", "/home/me/k", "--mpi-python", "/x/y"]
    said = performance._command(typed)
    assert said == (
        "r2ccl performance lab --torch-python /path/to/python/with/torch --mpi-python /path/to/python/with/mpi4py"
    )
    assert performance._command(["something", "else"]) == "r2ccl performance"


def test_the_processor_is_found_in_its_file_or_said_to_be_unknown():
    assert performance.processor("vendor_id : X\nmodel name\t: A B C\nmodel name\t: A B C\n") == "A B C"
    assert performance.processor("") == "unknown processor"


def test_a_whole_run_is_planned_for_half_an_hour_and_a_quick_one_for_three_minutes():
    def minutes(scale: parts.Scale) -> float:
        run = performance.Run(scale, parts.Pythons("a", "b"), Results(), Console(quiet=True), None)
        return run.total_s(parts.PARTS) / 60

    assert minutes(parts.WHOLE) <= 30
    assert minutes(parts.QUICK) <= 4


def test_the_help_has_examples(runner: CliRunner):
    assert "r2ccl performance --quick" in runner.invoke(app, ["performance", "--help"]).output
