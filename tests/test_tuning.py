"""The figures of a tuning: their file, what is refused of one, and how they are announced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.config import Settings
from r2ccl.errors import ConfigurationError
from r2ccl.figures import log_figures, own_figures, to_announce
from r2ccl.topology import Endpoint, Member, Nic, pack_member, unpack_member
from r2ccl.tuning import (
    FILE_BYTES_MAX,
    Tuning,
    TuningFile,
    WireCost,
    default_path,
    find_tuning,
    read_tuning,
    write_tuning,
)

COST = WireCost(25e-6, 0.5e-9, 5e-6, 1e-11)
TUNING = Tuning(0.1e-9, shared_memory=COST, network=WireCost(60e-6, 4e-9, 10e-6, 2e-11))
RIGHT: dict[str, Any] = {
    "format": 1,
    "measured": "by hand",
    "gamma_s_per_byte": 1e-10,
    "wires": {"loopback": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "overhead_s": 1e-6, "delta_s_per_byte": 1e-11}},
}
CHANGED_COST = {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "overhead_s": 1e-6}

figures = st.floats(1e-7, 1e-3)
costs = st.none() | st.builds(WireCost, figures, st.floats(1e-12, 1e-6), figures, st.floats(1e-12, 1e-6))
tunings = st.builds(Tuning, st.floats(1e-12, 1e-6), costs, costs, costs)


@given(tunings)
def test_figures_are_read_as_they_were_announced(tuning: Tuning) -> None:
    assert Tuning.from_numbers(tuning.as_numbers()) == tuning
    member = Member(0, 1, "node", (Nic(0, "lo", Endpoint("inet", "127.0.0.1", 1)),), tuning)
    assert unpack_member(pack_member(member)) == member


@given(st.data())
def test_an_announcement_with_one_figure_exchanged_is_refused_or_says_the_same(data: st.DataObject) -> None:
    numbers: list[Any] = TUNING.as_numbers()
    place = data.draw(st.integers(0, len(numbers) - 1))
    numbers[place] = data.draw(st.floats() | st.integers() | st.text() | st.none() | st.booleans())
    try:
        found = Tuning.from_numbers(numbers)
    except (ValueError, TypeError):
        return
    assert found.as_numbers() == numbers


def test_an_announcement_of_another_length_is_refused() -> None:
    for numbers in (TUNING.as_numbers()[:-1], [*TUNING.as_numbers(), 0.0], [1e-9]):
        with pytest.raises(ValueError, match="figures of a tuning"):
            Tuning.from_numbers(numbers)


def test_a_file_is_read_as_it_was_written_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "tuning.json"
    write_tuning(path, TUNING, "once")
    write_tuning(path, TUNING, "twice")
    assert read_tuning(path) == TuningFile(path, TUNING, "twice")
    assert [found.name for found in path.parent.iterdir()] == ["tuning.json"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_tuning(path, TUNING, "never")
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "its format is 2"),
        ({"gamma_s_per_byte": 0.0}, "gamma_s_per_byte = 0.0 is not from"),
        ({"gamma_s_per_byte": float("nan")}, "gamma_s_per_byte = nan is not from"),
        ({"gamma_s_per_byte": "1e-10"}, "is no float"),
        ({"measured": 7}, "is no str"),
        ({"wires": []}, "is no dict"),
        ({"wires": {"carrier_pigeon": {}}}, "no kind of wire is called 'carrier_pigeon'"),
        ({"wires": {"loopback": CHANGED_COST}}, "'delta_s_per_byte' is missing"),
        ({"wires": {"loopback": {**CHANGED_COST, "delta_s_per_byte": 1e-11, "alpha_s": 60.0}}}, "alpha_s = 60.0"),
        ({"wires": {"loopback": {**CHANGED_COST, "delta_s_per_byte": 1e-11, "beta_s_per_byte": -1e-9}}}, "beta_s_per"),
        ({"wires": {"loopback": {**CHANGED_COST, "delta_s_per_byte": 1e-11, "overhead_s": 0.0}}}, "overhead_s = 0.0"),
        ({"wires": {"loopback": {**CHANGED_COST, "delta_s_per_byte": 1.0}}}, "delta_s_per_byte = 1.0"),
    ],
)
def test_a_file_that_cannot_be_right_is_named_with_what_is_wrong_and_the_way_out(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({**RIGHT, **change}))
    with pytest.raises(ConfigurationError, match="this is no tuning") as wrong:
        read_tuning(path)
    assert str(path) in str(wrong.value)
    assert said in str(wrong.value)
    assert "`r2ccl tune`" in str(wrong.value)
    assert "R2CCL_TUNING=off" in str(wrong.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "[" * 5000, "{}"])
def test_what_is_no_tuning_at_all_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="this is no tuning"):
        read_tuning(path)


def test_a_file_that_is_long_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(RIGHT) + " " * FILE_BYTES_MAX)
    with pytest.raises(ConfigurationError, match="longer than"):
        read_tuning(path)
    assert read_tuning(written(tmp_path / "short.json")).tuning.loopback is not None


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(RIGHT))
    return path


def test_the_file_is_the_one_that_is_named_else_the_one_in_the_cache_else_none(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path / "home")}
    assert find_tuning("", environ) is None
    in_cache = written(tmp_path / "cache" / "r2ccl" / "tuning.json")
    named = written(tmp_path / "mine.json")
    for asked, found in (("", in_cache), (str(named), named)):
        file = find_tuning(asked, environ)
        assert file is not None
        assert file.path == found
    assert find_tuning("off", environ) is None
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        find_tuning(str(tmp_path / "gone.json"), environ)


def test_the_cache_is_where_the_specification_says() -> None:
    assert default_path({"HOME": "/home/me"}) == Path("/home/me/.cache/r2ccl/tuning.json")
    assert default_path({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"}) == Path("/c/r2ccl/tuning.json")
    assert default_path({"HOME": "/home/me", "XDG_CACHE_HOME": "not/absolute"}) == Path(
        "/home/me/.cache/r2ccl/tuning.json"
    )
    assert default_path({}) is None


def test_rank_0_alone_announces_and_leaves_out_memory_that_it_does_not_share(tmp_path: Path) -> None:
    own = TuningFile(tmp_path, TUNING, "")
    assert to_announce(0, own, shares_memory=True) == TUNING
    assert to_announce(0, own, shares_memory=False) == Tuning(0.1e-9, network=TUNING.network)
    assert to_announce(1, own, shares_memory=True) is None
    assert to_announce(0, None, shares_memory=True) is None


def book(tuning: Tuning | None) -> tuple[Member, ...]:
    return (Member(0, 1, "node", (), tuning), Member(1, 2, "node", ()))


@pytest.mark.parametrize(
    ("announced", "named", "level", "said"),
    [
        (None, True, "WARNING", "by default figures, for rank 0 has no tuning, not from /mine"),
        (None, False, "INFO", "by default figures"),
        (Tuning(1e-9), True, "WARNING", "by rank 0's tuning, not from /mine"),
        (TUNING.without_shared_memory(), True, "", ""),
    ],
)
def test_a_rank_whose_own_file_does_not_hold_says_so(
    announced: Tuning | None, named: bool, level: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "r2ccl")
    log_figures(1, TuningFile(Path("/mine"), TUNING, "here"), book(announced), named)
    assert [record.levelname for record in caplog.records] == [level] * bool(level)
    assert said in caplog.text


def test_rank_0_says_from_what_plans_are_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "r2ccl")
    log_figures(0, TuningFile(Path("/mine"), TUNING, "here"), book(TUNING), False)
    log_figures(0, None, book(None), True)
    assert [record.getMessage() for record in caplog.records] == ["plans are made from /mine: here"]


def test_algorithms_that_do_not_exist_are_refused_with_the_tuning() -> None:
    with pytest.raises(ConfigurationError, match="'rign'"):
        own_figures(Settings(algorithms="all_reduce=rign", tuning="off"))
    assert own_figures(Settings(algorithms="all_reduce=ring", tuning="off")) is None
