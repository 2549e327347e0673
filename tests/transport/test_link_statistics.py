"""An interface's error counters: the kernel's answer byte by byte, what is new in it, and the kernel itself."""

from __future__ import annotations

import dataclasses
import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.link_statistics import ErrorCounter, InterfaceErrors, NicErrors, parse, read_errors, request

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")
NEWSTATS, ERROR, STATS_LINK_64, SOMETHING_ELSE = 92, 2, 1, 3
RX_ERRORS, TX_ERRORS, RX_DROPPED, RX_LENGTH, RX_CRC, RX_FRAME, RX_FIFO, RX_MISSED = 4, 5, 6, 10, 12, 13, 14, 15
TX_ABORTED, TX_CARRIER = 16, 17


def row(counters: dict[int, int], length: int = 25) -> bytes:
    """A struct rtnl_link_stats64 with these numbers at these places, and noise of traffic in the first four."""
    numbers = [1000, 2000, 3000, 4000] + [0] * (length - 4)
    for place, count in counters.items():
        numbers[place] = count
    return struct.pack(f"={length}Q", *numbers)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def answer(*attributes: bytes, kind: int = NEWSTATS) -> bytes:
    body = struct.pack("=BBHII", 0, 0, 0, 7, 1) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def told(counters: dict[int, int], length: int = 25) -> InterfaceErrors | None:
    return parse(answer(attribute(STATS_LINK_64, row(counters, length))))


def test_errors_are_found_among_the_counters() -> None:
    assert told({RX_ERRORS: 5, TX_ERRORS: 2, RX_CRC: 3}) == InterfaceErrors(received=5, sent=2, checksum=3)
    assert InterfaceErrors(5, 2, 3).total == 7


def test_special_errors_count_also_where_the_driver_leaves_them_out_of_the_sum() -> None:
    counted = told({RX_LENGTH: 1, RX_CRC: 2, RX_FRAME: 4, TX_ABORTED: 8, TX_CARRIER: 16})
    assert counted == InterfaceErrors(received=7, sent=24, checksum=2)
    assert told({RX_ERRORS: 2, RX_CRC: 2}) == InterfaceErrors(received=2, sent=0, checksum=2)


def test_what_a_slow_host_drops_is_no_error() -> None:
    assert told({RX_DROPPED: 9, RX_FIFO: 9, RX_MISSED: 9}) == InterfaceErrors(0, 0, 0)


def test_older_and_newer_kernels_tell_fewer_and_more_counters() -> None:
    assert told({RX_ERRORS: 1}, length=23) == told({RX_ERRORS: 1}, length=40) == InterfaceErrors(1, 0, 0)
    assert told({RX_ERRORS: 1}, length=22) is None


def test_other_attributes_are_passed_over() -> None:
    data = answer(attribute(SOMETHING_ELSE, b"xyz"), attribute(STATS_LINK_64, row({RX_ERRORS: 1})))
    assert parse(data) == InterfaceErrors(1, 0, 0)


def test_an_error_and_an_answer_without_counters_tell_nothing() -> None:
    assert parse(answer(attribute(STATS_LINK_64, row({})), kind=ERROR)) is None
    assert parse(answer(attribute(SOMETHING_ELSE, b"xyz"))) is None
    assert parse(b"") is None


def test_an_answer_cut_short_anywhere_tells_nothing() -> None:
    whole = answer(attribute(STATS_LINK_64, row({RX_ERRORS: 1})))
    assert parse(whole) == InterfaceErrors(1, 0, 0)
    assert [parse(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


@given(st.binary(max_size=300))
def test_garbage_breaks_nothing(data: bytes) -> None:
    parse(data)
    parse(answer(data))


# What is new.


def test_the_first_look_tells_nothing_and_later_ones_what_came_since() -> None:
    subject = ErrorCounter()
    looks = [InterfaceErrors(5, 0, 0), InterfaceErrors(5, 0, 0), InterfaceErrors(7, 1, 2)]
    assert [subject.since_last(1, look) for look in looks] == [None, 0, 3]


def test_counters_that_began_anew_or_are_another_interfaces_are_not_compared() -> None:
    subject = ErrorCounter()
    subject.since_last(1, InterfaceErrors(5, 5, 0))
    assert subject.since_last(1, InterfaceErrors(9, 0, 0)) is None
    assert subject.since_last(2, InterfaceErrors(99, 0, 0)) is None
    assert subject.since_last(2, InterfaceErrors(100, 0, 0)) == 1


def test_each_nic_has_its_own_counters_at_the_interface_where_it_is_now() -> None:
    counted = {3: InterfaceErrors(5, 5, 0), 4: InterfaceErrors(0, 0, 0), 9: InterfaceErrors(1, 0, 0)}
    numbers = {"eth0": 3, "eth1": 4}
    errors = NicErrors(counted.get, lambda name: numbers.get(name, 0))
    one, other = (Nic(index, f"eth{index}", Endpoint("inet", "10.0.0.1", 1)) for index in range(2))
    assert [errors.new_errors(one), errors.new_errors(other)] == [None, None]
    counted[3], counted[4] = InterfaceErrors(7, 5, 0), InterfaceErrors(0, 1, 0)
    assert [errors.new_errors(one), errors.new_errors(other)] == [2, 1]
    # Taken away, and back as another interface with other counters.
    del numbers["eth0"]
    assert errors.new_errors(one) is None
    moved = dataclasses.replace(one, name="eth2")
    numbers["eth2"] = 9
    assert errors.new_errors(moved) is None
    counted[9] = InterfaceErrors(1, 4, 0)
    assert errors.new_errors(moved) == 4


@linux_only
def test_the_loopback_is_found_by_its_name_and_counts_no_error() -> None:
    errors = NicErrors()
    loopback = Nic(0, "lo", Endpoint("inet", "127.0.0.1", 1))
    assert [errors.new_errors(loopback), errors.new_errors(loopback)] == [None, 0]
    assert errors.new_errors(dataclasses.replace(loopback, name="no such one")) is None


def test_after_a_look_without_an_answer_the_next_begins_anew() -> None:
    subject = ErrorCounter()
    subject.since_last(1, InterfaceErrors(5, 0, 0))
    assert subject.since_last(1, None) is None
    assert subject.since_last(1, InterfaceErrors(50, 0, 0)) is None
    assert subject.since_last(1, InterfaceErrors(51, 0, 0)) == 1


# The kernel.


@linux_only
def test_the_kernel_answers_for_the_loopback() -> None:
    assert read_errors(socket.if_nametoindex("lo")) == InterfaceErrors(0, 0, 0)


@linux_only
def test_the_kernel_has_no_answer_for_an_interface_that_is_not_there() -> None:
    assert read_errors(1 << 30) is None
    assert read_errors(0) is None


def test_the_question_names_the_interface_and_asks_for_no_more_than_the_counters() -> None:
    assert request(7) == struct.pack("=IHHIIBBHII", 28, 94, 1, 1, 0, 0, 0, 0, 7, 1)
