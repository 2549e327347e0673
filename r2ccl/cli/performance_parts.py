"""The parts of ``r2ccl performance``: who plays what, how long, and how the sides on loopback are started."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from r2ccl.cli.bench_sockets import LOOPBACK, Mode, SocketOptions
from r2ccl.cli.bench_teams import OPENMPI_OVER_TCP, Program, peer_programs
from r2ccl.cli.launcher import new_job
from r2ccl.cli.performance_contest import Course, SideStart
from r2ccl.errors import UsageError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# The sides' names. On the page they have longer ones.
OURS: Final = "r2ccl"
THREAD: Final = "r2ccl-thread"
SHARED: Final = "r2ccl-shared"
SHARED_THREAD: Final = "r2ccl-shared-thread"
UNCHECKED: Final = "r2ccl-unchecked"
DOUBLED: Final = "r2ccl-doubled"
GLOO: Final = "gloo"
OPENMPI: Final = "openmpi"
EXCHANGE: Final = "exchange"
MEMCPY: Final = "memcpy"
STREAMS: Final = "streams"
MPTCP: Final = "mptcp"

TCP_2, TCP_4 = "tcp-2", "tcp-4"
MEMORY_2, MEMORY_4 = "memory-2", "memory-4"
SERVER, SMALL, LAB, PRICE = "server", "small", "lab", "price"
PARTS: Final = (TCP_2, TCP_4, MEMORY_2, MEMORY_4, SERVER, SMALL, LAB, PRICE)
#: Those between emulated hosts.
IN_A_LAB: Final = (LAB, PRICE)
HOSTS, NICS, RATE_MBIT_S = 2, 2, 2000.0
TICK_S: Final = 0.005
WINDOW: Final = 64

OPENMPI_BY_MEMORY: Final = MappingProxyType({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"})


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is played."""

    #: Of loopback and shared memory.
    sizes: tuple[int, ...]
    rounds: int
    seconds: float
    server_bytes: int
    server_iterations: int
    server_rounds: int
    #: Of 1 KiB each, of each side.
    small_operations: int
    lab_sizes: tuple[int, ...]
    lab_seconds: float
    price_sizes: tuple[int, ...]
    price_rounds: int
    price_seconds: float


WHOLE: Final = Scale(
    sizes=(4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB),
    rounds=5, seconds=0.3, server_bytes=GIB, server_iterations=2, server_rounds=5, small_operations=100_000,
    lab_sizes=(64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB), lab_seconds=0.6,
    price_sizes=(MIB, 4 * MIB, 16 * MIB), price_rounds=20, price_seconds=0.4,
)  # fmt: skip
QUICK: Final = Scale(
    sizes=(4, 64 * KIB, MIB, 16 * MIB), rounds=3, seconds=0.05, server_bytes=64 * MIB, server_iterations=3,
    server_rounds=2, small_operations=3 * 64 * 20, lab_sizes=(MIB, 16 * MIB), lab_seconds=0.25,
    price_sizes=(MIB,), price_rounds=8, price_seconds=0.15,
)  # fmt: skip


def course(key: str, scale: Scale) -> Course:
    """What the sides of a part play."""
    ranks = 4 if key in (TCP_4, MEMORY_4) else 2
    if key == SERVER:
        return Course(
            key, ranks, (scale.server_bytes,), scale.server_rounds, scale.server_iterations * scale.server_bytes / 1e9,
            iterations=scale.server_iterations, tick_s=TICK_S,
        )  # fmt: skip
    if key == SMALL:
        windows = max(1, round(scale.small_operations / WINDOW / scale.rounds))
        return Course(key, ranks, (KIB,), scale.rounds, windows * 0.01, iterations=windows, window=WINDOW)
    if key == LAB:
        return Course(key, HOSTS, scale.lab_sizes, scale.rounds, scale.lab_seconds)
    if key == PRICE:
        return Course(key, HOSTS, scale.price_sizes, scale.price_rounds, scale.price_seconds)
    return Course(key, ranks, scale.sizes, scale.rounds, scale.seconds)


@dataclass(frozen=True, slots=True)
class Pythons:
    """Interpreters of the peers."""

    torch: str
    mpi: str


def loopback_sides(key: str, ranks: int, pythons: Pythons, inherited: Mapping[str, str]) -> list[SideStart]:
    """Who plays a part on this machine."""
    tcp, memory = {"R2CCL_SHARED_MEMORY": "off"}, {"R2CCL_SHARED_MEMORY": "auto"}

    def ours(name: str, module: str, environment: Mapping[str, str], *arguments: str) -> SideStart:
        def programs(control: Path) -> list[Program]:
            job = new_job([sys.executable, "-m", module, str(control), *arguments], ranks, 1)
            return [
                Program(job.command, {**job.environment(inherited, rank), **environment}) for rank in range(job.ranks)
            ]

        return SideStart(name, programs, is_ours=True)

    loop, thread = "r2ccl.cli.bench_rank", "r2ccl.cli.bench_blocking"
    gloo = SideStart(GLOO, lambda control: peer_programs(GLOO, pythons.torch, ranks, control, inherited))
    match key:
        case "tcp-2" | "tcp-4":
            return [
                ours(OURS, loop, tcp), ours(THREAD, thread, tcp), gloo,
                openmpi(ranks, pythons.mpi, OPENMPI_OVER_TCP, inherited), floor("exchange", ranks, inherited),
            ]  # fmt: skip
        case "memory-2" | "memory-4":
            return [
                ours(SHARED, loop, memory), ours(SHARED_THREAD, thread, memory), gloo,
                openmpi(ranks, pythons.mpi, OPENMPI_BY_MEMORY, inherited), floor("memcpy", ranks, inherited),
            ]  # fmt: skip
        case "server":
            # A loop of the application's own in both; with the thread, the actors are not on it.
            return [
                ours(OURS, loop, tcp), ours(THREAD, loop, tcp, "thread"),
                ours(SHARED, loop, memory), ours(SHARED_THREAD, loop, memory, "thread"),
                floor("exchange", ranks, inherited),
            ]  # fmt: skip
        case "small":
            return [
                ours(OURS, loop, tcp), ours(THREAD, thread, tcp), ours(SHARED, loop, memory), gloo,
                openmpi(ranks, pythons.mpi, OPENMPI_OVER_TCP, inherited),
            ]  # fmt: skip
        case _:
            raise UsageError(f"{key} is not played on loopback")


def openmpi(ranks: int, python: str, ways: Mapping[str, str], inherited: Mapping[str, str]) -> SideStart:
    """Open MPI, told which way to go."""

    def programs(control: Path) -> list[Program]:
        found = peer_programs(OPENMPI, python, ranks, control, inherited)
        without = {name: value for name, value in found[0].environment.items() if name not in OPENMPI_OVER_TCP}
        return [Program(found[0].command, {**without, **ways})]

    return SideStart(OPENMPI, programs)


def floor(mode: Mode, ranks: int, inherited: Mapping[str, str]) -> SideStart:
    """A loop that only moves the bytes."""
    addresses = ((LOOPBACK,),) * ranks

    def programs(control: Path) -> list[Program]:
        every = [SocketOptions(str(control), rank, ranks, mode, addresses) for rank in range(ranks)]
        return [Program(socket_command(options), inherited) for options in every]

    return SideStart(mode, programs, is_checked=False)


def socket_command(options: SocketOptions) -> tuple[str, ...]:
    """One rank of it."""
    return (sys.executable, "-m", "r2ccl.cli.bench_sockets", options.as_argument())


def split_keys(named: Sequence[str]) -> tuple[str, ...]:
    """The parts that are named, with commas between; all, if none is. Raises :class:`UsageError`."""
    keys = [key.strip() for some in named for key in some.split(",") if key.strip()]
    for key in keys:
        if key not in PARTS:
            raise UsageError(f"there is no part {key}; there are {', '.join(PARTS)}")
    return tuple(key for key in PARTS if key in keys or not keys)
