"""The tables of steps, sends and elements in the algorithms' docstrings are compared with the programs themselves."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType

import pytest

from r2ccl.schedule import barrier, broadcast, halving_doubling, recursive_doubling, ring
from r2ccl.schedule.algorithms import ALGORITHMS, algorithm

DOCUMENTED: dict[str, tuple[ModuleType, str]] = {
    "ring": (ring, "phase"),
    "halving_doubling": (halving_doubling, "phase"),
    "recursive_doubling": (recursive_doubling, "phase"),
    "binomial": (broadcast, "binomial"),
    "chain": (broadcast, "chain"),
    "dissemination": (barrier, "phase"),
}


@dataclass(frozen=True)
class Phase:
    """A row of a table: formulas in n (ranks), p (the largest power of two within n) and c (elements)."""

    steps: str
    sends: str
    elements: str


def table(name: str) -> list[Phase]:
    """The rows below the heading, up to the next empty line; columns are two spaces or more apart."""
    module, heading = DOCUMENTED[name]
    assert module.__doc__ is not None
    lines = iter(module.__doc__.splitlines())
    assert any(re.match(rf"{heading} +steps  +sends  +elements$", line) for line in lines), f"no table of {name}"
    phases = []
    for line in lines:
        if not line:
            break
        _, steps, sends, elements = re.split(r"  +", line)
        phases.append(Phase(steps, sends, elements))
    return phases


def value(formula: str, ranks: int, count: int) -> int:
    names = {"n": ranks, "p": 1 << ranks.bit_length() - 1, "c": count, "min": min, "ceil": math.ceil, "log2": math.log2}
    result = eval(formula, {"__builtins__": {}}, names)  # our own docstring
    assert result == int(result)
    return int(result)


def test_every_algorithm_has_a_table() -> None:
    assert {known.name for known in ALGORITHMS} == DOCUMENTED.keys()
    assert all(table(name) for name in DOCUMENTED)


@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.parametrize("ranks", range(1, 18))
def test_the_table_says_what_the_programs_do(name: str, ranks: int) -> None:
    count = 0 if name == "dissemination" else 16 * ranks
    phases = table(name)
    programs = algorithm(name).all_programs(ranks, count)
    ends = list(accumulate(value(phase.steps, ranks, count) for phase in phases))
    assert {send.step for program in programs for send in program.sends} == set(range(ends[-1]))
    for phase, begin, end in zip(phases, [0, *ends], ends, strict=False):
        within = [[send for send in program.sends if begin <= send.step < end] for program in programs]
        assert max(len(sends) for sends in within) == value(phase.sends, ranks, count)
        most = max(sum(send.stop - send.start for send in sends) for sends in within)
        assert most == value(phase.elements, ranks, count)
