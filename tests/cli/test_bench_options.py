"""What may be asked of ``r2ccl bench``, and the one line that says what may not."""

from __future__ import annotations

import pytest

from r2ccl.cli.bench_options import Asked, check, parse_size, sizes
from r2ccl.errors import UsageError


def test_a_size_has_the_suffixes_of_nccl_tests():
    texts = ["4", "8K", "1.5M", "128m", "2G", "64KB"]
    assert [parse_size(text, "-b") for text in texts] == [4, 8192, 3 << 19, 128 << 20, 2 << 30, 65536]
    for text in ("", "x", "-1", "0", "1T", "1e3", "0.1", "2000000G"):
        with pytest.raises(UsageError, match=r"^-b .*size is"):
            parse_size(text, "-b")


def test_sizes_are_multiplied_or_added_to_up_to_the_largest():
    assert sizes(4, 100, 4.0, None) == [4, 16, 64]
    assert sizes(4, 64, None, None) == [4, 16, 64]
    assert sizes(10, 40, None, 10) == [10, 20, 30, 40]
    assert sizes(1, 4, 1.5, None) == [1, 2, 3, 4]
    assert sizes(7, 7, 2.0, None) == [7]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((100, 10, None, None), "-b 100 is more than -e 10"),
        ((1, 10, 2.0, 1), "-f multiplies and -i adds"),
        ((1, 10, 1.0, None), "-f 1: the factor between sizes is more than 1"),
        ((1, 1 << 30, None, 1), "more than 1000 sizes"),
    ],
)
def test_sizes_that_lead_nowhere_are_refused(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        sizes(*arguments)


def test_counts_are_of_one_part_and_sizes_of_all_and_no_size_comes_twice():
    options = check(Asked("all_gather", ranks=3, minbytes="4", maxbytes="1K"))
    assert options.counts == (1, 5, 21, 85)
    assert [options.size_of(count) for count in options.counts] == [12, 60, 252, 1020]
    options = check(Asked("all_reduce", dtype="double", minbytes="4", maxbytes="64"))
    assert [options.size_of(count) for count in options.counts] == [8, 16, 64]


def test_a_barrier_has_one_row_without_size_op_or_root():
    options = check(Asked("barrier"))
    assert (options.counts, options.op, options.root, options.size_of(0)) == ((0,), "", -1, 0)


def test_short_names_and_ours_are_understood():
    options = check(Asked("reduce", dtype="half", op="prod", root=1))
    assert (options.dtype, options.item_bytes, options.op, options.root) == ("float16", 2, "product", 1)
    assert check(Asked("all_gather", op="avg", dtype="int8")).op == ""
    assert check(Asked("all_reduce", op="avg")).op == "average"


def test_beside_a_peer_there_are_five_rounds_else_one_or_as_asked():
    assert check(Asked("all_reduce")).rounds == 1
    assert check(Asked("all_reduce", peer="gloo")).rounds == 5
    assert check(Asked("all_reduce", peer="gloo", rounds=7)).rounds == 7


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (Asked("allreduce"), "there is no collective allreduce; there are all_reduce"),
        (Asked("all_reduce", dtype="float8"), "-d float8: there is no such dtype; there are float32"),
        (Asked("all_reduce", op="mean"), "-o mean: there is no such op; there are sum"),
        (Asked("all_reduce", op="bitwise_or"), "bitwise_or is not defined for float32"),
        (Asked("all_reduce", dtype="complex64", op="max"), "max is not defined for complex64"),
        (Asked("all_reduce", ranks=0), "-n 0: there may be 1 to"),
        (Asked("sendrecv", ranks=1), "-n 1: sendrecv needs at least 2 ranks"),
        (Asked("all_reduce", ranks=1, peer="gloo"), "-n 1: a peer needs at least 2 ranks"),
        (Asked("broadcast", root=2), "-r 2: ranks go from 0 to 1"),
        (Asked("all_reduce", nics_per_rank=0), "--nics-per-rank 0"),
        (Asked("all_reduce", iterations=0), "--iters 0"),
        (Asked("all_reduce", warmup=-1), "-w -1"),
        (Asked("all_reduce", checks=-1), "-c -1"),
        (Asked("all_reduce", rounds=0), "--rounds 0"),
        (Asked("all_reduce", seconds=0.0), "--seconds 0"),
        (Asked("all_reduce", timeout_s=float("nan")), "-T nan"),
        (Asked("all_reduce", peer="nccl"), "--peer nccl: there is no such peer; there are gloo, openmpi, mptcp"),
        (Asked("all_gather", peer="mptcp"), "--peer mptcp: plain sockets do all_reduce and sendrecv only"),
        (Asked("all_reduce", ranks=200, dtype="bfloat16"), "not exact in bfloat16, so they cannot be checked"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(asked, complaint):
    with pytest.raises(UsageError, match=complaint) as refused:
        check(asked)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_checked_may_be_timed():
    assert check(Asked("all_reduce", ranks=200, dtype="bfloat16", checks=0)).checks == 0
    assert check(Asked("broadcast", ranks=200, dtype="bfloat16")).checks == 1
