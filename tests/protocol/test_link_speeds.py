"""Which links are slow, by what arrives on them and by what was measured."""

from __future__ import annotations

from r2ccl.protocol.link_speeds import LOOK_BYTES, LOOK_CHUNKS, LinkSpeeds


class Arrivals:
    """Links that bring so many bytes in each round, and are looked at after it."""

    def __init__(self) -> None:
        self.speeds = LinkSpeeds()
        self.total = {"a": 0, "b": 0}

    def round(self, a: int, b: int, rate_a: float = 0.0, rate_b: float = 0.0) -> set[object]:
        self.total["a"] += a
        self.total["b"] += b
        return set(self.speeds.slow([("a", self.total["a"], rate_a), ("b", self.total["b"], rate_b)]))


def test_links_are_looked_at_after_a_few_chunks_each() -> None:
    speeds = LinkSpeeds()
    assert not speeds.arrived(LOOK_BYTES - 1)
    assert speeds.arrived(1)
    speeds.slow([])
    assert not speeds.arrived(LOOK_BYTES - 1)


def test_a_link_that_brings_far_less_than_another_is_slow() -> None:
    arrivals = Arrivals()
    arrivals.round(0, 0)
    assert arrivals.round(100, 10) == {"b"}
    assert arrivals.round(10, 100) == {"a"}
    assert arrivals.round(100, 90) == set()


def test_what_it_brought_long_ago_does_not_count() -> None:
    arrivals = Arrivals()
    arrivals.round(0, 0)
    arrivals.round(1000, 1000)
    assert arrivals.round(1, 10) == {"a"}


def test_a_link_is_slow_until_it_brings_clearly_more() -> None:
    arrivals = Arrivals()
    arrivals.round(0, 0)
    assert arrivals.round(50, 100) == set()
    assert arrivals.round(39, 100) == {"a"}
    assert arrivals.round(79, 100) == {"a"}
    assert arrivals.round(81, 100) == set()


def test_a_link_that_was_measured_to_carry_far_less_is_slow_also_if_it_brings_as_much() -> None:
    arrivals = Arrivals()
    arrivals.round(0, 0)
    assert arrivals.round(100, 100, 1e9, 1e8) == {"b"}
    assert arrivals.round(100, 100, 1e9, 0.0) == set()


def test_a_link_that_is_new_has_brought_nothing_yet_and_one_that_went_is_forgotten() -> None:
    speeds = LinkSpeeds()
    speeds.slow([("a", 500, 0.0)])
    assert speeds.slow([("a", 600, 0.0), ("b", 10_000, 0.0)]) == {"b"}
    assert speeds.slow([]) == frozenset()


def test_of_large_chunks_a_few_have_to_come_before_links_are_compared() -> None:
    speeds = LinkSpeeds()
    assert [speeds.arrived(LOOK_BYTES) for _ in range(LOOK_CHUNKS)] == [False] * (LOOK_CHUNKS - 1) + [True]
