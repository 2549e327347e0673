"""The emulated hosts of ``r2ccl faults``, and what is started on them: ranks of r2ccl, plain streams, gloo."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from r2ccl.cli import bench_peer_start
from r2ccl.cli.demo_ranks import RankProgram, Ranks
from r2ccl.cli.demo_stage import Process, pipes, rank_program
from r2ccl.cli.demo_worker_options import Options
from r2ccl.cli.faults_gloo import GlooOptions
from r2ccl.cli.faults_streams import StreamOptions
from r2ccl.clock import MonotonicClock
from r2ccl.errors import UsageError

if TYPE_CHECKING:
    from r2ccl.lab import Lab

#: Where the same ranks live through many faults, a returned link carries again soon. No fault is found by these.
QUICK_RETURN: Final = MappingProxyType({"R2CCL_QUIET": "0.1", "R2CCL_STABLE": "0.5"})
GLOO_PORT: Final = 29700


@dataclass(slots=True)
class Hosts:
    """A lab on which ranks are started, with the settings that they get besides."""

    lab: Lab
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: Ranks | None = None

    def start(self, rank: int, argv: Sequence[str], descriptors: Sequence[int]) -> Process:
        """See :class:`~r2ccl.cli.demo_stage.Starter`."""
        environ = {**self.lab.environment(rank), **self.environment}
        return self.lab.popen(rank, argv, environ, **pipes(descriptors))

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a rank a signal; returns when."""
        assert self.ranks is not None
        now = MonotonicClock.now()
        if number is signal.SIGKILL:
            for one in self.ranks.all:
                one.may_end = True
        self.ranks.all[rank].process.send_signal(number)
        return now


def r2ccl_program(seed: int, elements: int, *, sizes_vary: bool = False) -> RankProgram:
    """The demo's worker on real NICs."""

    def program(rank: int, report_descriptor: int) -> list[str]:
        options = Options(report_descriptor, seed, elements, 0.0, "link-down", sizes_vary)
        return rank_program("r2ccl.cli.demo_worker", options.as_argument())

    return program


def stream_program(lab: Lab, *, multipath: bool) -> RankProgram:
    """A ring of plain streams."""

    def program(rank: int, report_descriptor: int) -> list[str]:
        following = (rank + 1) % lab.hosts
        rails = tuple((lab.address(rank, nic), lab.address(following, nic)) for nic in range(lab.nics))
        options = StreamOptions(report_descriptor, rails, multipath)
        return rank_program("r2ccl.cli.faults_streams", options.as_argument())

    return program


def gloo_program(lab: Lab, python: str, elements: int, timeout_s: float) -> RankProgram:
    """A stream of gloo's all-reduces."""

    def program(rank: int, report_descriptor: int) -> list[str]:
        meeting_point = f"tcp://{lab.address(0, 0)}:{GLOO_PORT}"
        options = GlooOptions(report_descriptor, rank, lab.hosts, meeting_point, elements, timeout_s)
        return [python, str(Path(bench_peer_start.__file__)), "gloo", options.as_argument(), "faults"]

    return program


def gloo_environment(lab: Lab) -> dict[str, str]:
    """All NICs are named to it."""
    names = ",".join(f"nic{nic}" for nic in range(lab.nics))
    return {"GLOO_SOCKET_IFNAME": names, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def add_mptcp_endpoints(lab: Lab) -> None:
    """Tell each host's kernel to use all NICs for a connection, and to say so to others. Raises :class:`UsageError`."""
    for host in range(lab.hosts):
        limits = ["ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8"]
        _run(lab, host, limits)
        for nic in range(lab.nics):
            endpoint = ["ip", "mptcp", "endpoint", "add", lab.address(host, nic), "dev", f"nic{nic}"]
            _run(lab, host, [*endpoint, "subflow", "signal"])


def _run(lab: Lab, host: int, command: list[str]) -> None:
    try:
        done = lab.call(host, lambda: subprocess.run(command, capture_output=True, check=False))
    except FileNotFoundError as missing:
        raise UsageError(f"there is no {command[0]}: apt-get install iproute2") from missing
    if done.returncode != 0:
        raise UsageError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
