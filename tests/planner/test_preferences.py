"""Algorithms that are asked for by name."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.actors.planning import UNDER_CHARACTERS_MAX, Call, Plans
from r2ccl.config import KIB
from r2ccl.errors import ConfigurationError
from r2ccl.planner.choose import choose
from r2ccl.planner.picture import Picture, even_picture
from r2ccl.planner.preferences import preferred
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.reduction import Op
from tests.planner.tunings import FLOAT32


def asking(text: str) -> Picture:
    return dataclasses.replace(even_picture(8), algorithms=text)


def algorithm_of(count: int, text: str, kind: CollectiveKind = CollectiveKind.ALL_REDUCE) -> str:
    return choose(Request(kind, count, 4), 8, asking(text)).algorithm


def test_what_is_asked_for_is_done_whatever_the_size() -> None:
    for count in (1, 4 * KIB, 1 << 28):
        assert algorithm_of(count, "all_reduce=ring") == "ring"
        assert algorithm_of(count, " broadcast = chain , all_reduce = halving_doubling ") == "halving_doubling"
    assert algorithm_of(1, "broadcast=chain", CollectiveKind.BROADCAST) == "chain"


def test_what_is_not_allowed_is_not_done_and_nothing_else_is_touched() -> None:
    large = 1 << 20
    assert algorithm_of(large, "all_reduce=recursive_doubling") == algorithm_of(large, "")
    assert algorithm_of(1, "broadcast=chain") == algorithm_of(1, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all_reduce=rign", "no algorithm for all_reduce is called 'rign'"),
        ("all_reduce", "no algorithm for all_reduce is called ''"),
        ("allreduce=ring", "'allreduce' is none of all_gather, all_reduce,"),
        ("ring", "'ring' is none of"),
        ("all_reduce=ring,all_reduce=ring", "names 'all_reduce' twice"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="R2CCL_ALGORITHMS=") as wrong:
        preferred(text)
    assert said in str(wrong.value)


def test_nothing_is_asked_for_by_nothing() -> None:
    assert preferred("") == preferred(" , ") == {}


def test_ranks_that_ask_for_different_algorithms_notice() -> None:
    call = Call(CollectiveKind.ALL_REDUCE, FLOAT32, "float32", 8, Op.SUM)
    marks = {Plans(0, asking(text), range(8)).plan(call).fingerprint for text in ("", "all_reduce=ring")}
    assert len(marks) == 2


def test_what_is_told_of_long_settings_is_short_and_tells_them_apart() -> None:
    call = Call(CollectiveKind.ALL_REDUCE, FLOAT32, "float32", 8, Op.SUM)
    asked = ",".join(f"{known}=binomial" for known in ("broadcast", "reduce", "gather", "scatter")) + " " * 300
    told = {Plans(0, asking(text), range(8)).plan(call).under for text in (asked, f"{asked},all_to_all=direct")}
    assert len(told) == 2
    assert all(len(text) <= UNDER_CHARACTERS_MAX for text in told)
