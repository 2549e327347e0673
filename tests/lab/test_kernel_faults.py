"""What is planned for an interface: the commands, their undoing, and what is refused because it could not be undone."""

from __future__ import annotations

import errno
import signal
import socket
import struct

import pytest

from r2ccl.errors import UsageError
from r2ccl.lab import fault_undo
from r2ccl.lab import interface_state as kernel
from r2ccl.lab.fault_guards import plan_process, refuse_interface, refuse_overlap, ssh_address
from r2ccl.lab.fault_run import Limits
from r2ccl.lab.fault_undo import Netlink, Nft, Record
from r2ccl.lab.fault_words import WORDS, describe, time_cap
from r2ccl.lab.interface_state import InterfaceState, Qdisc, attribute, attributes
from r2ccl.lab.kernel_faults import TREES, Fault, plan
from r2ccl.protocol.fault_kinds import Direction, Kind, Request, request

FLAP = request(Kind.FLAP, flap_pattern="1s down, 2s up", times=5)
TBF = Qdisc("tbf", 0x10000, kernel.TC_ROOT, b"options")


def state(**changes: object) -> InterfaceState:
    """An interface that is up and has nothing."""
    plain: dict[str, object] = {
        "name": "eth7", "index": 7, "up": True, "qdiscs": (), "addresses": (), "neighbours": (), "routes": (),
        "has_next_hop_objects": False, "carries_default_route": False, "own": frozenset({"10.0.0.7"}),
    }  # fmt: skip
    return InterfaceState(**{**plain, **changes})  # type: ignore[arg-type]


def shown(request_: Request, of: InterfaceState) -> tuple[list[str], list[str]]:
    """The commands of a plan, and those that undo it."""
    fault = Fault("cafe", request_, "eth7", None, plan(request_, of, "cafe"))
    return [step.do.shown for step in fault.steps], [operation.shown for operation in fault.undo]


def test_down_is_undone_by_up_and_by_what_went_with_it() -> None:
    do, undo = shown(Request(Kind.LINK_DOWN), state(addresses=(b"a",), neighbours=(b"n",), routes=(b"r", b"s")))
    assert do == ["ip link set eth7 down"]
    assert undo[0] == "ip link set eth7 up"
    assert [line.split(" …")[0] for line in undo[1:]] == ["ip -6 addr add", "ip neigh add", "ip route append"]


def test_what_is_there_already_is_no_error_when_it_is_put_back() -> None:
    (step,) = plan(Request(Kind.LINK_DOWN), state(routes=(b"r", b"s")), "cafe")
    routes = step.undo[-1]
    assert isinstance(routes, Netlink)
    assert [body for _, _, body in routes.messages] == [b"r", b"s"]
    assert errno.EEXIST in routes.forgiven


@pytest.mark.parametrize(
    ("asked", "qdiscs"),
    [
        (Request(Kind.LINK_DOWN), ()),
        (Request(Kind.DELAY, 0.005), ()),
        (Request(Kind.DELAY, 0.005), (Qdisc("tbf", 1 << 16, kernel.TC_ROOT, b"was"),)),
    ],
)
def test_an_interface_that_is_gone_needs_no_undoing(asked: Request, qdiscs: tuple[Qdisc, ...]) -> None:
    steps = plan(asked, state(qdiscs=qdiscs, addresses=(b"a",), neighbours=(b"n",), routes=(b"r",)), "cafe")
    for operation in (operation for step in steps for operation in step.undo):
        assert isinstance(operation, Netlink)
        assert errno.ENODEV in operation.forgiven


@pytest.mark.parametrize("asked", [Request(Kind.SILENT_DROP), Request(Kind.LOSS, 0.05), Request(Kind.CORRUPT, 0.01)])
def test_a_table_has_a_name_of_its_own_and_goes_as_a_whole(asked: Request) -> None:
    (step,) = plan(asked, state(), "cafe")
    (undo,) = step.undo
    assert isinstance(step.do, Nft)
    assert isinstance(undo, Nft)
    assert step.do.script.startswith("table netdev r2ccl_fault_cafe {")
    assert undo.script == "add table netdev r2ccl_fault_cafe\ndelete table netdev r2ccl_fault_cafe\n"


@pytest.mark.parametrize(
    ("direction", "hooks"),
    [(Direction.IN, ["ingress"]), (Direction.OUT, ["egress"]), (Direction.BOTH, ["ingress", "egress"])],
)
def test_a_direction_is_a_hook(direction: Direction, hooks: list[str]) -> None:
    (step,) = plan(Request(Kind.SILENT_DROP, direction=direction), state(), "cafe")
    assert isinstance(step.do, Nft)
    assert [hook for hook in ("ingress", "egress") if f"hook {hook} " in step.do.script] == hooks


def test_what_goes_out_is_not_dropped_where_the_sender_would_hear_of_it() -> None:
    (step,) = plan(Request(Kind.SILENT_DROP, direction=Direction.OUT), state(), "cafe")
    assert isinstance(step.do, Nft)
    assert "fwd to" in step.do.script
    assert "drop" not in step.do.script


@pytest.mark.parametrize("qdiscs", [(), (Qdisc("pfifo_fast", 0, kernel.TC_ROOT, b""),)])
def test_where_the_kernel_chose_the_qdisc_it_chooses_again(qdiscs: tuple[Qdisc, ...]) -> None:
    do, undo = shown(Request(Kind.RATE, 1e7, Direction.OUT), state(qdiscs=qdiscs))
    assert do == ["tc qdisc replace dev eth7 root tbf rate 10000000bit burst 65536 limit 128036"]
    assert undo == ["tc qdisc del dev eth7 root"]


def test_a_qdisc_that_somebody_chose_is_put_back_by_the_kernels_own_words() -> None:
    (step,) = plan(Request(Kind.RATE, 1e7, Direction.OUT), state(qdiscs=(TBF,)), "cafe")
    (undo,) = step.undo
    assert isinstance(undo, Netlink)
    ((_, _, body),) = undo.messages
    assert kernel.TCMSG.unpack_from(body)[1:4] == (7, 0x10000, kernel.TC_ROOT)
    assert attributes(body, kernel.TCMSG.size) == {kernel.TCA_KIND: b"tbf\0", kernel.TCA_OPTIONS: b"options"}


@pytest.mark.parametrize(
    "qdiscs",
    [
        *((Qdisc(kind, 0x10000, kernel.TC_ROOT, b""),) for kind in TREES),
        (TBF, Qdisc("sfq", 0x20000, 0x10001, b"")),
    ],
)
@pytest.mark.parametrize("asked", [Request(Kind.RATE, 1e7), Request(Kind.DELAY, 0.005)])
def test_a_tree_of_qdiscs_is_left_alone(qdiscs: tuple[Qdisc, ...], asked: Request) -> None:
    with pytest.raises(UsageError, match="could not be put back"):
        plan(asked, state(qdiscs=qdiscs), "cafe")
    assert plan(Request(Kind.LOSS, 0.1), state(qdiscs=qdiscs), "cafe")
    assert plan(Request(Kind.RATE, 1e7, Direction.IN), state(qdiscs=qdiscs), "cafe")


def test_ingress_filters_are_no_tree() -> None:
    assert plan(Request(Kind.RATE, 1e7), state(qdiscs=(Qdisc("clsact", 0xFFFF0000, kernel.TC_INGRESS, None),)), "cafe")


def test_a_delay_says_what_to_do_without_netem() -> None:
    (step,) = plan(Request(Kind.DELAY, 0.0055), state(), "cafe")
    assert step.do.shown.startswith("tc qdisc replace dev eth7 root netem delay 5.5ms")
    assert "fault-inject delay job:NAME/RANK/NIC 5.5ms" in step.if_absent


def test_a_flap_is_planned_as_what_it_switches() -> None:
    assert plan(FLAP, state(), "cafe") == plan(Request(Kind.LINK_DOWN), state(), "cafe")


@pytest.mark.parametrize(
    ("asked", "of", "why"),
    [
        (Request(Kind.SILENT_DROP), state(up=False), "down already"),
        (Request(Kind.LINK_DOWN), state(has_next_hop_objects=True), "next hop objects"),
        (Request(Kind.STOP), state(), "process"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: Request, of: InterfaceState, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan(asked, of, "cafe")


# The person's own way.


@pytest.mark.parametrize(
    ("of", "ssh", "why"),
    [
        (state(carries_default_route=True), None, "default route"),
        (state(), "10.0.0.7", "SSH"),
        (state(name="lo"), None, "programs of this machine"),
    ],
)
def test_the_persons_own_way_is_refused_with_a_way_out(of: InterfaceState, ssh: str | None, why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}.*--force"):
        refuse_interface(of, ssh)


def test_another_interface_is_not_refused() -> None:
    refuse_interface(state(), "10.0.0.8")


def test_the_ssh_session_is_found_behind_sudo_too() -> None:
    session = {"SSH_CONNECTION": "192.0.2.1 55555 ::ffff:10.0.0.7 22"}
    assert ssh_address(session, iter([])) == "10.0.0.7"
    assert ssh_address({}, iter([{}, {"SSH_CONNECTION": "fe80::1 1 fe80::2%eth7 22"}])) == "fe80::2"
    assert ssh_address({"SSH_CONNECTION": "nonsense"}, iter([])) is None


def test_two_faults_that_replace_one_qdisc_do_not_overlap_and_others_may() -> None:
    rate, delay, loss = Request(Kind.RATE, 1e7), Request(Kind.DELAY, 0.005), Request(Kind.LOSS, 0.1)
    steps = {asked: plan(asked, state(), "beef") for asked in (rate, delay, loss)}
    undo = Fault("cafe", rate, "eth7", None, plan(rate, state(), "cafe")).undo
    in_force = [Record("cafe", "rate on eth7", None, "here", undo, None, "file")]
    for asked in (rate, delay):
        with pytest.raises(UsageError, match="undo cafe"):
            refuse_overlap(steps[asked], "eth7", "here", in_force)
        refuse_overlap(steps[asked], "eth7", "elsewhere", in_force)
        refuse_overlap(steps[asked], "eth7", "here", [])
    refuse_overlap(steps[loss], "eth7", "here", in_force)


@pytest.mark.parametrize("pid", [1])
def test_a_process_that_we_live_by_is_refused_unless_forced(pid: int) -> None:
    with pytest.raises(UsageError, match="lives by"):
        plan_process(Kind.STOP, pid, force=False)
    assert plan_process(Kind.STOP, pid, force=True)


def test_a_process_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no process"):
        plan_process(Kind.STOP, (1 << 30) + 7, force=False)


def test_a_signal_goes_to_the_process_that_was_meant_and_to_no_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _, number: sent.append(number))
    alive = fault_undo.Signal("kill", 1, fault_undo.started(1), 18)
    fault_undo.perform(alive)
    fault_undo.perform(fault_undo.Signal("kill", 1, "another time", 18))
    assert sent == [18]


# What a fault says of itself.


def test_every_kind_says_its_layer_its_reach_and_its_undo() -> None:
    assert set(WORDS) == set(Kind)
    assert all(words.layer and words.reach and words.undo and words.in_a_job for words in WORDS.values())


@pytest.mark.parametrize(
    ("asked", "limits", "cap"),
    [
        (Request(Kind.LINK_DOWN), Limits(), "the end of this command (Ctrl-C)"),
        (Request(Kind.LINK_DOWN), Limits(for_s=2.5), "2.5 s, or the end of this command"),
        (Request(Kind.LINK_DOWN), Limits(for_s=2.5, stay=True), "2.5 s, also without this command"),
        (Request(Kind.LINK_DOWN), Limits(stay=True), "none: it stays until it is undone"),
        (FLAP, Limits(), "15 s, or the end of this command"),
        (FLAP, Limits(for_s=4), "4 s, or the end of this command"),
        (Request(Kind.KILL), Limits(), "none: it happens once"),
    ],
)
def test_a_fault_says_how_long_it_takes_at_most(asked: Request, limits: Limits, cap: str) -> None:
    assert time_cap(asked, limits) == cap


def test_before_acting_the_fault_its_layer_reach_cap_and_undo_are_said() -> None:
    steps = plan(Request(Kind.LINK_DOWN), state(), "cafe")
    said = describe(Fault("cafe", Request(Kind.LINK_DOWN), "eth7", None, steps), Limits())
    assert list(said) == ["fault", "layer", "reach", "time cap", "undo"]
    assert (said["fault"], said["undo"]) == ("link-down on eth7", "ip link set eth7 up")


# What the kernel tells.


def test_attributes_are_read_as_they_are_written() -> None:
    body = b"head" + attribute(1, b"tbf\0") + attribute(2, b"12345") + attribute(0x8003, b"")
    assert len(body) % 4 == 0
    assert attributes(body, 4) == {1: b"tbf\0", 2: b"12345", 3: b""}


def test_what_the_kernel_remarked_on_a_route_is_not_asked_for_again() -> None:
    hop = kernel.NEXT_HOP.pack(8, 0x10 | 0x4, 0, 7)
    route = kernel.RTMSG.pack(socket.AF_INET, 24, 0, 0, 254, 3, 0, 1, 0x10 | 0x4) + attribute(kernel.RTA_MULTIPATH, hop)
    wanted = kernel._as_asked_for(route)
    assert kernel.RTMSG.unpack_from(wanted)[8] == 0x4
    assert attributes(wanted, kernel.RTMSG.size)[kernel.RTA_MULTIPATH] == kernel.NEXT_HOP.pack(8, 0x4, 0, 7)
    assert kernel._goes_by(route, 7)
    assert not kernel._goes_by(route, 8)


@pytest.mark.parametrize(
    ("length", "kind", "table", "expected"),
    [(0, 1, 254, True), (0, 7, 254, False), (0, 1, 77, False), (8, 1, 254, False)],
)
def test_a_default_route_is_one_of_the_main_table_that_leads_somewhere(
    length: int, kind: int, table: int, expected: bool
) -> None:
    route = kernel.RTMSG.pack(socket.AF_INET, length, 0, 0, table, 3, 0, kind, 0)
    route += attribute(kernel.RTA_OIF, struct.pack("=i", 7))
    assert kernel._is_default(route) is expected
