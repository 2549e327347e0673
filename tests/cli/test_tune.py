"""``r2ccl tune``: who measures which wire, what is written and told, and what is refused before that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from r2ccl.cli import tune
from r2ccl.cli.info import gather
from r2ccl.cli.main import app
from r2ccl.cli.tune_job import Outcome, View, own_placement
from r2ccl.cli.tune_measure import COMPARED, Measured, variants
from r2ccl.cli.tune_report import as_object, in_words, lines, merged, size
from r2ccl.config import Settings
from r2ccl.errors import ConfigurationError, UsageError
from r2ccl.planner.preferences import preferred
from r2ccl.planner.switches import Reach
from r2ccl.tuning import Tuning, WireCost, write_tuning

MEMORY, LOOPBACK, NETWORK = (WireCost(alpha, alpha * 1e-4, alpha / 10, 1e-11) for alpha in (5e-6, 10e-6, 60e-6))


def outcome(error: float = 0.05, **wires: WireCost) -> Outcome:
    measured = {wire: Measured(cost, 40e-6, error, ()) for wire, cost in wires.items()}
    return Outcome(2e-10, measured, 2, 1)


@pytest.mark.parametrize(
    ("nodes", "is_loopback", "shares_memory", "members"),
    [
        ("aa", True, True, {"shared_memory": (0, 1), "loopback": (0, 1)}),
        ("aa", True, False, {"loopback": (0, 1)}),
        ("aa", False, True, {"shared_memory": (0, 1)}),
        ("aa", False, False, {}),
        ("ab", False, False, {"network": (0, 1)}),
        ("aabb", False, True, {"shared_memory": (0, 1), "network": (0, 2)}),
        ("abbb", False, False, {"network": (0, 1)}),
        ("abab", False, True, {"shared_memory": (0, 2), "network": (0, 1)}),
        ("ab", True, False, {"loopback": (0, 1)}),
    ],
)
def test_each_wire_is_measured_by_those_that_it_joins_and_always_by_rank_0(
    nodes: str, is_loopback: bool, shares_memory: bool, members: dict[str, tuple[int, ...]]
) -> None:
    found = View(tuple(nodes), is_loopback, shares_memory).members()
    assert found == members
    assert all(0 in ranks for ranks in found.values())


def test_outside_a_job_ranks_are_started_and_inside_one_its_ranks_measure() -> None:
    assert own_placement({"HOME": "/root"}) is None
    job = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    placement = own_placement(job)
    assert placement is not None
    assert (placement.rank, placement.size, placement.port) == (1, 4, 29500)
    with pytest.raises(ConfigurationError, match="this job has one"):
        own_placement({"RANK": "0", "WORLD_SIZE": "1"})
    with pytest.raises(ConfigurationError, match="missing: WORLD_SIZE"):
        own_placement({"RANK": "0"})


def test_every_variant_can_be_connected_with() -> None:
    asked = {name: Settings().replace(**options) for name, options in variants().items()}
    for name in COMPARED:
        assert preferred(asked[name].algorithms) == {"all_reduce": name}
    assert len({settings.chunk_bytes for settings in asked.values()}) == 4


def test_wires_that_were_not_measured_this_time_keep_their_figures() -> None:
    before = Tuning(1e-10, shared_memory=MEMORY, network=NETWORK)
    found = merged(outcome(shared_memory=LOOPBACK), before)
    assert found == Tuning(2e-10, shared_memory=LOOPBACK, network=NETWORK)
    assert merged(outcome(loopback=LOOPBACK), None) == Tuning(2e-10, loopback=LOOPBACK)


def test_figures_go_where_they_will_be_found(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert tune.target(None, environ) == tmp_path / "r2ccl" / "tuning.json"
    assert tune.target(None, {**environ, "R2CCL_TUNING": "/mine"}) == Path("/mine")
    assert tune.target(None, {**environ, "R2CCL_TUNING": "off"}) == tmp_path / "r2ccl" / "tuning.json"
    assert tune.target(Path("/other"), {**environ, "R2CCL_TUNING": "/mine"}) == Path("/other")
    with pytest.raises(UsageError, match="--output"):
        tune.target(None, {})
    with pytest.raises(UsageError, match="is a directory"):
        tune.target(tmp_path, environ)


def test_a_file_that_was_wrong_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    assert tune.figures_before(path) is None
    path.write_text("nonsense")
    assert tune.figures_before(path) is None
    tune.write(path, Tuning(1e-10, network=NETWORK), "here")
    assert tune.figures_before(path) == Tuning(1e-10, network=NETWORK)
    with pytest.raises(UsageError, match="cannot be written: .*--output"):
        tune.write(path / "below", Tuning(1e-10), "never")


def test_a_person_is_told_figures_fit_and_sizes() -> None:
    found = outcome(shared_memory=MEMORY)
    text = "\n".join(lines(found, merged(found, Tuning(1e-10, network=NETWORK))))
    assert "shared memory  5.0 us   2.00 GB/s  0.5 us" in text
    assert "network        60.0 us  0.17 GB/s" in text
    assert "shared memory: half of the times are within 5% of the model" in text
    assert "8 ranks on shared memory:\n  all_reduce  recursive_doubling to " in text
    assert "ranks on network" not in text
    assert "something else has the machine" not in text
    assert "something else has the machine" in "\n".join(lines(outcome(0.4, loopback=LOOPBACK), Tuning(1e-10)))


def test_a_script_is_told_the_same(tmp_path: Path) -> None:
    found = outcome(loopback=LOOPBACK)
    told = as_object(found, merged(found, Tuning(1e-10, network=NETWORK)), tmp_path)
    assert json.loads(json.dumps(told)) == told
    assert told["wires"]["loopback"]["alpha_s"] == 10e-6
    assert (told["kept"], told["file"], told["gamma_s_per_byte"]) == (["network"], str(tmp_path), 2e-10)
    assert list(told["switches"]["loopback"]) == ["2", "8", "64"]
    assert told["switches"]["loopback"]["8"]["all_reduce"][0]["algorithm"] == "recursive_doubling"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(4, "4 B"), (1023, "1023 B"), (1 << 10, "1 KiB"), (1536 << 10, "1.5 MiB"), (1 << 30, "1 GiB")],
)
def test_sizes_are_told_in_units(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_reaches_are_told_in_words() -> None:
    assert in_words([Reach("ring", None)]) == "ring always"
    assert in_words([Reach("a", 1 << 10), Reach("b", 1 << 20), Reach("c", None)]) == "a to 1 KiB, b to 1 MiB, c above"


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["-n", "1"], {}, "Invalid value for '-n'"),
        (["--turns", "0"], {}, "Invalid value for '--turns'"),
        ([], {"RANK": "0", "WORLD_SIZE": "1"}, "this job has one"),
        ([], {"R2CCL_CHUNK_BYTES": "many"}, "R2CCL_CHUNK_BYTES"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments: list[str], environ: dict[str, str], said: str) -> None:
    result = CliRunner().invoke(app, ["tune", *arguments], env=environ)
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)


def test_info_tells_the_tuning(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    write_tuning(path, Tuning(1e-10, network=NETWORK), "yesterday on here")
    told: dict[str, Any] = gather({"R2CCL_TUNING": str(path)})["tuning"]
    assert (told["file"], told["measured"]) == (str(path), "yesterday on here")
    assert told["wires"] == {
        "network": {"alpha_s": 60e-6, "beta_s_per_byte": 60e-6 * 1e-4, "overhead_s": 6e-6, "delta_s_per_byte": 1e-11}
    }
    assert gather({})["tuning"] is None
    shown = CliRunner().invoke(app, ["info"], env={"R2CCL_TUNING": str(path)}).output
    assert f"tuning: {path} (yesterday on here)\n  network: a message 60.0 us, then 0.17 GB/s" in shown
    assert "tuning: none, plans are made from defaults" in CliRunner().invoke(app, ["info"]).output
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match=f"{path}: this is no tuning"):
        gather({"R2CCL_TUNING": str(path)})
