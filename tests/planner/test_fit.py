"""The regression finds the figures that times were made from, also where some of the times are wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from r2ccl.cli.tune_measure import CHUNK_COUNTS, CHUNKED_BYTES, COMPARED, PIECE_BYTES, digest
from r2ccl.planner.cost import Wires, cost_s
from r2ccl.planner.fit import Sample, fit, slope

START_S, ALPHA_S, BETA, GAMMA, DELTA = 40e-6, 12e-6, 0.6e-9, 0.1e-9, 0.05e-9
TRUE = Wires(ALPHA_S, BETA, PIECE_BYTES, GAMMA, DELTA)


def made_of(ranks: int, wrong: Callable[[float], float] = lambda seconds: seconds) -> list[Sample]:
    """What an ideal machine would have taken, changed by ``wrong``."""
    return [
        Sample(
            "all_reduce", name, ranks, size, PIECE_BYTES,
            wrong(START_S + cost_s("all_reduce", name, ranks, size, TRUE)),
        )
        for name, sizes in COMPARED.items()
        for size in sizes
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_figures_are_found_again_whatever_the_number_of_ranks(ranks: int) -> None:
    found = fit(made_of(ranks), GAMMA)
    assert found.start_s == pytest.approx(START_S, rel=1e-6)
    assert found.alpha_s == pytest.approx(ALPHA_S, rel=1e-6)
    assert found.beta_s_per_byte == pytest.approx(BETA, rel=1e-6)
    assert found.delta_s_per_byte == pytest.approx(DELTA, rel=1e-6)
    assert found.error < 1e-6


def test_times_that_something_else_made_long_have_no_say() -> None:
    samples = made_of(2)
    # Recursive doubling at 4 KiB, the ring at 256 KiB.
    for place, factor in ((2, 8.0), (10, 20.0)):
        one = samples[place]
        samples[place] = Sample(
            one.collective, one.algorithm, one.ranks, one.payload_bytes, one.chunk_bytes, one.seconds * factor
        )
    found = fit(samples, GAMMA)
    assert found.alpha_s == pytest.approx(ALPHA_S, rel=0.02)
    assert found.beta_s_per_byte == pytest.approx(BETA, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_some_percent_changes_little(seed: int) -> None:
    generator = random.Random(seed)
    found = fit(made_of(2, lambda seconds: seconds * generator.gauss(1.0, 0.03)), GAMMA)
    assert found.beta_s_per_byte == pytest.approx(BETA, rel=0.15)
    # A step is told from a call by a fifth of the time.
    assert found.alpha_s == pytest.approx(ALPHA_S, rel=0.5)
    assert found.error < 0.06


def test_nothing_that_was_found_is_negative() -> None:
    """With a ring that beats what has half its steps, the best alpha is nought."""
    samples = [
        Sample(one.collective, one.algorithm, 2, one.payload_bytes, one.chunk_bytes, one.seconds * factor)
        for one in made_of(2)
        for factor in [0.5 if one.algorithm == "ring" else 1.0]
    ]
    found = fit(samples, GAMMA)
    assert found.alpha_s == 0.0
    assert min(found.start_s, found.beta_s_per_byte, found.delta_s_per_byte) >= 0


def without(samples: Sequence[Sample], name: str) -> list[Sample]:
    return [one for one in samples if one.algorithm != name]


def test_samples_that_do_not_tell_the_figures_apart_are_refused() -> None:
    samples = made_of(2)
    for too_few in (without(samples, "recursive_doubling"), without(samples, "halving_doubling"), samples[:3]):
        with pytest.raises(ValueError, match="do not tell"):
            fit(too_few, GAMMA)
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([], GAMMA)
    with pytest.raises(ValueError, match="took no time"):
        fit([Sample("all_reduce", "ring", 2, 4, 4, 0.0)], GAMMA)


def test_a_slope_is_not_moved_by_a_wrong_point() -> None:
    points = [(float(x), 3.0 + 2.0 * x) for x in range(6)]
    assert slope(points) == pytest.approx(2.0)
    assert slope([*points[:-1], (5.0, 500.0)]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="no slope"):
        slope([(1.0, 1.0), (1.0, 2.0)])


def times(overhead_s: float) -> list[tuple[str, int, float]]:
    reduced = [(one.algorithm, one.payload_bytes, one.seconds) for one in made_of(2)]
    chunked = [(f"in {count} chunks", CHUNKED_BYTES, 2 * (1e-4 + count * overhead_s)) for count in CHUNK_COUNTS]
    return [*reduced, *chunked]


def test_all_times_of_a_wire_make_its_figures() -> None:
    measured = digest(2, times(3e-6), GAMMA)
    assert measured.cost.alpha_s == pytest.approx(ALPHA_S)
    assert measured.cost.beta_s_per_byte == pytest.approx(BETA)
    assert measured.cost.overhead_s == pytest.approx(3e-6)
    assert measured.cost.delta_s_per_byte == pytest.approx(DELTA)
    assert measured.start_s == pytest.approx(START_S)
    assert len(measured.samples) == sum(map(len, COMPARED.values()))


def test_nobody_is_busier_with_a_message_than_it_takes_to_arrive() -> None:
    assert digest(2, times(1e-3), GAMMA).cost.overhead_s == pytest.approx(ALPHA_S)
    assert digest(2, times(-1e-6), GAMMA).cost.overhead_s > 0
