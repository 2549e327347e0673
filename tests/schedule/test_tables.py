"""The tables of steps, sends and elements in the algorithms' docstrings are compared with the programs themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType

import pytest

from r2ccl.schedule import (
    barrier,
    broadcast,
    bruck,
    direct,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    reduce,
    ring,
    subtrees,
)
from r2ccl.schedule.algorithms import ALGORITHMS, algorithm
from r2ccl.schedule.ir import Receive, Send
from tests.schedule.cases import even, on_nodes

DOCUMENTED: dict[tuple[str, str], tuple[ModuleType, str]] = {
    ("all_reduce", "ring"): (ring, "phase"),
    ("all_reduce", "hierarchical"): (hierarchical, "phase"),
    ("reduce_scatter", "hierarchical"): (hierarchical, "reduce-scatter"),
    ("all_gather", "hierarchical"): (hierarchical, "all-gather"),
    ("broadcast", "hierarchical"): (hierarchical, "broadcast"),
    ("all_reduce", "halving_doubling"): (halving_doubling, "phase"),
    ("all_reduce", "recursive_doubling"): (recursive_doubling, "phase"),
    ("broadcast", "binomial"): (broadcast, "binomial"),
    ("broadcast", "chain"): (broadcast, "chain"),
    ("barrier", "dissemination"): (barrier, "phase"),
    ("reduce", "binomial"): (reduce, "binomial"),
    ("reduce", "chain"): (reduce, "chain"),
    ("all_gather", "bruck"): (bruck, "all-gather"),
    ("all_gather", "ring"): (ring, "all-gather"),
    ("reduce_scatter", "direct"): (direct, "reduce-scatter"),
    ("reduce_scatter", "ring"): (ring, "reduce-scatter"),
    ("gather", "binomial"): (subtrees, "gather"),
    ("gather", "direct"): (direct, "gather"),
    ("scatter", "binomial"): (subtrees, "scatter"),
    ("scatter", "direct"): (direct, "scatter"),
    ("all_to_all", "bruck"): (bruck, "all-to-all"),
    ("all_to_all", "direct"): (direct, "all-to-all"),
}
by_name = pytest.mark.parametrize(("collective", "name"), DOCUMENTED)


@dataclass(frozen=True)
class Phase:
    """A row of a table: formulas in n (ranks), p (the largest power of two within n), h and k (nodes, and ranks of
    each), c (elements) and m (elements of a part or block). The elements that are received are given only where they
    differ from those that are sent."""

    steps: str
    sends: str
    elements: str
    received: str


def table(collective: str, name: str) -> list[Phase]:
    """The rows below the heading, up to the next empty line; columns are two spaces or more apart."""
    module, heading = DOCUMENTED[collective, name]
    assert module.__doc__ is not None
    lines = iter(module.__doc__.splitlines())
    found = any(re.match(rf"{heading} +steps  +sends  +elements(  +received)?$", line) for line in lines)
    assert found, f"no table of {collective}, {name}"
    phases = []
    for line in lines:
        if not line:
            break
        _, steps, sends, elements, *received = re.split(r"  +", line)
        phases.append(Phase(steps, sends, elements, *(received or [elements])))
    return phases


def value(formula: str, ranks: int, count: int, part: int, per_node: int = 1) -> int:
    names = {"n": ranks, "p": 1 << ranks.bit_length() - 1, "c": count, "m": part, "h": ranks // per_node, "k": per_node}
    functions = {"min": min, "max": max, "sum": sum, "range": range, "ceil": math.ceil, "log2": math.log2}
    result = eval(formula, {"__builtins__": {}, **names, **functions})  # our own docstring
    assert result == int(result)
    return int(result)


def elements(parts: Iterable[Send | Receive]) -> int:
    return sum(stop - start for part in parts for start, stop in part.segments)


def test_every_algorithm_has_a_table() -> None:
    assert {(known.collective, known.name) for known in ALGORITHMS} == DOCUMENTED.keys()
    assert all(table(*both) for both in DOCUMENTED)


@by_name
@pytest.mark.parametrize("ranks", range(1, 18))
def test_the_table_says_what_the_programs_do(collective: str, name: str, ranks: int) -> None:
    compare_with_table(collective, name, ranks, 1)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
@pytest.mark.parametrize("nodes", range(1, 6))
@pytest.mark.parametrize("per_node", range(1, 5))
def test_the_table_of_hierarchical_schedules_says_what_they_do_on_nodes(
    collective: str, nodes: int, per_node: int
) -> None:
    compare_with_table(collective, "hierarchical", nodes * per_node, per_node)


def compare_with_table(collective: str, name: str, ranks: int, per_node: int) -> None:
    known = algorithm(collective, name)
    count = 0 if collective == "barrier" else 16 * ranks
    phases = [
        [
            value(formula, ranks, count, 16, per_node)
            for formula in (phase.steps, phase.sends, phase.elements, phase.received)
        ]
        for phase in table(collective, name)
    ]
    nodes = tuple(tuple(range(first, first + per_node)) for first in range(0, ranks, per_node)) if per_node > 1 else ()
    programs = known.all_programs(on_nodes(even(known, ranks, count), nodes))
    ends = list(accumulate(steps for steps, *_ in phases))
    assert {send.step for program in programs for send in program.sends} == set(range(ends[-1]))
    for (_, sends, sent, received), begin, end in zip(phases, [0, *ends], ends, strict=False):
        leaving = [[send for send in program.sends if begin <= send.step < end] for program in programs]
        arriving = [[receive for receive in program.receives if begin <= receive.step < end] for program in programs]
        assert max(map(len, leaving)) == sends
        assert max(map(elements, leaving)) == sent
        assert max(map(elements, arriving)) == received
