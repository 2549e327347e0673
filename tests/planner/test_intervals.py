"""Sets of positions, compared with sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from r2ccl.planner.intervals import Overlaps, Union, merged

MOST = 30
segments = st.tuples(st.integers(0, MOST), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))
some = st.lists(segments, max_size=8)


def positions(*of: tuple[int, int]) -> set[int]:
    return {position for start, stop in of for position in range(start, stop)}


@given(some)
def test_a_union_has_the_same_positions_in_order_with_gaps_between(of: list[tuple[int, int]]) -> None:
    joined = merged(of)
    assert positions(*joined) == positions(*of)
    assert all(stop < start for (_, stop), (start, _) in zip(joined, joined[1:], strict=False))


@given(some, segments)
def test_a_union_answers_as_a_set_of_numbers_does(of: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    union, within, wanted = Union(of), positions(*of), positions(asked)
    assert union.touches(asked) == bool(within & wanted)
    touching = [union.segments[place] for place in union.touching(asked)]
    assert touching == [one for one in union.segments if positions(one) & wanted]
    holder = union.holder(asked)
    assert (holder is not None) == (wanted <= within)
    assert holder is None or wanted <= positions(union.segments[holder])
    rest = union.rest_of(asked)
    assert positions(*rest) == wanted - within
    assert rest == merged(rest)


@given(some, segments)
def test_overlaps_names_all_that_touch_a_segment_and_no_other(
    of: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    numbered = [(one, number) for number, one in enumerate([*of, (3, 3)])]
    found = sorted(number for _, number in Overlaps(numbered).touching(asked))
    assert found == [number for one, number in numbered if positions(one) & positions(asked)]
