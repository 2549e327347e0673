"""What is said to a lab's daemon: every request comes through, nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.errors import UsageError
from r2ccl.lab import control
from r2ccl.lab.control import Break, Down, Enter, Entrance, Heal, HostReport, LabReport, NicReport, Request, Status

REQUESTS = [
    Status(), Enter("python train.py"), Break("loss", 1, 0, 0.05, 10.0), Break("link-down", 0, 1), Heal(), Heal(1, 0),
    Down(),
]  # fmt: skip
NIC = NicReport("nic0", "10.200.0.1", 500.0, True, "up", ("link-down",))
HOST = HostReport("h0", ("/proc/1/task/2/ns/user", "/proc/1/task/2/ns/net", "/proc/1/task/2/ns/mnt"), (NIC,))
REPORT = LabReport("lab", 1, "rails", 500.0, (HOST,), "/proc/1/task/3/ns/net", ("on h0: sleep 1",))


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
def test_a_request_comes_through(request_: Request):
    line = control.request_line(request_)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= control.REQUEST_BYTES_MAX
    assert control.parse_request(line) == request_


@pytest.mark.parametrize(
    "said",
    [
        [], 1, "status", {}, {"ask": "dance"}, {"ask": ["status"]}, {"ask": "break"}, {"ask": "status", "host": 1},
        {"ask": "break", "kind": "loss", "host": "1", "nic": 0}, {"ask": "break", "kind": 1, "host": 1, "nic": 0},
        {"ask": "break", "kind": "loss", "host": 1.5, "nic": 0}, {"ask": "break", "kind": "a", "host": True, "nic": 0},
        {"ask": "heal", "host": [0]}, {"ask": "enter", "what": None}, {"ask": "enter"},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_request_is_refused_with_a_sentence(said: Any):
    with pytest.raises(UsageError):
        control.parse_request(json.dumps(said).encode())


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_a_sentence(garbage: bytes):
    with pytest.raises(UsageError):
        control.parse_request(garbage)
    with pytest.raises(UsageError):
        control.parse_answer(garbage)


def test_deep_nesting_is_refused_with_a_sentence():
    with pytest.raises(UsageError):
        control.parse_request(b"[" * 100_000)


def test_a_refusal_is_raised_where_it_is_heard():
    with pytest.raises(UsageError, match="^there is no h9$"):
        control.parse_answer(control.refusal_line("there is no h9"))
    assert control.parse_answer(control.answer_line({"healed": []})) == {"healed": []}
    with pytest.raises(UsageError, match="another version"):
        control.parse_answer(b'{"done": 1}')


def test_a_report_and_an_entrance_come_through():
    answer = control.parse_answer(control.answer_line(REPORT.as_json()))
    assert LabReport.parse(answer) == REPORT
    assert hash(LabReport.parse(answer)) == hash(REPORT)
    entrance = Entrance(REPORT, "1-2-abc", 4711)
    assert Entrance.parse(json.loads(json.dumps(entrance.as_json()))) == entrance
    assert REPORT.hosts[0].network == "/proc/1/task/2/ns/net"
