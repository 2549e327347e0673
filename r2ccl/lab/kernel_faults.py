"""Faults of the kernel's making on one interface, as plans: what is done, in order, and what undoes it. Pure.

link-down    the interface is set down, as by ``ip link set``. What that takes with it, addresses of IPv6, permanent
             neighbours and routes, was written down before and is put back after it is up again.
silent-drop  what comes in is dropped, what goes out is sent to where nobody looks at it (a copy of the frame comes in
             on loopback, addressed to somebody else), and so the sender hears of nothing: dropping on the way out is
             told to TCP, which then does not count it as sent. The carrier stays.
loss         the same for a share of packets, at random.
rate         a token bucket for what goes out; what comes in beyond it is dropped, as nothing can queue there.
delay        netem, where the kernel has it, for what goes out.
corrupt      one bit of a TCP payload changes, behind the NIC's own check, so that only the program's own can find it.

All but link-down, rate and delay are one table of nftables with a name of its own, which goes as a whole. rate and
delay replace the interface's root qdisc; the one that was there is put back by the kernel's own description of it, and
where that would not be all (trees of classes) the fault is refused.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from r2ccl.errors import UsageError
from r2ccl.lab import interface_state as kernel
from r2ccl.lab.fault_undo import Netlink, Nft, Operation
from r2ccl.lab.interface_state import InterfaceState, Qdisc, attribute
from r2ccl.protocol.fault_kinds import Direction, Kind, Request

CREATE, EXCLUSIVE, REPLACE, APPEND = 0x400, 0x200, 0x100, 0x800
#: Classes and filters hang on these, or other qdiscs; their description alone brings back none of it.
TREES: Final = ("htb", "hfsc", "prio", "drr", "qfq", "ets", "mqprio", "taprio", "multiq", "cbq", "mq")
#: A token bucket: so long a burst, and so long a queue.
BURST_S, BURST_BYTES_MIN, QUEUE_S = 0.002, 64 << 10, 0.050
#: An interface that is gone, unplugged or with its lab, took the fault along.
GONE: Final = (errno.ENODEV,)
ETHERNET_LINK_LAYER = 1
TBF_PARMS, TBF_RATE64, TBF_BURST = 1, 4, 6
NETEM_LATENCY64 = 10
NETEM_QUEUE_PACKETS = 100_000
NO_NETEM: Final = (
    "this kernel has no netem (module sch_netem), which delays packets; a running job delays frames without it: start "
    "its ranks with R2CCL_FAULT_INJECTION=1, then r2ccl fault-inject delay job:NAME/RANK/NIC {milliseconds}ms"
)
#: Behind the headers of TCP: far enough for small frames of control to be spared, near enough for all others.
CORRUPT_AT_BITS = 512


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done, and what undoes it. ``undo`` may be none, of what cannot be undone."""

    do: Operation
    undo: tuple[Operation, ...]
    #: What to say where the kernel or the machine has no such thing.
    if_absent: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and its place: everything that will be done."""

    identity: str
    request: Request
    place: str
    namespace: str | None
    steps: tuple[Step, ...]

    @property
    def title(self) -> str:
        return f"{self.request} on {self.place}"

    @property
    def undo(self) -> tuple[Operation, ...]:
        """All of it, in order."""
        return tuple(operation for step in reversed(self.steps) for operation in step.undo)


def plan(request: Request, state: InterfaceState, identity: str) -> tuple[Step, ...]:
    """What puts the fault on the interface. Raises :class:`UsageError` where it could not be undone."""
    kind = request.flapping if request.kind is Kind.FLAP else request.kind
    table = f"r2ccl_fault_{identity}"
    if not state.up:
        raise UsageError(f"{state.name} is down already; there is nothing to break (ip link set {state.name} up)")
    planners: dict[Kind, Callable[[], tuple[Step, ...]]] = {
        Kind.LINK_DOWN: lambda: _link_down(state),
        Kind.SILENT_DROP: lambda: (_table(table, request, state.name, "drop", 'fwd to "lo"'),),
        Kind.LOSS: lambda: (_lose(table, request, state.name),),
        Kind.CORRUPT: lambda: (_corrupt(table, request, state.name),),
        Kind.RATE: lambda: _rate(table, request, state),
        Kind.DELAY: lambda: (_delay(request, state),),
    }
    if kind not in planners:
        raise UsageError(f"{kind} is done to a process, not to an interface: r2ccl fault-inject {kind} pid:NUMBER")
    return planners[kind]()


def _link_down(state: InterfaceState) -> tuple[Step, ...]:
    if state.has_next_hop_objects:
        raise UsageError(
            f"{state.name} has routes by next hop objects (ip nexthop), which going down removes for good; "
            "silent-drop needs no such thing"
        )
    name = state.name
    down = Netlink(f"ip link set {name} down", (_set_link(state.index, up=False),))
    undo: list[Operation] = [Netlink(f"ip link set {name} up", (_set_link(state.index, up=True),), GONE)]
    new = CREATE | APPEND
    for what, kind, bodies in (
        ("ip -6 addr add", kernel.RTM_NEWADDR, state.addresses),
        ("ip neigh add", kernel.RTM_NEWNEIGH, state.neighbours),
        ("ip route append", kernel.RTM_NEWROUTE, state.routes),
    ):
        if bodies:
            flags = new if kind == kernel.RTM_NEWROUTE else CREATE
            messages = tuple((kind, flags, body) for body in bodies)
            undo.append(Netlink(f"{what} … dev {name} ({len(bodies)} as before)", messages, (errno.EEXIST, *GONE)))
    return (Step(down, tuple(undo)),)


def _set_link(index: int, *, up: bool) -> tuple[int, int, bytes]:
    flags = kernel.IFF_UP if up else 0
    return kernel.RTM_NEWLINK, 0, kernel.IFINFO.pack(socket.AF_UNSPEC, 0, index, flags, kernel.IFF_UP)


# nftables.


def _lose(table: str, request: Request, interface: str) -> Step:
    some = f"numgen random mod 10000000 < {max(1, round(request.value * 1e7))} "
    return _table(table, request, interface, some + "drop", some + 'fwd to "lo"')


def _corrupt(table: str, request: Request, interface: str) -> Step:
    some = f"meta l4proto tcp numgen random mod 10000000 < {max(1, round(request.value * 1e7))} "
    spoil = f"{some}@ih,{CORRUPT_AT_BITS},16 set @ih,{CORRUPT_AT_BITS},16 ^ 1"
    return _table(table, request, interface, spoil, spoil)


def _table(table: str, request: Request, interface: str, incoming: str, outgoing: str) -> Step:
    chains = []
    for direction, hook, rule in ((Direction.IN, "ingress", incoming), (Direction.OUT, "egress", outgoing)):
        if request.direction in (direction, Direction.BOTH):
            of = f'type filter hook {hook} device "{interface}" priority 0;'
            chains.append(f" chain {hook} {{\n  {of}\n  {rule}\n }}\n")
    script = f"table netdev {table} {{\n{''.join(chains)}}}\n"
    # Added first, so that deleting what is not there is no error.
    undo = f"add table netdev {table}\ndelete table netdev {table}\n"
    shown = " ".join(script.split())
    return Step(Nft(f"nft '{shown}'", script), (Nft(f"nft delete table netdev {table}", undo),))


# Queueing.


def _rate(table: str, request: Request, state: InterfaceState) -> tuple[Step, ...]:
    steps = []
    bytes_s = int(request.value / 8)
    burst = max(BURST_BYTES_MIN, int(bytes_s * BURST_S))
    if request.direction in (Direction.OUT, Direction.BOTH):
        limit = burst + int(bytes_s * QUEUE_S)
        speed = struct.pack("=BBHhHI", 0, ETHERNET_LINK_LAYER, 0, 0, 0, min(bytes_s, (1 << 32) - 1))
        parms = speed + bytes(len(speed)) + struct.pack("=III", limit, 0, 0)
        options = attribute(TBF_PARMS, parms) + attribute(TBF_BURST, struct.pack("=I", burst))
        if bytes_s >= 1 << 32:
            options += attribute(TBF_RATE64, struct.pack("=Q", bytes_s))
        shown = f"tc qdisc replace dev {state.name} root tbf rate {bytes_s * 8}bit burst {burst} limit {limit}"
        steps.append(_root_qdisc(state, shown, Qdisc("tbf", 0, kernel.TC_ROOT, options)))
    if request.direction in (Direction.IN, Direction.BOTH):
        beyond = f"limit rate over {bytes_s} bytes/second burst {4 * burst} bytes drop"
        only_in = Request(request.kind, request.value, Direction.IN)
        steps.append(_table(table, only_in, state.name, beyond, ""))
    return tuple(steps)


def _delay(request: Request, state: InterfaceState) -> Step:
    nanoseconds = round(request.value * 1e9)
    # Latency (ignored for the one in nanoseconds), limit, loss, gap, duplicate, jitter.
    options = struct.pack("=IIIIII", 0, NETEM_QUEUE_PACKETS, 0, 0, 0, 0)
    options += attribute(NETEM_LATENCY64, struct.pack("=q", nanoseconds))
    shown = f"tc qdisc replace dev {state.name} root netem delay {request.value * 1e3:g}ms limit {NETEM_QUEUE_PACKETS}"
    step = _root_qdisc(state, shown, Qdisc("netem", 0, kernel.TC_ROOT, options))
    return replace(step, if_absent=NO_NETEM.format(milliseconds=f"{request.value * 1e3:g}"))


def _root_qdisc(state: InterfaceState, shown: str, wanted: Qdisc) -> Step:
    was = next((qdisc for qdisc in state.qdiscs if qdisc.parent == kernel.TC_ROOT), None)
    others = [q for q in state.qdiscs if q.parent not in (kernel.TC_ROOT, kernel.TC_INGRESS) and q.handle]
    undo: Operation
    if was is None or was.handle == 0:
        body = kernel.TCMSG.pack(socket.AF_UNSPEC, state.index, 0, kernel.TC_ROOT, 0)
        gone = (errno.ENOENT, errno.EINVAL, *GONE)
        undo = Netlink(f"tc qdisc del dev {state.name} root", ((kernel.RTM_DELQDISC, 0, body),), gone)
    elif others or was.kind in TREES:
        raise UsageError(
            f"{state.name} has a tree of qdiscs ({was.kind} at its root) that could not be put back as it was; "
            "loss and silent-drop need none of it, and --direction in limits a rate without it"
        )
    else:
        shown_undo = f"tc qdisc replace dev {state.name} root handle {was.handle >> 16:x}: {was.kind} (as before)"
        undo = Netlink(shown_undo, (_set_qdisc(state.index, was),), GONE)
    return Step(Netlink(shown, (_set_qdisc(state.index, wanted),)), (undo,))


def _set_qdisc(index: int, qdisc: Qdisc) -> tuple[int, int, bytes]:
    body = kernel.TCMSG.pack(socket.AF_UNSPEC, index, qdisc.handle, qdisc.parent, 0)
    body += attribute(kernel.TCA_KIND, qdisc.kind.encode() + b"\0")
    if qdisc.options is not None:
        body += attribute(kernel.TCA_OPTIONS, qdisc.options)
    return kernel.RTM_NEWQDISC, CREATE | REPLACE, body
