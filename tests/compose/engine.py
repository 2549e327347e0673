"""The Docker engine as the compose test needs it: what must be there, and how the cluster is started and taken away.

Everything goes through the ordinary commands, each in a session of its own: Ctrl-C is for the test alone, which then
cleans up, and not for a `compose down` that is doing so.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
#: Begins the names of containers and networks; not the one that a user's own `docker compose up` has.
CLUSTER: Final = "r2ccl-test"
NETWORKS: Final = (f"{CLUSTER}-a", f"{CLUSTER}-b")
#: Three numbers of the addresses of each network; a rank's fourth is 10 more than its number.
NETS: Final = ("10.213.101", "10.213.102")
RANKS: Final = 4
COMMAND_TIMEOUT_S: Final = 60.0
#: Where the base image is to be fetched and every layer to be built.
BUILD_TIMEOUT_S: Final = 600.0
APT_LINE: Final = "apt-get install --no-install-recommends docker.io docker-compose iproute2 nftables util-linux"


class Missing(Exception):
    """This machine lacks something; the text says what, and how to get it."""


class CommandFailed(Exception):
    """A command ended with an error, or not at all."""


def run(
    *command: str, timeout_s: float = COMMAND_TIMEOUT_S, stdin: str = "", environ: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end and return what it printed. Raises :class:`CommandFailed`."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False, env=environ,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(f"{' '.join(command)}: not done after {timeout_s:g} s") from late
    if done.returncode:
        raise CommandFailed(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def address(rank: int, nic: int) -> str:
    """Where compose.yaml puts a rank's NIC."""
    return f"{NETS[nic]}.{10 + rank}"


def container(rank: int) -> str:
    """A rank's container."""
    return f"{CLUSTER}-rank{rank}"


def look_round() -> tuple[str, ...]:
    """The compose command of this machine. Raises :class:`Missing` with all that is."""
    if not sys.platform.startswith("linux"):
        raise Missing("the test cuts NICs in the kernel of the machine that the containers run on: it needs Linux")
    if os.geteuid() != 0:
        raise Missing("it enters the containers' network namespaces and takes their cables: run it as root")
    tools = [tool for tool in ("docker", "ip", "nft", "nsenter") if shutil.which(tool) is None]
    compose = None if "docker" in tools else _compose()
    if compose is None:
        tools.append("docker compose")
    if tools or compose is None:
        raise Missing(f"not found: {', '.join(tools)}. On Debian or Ubuntu:\n    {APT_LINE}")
    try:
        run("docker", "version", "--format", "{{.Server.Version}}")
    except CommandFailed as silent:
        raise Missing(
            "the Docker engine does not answer. Start it: systemctl start docker\nor, where nothing manages services:\n"
            f"    scripts/ci/docker_start.sh        and afterwards    scripts/ci/docker_stop.sh\n{silent}"
        ) from silent
    return compose


def _compose() -> tuple[str, ...] | None:
    try:
        run("docker", "compose", "version")
    except CommandFailed:
        return ("docker-compose",) if shutil.which("docker-compose") else None
    return ("docker", "compose")


@contextmanager
def alone() -> Iterator[None]:
    """Only one test at a time on a machine, for each has the same names; a name without a file needs no clearing up."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0{CLUSTER}")
        except OSError as taken:
            raise Missing("another one is running on this machine") from taken
        yield


@dataclass(frozen=True, slots=True)
class Cluster:
    """compose.yaml's four ranks, under names and addresses of the test's own."""

    compose: Sequence[str]

    def build(self) -> None:
        """Build the image."""
        try:
            self._compose("build", timeout_s=BUILD_TIMEOUT_S)
        except CommandFailed as failed:
            hint = (
                "If the base image could not be fetched: scripts/ci/docker_base_image.sh r2ccl-base\n"
                "makes one out of Debian's packages, and BASE_IMAGE=r2ccl-base uses it."
            )
            raise CommandFailed(f"{failed}\n{hint}") from failed

    def up(self) -> None:
        """Start the ranks."""
        self._compose("up", "--detach", "--no-build")

    def down(self) -> None:
        """Take away containers, networks and the volume, also those of a test that was killed."""
        self._compose("down", "--volumes", "--remove-orphans", "--timeout", "2")

    def _compose(self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("R2CCL_", "COMPOSE_"))}
        mine |= {"CLUSTER": CLUSTER, "NET_A": NETS[0], "NET_B": NETS[1], "STREAM_OPTIONS": "--json"}
        files = ("-f", str(ROOT / "compose.yaml"), "-f", str(ROOT / "tests" / "compose" / "privilege.yaml"))
        run(*self.compose, "-p", CLUSTER, *files, *command, timeout_s=timeout_s, environ=mine)
