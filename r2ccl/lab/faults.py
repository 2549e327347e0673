"""Cuts and their healing, on the switch's end of a NIC's wire, so that the host finds out the way it would in life.

Link down: the far end goes down, the host's NIC loses its carrier and the kernel says so to whoever listens.
Silent drop: the far end leaves its bridge. Carrier and addresses stay, every frame vanishes, in both directions, and
nobody is told. (Disabling the bridge port would do too, but the kernel enables it again whenever the carrier returns.)
Frames that already stand in the far end's queue still arrive, for at most rails.QUEUE_S.

Parting: some far ends move to a bridge of their own, so that hosts fall into two parts that reach one another no more.

The first two are independent: a NIC may be down and silenced at once, and comes back when both are undone.

The rest are smaller or nearer faults: the host's own end goes down, the NIC loses its address, only what it receives
vanishes (in a token bucket too small for any packet), or some packets do, at random and in both directions. The last
are rules of nftables where packets come in, because a sender hears of what is dropped on its way out.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from types import MappingProxyType

from r2ccl.clock import MonotonicClock
from r2ccl.errors import UsageError
from r2ccl.lab import rails
from r2ccl.lab.namespaces import Namespace
from r2ccl.lab.rails import Port

#: A bucket too small for any frame; so small a one is possible at a low rate only.
TOO_SMALL = MappingProxyType({"rate": 125_000, "burst": 40, "limit": 40})


def link_down(switch: Namespace, port: Port) -> float:
    """Take the carrier away; returns when, on the monotonic clock."""
    return _set(switch, port, state="down")


def link_up(switch: Namespace, port: Port) -> float:
    """Give the carrier back; returns when."""
    return _set(switch, port, state="up")


def silent_drop(switch: Namespace, port: Port) -> float:
    """Let everything vanish; returns when."""
    return _set(switch, port, master=0)


def undrop(switch: Namespace, port: Port) -> float:
    """Let everything through again; returns when."""
    return _set(switch, port, master=port.bridge_index)


def rewire(switch: Namespace, port: Port, bridge_index: int) -> float:
    """Plug the wire into another switch; returns when."""
    return _set(switch, port, master=bridge_index)


def near_end_down(port: Port) -> float:
    """The host's own end goes down, as by ``ip link set nic0 down``; returns when."""
    return _set_near_end(port, "down")


def near_end_up(port: Port) -> float:
    """Undo it; returns when."""
    return _set_near_end(port, "up")


def take_address(port: Port) -> float:
    """The NIC loses its address; returns when."""
    return _on(port.host, lambda: port.host.netlink.flush_addr(index=port.host_index))


def give_address(port: Port, address: str) -> float:
    """And gets it, or another; returns when."""
    return _on(port.host, lambda: port.host.netlink.addr("add", index=port.host_index, address=address, prefixlen=24))


def deafen(switch: Namespace, port: Port) -> float:
    """What the NIC should receive vanishes, what it sends arrives; returns when."""
    return _set_far_bucket(switch, port, TOO_SMALL)


def lose(switch: Namespace, port: Port, near_end: str, far_end: str, share: float) -> float:
    """A share of the packets vanishes at random, in each direction; returns when.

    A packet is what the emulated wire carries at once, up to 64 KiB of a TCP stream, so large losses in few places.
    """
    some = f"numgen random mod 10000 < {min(round(share * 10000), 9999)} drop"
    _nft(switch, _drop_incoming(far_end, some))
    return _nft(port.host, _drop_incoming(near_end, some))


def hear(switch: Namespace, port: Port, rate_mbit_s: float, burst_before: int) -> float:
    """Undo :func:`deafen`; returns when."""
    return _set_far_bucket(switch, port, rails.bucket(rate_mbit_s, burst_before))


def unlose(switch: Namespace, port: Port, near_end: str, far_end: str) -> float:
    """Undo :func:`lose`; returns when."""
    _nft(switch, f"delete table netdev {_table(far_end)}")
    return _nft(port.host, f"delete table netdev {_table(near_end)}")


def _drop_incoming(interface: str, rule: str) -> str:
    hook = f"type filter hook ingress device {interface} priority 0;"
    return f"table netdev {_table(interface)} {{ chain incoming {{\n{hook}\n{rule}\n}}\n}}\n"


def _table(interface: str) -> str:
    return f"lab_{interface}"


def _nft(namespace: Namespace, rules: str) -> float:
    """Apply rules in one transaction, which takes two or three milliseconds; returns when that began."""
    command = shutil.which("nft")
    if command is None:
        raise UsageError("this fault needs nftables: apt-get install nftables")

    def inside() -> float:
        now = MonotonicClock.now()
        done = subprocess.run([command, "-f", "-"], input=rules.encode(), capture_output=True, check=False)
        if done.returncode != 0:
            raise UsageError(f"nft refused {rules!r}: {done.stderr.decode(errors='replace').strip()}")
        return now

    return namespace.call(inside)


def _set_near_end(port: Port, state: str) -> float:
    return _on(port.host, lambda: port.host.netlink.link("set", index=port.host_index, state=state))


def _set_far_bucket(switch: Namespace, port: Port, bucket: Mapping[str, int]) -> float:
    handle = rails.TBF_HANDLE
    return _on(switch, lambda: switch.netlink.tc("replace", "tbf", port.switch_index, handle=handle, **bucket))


def _on(namespace: Namespace, change: Callable[[], object]) -> float:
    def inside() -> float:
        now = MonotonicClock.now()
        change()
        return now

    return namespace.call(inside)


def _set(switch: Namespace, port: Port, **change: object) -> float:
    return _on(switch, lambda: switch.netlink.link("set", index=port.switch_index, **change))
