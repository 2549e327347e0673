"""Who measures what in ``r2ccl tune``: the ranks of the job that it was started in, or two that it starts itself.

Every rank finds out by itself, from what all said of their nodes, which wires there are and who measures each:

    network        the first rank of each node, if there are several nodes
    shared_memory  the ranks of rank 0's node, if there are several and they share memory
    loopback       the same ranks without shared memory, if their NICs are loopback

Rank 0 is always among them, and its clock counts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import r2ccl
from r2ccl.bootstrap import Connecting
from r2ccl.cli.launcher import NOT_HANDED_DOWN, Job, new_job, tied_to_us
from r2ccl.cli.tune_measure import Measured, digest, measure_wire, reduction_s_per_byte, variants
from r2ccl.communicator import Communicator
from r2ccl.config import environment, read_settings
from r2ccl.errors import ConfigurationError
from r2ccl.rendezvous.launch import Placement, place
from r2ccl.rendezvous.launchers import launched_by
from r2ccl.tuning import OFF

#: Names of nodes are told in so many bytes.
NODE_BYTES: Final = 256
#: Ranks that were started here end by themselves.
END_TIMEOUT_S: Final = 10.0
_SAID_BY_LAUNCHERS: Final = ("RANK", "WORLD_SIZE")


class Watcher:
    """Whoever wants to know how far it is."""

    def begin(self, wire: str, ranks: int) -> None:
        """A wire's turns begin."""

    def turn(self) -> None:
        """One is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was found, on rank 0."""

    gamma_s_per_byte: float
    wires: Mapping[str, Measured]
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class View:
    """What all ranks know of one another: by rank its node, and whether its NICs are loopback and it shares memory."""

    nodes: tuple[str, ...]
    is_loopback: bool
    shares_memory: bool

    def members(self) -> dict[str, tuple[int, ...]]:
        """By wire who measures it."""
        leaders = tuple(sorted({node: self.nodes.index(node) for node in self.nodes}.values()))
        neighbours = tuple(rank for rank, node in enumerate(self.nodes) if node == self.nodes[0])
        found: dict[str, tuple[int, ...]] = {}
        if len(neighbours) > 1 and self.shares_memory:
            found["shared_memory"] = neighbours
        if len(neighbours) > 1 and self.is_loopback:
            found["loopback"] = neighbours
        if len(leaders) > 1:
            found["loopback" if self.is_loopback else "network"] = leaders
        return found


def own_placement(environ: Mapping[str, str]) -> Placement | None:
    """Who this process is in the job that it was started in; None: it is in none. Raises ``ConfigurationError``."""
    if not any(environ.get(name) for name in _SAID_BY_LAUNCHERS) and launched_by(environ) is None:
        return None
    placement = place(environ)
    if placement.size < 2:
        raise ConfigurationError("tune measures messages between ranks, and this job has one; start it with at least 2")
    return placement


@contextmanager
def started_ranks(ranks: int, turns: int, environ: Mapping[str, str]) -> Iterator[tuple[Placement, dict[str, Any]]]:
    """Other ranks of a job on this machine, of which this process is rank 0: its placement, and settings to connect
    with. They are ended however this ends."""
    program = [sys.executable, "-m", "r2ccl.cli.tune_rank", str(turns)]
    job = new_job(program, ranks, 1)
    kept = {name: value for name, value in environ.items() if name not in NOT_HANDED_DOWN}
    children = [
        subprocess.Popen(tied_to_us(job.command), env=job.environment(kept, rank), stdin=subprocess.DEVNULL)
        for rank in range(1, ranks)
    ]
    try:
        yield Placement(0, ranks, 0, "127.0.0.1", job.port, "tune"), settings_of(job)
        for child in children:
            child.wait(END_TIMEOUT_S)
    finally:
        for child in children:
            child.kill()
            child.wait()


def settings_of(job: Job) -> dict[str, Any]:
    """What rank 0 is told by arguments, and the others by their environment."""
    variables = job.variables(0)
    return {"job": job.name, "secret": job.secret, "nics": variables["R2CCL_NICS"], "spare_nics": ""}


async def measure(placement: Placement, settings: Mapping[str, Any], turns: int, watcher: Watcher) -> Outcome:
    """This rank's part. Raises what ``connect`` and the calls raise, and ``ValueError`` if times make no sense."""
    where = _Meetings(placement, settings)
    gamma_s_per_byte = reduction_s_per_byte(turns) if placement.rank == 0 else 0.0
    async with where.connect({}) as comm:
        view = await look(comm)
    found: dict[str, Measured] = {}
    for wire, members in view.members().items():
        async with AsyncExitStack() as stack:
            extra = {"shared_memory": "off"} if wire == "loopback" else {}
            worlds = {
                variant: await stack.enter_async_context(where.connect({**options, **extra}))
                for variant, options in variants().items()
            }
            # Who does not take part waits in close() for those who do.
            if placement.rank in members:
                groups = {variant: await comm.new_group(members) for variant, comm in worlds.items()}
                watcher.begin(wire, len(members))
                times = await measure_wire(groups, turns, watcher.turn)
                if placement.rank == 0:
                    found[wire] = digest(len(members), times, gamma_s_per_byte)
            await next(iter(worlds.values())).barrier()
    return Outcome(gamma_s_per_byte, found, placement.size, len(set(view.nodes)))


class _Meetings:
    """Where the communicators meet, one after the other: each at the next port, as a job of its own."""

    def __init__(self, placement: Placement, settings: Mapping[str, Any]) -> None:
        self._placement = placement
        self._settings = dict(settings)
        self._job = placement.job_name(self._settings.pop("job", "") or read_settings(environment()).settings.job)
        self._made = 0

    def connect(self, options: Mapping[str, Any]) -> Connecting:
        at = self._placement
        self._made += 1
        return r2ccl.connect(
            rank=at.rank,
            size=at.size,
            rendezvous=f"tcp://{at.host}:{at.port + self._made - 1}",
            job=f"{self._job}-tune-{self._made}",
            tuning=OFF,
            **self._settings,
            **options,
        )


async def look(comm: Communicator) -> View:
    """What all ranks are to know before they begin."""
    stats = comm.stats()
    is_loopback = all(nic["address"].startswith("127.") for nic in stats["nics"].values())
    shares_memory = any(name.startswith("memory") and link["state"] == "up" for name, link in stats["links"].items())
    said = np.zeros(NODE_BYTES + 2, np.uint8)
    node = comm.node.encode()[:NODE_BYTES]
    said[: len(node)] = np.frombuffer(node, np.uint8)
    said[-2:] = is_loopback, shares_memory
    every = await comm.all_gather(said)
    nodes = tuple(bytes(one[:NODE_BYTES]).rstrip(b"\0").decode(errors="replace") for one in every)
    return View(nodes, all(bool(one[-2]) for one in every), bool(every[0][-1]))
