"""One rank of the grid: every call x dtype x op x layout in several groups, against what it must give and against gloo.

Prints one JSON line: how many calls were compared with the expected result, and how many of these with gloo's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

import r2ccl.torch_backend
from tests.torch_backend.grid_calls import (
    CASES,
    COMPLEX,
    FLOATS,
    INTEGERS,
    OTHERS,
    UNSIGNED,
    Case,
    Setting,
    ops,
    quietly,
    same,
)

#: Larger than what goes out from a copy.
LARGE_ROWS = 20_000


def shapes(size: int) -> list[list[int]]:
    """Groups by the ranks of their members: all, all but the first, the outer two backwards, one alone."""
    return [list(range(size)), *([list(range(1, size))] if size > 2 else []), [size - 1, 0], [size - 1]]


def settings(case: Case, group: Any, ranks: list[int]) -> Iterator[Setting]:
    """Every dtype and op, small; and float32 in other sizes and layouts."""
    me, size = ranks.index(dist.get_rank()), len(ranks)
    kinds = (*INTEGERS, *UNSIGNED, *FLOATS, *COMPLEX, torch.bool, *(() if case.reduces else OTHERS))
    turn = 0
    for dtype in kinds:
        for op in ops(dtype) if case.reduces else ("SUM",):
            turn += 1
            root = turn % size
            yield Setting(group, me, size, root, ranks[root], dtype, op, 5, False, bool(turn % 2))
    for rows, strided in ((0, False), (1, False), (LARGE_ROWS, False), (5, True), (LARGE_ROWS, True)):
        turn += 1
        root = turn % size
        yield Setting(group, me, size, root, ranks[root], torch.float32, "SUM", rows, strided, bool(turn % 2))
    yield Setting(group, me, size, 0, ranks[0], torch.bfloat16, "SUM", 5, True, True)
    yield Setting(group, me, size, 0, ranks[0], torch.complex64, "SUM", 5, True, False)


def made(case: Case, setting: Setting, turn: int) -> list[Any]:
    """The results of a call, waited for in one of the ways there are."""
    work, tensors = quietly(lambda: case.call(setting))
    if work is None:
        assert not setting.async_op or case.name == "messages_round_a_ring"
    elif turn % 3 == 0 and hasattr(work, "get_future"):
        work.get_future().wait()
    elif turn % 3 == 1 and isinstance(work, r2ccl.torch_backend.Work):
        while not work.is_completed():
            os.sched_yield()
        assert work.is_success()
        assert work.exception() is None
    else:
        work.wait()
    return list(tensors)


def by_gloo(case: Case, setting: Setting) -> list[Any] | None:
    """gloo's results, or None where it has none. Of tensors that are not contiguous it makes something else."""
    if setting.strided or (case.name == "messages_round_a_ring" and setting.size == 1):
        return None
    try:
        work, tensors = quietly(lambda: case.call(setting))
        if work is not None:
            work.wait()
    except (RuntimeError, ValueError, TypeError):
        return None
    # gloo adds the bytes of bools: three times True has the bits of 3.
    return [one.view(torch.uint8) != 0 if one.dtype is torch.bool else one for one in tensors]


def compare(ranks: list[int], group: Any, gloo: Any) -> tuple[int, int]:
    compared, with_gloo = 0, 0
    for case in CASES:
        for turn, setting in enumerate(settings(case, group, ranks)):
            results = made(case, setting, turn)
            expected = case.expected(setting)
            assert len(results) == len(expected), (case.name, setting)
            for result, right in zip(results, expected, strict=True):
                assert same(result, right), (case.name, setting, result, right)
            compared += 1
            if setting.rows == LARGE_ROWS or setting.dtype in OTHERS:
                continue
            theirs = by_gloo(case, Setting(gloo, *(getattr(setting, name) for name in Setting.__slots__[1:])))
            if theirs is not None:
                assert all(map(same, results, theirs)), (case.name, setting, results, theirs)
                with_gloo += 1
    return compared, with_gloo


def main() -> None:
    dist.init_process_group("r2ccl")
    rank = dist.get_rank()
    totals = [0, 0]
    for ranks in shapes(dist.get_world_size()):
        group, gloo = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
        if rank in ranks:
            # torch puts the members of a group in the order of their ranks.
            counts = compare(sorted(ranks), group, gloo)
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "compared": totals[0], "with_gloo": totals[1]}), flush=True)


if __name__ == "__main__":
    main()
