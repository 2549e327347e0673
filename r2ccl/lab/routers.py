"""Routers, each a namespace of its own: one that joins the rails, or several equal ways between hosts.

*Joined rails*: a router with a port on each rail's bridge. What a host sends from NIC k's address, and so by NIC k, to
another rail goes through it: each address has its own table of routes, as on hosts with several NICs it should.

    host 0: nic0 ==== rail0 ==== router ==== rail1 ==== nic1 :host 1

*Ways*: each host is on a bridge of its own, and every router on all of them. A host reaches another through any router,
and spreads connections over them by a hash of addresses and ports (ECMP).

    host 0: nic0 ==== segment0 ==== way0 ==== segment1 ==== nic0 :host 1
                          \\\\======= way1 =======//

Hosts keep the addresses that rails.py gives them; routes to single hosts overrule the network that these imply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2ccl.clock import MonotonicClock
from r2ccl.lab import rails
from r2ccl.lab.namespaces import Namespace
from r2ccl.lab.rails import Port

#: Above all addresses of hosts.
ROUTER_OCTET = 254
#: Tables of routes for each NIC's address; lower numbers have meanings of their own.
TABLE_MIN = 100
WAYS_MAX = 250
#: With several ways: each wire between leaf and spine takes four addresses.
LEAVES_MAX = 60
#: Linux: the gateway is on this wire, whatever its address says.
RTNH_F_ONLINK = 4


def join_rails(switch: Namespace, bridges: Sequence[int], router: Namespace) -> None:
    """Give the router a port on each rail, and let it forward."""
    for rail, bridge in enumerate(bridges):
        index = _plug_in(switch, bridge, router, f"rail{rail}")
        router.call(router.netlink.addr, "add", index=index, address=_router_address(rail), prefixlen=24)
    set_forwarding(router, on=True)


def route_by_source(port: Port, host_number: int, nic: int) -> None:
    """What has the NIC's address goes by this NIC, also to other rails."""
    host = port.host
    lay_routes_of_source(port, nic)
    host.call(host.netlink.rule, "add", src=rails.address(host_number, nic), src_len=32, table=TABLE_MIN + nic)


def lay_routes_of_source(port: Port, nic: int) -> None:
    """The NIC's table of routes. They go when it goes down, and do not come back with it."""
    host, table = port.host, TABLE_MIN + nic
    network = f"10.200.{nic}.0/24"
    host.call(host.netlink.route, "replace", dst=network, oif=port.host_index, table=table, scope="link")
    hop = {"gateway": _router_address(nic), "oif": port.host_index}
    host.call(host.netlink.route, "replace", dst="default", table=table, **hop)


def add_leaf(switch: Namespace, segment: int, port: Port, host_number: int, leaf: Namespace) -> None:
    """Give a host its leaf, by which it reaches all that is not itself."""
    index = _plug_in(switch, segment, leaf, f"leaf{host_number}")
    address, gateway = rails.address(host_number, 0), _leaf_address(host_number)
    leaf.call(leaf.netlink.addr, "add", index=index, address=gateway, prefixlen=32)
    leaf.call(leaf.netlink.route, "add", dst=f"{address}/32", oif=index, scope="link")
    leaf.call(_write, "/proc/sys/net/ipv4/fib_multipath_hash_policy", 1)
    set_forwarding(leaf, on=True)
    lay_routes_by_leaf(port, host_number)


def lay_routes_by_leaf(port: Port, host_number: int) -> None:
    """All that is not the host itself is behind its leaf. These routes, too, go when the NIC goes down."""
    host, hop = port.host, {"oif": port.host_index, "gateway": _leaf_address(host_number), "flags": RTNH_F_ONLINK}
    # Two halves overrule the network that the address implies.
    for half in ("10.200.0.0/25", "10.200.0.128/25"):
        host.call(host.netlink.route, "replace", dst=half, multipath=[hop])


def add_way(leaves: Sequence[Namespace], spine: Namespace, way: int) -> None:
    """A wire from the spine to each leaf, and its routes to the hosts."""
    for host, leaf in enumerate(leaves):
        peer = {"ifname": f"up{way}", "net_ns_fd": leaf.descriptor}
        spine.call(spine.netlink.link, "add", ifname=f"down{host}", kind="veth", peer=peer)
        for end, name, address in ((spine, f"down{host}", 1), (leaf, f"up{way}", 2)):
            index = end.index_of(name)
            end.call(end.netlink.addr, "add", index=index, address=_wire_address(way, host, address), prefixlen=30)
            end.call(end.netlink.link, "set", index=index, state="up")
        hop = _wire_address(way, host, 2)
        spine.call(spine.netlink.route, "add", dst=f"{rails.address(host, 0)}/32", gateway=hop)
    set_forwarding(spine, on=True)


def spread_over_ways(leaf: Namespace, host_number: int, hosts: int, ways: int) -> None:
    """The leaf's routes to all other hosts, by every spine."""
    hops = [{"oif": leaf.index_of(f"up{way}"), "gateway": _wire_address(way, host_number, 1)} for way in range(ways)]
    for other in range(hosts):
        if other != host_number:
            leaf.call(leaf.netlink.route, "add", dst=f"{rails.address(other, 0)}/32", multipath=hops)


def set_forwarding(router: Namespace, on: bool) -> float:
    """Let the router forward, or silently drop what it should; returns when. It answers for itself all the time."""

    def inside() -> float:
        now = MonotonicClock.now()
        _write("/proc/sys/net/ipv4/ip_forward", int(on))
        return now

    return router.call(inside)


def forwarded_bytes(router: Namespace) -> int:
    """What the router sent, on all ports together."""
    links = router.call(lambda: list(router.netlink.get_links()))
    return sum(int(link.get("stats64")["tx_bytes"]) for link in links)


def _plug_in(switch: Namespace, bridge: int, router: Namespace, name: str) -> int:
    """A wire from the router to a bridge, up at both ends; returns the number of the router's end."""
    peer = {"ifname": name, "net_ns_fd": router.descriptor}
    switch.call(switch.netlink.link, "add", ifname=f"r-{name}", kind="veth", peer=peer)
    switch.call(switch.netlink.link, "set", index=switch.index_of(f"r-{name}"), master=bridge, state="up")
    index = router.index_of(name)
    router.call(router.netlink.link, "set", index=index, state="up")
    return index


def _router_address(rail: int) -> str:
    return f"10.200.{rail}.{ROUTER_OCTET}"


def _leaf_address(host: int) -> str:
    return f"10.201.{WAYS_MAX}.{host + 1}"


def _wire_address(way: int, host: int, end: int) -> str:
    return f"10.201.{way}.{4 * host + end}"


def _write(path: str, value: int) -> None:
    Path(path).write_text(str(value))
