"""Names are the same wherever they are made, and errors say what happened, also in another process."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl import errors
from r2ccl.errors import CollectiveMismatch, CollectiveTimeout, NoQuorum, PeerLost, R2cclError
from r2ccl.ids import WORLD_PARENT, ChunkName, LinkId, TransferName, communicator_id

u64 = st.integers(0, (1 << 64) - 1)

EXAMPLES: list[R2cclError] = [
    PeerLost([3, 1], "dead", "refused on a healthy path"),
    PeerLost((2,), "unreachable"),
    CollectiveMismatch(7, {1: "barrier()", 0: "all_reduce(float32[8], sum)"}),
    CollectiveTimeout(9, "all_reduce(float32[8], sum)", 1.5, [2], [0, 1], [3]),
    CollectiveTimeout(9, "barrier()", 30.0),
    NoQuorum([0, 1], 3),
]
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, R2cclError)]
PLAIN = [kind for kind in KINDS if kind not in {type(example) for example in EXAMPLES}]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", [*EXAMPLES, *(kind("what happened") for kind in PLAIN)], ids=repr)
def test_an_error_goes_to_another_process_whole(error, protocol):
    arrived = pickle.loads(pickle.dumps(error, protocol))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_an_error_can_be_copied(error):
    for copied in (copy.copy(error), copy.deepcopy(error)):
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


def test_a_lost_peer_says_who_why_and_how_we_know():
    error = PeerLost([3, 1], "dead", "refused on a healthy path")
    assert str(error) == "lost rank(s) 3, 1: dead (refused on a healthy path)"
    assert (error.ranks, error.cause, error.verdict) == ((3, 1), "dead", "refused on a healthy path")
    assert str(PeerLost([2], "unreachable")) == "lost rank(s) 2: unreachable"


def test_a_mismatch_says_who_called_what_in_the_order_of_ranks():
    error = CollectiveMismatch(7, {1: "barrier()", 0: "all_reduce(float32[8], sum)"})
    assert str(error) == (
        "operation 7 differs between ranks: rank 0 called all_reduce(float32[8], sum); rank 1 called barrier()"
    )
    assert error.calls == {0: "all_reduce(float32[8], sum)", 1: "barrier()"}


def test_a_timeout_says_who_has_not_entered_who_has_and_who_finished():
    error = CollectiveTimeout(9, "barrier()", 1.5, [2], [0, 1], [3])
    assert str(error) == (
        "operation 9 (barrier()) did not finish in 1.5 s: "
        "not entered: [2], entered without finishing: [0, 1], finished: [3]"
    )
    assert (error.not_entered, error.entered, error.finished) == ((2,), (0, 1), (3,))


def test_an_error_keeps_what_it_was_told_when_the_caller_changes_it():
    ranks, calls = [1], {0: "barrier()"}
    lost, mismatch = PeerLost(ranks, "dead"), CollectiveMismatch(1, calls)
    ranks.append(2)
    calls[1] = "broadcast()"
    assert (lost.ranks, mismatch.calls) == ((1,), {0: "barrier()"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_one_of_ours_and_says_in_what_state_things_are_left(kind):
    assert issubclass(kind, R2cclError)
    assert kind.__doc__
    assert isinstance(kind.definite, bool)


@pytest.mark.parametrize(
    ("kind", "definite"),
    [
        (errors.UsageError, True),
        (errors.ConfigurationError, True),
        (errors.CommunicatorClosed, True),
        (errors.RendezvousError, True),
        (errors.AuthenticationError, True),
        (errors.PeerLost, False),
        (errors.CollectiveTimeout, False),
        (errors.CollectiveMismatch, False),
        (errors.CommunicatorAborted, False),
        (errors.InvalidTransition, False),
    ],
)
def test_only_calls_that_surely_had_no_effect_may_simply_be_repeated(kind, definite):
    assert kind.definite is definite


@given(parent=u64, operation=u64, colour=st.integers(-(1 << 63), 1 << 63))
def test_a_communicators_id_is_64_bits_and_a_function_of_what_created_it(parent, operation, colour):
    made = communicator_id(parent, operation, colour)
    assert 0 <= made < 1 << 64
    assert made == communicator_id(parent, operation, colour)


@given(first=st.tuples(u64, u64, u64), second=st.tuples(u64, u64, u64))
def test_communicators_of_different_origin_have_different_ids(first, second):
    assert (communicator_id(*first) == communicator_id(*second)) is (first == second)


def test_digits_that_move_between_the_parts_of_an_origin_make_another_id():
    assert len({communicator_id(1, 11, 1), communicator_id(11, 1, 1), communicator_id(1, 1, 11)}) == 3


def test_a_communicators_id_is_the_same_in_every_process():
    """Another process has another hash seed."""
    program = "from r2ccl.ids import communicator_id; print(communicator_id(0, 5, 7))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(printed.stdout) == communicator_id(WORLD_PARENT, 5, 7)


def test_a_chunks_name_is_its_transfers_name_and_an_index():
    transfer = TransferName(1, 2, 3, 4, 5)
    chunk = ChunkName(*transfer, 6)
    assert chunk[:5] == transfer
    assert chunk._fields[:5] == transfer._fields
    assert chunk.chunk == 6


def test_a_link_is_shown_from_here_to_there_and_sorts_by_peer():
    assert str(LinkId(peer=3, local_nic=0, remote_nic=1)) == "nic0->rank3.nic1"
    assert sorted([LinkId(2, 0, 0), LinkId(1, 1, 0), LinkId(1, 0, 1)]) == [
        LinkId(1, 0, 1),
        LinkId(1, 1, 0),
        LinkId(2, 0, 0),
    ]
