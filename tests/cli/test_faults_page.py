"""Options, the list of parts, what is kept between runs, and the page that is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2ccl.cli import faults_options as work
from r2ccl.cli import faults_page
from r2ccl.cli.faults_figures import Trial
from r2ccl.cli.faults_kinds import FAULTS, Victim
from r2ccl.cli.faults_options import GLOO, MPTCP, PLAIN, R2CCL, Options
from r2ccl.cli.faults_random import Round
from r2ccl.cli.faults_run import Results
from r2ccl.errors import UsageError

OPTIONS = Options(20, 10_000, 3, 2, 500.0, tuple(FAULTS), (MPTCP, GLOO), None, 10.0, 1)
FACTS = {
    "system": "Linux", "release": "6.1", "architecture": "x86_64", "cores": 2, "python": "3.11", "numpy": "2",
    "uvloop": "0", "r2ccl": "0", "congestion_control": "cubic", "cores_used_by_others": 0.25,
}  # fmt: skip


def names(options: Options) -> list[str]:
    return [part.name for part in work.parts(options)]


def test_every_fault_is_made_on_r2ccl_and_those_of_the_network_on_others_too():
    assert [name for name in names(OPTIONS) if name.endswith(f"/{R2CCL}")] == [f"{key}/{R2CCL}" for key in FAULTS]
    assert f"silent-drop/{MPTCP}" in names(OPTIONS)
    assert f"killed/{PLAIN}" not in names(OPTIONS)
    assert f"silent-drop/{MPTCP}" not in names(replace(OPTIONS, peers=()))
    assert f"silent-drop/{PLAIN}" in names(replace(OPTIONS, peers=()))


def test_long_faults_are_made_less_often_and_plain_streams_few_times():
    assert work.parts(OPTIONS)
    assert OPTIONS.trials(FAULTS["link-down"], R2CCL) == 20
    assert OPTIONS.trials(FAULTS["flaps"], R2CCL) == 5
    assert OPTIONS.trials(FAULTS["link-down"], PLAIN) == 3
    assert replace(OPTIONS, cuts=1).trials(FAULTS["flaps"], R2CCL) == 1


def test_the_estimate_grows_with_what_is_asked_for():
    assert work.total_s(OPTIONS) > work.total_s(replace(OPTIONS, cuts=3)) > 0
    assert work.total_s(OPTIONS) > work.total_s(replace(OPTIONS, random_cuts=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"hosts": 2},
        {"nics": 1},
        {"rate_mbit_s": 1.0},
        {"keys": ("link-down", "meteor")},
        {"torch_python": "/none/such"},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]):
    with pytest.raises(UsageError):
        work.checked(replace(OPTIONS, **wrong))  # type: ignore[arg-type]


def test_victims_are_all_nics_of_all_hosts_in_turn():
    victims = [Victim.of(trial, 3, 2) for trial in range(6)]
    assert len({(victim.rank, victim.nic) for victim in victims}) == 6
    assert all(victim.rank != victim.other_rank and victim.nic != victim.other_nic for victim in victims)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_every_fault_begins_at_once_and_its_steps_are_in_order(fault: object):
    steps = [step.at_s for step in fault.steps]  # type: ignore[attr-defined]
    assert steps[0] == 0.0
    assert steps == sorted(steps)


def measured(**differing: object) -> dict[str, object]:
    usual = Trial("nic: carrier", 1.2, 4.5, 12.0, 33.0, 0.9, 0.45, 80)
    return replace(usual, **differing).as_json()  # type: ignore[arg-type]


def results() -> Results:
    return Results(
        OPTIONS.as_json(),
        {
            "link-down/r2ccl": [measured(), measured(detection_ms=2.0)],
            "link-down/plain": [measured(during_gbit_s=0.5, before_gbit_s=1.0)],
            "link-down/mptcp": [measured(gap_ms=980.0, during_gbit_s=0.4)],
            "link-down/gloo": [Trial(repair_ms=10_060.0, error="died").as_json()],
            "killed/r2ccl": [measured(during_gbit_s=None, gap_ms=None, operation_gap_ms=None)],
        },
        [Round(500, 300, 4000, 0, 1_000_000, 60.0).as_json(), Round(500, 280, 3000, 0, 0, 60.0).as_json()],
    )


def row_of(page: str, title: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith(f"| {title}")
    ]


def test_a_row_says_what_was_measured():
    page = faults_page.page(OPTIONS, results(), FACTS, "r2ccl faults --cuts 2", "faults.svg")
    ours, beside = row_of(page, FAULTS["link-down"].title)
    assert ours[1:] == [
        "nic: carrier", "1.6 ms (2.0)", "4.5 ms (4.5)", "12.0 ms (12.0)", "33.0 ms (33.0)", "90 % (90)", "90 % (90)",
        "0", "2",
    ]  # fmt: skip
    assert beside[1:] == ["12.0 ms (12.0)", "980.0 ms (980.0)", "died after 10.1 s", "0.500", "0.450", "0.400", "–"]
    (killed,) = row_of(page, FAULTS["killed"].title)
    assert killed[4:8] == ["–"] * 4


def test_the_page_names_the_command_the_machine_and_the_random_cuts():
    page = faults_page.page(OPTIONS, results(), FACTS, "r2ccl faults --cuts 2", "faults.svg")
    assert "    r2ccl faults --cuts 2\n" in page
    assert "2 cores, TCP with cubic" in page
    assert "0.25 cores" in page
    assert "| cuts | 1,000 |" in page
    assert "| operations | 7,000 |" in page
    assert "(faults.svg)" in page


def test_wrong_elements_and_errors_are_not_hidden():
    bad = results()
    bad.trials["link-down/r2ccl"].append(measured(wrong_elements=3, error="PeerLost(unreachable)", detail="the end"))
    bad.rounds.append(Round(wrong_elements=4, errors=("PeerLost(dead)",)).as_json())
    assert faults_page.wrong_elements(bad) == 7
    assert faults_page.errors(bad) == ["PeerLost(unreachable)", "PeerLost(dead)"]
    assert faults_page.details(bad) == ["the end"]
    page = faults_page.page(OPTIONS, bad, FACTS, "r2ccl faults", None)
    assert row_of(page, FAULTS["link-down"].title)[0][-2:] == ["3", "3; 1 × PeerLost(unreachable)"]
    assert "| wrong elements | 4 |" in page
    assert "| errors | 1; PeerLost(dead) |" in page


def test_what_gloo_died_of_is_no_error_of_ours():
    assert faults_page.errors(results()) == []


def test_a_run_goes_on_from_what_was_kept(tmp_path: Path):
    file = tmp_path / "kept.json"
    kept = results()
    kept.file, kept.seconds, kept.others_s = file, 60.0, 6.0
    kept.keep()
    again = Results.open(OPTIONS, file)
    assert again.trials == kept.trials
    assert again.random == kept.random
    assert (again.seconds, again.others_s) == (60.0, 6.0)
    with pytest.raises(UsageError, match="other options"):
        Results.open(replace(OPTIONS, cuts=3), file)
