"""What counts as small, and that both ends of every transfer agree on it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from r2ccl.actors.operation import Planned
from r2ccl.actors.planning import Call, Plans
from r2ccl.config import KIB
from r2ccl.planner.choose import choose
from r2ccl.planner.picture import Picture, even_picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.reduction import Op
from r2ccl.schedule.algorithms import IN_PARTS

REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)


def picture_of(ranks: int, wire: str, one_sided: bool = False) -> Picture:
    return dataclasses.replace(even_picture(ranks), wire=wire, one_sided=one_sided)


def plans_of(kind: CollectiveKind, kib: int, ranks: int, wire: str, uneven: bool = False) -> list[Planned]:
    """The plans of all ranks."""
    op = Op.SUM if kind in REDUCING else None
    elements = kib * KIB // 4 // ranks * ranks
    parts = (elements // ranks,) * ranks if kind.value in IN_PARTS else ()
    out_parts = parts if kind is CollectiveKind.ALL_TO_ALL else ()
    call = Call(kind, np.dtype(np.float32), "float32", elements, op, 0, parts, out_parts, uneven)
    return [Plans(rank, picture_of(ranks, wire), range(ranks)).plan(call) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("wire", "one_sided", "kib"),
    [("network", False, 64), ("loopback", False, 256), ("shared_memory", False, 256), ("shared_memory", True, 64)],
)
def test_between_ranks_of_one_machine_four_times_as_much_is_small(wire: str, one_sided: bool, kib: int) -> None:
    picture = picture_of(4, wire, one_sided)

    def algorithm_of(size: int) -> str:
        return choose(Request(CollectiveKind.ALL_REDUCE, size, 1), 4, picture).algorithm

    assert picture.small_bytes(CollectiveKind.ALL_REDUCE) == kib * KIB
    assert picture.small_bytes(CollectiveKind.BROADCAST) == 64 * KIB
    assert "recursive_doubling" not in {algorithm_of(kib * KIB + 1), algorithm_of(4 * kib * KIB)}


@pytest.mark.parametrize("wire", ["network", "loopback"])
@pytest.mark.parametrize("kib", [64, 100, 128, 256, 260, 512, 1024])
@pytest.mark.parametrize("kind", [kind for kind in CollectiveKind if kind is not CollectiveKind.BARRIER])
def test_a_sender_that_waits_for_acknowledgements_or_a_place_is_heard_by_its_target(
    kind: CollectiveKind, kib: int, wire: str
) -> None:
    for ranks in (2, 3, 4, 5):
        plans = plans_of(kind, kib, ranks, wire)
        for rank, planned in enumerate(plans):
            for index, send in enumerate(planned.waits.program.sends):
                target, size = plans[send.target], 4 * sum(stop - start for start, stop in send.segments)
                assert target.eager_bytes == planned.eager_bytes
                waits = (send.needs_ack and not planned.copied[index]) or size > planned.eager_bytes
                assert not waits or rank in target.bulky_sources, (ranks, planned.reason)


def test_where_sizes_are_known_to_two_ranks_only_none_goes_by_the_sum() -> None:
    for planned in plans_of(CollectiveKind.ALL_TO_ALL, 128, 2, "loopback", uneven=True):
        assert planned.eager_bytes == 64 * KIB
