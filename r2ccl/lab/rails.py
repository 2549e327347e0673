"""The wires: one bridge per rail in a namespace of its own, a veth pair from each host's NIC to it, rates by tbf.

    host 0: nic0 ====(veth)==== h0n0 \\
                                      rail0      the switch's namespace
    host 1: nic0 ====(veth)==== h1n0 /

A veth has no speed, so a token bucket sits at both ends: the host's end limits what the host sends, the switch's end
what it receives. NIC k of host h is 10.200.k.(h+1)/24. All labs use the same addresses: no namespace sees another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from r2ccl.lab.namespaces import Namespace

#: The token bucket's handle, 1:0.
TBF_HANDLE = 0x10000

#: A burst of this long at full rate goes out at once. At 500 Mbit/s that is 125 kB: one whole 64 KiB segment (GSO)
#: fits, else the kernel would cut each one up to squeeze it through.
BURST_S = 0.002
BURST_BYTES_MIN = 16 << 10
#: No packet is larger: 64 KiB (GSO), with the headers of all that it will be cut into, which count here.
PACKET_BYTES_MAX = 72 << 10

#: How long a packet may stand in the bucket's queue. Long enough that TCP fills the rate, short enough that a fault's
#: effect is not drowned in queueing.
QUEUE_S = 0.020

#: One address octet each for rail and host.
RAILS_MAX = HOSTS_MAX = 250


@dataclass(frozen=True, slots=True)
class Port:
    """Both ends of one NIC's wire, by interface number in their namespaces."""

    host: Namespace
    host_index: int
    switch_index: int
    bridge_index: int


@dataclass(frozen=True, slots=True)
class Link:
    """A NIC as its host sees it."""

    carrier: bool
    #: ``up``, ``down``, ``lowerlayerdown``: the kernel's word.
    state: str


def interface(nic: int) -> str:
    """A NIC's name within its host."""
    return f"nic{nic}"


def far_end(host: int, nic: int) -> str:
    """The name of the other end of the NIC's wire, at the switch."""
    return f"h{host}n{nic}"


def address(host: int, nic: int) -> str:
    """A NIC's address."""
    return f"10.200.{nic}.{host + 1}"


def prepare_host(host: Namespace) -> None:
    """Loopback up, and each NIC answers for its own addresses only, as on hosts with several NICs it should.

    By default Linux answers an ARP request for any of its addresses on any NIC, so that a packet for NIC 1 may well
    arrive by NIC 0's wire.
    """
    host.call(host.netlink.link, "set", index=host.index_of("lo"), state="up")
    host.call(_set_ipv4, arp_ignore=1, arp_announce=2)


def _set_ipv4(**values: int) -> None:
    for name, value in values.items():
        Path(f"/proc/sys/net/ipv4/conf/all/{name}").write_text(str(value))


def add_bridge(switch: Namespace, name: str) -> int:
    """A bridge, up; returns its interface number. No spanning tree, no snooping: a plain learning switch."""
    switch.call(switch.netlink.link, "add", ifname=name, kind="bridge", br_forward_delay=0, br_mcast_snooping=0)
    index = switch.index_of(name)
    switch.call(switch.netlink.link, "set", index=index, state="up")
    return index


def add_port(switch: Namespace, bridge_index: int, host: Namespace, host_number: int, nic: int) -> Port:
    """The wire from a host's NIC to its rail, addressed and up."""
    other, near_end = far_end(host_number, nic), interface(nic)
    peer = {"ifname": near_end, "net_ns_fd": host.descriptor}
    switch.call(switch.netlink.link, "add", ifname=other, kind="veth", peer=peer)
    port = Port(host, host.index_of(near_end), switch.index_of(other), bridge_index)
    switch.call(switch.netlink.link, "set", index=port.switch_index, master=bridge_index, state="up")
    host.call(host.netlink.addr, "add", index=port.host_index, address=address(host_number, nic), prefixlen=24)
    host.call(host.netlink.link, "set", index=port.host_index, state="up")
    return port


def shape(switch: Namespace, port: Port, rate_mbit_s: float, burst_before: int = 0) -> int:
    """Limit a NIC to the rate, each direction on its own. May be called again with another rate, and with the burst
    that the last call returned."""
    options = bucket(rate_mbit_s, burst_before)
    for namespace, index in ((switch, port.switch_index), (port.host, port.host_index)):
        namespace.call(namespace.netlink.tc, "replace", "tbf", index, handle=TBF_HANDLE, **options)
    return options["burst"]


def bucket(rate_mbit_s: float, burst_before: int = 0) -> dict[str, int]:
    """The token bucket of a rate, for a NIC that may have packets in its queue as large as its burst was before: one
    that is larger than the burst would stay there for good, and all others behind it."""
    bytes_per_s = rate_mbit_s * 1e6 / 8
    burst_bytes = max(BURST_BYTES_MIN, int(bytes_per_s * BURST_S), min(PACKET_BYTES_MAX, burst_before))
    return {"rate": int(bytes_per_s), "burst": burst_bytes, "limit": burst_bytes + int(bytes_per_s * QUEUE_S)}
