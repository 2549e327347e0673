"""The parts of ``r2ccl performance`` between emulated hosts: beside peers on the same wires, and what resilience costs.

The lab is one of ``r2ccl lab``, whose hosts have names and /etc/hosts of their own, which Open MPI needs: it takes two
hosts of one name for one, and its daemons find one another by name. It is made for this run and taken down after it.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from r2ccl.cli import bench_peer_start
from r2ccl.cli.bench_sockets import Mode, SocketOptions
from r2ccl.cli.bench_teams import Program, mpirun
from r2ccl.cli.bench_turns import PeerOptions
from r2ccl.cli.performance_contest import SideStart
from r2ccl.cli.performance_parts import (
    DOUBLED,
    GLOO,
    HOSTS,
    LAB,
    NICS,
    OPENMPI,
    OURS,
    RATE_MBIT_S,
    UNCHECKED,
    Pythons,
    socket_command,
)

if TYPE_CHECKING:
    from r2ccl.cli.lab_run import LabJob

_LOOP: Final = "r2ccl.cli.bench_rank"
_DOUBLED: Final = "r2ccl.cli.bench_doubled"


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks are started: a lab that is up."""

    job: LabJob
    inherited: Mapping[str, str]

    @property
    def addresses(self) -> tuple[tuple[str, ...], ...]:
        """Of each host's NICs."""
        return tuple(tuple(nic.address for nic in host.nics) for host in self.job.entrance.report.hosts)

    @property
    def interfaces(self) -> str:
        """All of a host, with commas between."""
        return ",".join(nic.name for nic in self.job.entrance.report.hosts[0].nics)

    def on_host(self, host: int, command: Sequence[str]) -> tuple[str, ...]:
        """The command, there."""
        from r2ccl.cli.lab_run import way_in

        return way_in(self.job.entrance.report.hosts[host], command)

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank finds."""
        return self.job.environment(self.inherited, rank)


@contextlib.contextmanager
def lab(inherited: Mapping[str, str]) -> Iterator[Place]:
    """One, up. Raises :class:`UsageError` where none can be made."""
    from r2ccl.cli import lab_up
    from r2ccl.cli.lab_run import entered, new_lab_job
    from r2ccl.lab import registry

    name = f"performance-{secrets.token_hex(3)}"
    lab_up.bring_up(name, HOSTS, NICS, RATE_MBIT_S, router=False, ways=0)
    try:
        with registry.Line(name) as line, entered(line, "r2ccl performance") as entrance:
            place = Place(new_lab_job(["true"], 1, entrance, name), inherited)
            add_mptcp_endpoints(place)
            yield place
    finally:
        registry.take_down(name)


def add_mptcp_endpoints(place: Place) -> None:
    """Tell each host's kernel to use all NICs for a connection; where it has no MPTCP, its side says so."""
    for host, report in enumerate(place.job.entrance.report.hosts):
        limits = ["ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8"]
        endpoints = [
            ["ip", "mptcp", "endpoint", "add", nic.address, "dev", nic.name, "subflow", "signal"] for nic in report.nics
        ]
        for command in (limits, *endpoints):
            subprocess.run(place.on_host(host, command), stderr=subprocess.DEVNULL, check=False)


def sides(key: str, place: Place, pythons: Pythons) -> list[SideStart]:
    """Who plays a part there."""
    if key == LAB:
        return [
            ours(place, OURS, _LOOP), sockets(place, "streams"), sockets(place, "mptcp"), gloo(place, pythons.torch),
            openmpi(place, pythons.mpi),
        ]  # fmt: skip
    return [
        ours(place, OURS, _LOOP), ours(place, UNCHECKED, _LOOP, {"R2CCL_CHECKSUM": "off"}),
        ours(place, DOUBLED, _DOUBLED),
    ]  # fmt: skip


def ours(place: Place, name: str, module: str, settings: Mapping[str, str] | None = None) -> SideStart:
    """r2ccl, one rank on each host. Jobs that run side by side have ports and secrets of their own."""
    from r2ccl.cli.lab_run import new_lab_job

    def programs(control: Path) -> list[Program]:
        command = (sys.executable, "-m", module, str(control))
        job = replace(new_lab_job(command, 1, place.job.entrance, place.job.lab), command=command)
        own = replace(place, job=job)
        port = {"MASTER_PORT": str(_port(place, name))}
        return [
            Program(own.on_host(rank, command), {**own.environment(rank), **port, **(settings or {})})
            for rank in range(job.ranks)
        ]

    return SideStart(name, programs, is_ours=True)


def _port(place: Place, name: str) -> int:
    """Nobody else is in the lab, so one after the other."""
    return place.job.entrance.port + 1 + (OURS, UNCHECKED, DOUBLED).index(name)


def sockets(place: Place, mode: Mode) -> SideStart:
    """Plain streams, or MPTCP."""
    addresses = place.addresses

    def programs(control: Path) -> list[Program]:
        every = [SocketOptions(str(control), rank, len(addresses), mode, addresses) for rank in range(len(addresses))]
        return [
            Program(place.on_host(options.rank, socket_command(options)), place.environment(options.rank))
            for options in every
        ]

    return SideStart(mode, programs, is_checked=False)


def gloo(place: Place, python: str) -> SideStart:
    """All NICs are named to it."""

    def programs(control: Path) -> list[Program]:
        named = {"GLOO_SOCKET_IFNAME": place.interfaces, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        start = (python, str(Path(bench_peer_start.__file__)), GLOO)
        return [
            Program(
                place.on_host(rank, (*start, PeerOptions(str(control), rank, HOSTS).as_argument())),
                {**place.environment(rank), **named},
            )
            for rank in range(HOSTS)
        ]

    return SideStart(GLOO, programs)


def openmpi(place: Place, python: str) -> SideStart:
    """mpirun on the first host, which enters the others as ``r2ccl lab ssh`` does."""

    def programs(control: Path) -> list[Program]:
        agent = control.with_name("agent")
        agent.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m r2ccl.cli.main lab ssh "$@"\n')
        agent.chmod(0o700)
        hosts = ",".join(host.name for host in place.job.entrance.report.hosts)
        start = (python, str(Path(bench_peer_start.__file__)), OPENMPI)
        command = (
            *mpirun(python), "--prtemca", "plm_ssh_agent", str(agent), "--host", hosts, "-n", str(HOSTS),
            "--map-by", "node", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp",
            "--mca", "btl_tcp_if_include", place.interfaces, "-x", "PYTHONDONTWRITEBYTECODE=1",
            *start, PeerOptions(str(control), None, HOSTS).as_argument(),
        )  # fmt: skip
        return [Program(place.on_host(0, command), place.environment(0))]

    return SideStart(OPENMPI, programs)


def why_not() -> str:
    """Why there can be no lab here; empty if there can."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    from r2ccl.lab import can_create_namespaces

    return can_create_namespaces()[1]
