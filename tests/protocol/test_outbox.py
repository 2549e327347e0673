"""Credit, what is held back and in which order it goes, what is settled, given back and forgotten."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.outbox import COPIES_MAX, OPERATIONS_AHEAD_MAX, Outbox
from r2ccl.protocol.wire import Ack, Landing, OpenTransfer

CREDIT = 100
WORLD, OTHER = 1, 2


def parcel(operation: int, chunk: int = 0, size: int = 40, step: int = 0, world: int = WORLD, owner=None) -> Parcel:
    return Parcel(world, operation, step, 3, chunk, 0, bytes(size), owner)


def outbox() -> Outbox:
    return Outbox(3, CREDIT)


def test_up_to_the_credit_chunks_go_unasked_and_beyond_it_they_are_held() -> None:
    box = outbox()
    assert [box.submit(parcel(0, chunk)) for chunk in range(4)] == [True, True, False, False]
    assert box.unsolicited_bytes == 80
    assert box.unsettled() == 4


def test_nothing_overtakes_what_is_held_not_even_what_would_fit() -> None:
    box = outbox()
    assert box.submit(parcel(0, 0, 90))
    assert not box.submit(parcel(0, 1, 20))
    assert not box.submit(parcel(1, 0, 1))


def test_what_the_peer_has_entered_goes_at_once_and_costs_no_credit() -> None:
    box = outbox()
    assert box.entered(WORLD, 4) == []
    assert box.entered_by_peer(WORLD) == 5
    assert all(box.submit(parcel(operation, 0, 1000)) for operation in range(5))
    assert box.unsolicited_bytes == 0
    assert not box.submit(parcel(5, 0, 1000))


def test_entering_releases_what_is_held_in_order_and_frees_the_credit_for_what_comes_after() -> None:
    box = outbox()
    first = [parcel(0, chunk) for chunk in range(3)]
    second = [parcel(1, chunk) for chunk in range(3)]
    for each in first + second:
        box.submit(each)
    assert box.entered(WORLD, 0) == [first[2], second[0], second[1]]
    assert box.unsolicited_bytes == 80
    assert box.entered(WORLD, 0) == []
    assert box.entered(WORLD, 1) == [second[2]]
    assert box.unsolicited_bytes == 0


def test_an_entered_operation_is_released_from_behind_one_that_is_not() -> None:
    box = outbox()
    blocked = [parcel(0, chunk, world=OTHER) for chunk in range(3)]
    ours = parcel(0)
    for each in [*blocked, ours]:
        box.submit(each)
    assert box.entered(WORLD, 0) == [ours]
    assert box.entered(OTHER, 0) == [blocked[2]]


def test_what_is_posted_counts_against_the_credit_until_the_peer_has_entered() -> None:
    box = outbox()
    assert box.may_post(WORLD, 0, 60)
    assert not box.may_post(OTHER, 0, 60)
    assert box.submit(parcel(0, 0, 40))
    assert not box.submit(parcel(0, 1, 1))
    assert not box.may_post(WORLD, 0, 0)  # nothing overtakes what is held
    assert len(box.entered(WORLD, 0)) == 1
    assert box.unsolicited_bytes == 0
    assert box.may_post(WORLD, 0, 1000)
    assert box.unsolicited_bytes == 0


def test_communicators_are_entered_apart_and_share_the_credit() -> None:
    box = outbox()
    assert box.submit(parcel(0, 0, 60, world=OTHER))
    assert not box.submit(parcel(0, 0, 60))
    assert box.entered_by_peer(OTHER) == 0
    box.entered(WORLD, 7)
    assert box.entered_by_peer(OTHER) == 0


def test_an_acknowledgement_settles_by_number_and_by_bitmap_and_only_once() -> None:
    box = outbox()
    box.entered(WORLD, 9)
    old = [parcel(operation) for operation in (0, 1)]
    new = [parcel(2, chunk, step=step) for step in (0, 1) for chunk in range(4)]
    for each in old + new:
        box.submit(each)
    ack = Ack(WORLD, 2, (OpenTransfer(2, 0, 1, b"\x02"), OpenTransfer(2, 1, 0, b""), OpenTransfer(8, 0, 3, b"")))
    assert box.acknowledged(ack) == [*old, new[0], new[2]]
    assert box.acknowledged(ack) == []
    assert box.acknowledged(Ack(OTHER, 9, ())) == []
    assert box.unsettled() == 6
    assert set(box.acknowledged(Ack(WORLD, 3, ()))) == {new[1], *new[3:]}
    assert box.unsettled() == 0


def test_the_number_in_a_header_settles_whatever_the_order_of_submission() -> None:
    box = outbox()
    box.entered(WORLD, 9)
    later, earlier = parcel(6), parcel(5)
    box.submit(later)
    box.submit(earlier)
    assert box.completed(WORLD, 5) == []
    assert box.completed(WORLD, 6) == [earlier]
    assert box.completed(OTHER, 6) == []
    assert box.completed(WORLD, 7) == [later]
    assert box.completed(WORLD, 7) == []


def test_what_a_lost_lane_gives_back_goes_to_the_head_in_its_old_order() -> None:
    box = outbox()
    waiting, lost = [parcel(0, 8), parcel(0, 9)], [parcel(0, 1), parcel(0, 2), parcel(0, 3)]
    box.waiting.extend(waiting)
    box.give_back(iter(lost))
    assert list(box.waiting) == lost + waiting
    box.give_back([])
    assert list(box.waiting) == lost + waiting


def test_the_operation_that_started_first_goes_first_also_when_its_chunk_comes_late() -> None:
    def of_turn(turn: int, chunk: int) -> Parcel:
        return Parcel(WORLD, 10 + turn, 0, 3, chunk, 0, b"x", turn=turn)

    box = outbox()
    first, second, late, last = of_turn(1, 0), of_turn(2, 0), of_turn(1, 1), of_turn(2, 1)
    for one in (first, second, late, last):
        box.line_up(one)
    assert list(box.waiting) == [first, late, second, last]
    lost = [of_turn(2, 7), of_turn(2, 8)]
    box.give_back(lost)
    assert list(box.waiting) == [first, late, *lost, second, last]


def test_a_chunk_is_found_by_name_until_it_is_settled() -> None:
    box = outbox()
    one = parcel(4, 2, step=3)
    box.submit(one)
    assert box.find(WORLD, 4, 3, 2) is one
    assert box.find(WORLD, 4, 3, 1) is box.find(WORLD, 5, 3, 2) is box.find(OTHER, 4, 3, 2) is None
    box.acknowledged(Ack(WORLD, 5, ()))
    assert box.find(WORLD, 4, 3, 2) is None


def test_the_end_of_an_operation_settles_its_views_and_leaves_its_copies_on_their_way() -> None:
    box = outbox()
    view, copy = parcel(0, 0, owner=object()), parcel(0, 1)
    box.submit(view)
    box.submit(copy)
    assert box.settle_operation(WORLD, 0) == [view]
    assert box.settle_operation(WORLD, 0) == []
    assert box.settle_operation(OTHER, 0) == []
    assert box.find(WORLD, 0, 0, 1) is copy
    assert box.acknowledged(Ack(WORLD, 1, ())) == [copy]


def test_what_is_acknowledged_before_the_peer_has_entered_counts_when_it_enters() -> None:
    box = outbox()
    early, later, failed = parcel(0), parcel(1), parcel(2)
    for each in (early, later, failed):
        box.submit(each)
    assert box.count([early, later, failed]) == []
    box.entered(WORLD, 0)
    assert box.count([]) == [early]
    box.forget(WORLD, 2)
    box.entered(WORLD, 5)
    at_once = parcel(5)
    assert box.count([at_once]) == [later, at_once]
    assert box.count([]) == []


def test_forgetting_takes_failed_operations_out_of_every_queue() -> None:
    box = outbox()
    kept, failed = parcel(0, 0), [parcel(1, chunk) for chunk in range(3)]
    assert [box.submit(each) for each in [kept, *failed]] == [True, True, False, False]
    box.waiting.extend([kept, failed[0]])
    assert box.forget(WORLD, 1) == failed
    assert list(box.waiting) == [kept]
    assert box.unsettled() == 1
    assert box.entered(WORLD, 5) == []
    assert box.forget(OTHER, 0) == []


def test_what_is_forgotten_gives_its_credit_back_to_what_goes_on() -> None:
    box = outbox()
    assert box.submit(parcel(3, 0, 100))
    others = [parcel(0, chunk, 50, world=OTHER) for chunk in range(3)]
    assert not any([box.submit(each) for each in others])
    box.forget(WORLD, 3)
    # The peer may still keep them.
    assert box.unsolicited_bytes == 100
    assert box.release() == []
    box.failure_is_known(WORLD)
    assert box.unsolicited_bytes == 0
    assert box.release() == others[:2]
    assert box.release() == []


def test_who_leaves_keeps_nothing_so_the_credit_of_what_it_never_called_for_is_free() -> None:
    box = outbox()
    assert box.submit(parcel(3, 0, 100))
    other = parcel(0, 0, 50, world=OTHER)
    assert not box.submit(other)
    box.left(OTHER)
    assert box.unsolicited_bytes == 100
    box.left(WORLD)
    assert box.unsolicited_bytes == 0
    assert box.release() == [other]


def test_one_sided_chunks_wait_for_their_landing_whatever_the_credit() -> None:
    box = Outbox(3, CREDIT, written_above_bytes=30)
    large, small = parcel(0, 0, 31), parcel(0, 1, 30)
    assert not box.submit(large)
    assert box.submit(small)
    assert box.entered(WORLD, 0) == []
    landing = Landing(0, 9, 0, 31)
    assert box.may_land(WORLD, 0, [landing]) == [large]
    assert box.landing(large) == landing
    assert box.may_land(WORLD, 0, [landing]) == []
    assert box.submit(parcel(0, 2, 31))


def test_what_does_not_fit_the_landing_of_a_peer_that_called_something_else_is_not_written() -> None:
    box = Outbox(3, CREDIT, written_above_bytes=30)
    larger, fitting, elsewhere = parcel(0, 0, 40), parcel(0, 1, 31), parcel(1, 0, 40)
    assert not any([box.submit(larger), box.submit(fitting), box.submit(elsewhere)])
    assert box.may_land(WORLD, 0, [Landing(0, 9, 0, 31)]) == [fitting]
    assert not box.submit(parcel(0, 2, 32))
    assert box.may_land(WORLD, 0, [Landing(0, 9, 0, 40)])[0] is larger


def test_landings_are_forgotten_with_their_operation() -> None:
    box = Outbox(3, CREDIT, written_above_bytes=30)
    box.may_land(WORLD, 0, [Landing(0, 9, 0, 31)])
    box.settle_operation(WORLD, 0)
    assert not box.submit(parcel(0, 0, 31))
    box.may_land(WORLD, 1, [Landing(0, 9, 0, 31)])
    box.forget(WORLD, 1)
    assert not box.submit(parcel(1, 0, 31))
    assert box.forget(WORLD, 0)
    assert box.may_land(WORLD, 0, [Landing(0, 9, 0, 31)]) == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(0, 5), st.integers(0, 60)),
            st.tuples(st.just("enter"), st.integers(0, 5), st.just(0)),
        ),
        max_size=60,
    )
)
def test_in_any_story_the_credit_holds_and_everything_goes_out_once_and_in_order(story) -> None:
    box = outbox()
    gone: list[Parcel] = []
    submitted: list[Parcel] = []
    entered = 0
    for number, (what, operation, size) in enumerate(story):
        if what == "submit":
            one = parcel(operation, number, size)
            submitted.append(one)
            gone += [one] if box.submit(one) else []
        else:
            gone += box.entered(WORLD, operation)
            entered = max(entered, operation + 1)
        unasked = sum(len(one.payload) for one in gone if one.operation >= entered)
        assert unasked == box.unsolicited_bytes <= CREDIT
    gone += box.entered(WORLD, 5)
    assert len(gone) == len(set(gone)) == len(submitted)
    for operation in range(6):
        in_order = [one.chunk for one in gone if one.operation == operation]
        assert in_order == sorted(in_order)


def test_an_acknowledgement_with_an_absurd_base_takes_no_memory_by_it():
    outbox = Outbox(1, 1 << 20)
    outbox.submit(Parcel(7, 0, 0, 1, 0, 0, b"x"))
    tracemalloc.start()
    settled = outbox.acknowledged(Ack(7, 0, (OpenTransfer(0, 0, 0xFFFFFFFF, b"\x01"),)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(settled) == 1
    assert peak < 1 << 20


def test_so_many_copies_may_outlive_their_operations_and_no_more_until_some_are_acknowledged():
    outbox = Outbox(1, 1 << 20)
    for number in range(COPIES_MAX):
        assert outbox.may_copy
        outbox.submit(Parcel(7, number, 0, 1, 0, 0, b""))
    assert not outbox.may_copy
    outbox.acknowledged(Ack(7, 1, ()))
    assert outbox.may_copy
    outbox.forget(7, 2)
    assert outbox.copies == 1
    outbox.abandon()
    assert outbox.copies == outbox.copied_bytes == 0


def test_a_peer_is_sent_nothing_of_operations_too_far_beyond_the_one_it_is_in():
    outbox = Outbox(1, 1 << 20)
    assert outbox.submit(Parcel(7, OPERATIONS_AHEAD_MAX - 1, 0, 1, 0, 0, b""))
    late = Parcel(7, OPERATIONS_AHEAD_MAX, 0, 1, 0, 0, b"")
    assert not outbox.submit(late)
    assert outbox.entered(7, 0) == [late]


@given(st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=4)), max_size=8), st.integers(1, 40))
def test_acknowledgements_settle_exactly_what_they_name_in_any_order(told, chunks):
    outbox = Outbox(1, 1 << 20)
    for step in (0, 1):
        for chunk in range(chunks):
            outbox.submit(Parcel(7, 0, step, 1, chunk, 0, b"x"))
    left = set(range(chunks))
    for base, bits in told:
        number = int.from_bytes(bits, "little")
        named = {chunk for chunk in left if chunk < base or number >> (chunk - base) & 1}
        settled = outbox.acknowledged(Ack(7, 0, (OpenTransfer(0, 1, base, bits),)))
        assert sorted(parcel.chunk for parcel in settled) == sorted(named)
        assert {parcel.step for parcel in settled} <= {1}
        left -= named
    assert outbox.unsettled() == chunks + len(left)


def test_an_operation_that_begins_again_behind_later_ones_is_settled_and_released_with_the_others() -> None:
    box = outbox()
    for operation in (2, 3):
        box.submit(parcel(operation, size=10))
    late = parcel(1, size=10)
    box.submit(late)
    assert box.unsolicited_bytes == 30
    assert box.completed(WORLD, 1) == []
    assert box.entered(WORLD, 0) == []
    assert box.unsolicited_bytes == 30
    assert box.completed(WORLD, 2) == [late]
    assert box.entered(WORLD, 1) == []
    assert box.unsolicited_bytes == 20
    assert len(box.completed(WORLD, 4)) == 2
    box.entered(WORLD, 3)
    assert (box.unsettled(), box.unsolicited_bytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from(("send", "complete", "enter")), st.integers(0, 30)), max_size=80))
def test_what_is_settled_and_charged_is_what_a_plain_list_says(steps: list[tuple[str, int]]) -> None:
    box = Outbox(3, 1 << 20)
    open_parcels: list[Parcel] = []
    charged: dict[int, int] = {}
    entered = 0
    for chunk, (what, number) in enumerate(steps):
        if what == "send":
            open_parcels.append(parcel(number, chunk, 1))
            assert box.submit(open_parcels[-1])
            if number >= entered:
                charged[number] = charged.get(number, 0) + 1
        elif what == "complete":
            settled = box.completed(WORLD, number)
            assert set(settled) == {one for one in open_parcels if one.operation < number}
            open_parcels = [one for one in open_parcels if one.operation >= number]
        else:
            assert box.entered(WORLD, number) == []
            entered = max(entered, number + 1)
            charged = {operation: size for operation, size in charged.items() if operation >= entered}
        assert box.unsettled() == len(open_parcels)
        assert box.unsolicited_bytes == sum(charged.values())
