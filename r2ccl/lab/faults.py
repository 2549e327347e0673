"""Cuts and their healing, on the switch's end of a NIC's wire, so that the host finds out the way it would in life.

Link down: the far end goes down, the host's NIC loses its carrier and the kernel says so to whoever listens.
Silent drop: the far end leaves its bridge. Carrier and addresses stay, every frame vanishes, in both directions, and
nobody is told. (Disabling the bridge port would do too, but the kernel enables it again whenever the carrier returns.)
Frames that already stand in the far end's queue still arrive, for at most rails.QUEUE_S.

Parting: some far ends move to a bridge of their own, so that hosts fall into two parts that reach one another no more.

The first two are independent: a NIC may be down and silenced at once, and comes back when both are undone.
"""

from __future__ import annotations

from r2ccl.clock import MonotonicClock
from r2ccl.lab.namespaces import Namespace
from r2ccl.lab.rails import Port


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


def _set(switch: Namespace, port: Port, **change: object) -> float:
    def on_the_switch() -> float:
        now = MonotonicClock.now()
        switch.netlink.link("set", index=port.switch_index, **change)
        return now

    return switch.call(on_the_switch)
