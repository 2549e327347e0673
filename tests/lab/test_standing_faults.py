"""Which faults stand on which NIC, and how they go, on a lab that only writes down what is done to it."""

from __future__ import annotations

from typing import Any

import pytest

from r2ccl.errors import UsageError
from r2ccl.lab.standing_faults import KINDS, Breakable, Standing, StandingFaults


class Notebook:
    """A lab on paper."""

    rate_mbit_s = 500.0

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.done.append((name, *arguments))


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def faults(notebook: Notebook) -> StandingFaults:
    lab: Breakable = notebook
    return StandingFaults(lab)


AMOUNTS = {"loss": 0.05, "rate": 200.0}
EXPECTED = {
    "link-down": (("link_down", 1, 0), ("link_up", 1, 0)),
    "near-end-down": (("near_end_down", 1, 0), ("near_end_up", 1, 0)),
    "silent-drop": (("silent_drop", 1, 0), ("undrop", 1, 0)),
    "loss": (("lose", 1, 0, 0.05), ("unlose", 1, 0)),
    "rate": (("set_rate", 1, 0, 200.0), ("set_rate", 1, 0, 500.0)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_made_and_undone(kind: str, faults: StandingFaults, notebook: Notebook):
    fault = Standing(kind, 1, 0, AMOUNTS.get(kind), None)
    faults.put(fault)
    assert faults.on(1, 0) == [fault]
    assert faults.on(0, 0) == faults.on(1, 1) == []
    assert faults.heal(1, 0) == [fault]
    assert notebook.done == list(EXPECTED[kind])
    assert faults.standing == []


def test_one_of_the_same_kind_takes_its_place_and_another_kind_stands_beside_it(
    faults: StandingFaults, notebook: Notebook
):
    for kind, amount in (("loss", 0.05), ("link-down", None), ("loss", 0.5)):
        faults.put(Standing(kind, 1, 0, amount, None))
    assert [one.text(0.0) for one in faults.on(1, 0)] == ["link-down", "loss 50%"]
    assert notebook.done == [("lose", 1, 0, 0.05), ("link_down", 1, 0), ("unlose", 1, 0), ("lose", 1, 0, 0.5)]


def test_what_is_healed_is_a_nic_a_host_or_everything_the_last_fault_first(faults: StandingFaults, notebook: Notebook):
    for host, nic in ((0, 0), (1, 0), (1, 1), (2, 0)):
        faults.put(Standing("link-down", host, nic, None, None))
    notebook.done.clear()
    faults.heal(1, 1)
    assert notebook.done == [("link_up", 1, 1)]
    faults.heal(1, None)
    assert notebook.done[1:] == [("link_up", 1, 0)]
    assert len(faults.heal(None, None)) == 2
    assert notebook.done[2:] == [("link_up", 2, 0), ("link_up", 0, 0)]
    assert faults.heal(None, None) == []


def test_a_fault_with_a_time_goes_when_it_is_over_and_not_before(faults: StandingFaults, notebook: Notebook):
    faults.put(Standing("link-down", 0, 0, None, 20.0))
    faults.put(Standing("silent-drop", 0, 0, None, 10.0))
    faults.put(Standing("rate", 0, 0, 100.0, None))
    assert faults.next_due_s() == 10.0
    assert faults.heal_due(9.99) == []
    assert [one.kind for one in faults.heal_due(10.0)] == ["silent-drop"]
    assert faults.next_due_s() == 20.0
    assert [one.kind for one in faults.heal_due(100.0)] == ["link-down"]
    assert faults.next_due_s() is None
    assert [one.text(100.0) for one in faults.on(0, 0)] == ["rate 100mbit"]
    assert notebook.done[-2:] == [("undrop", 0, 0), ("link_up", 0, 0)]


def test_a_fault_says_how_long_it_stays():
    assert Standing("link-down", 0, 0, None, 12.5).text(10.0) == "link-down for 2.5s more"


@pytest.mark.parametrize(
    ("kind", "amount", "complaint"),
    [
        ("earthquake", None, "there is no fault 'earthquake'; there are link-down"),
        ("loss", None, "such as 5%"),
        ("loss", 1.5, "such as 5%"),
        ("loss", float("nan"), "such as 5%"),
        ("rate", 0.0, "such as 200mbit"),
        ("rate", float("inf"), "such as 200mbit"),
        ("link-down", 0.5, "wants nothing"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_done(
    kind: str, amount: float | None, complaint: str, faults: StandingFaults, notebook: Notebook
):
    with pytest.raises(UsageError, match=complaint):
        faults.put(Standing(kind, 0, 0, amount, None))
    assert notebook.done == []
    assert faults.standing == []


def test_a_fault_that_the_kernel_refuses_does_not_stand():
    class Refusing(Notebook):
        def link_down(self, *_: int) -> float:
            raise OSError("no")

    faults = StandingFaults(Refusing())
    with pytest.raises(OSError, match="no"):
        faults.put(Standing("link-down", 0, 0, None, None))
    assert faults.standing == []


def test_a_fault_that_cannot_be_undone_is_not_tried_for_ever():
    class Stuck(Notebook):
        def link_up(self, *_: int) -> float:
            raise OSError("no")

    faults = StandingFaults(Stuck())
    faults.put(Standing("link-down", 0, 0, None, 1.0))
    with pytest.raises(OSError, match="no"):
        faults.heal_due(2.0)
    assert faults.next_due_s() is None
