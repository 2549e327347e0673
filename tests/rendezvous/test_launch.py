"""Who am I, and where do we meet."""

from __future__ import annotations

import pytest

from r2ccl.errors import ConfigurationError
from r2ccl.rendezvous.launch import Placement, is_loopback_host, place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def placed(placement: Placement) -> tuple[object, ...]:
    """What matters of a placement, without what the launcher calls the job."""
    return (placement.rank, placement.size, placement.local_rank, placement.host, placement.port)


def test_the_environment_of_a_launcher_is_enough():
    placement = place(TORCHRUN)
    assert placement == Placement(3, 8, 1, "node0", 29500, "environment", "MASTER_ADDR, MASTER_PORT")


def test_arguments_win_over_the_environment():
    placement = place(TORCHRUN, rank=0, size=2, local_rank=0, rendezvous="tcp://10.0.0.1:4000")
    assert placement == Placement(0, 2, 0, "10.0.0.1", 4000, "arguments", "rendezvous=")


def test_arguments_and_environment_fill_each_other_up():
    rank = place(TORCHRUN, rank=5)
    assert placed(rank) == (5, 8, 1, "node0", 29500)
    assert rank.source == "arguments and environment"
    mixed = place(TORCHRUN, rendezvous="tcp://[fd00::1]:4000")
    assert mixed == Placement(3, 8, 1, "fd00::1", 4000, "environment", "rendezvous=")


def test_a_job_of_one_needs_no_address():
    assert place({}, rank=0, size=1) == Placement(0, 1, None, "127.0.0.1", 0, "arguments")
    assert place({"RANK": "0", "WORLD_SIZE": "1"}).is_loopback


def test_one_line_says_who_we_are_and_who_said_so():
    assert place(TORCHRUN).describe() == (
        "placement: rank=3 size=8 local_rank=1 (environment) rendezvous=tcp://node0:29500 (MASTER_ADDR, MASTER_PORT)"
    )
    six = place({"WORLD_SIZE": "2"}, rank=1, rendezvous="tcp://[fd00::1]:4000")
    assert six.describe() == (
        "placement: rank=1 size=2 (arguments and environment) rendezvous=tcp://[fd00::1]:4000 (rendezvous=)"
    )
    assert place({}, rank=0, size=1).describe() == "placement: rank=0 size=1 (arguments) rendezvous=none needed"


@pytest.mark.parametrize(
    ("environ", "arguments", "sentence"),
    [
        ({}, {}, r"missing: RANK \(rank=\) and WORLD_SIZE \(size=\).*r2ccl run -n 4"),
        ({"RANK": "0"}, {}, r"missing: WORLD_SIZE \(size=\);"),
        ({"WORLD_SIZE": " "}, {"rank": 0}, r"missing: WORLD_SIZE \(size=\);"),
        ({}, {"rank": 0, "size": 2}, "missing: MASTER_ADDR and MASTER_PORT.*rendezvous="),
        ({"MASTER_ADDR": "node0"}, {"rank": 0, "size": 2}, "missing: MASTER_PORT"),
        ({"MASTER_PORT": "29500"}, {"rank": 0, "size": 2}, "missing: MASTER_ADDR,"),
        ({**TORCHRUN, "RANK": "three"}, {}, "RANK='three' is not a number"),
        ({**TORCHRUN, "RANK": "8"}, {}, "rank 8 of 8 is impossible"),
        ({**TORCHRUN, "RANK": "-1"}, {}, "rank -1 of 8 is impossible"),
        ({}, {"rank": 0, "size": 0}, "rank 0 of 0 is impossible"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, {}, "MASTER_PORT=70000.*between 1 and 65535"),
        (TORCHRUN, {"rendezvous": "node0:29500"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "tcp://node0"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "tcp://:29500"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "tcp://node0:99999"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "tcp://node0:0"}, "between 1 and 65535"),
        (TORCHRUN, {"rendezvous": "tcp://node0:1/path"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "tcp://node0:1?a=b"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "tcp://node0:1#a"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": "http://node0:29500"}, "tcp://host:port"),
        (TORCHRUN, {"rendezvous": 29500}, "tcp://host:port"),
        (TORCHRUN, {"rank": True}, "rank=True must be an int, not bool"),
        (TORCHRUN, {"size": "8"}, "size='8' must be an int, not str"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environ, arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        place(environ, **arguments)


@pytest.mark.parametrize(
    "rendezvous",
    [
        "tcp://user:pass%word@node0:29500",
        "tcp://user:pa/ss@node0:29500",
        "tcp://pass@node0",
        "pass@",
        "http://u:pass@n:1",
    ],
)
def test_a_password_has_no_place_in_the_rendezvous_and_is_not_shown(rendezvous):
    with pytest.raises(ConfigurationError, match="no user and no password to give") as refused:
        place(TORCHRUN, rendezvous=rendezvous)
    assert "pa" not in str(refused.value).replace("password", "")
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.3", "::1", "localhost", "LOCALHOST", "store.localhost"])
def test_literal_loopback_is_loopback(host):
    assert is_loopback_host(host)
    assert Placement(0, 2, None, host, 1, "arguments").is_loopback


@pytest.mark.parametrize("host", ["node0", "10.0.0.1", "localhost.example.org", "fd00::1", ""])
def test_a_name_is_not_loopback_whatever_it_resolves_to(host):
    assert not is_loopback_host(host)
    assert not Placement(0, 2, None, host, 1, "arguments").is_loopback


def test_a_job_without_a_name_is_told_apart_by_its_port():
    assert place(TORCHRUN).job_name("") == "port-29500"
    assert place(TORCHRUN).job_name("train") == "train"
