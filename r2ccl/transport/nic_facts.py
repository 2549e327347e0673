"""What the system tells of one interface beyond what choosing NICs needs: state, hardware, subnet, how it answers ARP.

Asked by socket and not in /sys, because /sys shows the network namespace that was current when it was mounted, which
need not be ours: driver and bus address by ethtool's ioctl, the rest by netlink and psutil. A bus address, though,
means the same everywhere, so its NUMA node is read in /sys. /proc/sys/net is the reader's own. Nothing here needs root,
and what a system does not tell is empty.
"""

from __future__ import annotations

import array
import logging
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from r2ccl.transport.link_events import link_events_available, read_links

# From linux/sockios.h and linux/ethtool.h.
_SIOCETHTOOL, _ETHTOOL_GDRVINFO = 0x8946, 3
#: struct ethtool_drvinfo: command, driver, version, firmware, bus address, and what is not asked for.
_DRIVER_INFO = struct.Struct("=I32s32s32s32s32s12s5I")
_IFREQ_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class NicFacts:
    """One interface."""

    name: str
    switched_on: bool = False
    has_carrier: bool = False
    speed_mbit_s: int = 0
    mtu_bytes: int = 0
    mac: str = ""
    #: IPv4 address and length of its prefix.
    networks: tuple[tuple[str, int], ...] = ()
    driver: str = ""
    bus_address: str = ""
    numa_node: int | None = None
    #: ARP requests are answered for the asked interface's own addresses only, and asked with such.
    answers_for_itself: bool = True

    @property
    def state(self) -> str:
        """For a person."""
        if not self.switched_on:
            return "down"
        return "up" if self.has_carrier else "no carrier"

    def prefix_length(self, address: str) -> int:
        """Of the subnet of one of its addresses; 0: not known."""
        return next((length for own, length in self.networks if own == address), 0)


def read_nic_facts(root: Path = Path("/")) -> dict[str, NicFacts]:
    """All interfaces of this process's network namespace, by name."""
    addresses, stats, carriers = psutil.net_if_addrs(), psutil.net_if_stats(), _carriers()
    facts = {}
    for name in sorted(stats):
        # A second address may carry a label of its own, such as eth0:1; the interface is eth0.
        entries = [entry for label, own in addresses.items() if label.partition(":")[0] == name for entry in own]
        state = stats[name]
        driver, bus_address = driver_and_bus_address(name)
        facts[name] = NicFacts(
            name=name,
            switched_on=state.isup,
            has_carrier=carriers.get(name, state.isup),
            speed_mbit_s=state.speed,
            mtu_bytes=state.mtu,
            mac=next((entry.address for entry in entries if entry.family == psutil.AF_LINK), ""),
            networks=tuple(
                (entry.address, prefix_length(entry.netmask)) for entry in entries if entry.family == socket.AF_INET
            ),
            driver=driver,
            bus_address=bus_address,
            numa_node=numa_node(bus_address, root),
            answers_for_itself=answers_for_itself(name, root),
        )
    return facts


def _carriers() -> dict[str, bool]:
    if not link_events_available():
        return {}
    try:
        return {link.interface_name: link.up for link in read_links()}
    except OSError as refused:
        logging.getLogger(__name__).info("no carriers: netlink says %s", refused)
        return {}


def prefix_length(netmask: str | None) -> int:
    """Of ``255.255.255.0`` 24; 0 where there is none."""
    if not netmask:
        return 0
    return int.from_bytes(socket.inet_aton(netmask), "big").bit_count()


def driver_and_bus_address(name: str) -> tuple[str, str]:
    """``("mlx5_core", "0000:3b:00.0")``; empty where there is no ethtool, or no bus."""
    if sys.platform != "linux" or len(name.encode()) >= _IFREQ_NAME_BYTES:
        return "", ""
    # Of Linux alone, so not imported where it is not.
    import fcntl

    answer = array.array("B", _DRIVER_INFO.pack(_ETHTOOL_GDRVINFO, *[b""] * 6, *[0] * 5))
    request = struct.pack("16sP", name.encode(), answer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            fcntl.ioctl(asker.fileno(), _SIOCETHTOOL, request)
        except OSError:
            # Loopback and some virtual interfaces have no driver to tell of.
            return "", ""
    fields = _DRIVER_INFO.unpack(answer.tobytes())
    driver, bus_address = (field.split(b"\0", 1)[0].decode(errors="replace") for field in (fields[1], fields[4]))
    return driver, bus_address if bus_address.lower() != "n/a" else ""


def numa_node(bus_address: str, root: Path = Path("/")) -> int | None:
    """The node that a PCI device is near; None where it does not matter or is not known."""
    if not bus_address:
        return None
    node = _number(root / "sys/bus/pci/devices" / bus_address / "numa_node")
    return node if node is not None and node >= 0 else None


def answers_for_itself(name: str, root: Path = Path("/")) -> bool:
    """Whether ARP keeps an interface's addresses to it. Linux answers for any of a host's on any, unless told."""
    ignore, announce = (
        max((_number(root / "proc/sys/net/ipv4/conf" / where / what) or 0) for where in ("all", name))
        for what in ("arp_ignore", "arp_announce")
    )
    return ignore >= 1 and announce >= 1


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
