"""The ways in which a container's NIC is cut and given back, each with what its kernel says of it.

What is cut is looked up anew each time, by address: a NIC that was taken out of a network and put back is another
interface, with another name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.compose import engine
from tests.compose.engine import run

TABLE: Final = "r2ccl_cut"
#: In the container, where there is no `ip`: r2ccl brings pyroute2. Only root may, who gets NET_ADMIN by privilege.yaml.
SET_LINK: Final = """
import sys
from pyroute2 import IPRoute
with IPRoute() as ip:
    [index] = ip.link_lookup(ifname=sys.argv[1])
    ip.link("set", index=index, state=sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of a container as its kernel knows it now."""

    name: str
    #: Index, in the engine's namespace, of the other end of the cable.
    other_end: int


@dataclass(frozen=True, slots=True)
class Target:
    """A rank's NIC that is to be cut."""

    rank: int
    nic: int
    pid: int
    interface: Interface

    @property
    def container(self) -> str:
        return engine.container(self.rank)

    def within(self, *command: str, stdin: str = "") -> str:
        """Run one of this machine's commands in the container's network namespace."""
        return run("nsenter", "-t", str(self.pid), "-n", *command, stdin=stdin)


@dataclass(frozen=True, slots=True)
class Way:
    """One way of cutting a NIC, and of giving it back."""

    name: str
    cut: Callable[[Target], object]
    restore: Callable[[Target], object]


def interface_at(addresses: list[dict[str, Any]], wanted: str) -> Interface:
    """The interface with that address, out of what `ip -json address` says."""
    for link in addresses:
        if any(entry.get("local") == wanted for entry in link.get("addr_info", ())):
            return Interface(link["ifname"], link["link_index"])
    raise LookupError(f"no interface has {wanted}; there are {[link['ifname'] for link in addresses]}")


def name_of(links: list[dict[str, Any]], index: int) -> str:
    """The name of the link of that index, out of what `ip -json link` says."""
    return next(str(link["ifname"]) for link in links if link["ifindex"] == index)


def find(rank: int, nic: int) -> Target:
    """A rank's NIC as it is now."""
    pid = int(run("docker", "inspect", "--format", "{{.State.Pid}}", engine.container(rank)))
    addresses = json.loads(run("nsenter", "-t", str(pid), "-n", "ip", "-json", "address"))
    return Target(rank, nic, pid, interface_at(addresses, engine.address(rank, nic)))


def _inside(state: str) -> Callable[[Target], object]:
    return lambda target: run(
        "docker", "exec", "--user", "root", target.container,
        "python3", "-c", SET_LINK, target.interface.name, state,
    )  # fmt: skip


def _outside(state: str) -> Callable[[Target], object]:
    return lambda target: target.within("ip", "link", "set", target.interface.name, state)


def _cable(state: str) -> Callable[[Target], object]:
    def take(target: Target) -> None:
        links = json.loads(run("ip", "-json", "link"))
        run("ip", "link", "set", name_of(links, target.interface.other_end), state)

    return take


def _drop(target: Target) -> None:
    name = target.interface.name
    rules = f"""
        table inet {TABLE} {{
            chain in {{ type filter hook input priority 0; iifname {name} drop; }}
            chain out {{ type filter hook output priority 0; oifname {name} drop; }}
        }}
    """
    target.within("nft", "-f", "-", stdin=rules)


def _undrop(target: Target) -> None:
    target.within("nft", "delete", "table", "inet", TABLE)


def _disconnect(target: Target) -> None:
    run("docker", "network", "disconnect", engine.NETWORKS[target.nic], target.container)


def _connect(target: Target) -> None:
    address = engine.address(target.rank, target.nic)
    run("docker", "network", "connect", "--ip", address, engine.NETWORKS[target.nic], target.container)


WAYS: Final = (
    Way("link down, from inside", _inside("down"), _inside("up")),
    Way("link down, from outside", _outside("down"), _outside("up")),
    Way("cable out", _cable("down"), _cable("up")),
    Way("silent drop", _drop, _undrop),
    Way("network disconnect", _disconnect, _connect),
)
