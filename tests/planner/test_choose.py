"""What is chosen, and that nothing but request, ranks and picture has a say in it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.config import KIB, MIB
from r2ccl.planner.choose import Choice, build, choose
from r2ccl.planner.picture import NicEstimate, Picture, even_picture
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.schedule.algorithms import ALGORITHMS, IN_PARTS, Algorithm, algorithm, meaning
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Shape

MBIT_S = 125_000.0


def all_reduce(payload_bytes: int) -> Request:
    return Request(CollectiveKind.ALL_REDUCE, payload_bytes // 4, 4)


def broadcast(payload_bytes: int, root: int = 0) -> Request:
    return Request(CollectiveKind.BROADCAST, payload_bytes, 1, root)


BARRIER = Request(CollectiveKind.BARRIER, 0, 1)


def algorithm_of(request: Request, ranks: int, picture: Picture | None = None) -> str:
    return choose(request, ranks, picture or even_picture(ranks)).algorithm


@pytest.mark.parametrize("ranks", [4, 8, 16, 64])
def test_tiny_medium_and_large_all_reduces_are_done_differently(ranks: int) -> None:
    assert algorithm_of(all_reduce(4), ranks) == "recursive_doubling"
    assert algorithm_of(all_reduce(16 * KIB), ranks) == "recursive_doubling"
    assert algorithm_of(all_reduce(128 * KIB), ranks) == "halving_doubling"
    assert algorithm_of(all_reduce(512 * MIB), ranks) == "ring"


def test_two_ranks_exchange_whole_small_buffers_and_halves_of_large_ones() -> None:
    assert algorithm_of(all_reduce(4), 2) == "recursive_doubling"
    assert algorithm_of(all_reduce(MIB), 2) == "ring"


def test_sends_from_copies_are_never_planned_above_the_eager_limit() -> None:
    free = even_picture(8, latency_s=1.0, eager_bytes=1000)
    assert algorithm_of(all_reduce(1000), 8, free) == "recursive_doubling"
    assert algorithm_of(all_reduce(1004), 8, free) == "halving_doubling"
    assert "only up to 1000 bytes" in choose(all_reduce(1004), 8, free).reason


def test_on_slow_wires_fewer_bytes_win_over_fewer_steps() -> None:
    slow = even_picture(8, bandwidth_bytes_s=10 * MBIT_S)
    assert algorithm_of(all_reduce(32 * KIB), 8, slow) == "halving_doubling"
    assert algorithm_of(all_reduce(32 * KIB), 8) == "recursive_doubling"


def test_small_broadcasts_go_down_a_tree_and_large_ones_along_a_chain() -> None:
    assert algorithm_of(broadcast(1000), 8) == "binomial"
    assert algorithm_of(broadcast(64 * MIB), 8) == "chain"


def test_a_barrier_is_a_dissemination() -> None:
    assert algorithm_of(BARRIER, 8) == "dissemination"


@pytest.mark.parametrize(
    ("nic_mbit_s", "chunk_kib"), [(10_000, 256), (1000, 256), (800, 192), (500, 128), (200, 64), (100, 32), (1, 32)]
)
def test_a_chunk_takes_about_two_milliseconds_on_a_slow_nic(nic_mbit_s: int, chunk_kib: int) -> None:
    picture = even_picture(4, nics_per_rank=2, bandwidth_bytes_s=nic_mbit_s * MBIT_S)
    assert choose(all_reduce(256 * MIB), 4, picture).chunk_bytes == chunk_kib * KIB


def test_the_slowest_nic_of_all_ranks_decides_on_the_chunk() -> None:
    fast, slow = NicEstimate(10_000 * MBIT_S), NicEstimate(500 * MBIT_S)
    picture = Picture(3, ((fast, fast), (fast, slow)))
    assert choose(all_reduce(256 * MIB), 2, picture).chunk_bytes == 128 * KIB


@pytest.mark.parametrize(("nics", "chunk_kib"), [(1, 128), (2, 64), (4, 32), (8, 32)])
def test_a_small_transfer_has_a_chunk_for_each_nic(nics: int, chunk_kib: int) -> None:
    choice = choose(all_reduce(MIB // 2), 4, even_picture(4, nics_per_rank=nics))
    assert choice.algorithm == "ring"
    assert choice.chunk_bytes == chunk_kib * KIB
    assert choose(broadcast(MIB // 2), 2, even_picture(2, nics_per_rank=4)).chunk_bytes == 128 * KIB


@pytest.mark.parametrize(
    ("wire", "up_to_bytes"), [("network", 256 * KIB), ("loopback", 2 * MIB), ("shared_memory", 2 * MIB)]
)
def test_between_ranks_of_one_machine_steps_count_for_more_than_caches(wire: str, up_to_bytes: int) -> None:
    picture = dataclasses.replace(even_picture(4), wire=wire)
    assert choose(all_reduce(up_to_bytes), 4, picture).algorithm == "halving_doubling"
    assert choose(all_reduce(2 * up_to_bytes), 4, picture).algorithm == "ring"


@pytest.mark.parametrize("wire", ["loopback", "shared_memory"])
@pytest.mark.parametrize(
    ("operation_bytes", "nics", "chunk_kib"),
    [(64 * MIB, 1, 2048), (8 * MIB, 1, 2048), (4 * MIB, 1, 1024), (4 * MIB, 2, 512)],
)
def test_chunks_between_ranks_of_one_machine_are_up_to_eight_times_as_large(
    wire: str, operation_bytes: int, nics: int, chunk_kib: int
) -> None:
    picture = dataclasses.replace(even_picture(4, nics_per_rank=nics), wire=wire)
    choice = choose(all_reduce(operation_bytes), 4, picture)
    assert (choice.algorithm, choice.chunk_bytes) == ("ring", chunk_kib * KIB)


def test_a_chunk_between_ranks_of_one_machine_still_takes_two_milliseconds_and_fits_the_wire() -> None:
    slow = dataclasses.replace(even_picture(4, bandwidth_bytes_s=2000 * MBIT_S), wire="loopback")
    assert choose(all_reduce(256 * MIB), 4, slow).chunk_bytes == 480 * KIB
    large = dataclasses.replace(even_picture(4, bandwidth_bytes_s=1e11, chunk_bytes=2 * MIB), wire="loopback")
    assert choose(all_reduce(256 * MIB), 4, large).chunk_bytes == 4 * MIB


@pytest.mark.parametrize(("ranks", "chunk_kib"), [(3, 2048), (4, 1024), (6, 512), (10, 256), (64, 256)])
def test_a_chain_has_four_large_chunks_for_each_rank_that_forwards_or_small_ones(ranks: int, chunk_kib: int) -> None:
    picture = dataclasses.replace(even_picture(ranks), wire="loopback", algorithms="broadcast=chain")
    choice = choose(broadcast(8 * MIB), ranks, picture)
    assert (choice.algorithm, choice.chunk_bytes) == ("chain", chunk_kib * KIB)


def test_a_chunk_is_never_larger_than_the_setting_and_never_splits_an_item() -> None:
    assert choose(all_reduce(256 * MIB), 4, even_picture(4, chunk_bytes=10_000)).chunk_bytes == 8192
    assert choose(all_reduce(256 * MIB), 4, even_picture(4, chunk_bytes=50)).chunk_bytes == 48
    assert (
        choose(Request(CollectiveKind.BROADCAST, 1 << 20, 12), 4, even_picture(4)).chunk_bytes == 256 * KIB // 12 * 12
    )
    assert choose(Request(CollectiveKind.BROADCAST, 8, 100), 4, even_picture(4, chunk_bytes=50)).chunk_bytes == 100


pictures = st.builds(
    even_picture,
    st.just(6),
    st.integers(1, 4),
    st.floats(1e5, 1e11),
    st.floats(0, 0.01),
    st.integers(1, 4 * MIB),
    st.integers(0, MIB),
)
requests = st.builds(
    Request,
    st.sampled_from(CollectiveKind),
    st.integers(0, 1 << 34),
    st.sampled_from([1, 2, 4, 8, 12, 16]),
    st.integers(0, 5),
)


@given(requests, pictures)
def test_every_choice_keeps_the_rules(request: Request, picture: Picture) -> None:
    choice = choose(request, 6, picture)
    assert algorithm(request.kind.value, choice.algorithm).collective == request.kind.value
    assert choice.algorithm != "recursive_doubling" or request.payload_bytes <= picture.eager_bytes
    assert 1 <= choice.chunk_bytes <= max(picture.chunk_bytes, request.item_bytes)
    assert choice.chunk_bytes % request.item_bytes == 0
    assert choice.chunk_bytes >= min(32 * KIB - request.item_bytes, picture.chunk_bytes // 2)
    assert choice.chunk_bytes < 4096 or 4096 % request.item_bytes or choice.chunk_bytes % 4096 == 0


@given(requests, pictures)
def test_equal_arguments_give_equal_choices(request: Request, picture: Picture) -> None:
    again = dataclasses.replace(picture, nics=tuple(tuple(nics) for nics in picture.nics))
    assert choose(request, 6, picture) == choose(dataclasses.replace(request), 6, again)


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
@pytest.mark.parametrize(
    "request_", [all_reduce(40), all_reduce(MIB), broadcast(40, 0), broadcast(9 * MIB, 0), BARRIER]
)
def test_what_is_built_does_what_was_asked_for(ranks: int, request_: Request) -> None:
    request = dataclasses.replace(request_, root=ranks - 1)
    choice = choose(request, ranks, even_picture(ranks))
    means = meaning(request.kind.value, [Shape(request.count, request.root)] * ranks)
    check([build(choice, request, ranks, rank) for rank in range(ranks)], means)


def request_of(known: Algorithm) -> Request:
    """Of 8 elements over 4 ranks."""
    kind = CollectiveKind(known.collective)
    if kind is CollectiveKind.BARRIER:
        return Request(kind, 0, 4, 2)
    if kind is CollectiveKind.ALL_TO_ALL:
        return Request(kind, 8, 4, parts=(2, 2, 2, 2), out_parts=(2, 2, 2, 2))
    if known.collective in IN_PARTS:
        return Request(kind, 8, 4, 2, parts=(2, 2, 2, 2))
    return Request(kind, 8, 4, 2)


def test_any_algorithm_may_be_built_on_demand() -> None:
    for known in ALGORITHMS:
        request = request_of(known)
        assert build(Choice(known.name, 4096, "on demand"), request, 4, 3) == known.build(4, 3, request.shape)


def in_parts(kind: CollectiveKind, payload_bytes: int, ranks: int) -> Request:
    part = payload_bytes // ranks
    if kind is CollectiveKind.ALL_TO_ALL:
        return Request(kind, part * ranks, 1, parts=(part,) * ranks, out_parts=(part,) * ranks)
    return Request(kind, part * ranks, 1, parts=(part,) * ranks)


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [
        (CollectiveKind.ALL_GATHER, "bruck", "ring"),
        (CollectiveKind.REDUCE_SCATTER, "direct", "ring"),
        (CollectiveKind.GATHER, "binomial", "direct"),
        (CollectiveKind.SCATTER, "binomial", "direct"),
        (CollectiveKind.ALL_TO_ALL, "bruck", "direct"),
    ],
    ids=lambda one: one.value if isinstance(one, CollectiveKind) else one,
)
def test_parts_go_in_company_when_they_are_small_and_on_their_own_when_they_are_large(
    kind: CollectiveKind, small: str, large: str
) -> None:
    assert algorithm_of(in_parts(kind, 16 * 64, 16), 16) == small
    assert algorithm_of(in_parts(kind, 64 * MIB, 16), 16) == large


def test_reduces_go_the_way_of_broadcasts() -> None:
    assert algorithm_of(Request(CollectiveKind.REDUCE, 1000, 1), 8) == "binomial"
    assert algorithm_of(Request(CollectiveKind.REDUCE, 64 * MIB, 1), 8) == "chain"


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("count", [0, 8, 8 * MIB])
def test_of_blocks_whose_size_two_ranks_alone_know_nothing_depends_on_sizes(ranks: int, count: int) -> None:
    """Each rank sees other counts, and all must plan alike."""
    mine = Request(CollectiveKind.ALL_TO_ALL, count, 4, parts=(count,) * ranks, out_parts=(0,) * ranks, uneven=True)
    theirs = Request(CollectiveKind.ALL_TO_ALL, 0, 4, parts=(0,) * ranks, out_parts=(count,) * ranks, uneven=True)
    here, there = (choose(request, ranks, even_picture(ranks)) for request in (mine, theirs))
    assert (here.algorithm, here.chunk_bytes) == (there.algorithm, there.chunk_bytes) == ("direct", 256 * KIB)


def test_a_direct_reduce_scatter_whose_receivers_hold_what_is_early_is_small() -> None:
    slow = even_picture(8, latency_s=1.0, eager_bytes=1000)
    assert algorithm_of(in_parts(CollectiveKind.REDUCE_SCATTER, 1000, 8), 8, slow) == "direct"
    assert algorithm_of(in_parts(CollectiveKind.REDUCE_SCATTER, 1008, 8), 8, slow) == "ring"


def test_the_reason_says_what_was_compared() -> None:
    reason = choose(all_reduce(4), 4, even_picture(4)).reason
    assert reason.startswith("all_reduce of 4 bytes over 4 ranks in epoch 0: recursive_doubling 0.06 ms, against ")
    assert "halving_doubling 0.12 ms" in reason
    assert "ring 0.18 ms" in reason
    assert reason.endswith("chunks of 32768 bytes")


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a picture of 3 ranks for 4 ranks"):
        choose(BARRIER, 4, even_picture(3))
    with pytest.raises(ValueError, match="root 4 of 4 ranks"):
        choose(broadcast(4, root=4), 4, even_picture(4))
    with pytest.raises(ValueError, match="-1 items of 4 bytes"):
        Request(CollectiveKind.ALL_REDUCE, -1, 4)
    with pytest.raises(ValueError, match="1 items of 0 bytes"):
        Request(CollectiveKind.ALL_REDUCE, 1, 0)
