"""The lab: emulated hosts, each a network namespace with its NICs, wired by a switch that is one more namespace.

    with Lab(hosts=4, nics=2, rate_mbit_s=500) as lab:
        ranks = [lab.popen(host, [sys.executable, "train.py"]) for host in range(4)]
        lab.link_down(host=2, nic=1)

Everything happens in namespaces of the lab's own, nothing in the machine's. Several labs may run at once, in one
process or in many. Leaving the ``with`` ends the programs; so does the death of the lab's process, however it dies.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from pyroute2.netlink.exceptions import NetlinkError

from r2ccl import config
from r2ccl.errors import R2cclError, UsageError
from r2ccl.lab import enter, faults, rails, routers
from r2ccl.lab.leftovers import MARK_VARIABLE, Mark, kill_marked, sweep
from r2ccl.lab.namespaces import Namespace
from r2ccl.lab.rails import Link, Port

P = ParamSpec("P")
T = TypeVar("T")

#: Any port will do: nobody else is in the namespace.
MASTER_PORT = 29500


class LabUnavailable(R2cclError):
    """This machine or user may not make emulated hosts; the message says what was refused. Nothing was left."""

    definite = True


class Lab:
    """Emulated hosts 0..hosts-1 with NICs 0..nics-1 each, one host per rank.

    ``router``: one joins the rails, which else are networks of their own. ``ways``: between any two hosts, which have
    one NIC each, lie so many equal ways, over which their connections are spread. See routers.py.
    """

    def __init__(
        self,
        hosts: int = 4,
        nics: int = 2,
        rate_mbit_s: float = 500,
        name: str | None = None,
        *,
        router: bool = False,
        ways: int = 0,
    ) -> None:
        if ways and (nics != 1 or router or not 1 <= ways <= routers.WAYS_MAX or hosts > routers.LEAVES_MAX):
            limits = f"1 to {routers.WAYS_MAX} ways lie between up to {routers.LEAVES_MAX} hosts"
            raise UsageError(f"{limits} with one NIC each, and no router besides")
        if not 1 <= hosts <= rails.HOSTS_MAX or not 1 <= nics <= rails.RAILS_MAX:
            raise UsageError(f"a lab has 1 to {rails.HOSTS_MAX} hosts and NICs, not {hosts} and {nics}")
        self.hosts = hosts
        self.nics = nics
        self.rate_mbit_s = rate_mbit_s
        self.router = router
        self.ways = ways
        self.mark = Mark.new()
        self.name = name or f"lab-{self.mark}"
        self._secret = secrets.token_hex(16)
        self._switch: Namespace | None = None
        self._hosts: list[Namespace] = []
        #: The one that joins the rails, or one for each way; and one for each host that has ways.
        self._routers: list[Namespace] = []
        self._leaves: list[Namespace] = []
        self._ports: dict[tuple[int, int], Port] = {}
        #: Of each NIC, the burst that it was shaped with last.
        self._bursts: dict[tuple[int, int], int] = {}
        self._children: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"Lab({self.name!r}, hosts={self.hosts}, nics={self.nics}, rate_mbit_s={self.rate_mbit_s:g})"

    def __enter__(self) -> Lab:
        sweep()
        try:
            self._build()
        except (OSError, NetlinkError) as refused:
            self.close()
            raise LabUnavailable(f"cannot make emulated hosts: {refused.args[-1]}") from refused
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self) -> None:
        self._switch = switch = Namespace(f"{self.name}-switch")
        names = [f"segment{h}" for h in range(self.hosts)] if self.ways else [f"rail{r}" for r in range(self.nics)]
        bridges = [rails.add_bridge(switch, name) for name in names]
        for host in range(self.hosts):
            namespace = Namespace(f"{self.name}-host{host}")
            self._hosts.append(namespace)
            rails.prepare_host(namespace)
            for nic in range(self.nics):
                bridge = bridges[host if self.ways else nic]
                self._ports[host, nic] = port = rails.add_port(switch, bridge, namespace, host, nic)
                self._bursts[host, nic] = rails.shape(switch, port, self.rate_mbit_s)
        if self.router:
            self._routers.append(Namespace(f"{self.name}-router"))
            routers.join_rails(switch, bridges, self._routers[0])
            for (host, nic), port in self._ports.items():
                routers.route_by_source(port, host, nic)
        elif self.ways:
            self._build_ways(switch, bridges)

    def _build_ways(self, switch: Namespace, segments: list[int]) -> None:
        for host, segment in enumerate(segments):
            self._leaves.append(Namespace(f"{self.name}-leaf{host}"))
            routers.add_leaf(switch, segment, self._ports[host, 0], host, self._leaves[host])
        for way in range(self.ways):
            self._routers.append(Namespace(f"{self.name}-way{way}"))
            routers.add_way(self._leaves, self._routers[way], way)
        for host, leaf in enumerate(self._leaves):
            routers.spread_over_ways(leaf, host, self.hosts, self.ways)

    def close(self) -> None:
        """End every program of the lab and let go of its namespaces. May be called twice."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        if self._children:
            kill_marked(self.mark)  # what the programs forked
        self._children.clear()
        for namespace in (*self._hosts, *self._leaves, *self._routers, *([self._switch] if self._switch else [])):
            namespace.close()
        self._hosts.clear()
        self._leaves.clear()
        self._routers.clear()
        self._ports.clear()
        self._switch = None

    # -- running ---------------------------------------------------------------------------------------------------

    def environment(self, rank: int, spare_nics: int = 0) -> dict[str, str]:
        """What a rank on host ``rank`` needs to know. The last ``spare_nics`` NICs of each host stand by."""
        names = [rails.interface(nic) for nic in range(self.nics)]
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.hosts),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": self.address(0, 0),
            "MASTER_PORT": str(MASTER_PORT),
            "R2CCL_NICS": ",".join(names),
            "R2CCL_SPARE_NICS": ",".join(names[self.nics - spare_nics :]),
            "R2CCL_SECRET": self._secret,
            # A veth says 10 Gbit/s, whatever is shaped.
            "R2CCL_NIC_SPEED": str(round(self.rate_mbit_s)),
        }

    def popen(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a program on a host. ``env`` comes on top of this process's environment and :meth:`environment`;
        ``options`` are ``subprocess.Popen``'s."""
        environ = {**config.environment(), **self.environment(host), **(env or {}), MARK_VARIABLE: str(self.mark)}
        through = [sys.executable, "-I", str(Path(enter.__file__)), str(os.getpid()), "--", *argv]

        def start() -> subprocess.Popen[Any]:
            return subprocess.Popen(through, env=environ, **options)

        child = self.call(host, start)
        self._children.append(child)
        return child

    def call(self, host: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of this process on a host: sockets that it opens belong to that host for good."""
        return self._hosts[host].call(function, *args, **kwargs)

    def call_switch(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As :meth:`call`, where the other ends of all wires are."""
        return self._the_switch.call(function, *args, **kwargs)

    def address(self, host: int, nic: int) -> str:
        """The address of a NIC."""
        return rails.address(host, nic)

    def has_carrier(self, host: int, nic: int) -> bool:
        """Whether the host sees a carrier on its NIC."""
        return self.link(host, nic).carrier

    def link(self, host: int, nic: int) -> Link:
        """The NIC as its host sees it."""
        namespace, port = self._hosts[host], self._ports[host, nic]
        (link,) = namespace.call(namespace.netlink.get_links, port.host_index)
        return Link(bool(link.get("carrier")), str(link.get("operstate")).lower())

    # -- faults ----------------------------------------------------------------------------------------------------
    # Each returns when it was done, on the monotonic clock, which all processes of a machine share.

    def link_down(self, host: int, nic: int) -> float:
        """The NIC loses its carrier, by the far end's doing."""
        return faults.link_down(self._the_switch, self._ports[host, nic])

    def link_up(self, host: int, nic: int) -> float:
        """Undo :meth:`link_down`."""
        return faults.link_up(self._the_switch, self._ports[host, nic])

    def silent_drop(self, host: int, nic: int) -> float:
        """Everything that the NIC sends or should receive vanishes; its carrier stays."""
        return faults.silent_drop(self._the_switch, self._ports[host, nic])

    def undrop(self, host: int, nic: int) -> float:
        """Undo :meth:`silent_drop`."""
        return faults.undrop(self._the_switch, self._ports[host, nic])

    def silent_way(self, way: int) -> float:
        """One of the ways between hosts silently drops everything; hosts see nothing of it."""
        return routers.set_forwarding(self._routers[way], on=False)

    def restore_way(self, way: int) -> float:
        """Undo :meth:`silent_way`."""
        return routers.set_forwarding(self._routers[way], on=True)

    def forwarded_bytes(self) -> list[int]:
        """What each router has forwarded."""
        return [routers.forwarded_bytes(router) for router in self._routers]

    def part(self, hosts: Sequence[int]) -> float:
        """These hosts and all others reach one another no more, on any rail; among themselves they do. Carriers stay,
        and nobody is told. Once for each lab."""
        bridges = [rails.add_bridge(self._the_switch, f"rail{nic}part") for nic in range(self.nics)]
        return max(
            faults.rewire(self._the_switch, self._ports[host, nic], bridges[nic])
            for host in hosts
            for nic in range(self.nics)
        )

    def near_end_down(self, host: int, nic: int) -> float:
        """The host's own end of the NIC goes down."""
        return faults.near_end_down(self._ports[host, nic])

    def near_end_up(self, host: int, nic: int) -> float:
        """Undo :meth:`near_end_down`, and lay again the routes that the kernel dropped with the interface."""
        raised_s = faults.near_end_up(self._ports[host, nic])
        if self.router:
            routers.lay_routes_of_source(self._ports[host, nic], nic)
        elif self.ways:
            routers.lay_routes_by_leaf(self._ports[host, nic], host)
        return raised_s

    def deafen(self, host: int, nic: int) -> float:
        """Everything that the NIC should receive vanishes; what it sends arrives."""
        return faults.deafen(self._the_switch, self._ports[host, nic])

    def hear(self, host: int, nic: int) -> float:
        """Undo :meth:`deafen`."""
        return faults.hear(self._the_switch, self._ports[host, nic], self.rate_mbit_s, self._bursts[host, nic])

    def lose(self, host: int, nic: int, share: float) -> float:
        """A share of the packets vanishes, in both directions. Needs nftables."""
        ends = (rails.interface(nic), rails.far_end(host, nic))
        return faults.lose(self._the_switch, self._ports[host, nic], *ends, share)

    def unlose(self, host: int, nic: int) -> float:
        """Undo :meth:`lose`."""
        ends = (rails.interface(nic), rails.far_end(host, nic))
        return faults.unlose(self._the_switch, self._ports[host, nic], *ends)

    def take_address(self, host: int, nic: int) -> float:
        """The NIC loses its address."""
        return faults.take_address(self._ports[host, nic])

    def give_address(self, host: int, nic: int) -> float:
        """Undo :meth:`take_address`."""
        return faults.give_address(self._ports[host, nic], self.address(host, nic))

    def set_rate(self, host: int, nic: int, rate_mbit_s: float) -> None:
        """Change the rate of one NIC, in both directions."""
        before = self._bursts[host, nic]
        self._bursts[host, nic] = rails.shape(self._the_switch, self._ports[host, nic], rate_mbit_s, before)

    @property
    def _the_switch(self) -> Namespace:
        if self._switch is None:
            raise UsageError(f"{self.name} is not open")
        return self._switch


def can_create_namespaces() -> tuple[bool, str]:
    """Whether a lab can be made here, found out by making one, and if not, why not."""
    try:
        with Lab(hosts=1, nics=1, name="trial") as lab:
            child = lab.popen(0, ["true"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
            _, complaint = child.communicate()
    except LabUnavailable as refused:
        return False, str(refused)
    if child.returncode != 0:
        lines = complaint.decode(errors="replace").strip().splitlines()
        return False, f"cannot run a program on an emulated host: {lines[-1] if lines else child.returncode}"
    return True, ""
